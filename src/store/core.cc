// SPDX-License-Identifier: Apache-2.0
#include "store/core.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/files.h"
#include "store/large_object.h"
#include "store/small_object.h"

namespace vrun::store {
namespace {

constexpr size_t kMostStuck = 64;       // objects whose files cannot be removed, until eviction gives up
constexpr size_t kMaxResident = 20000;  // objects in memory, about 0.5 KB each
constexpr uint64_t kMinFreeInodes = 10'000;
constexpr uint64_t kInodesOfObject = 2;
constexpr uint64_t kFreeSpaceEvery = 16u << 20;  // bytes written between two checks of the free space

bool FitsSize(const ObjectId& id, uint64_t size) {
  if (size > uint64_t{1} << 46) return false;  // 64 TiB: keeps unit numbers far below 2^32
  switch (id.algorithm) {
    case IdAlgorithm::kProvisional: return true;
    case IdAlgorithm::kBlake3: return UnitCount(size) <= 1;
    case IdAlgorithm::kBlake3Units: return UnitCount(size) > 1;
  }
  return false;
}

Status MakeDirectory(const std::string& path) {
  struct stat st;
  if (::stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) return {};
  (void)::unlink(path.c_str());
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoError("make " + path);
  return {};
}

}  // namespace

bool IsMissing(const Error& error) {
  return error.error_number() == ENOENT || error.error_number() == ENOTDIR || error.error_number() == ELOOP;
}

bool IsDiskFull(const Error& error) { return error.error_number() == ENOSPC || error.error_number() == EDQUOT; }

bool SaysNothing(const Error& error) {
  const int e = error.error_number();
  return e == EMFILE || e == ENFILE || e == ENOMEM;
}

Core::Core(const Options& o)
    : options(o),
      files(o.max_open_files / 2),
      index_(o.max_bytes / 5 * 4),
      max_bytes_(o.max_bytes),
      unchecked_bytes_(kFreeSpaceEvery) {}

Status Core::Prepare() {
  VRUN_TRY(MakeDirs(options.directory, 0700));
  for (const char* name : {"/objects", "/blobs"}) VRUN_TRY(MakeDirectory(options.directory + name));
  static constexpr char kHex[] = "0123456789abcdef";
  for (int i = 0; i < 256; ++i) {
    VRUN_TRY(MakeDirectory(options.directory + "/objects/" + kHex[i >> 4] + kHex[i & 15]));
  }
  return aliases_.Load(options.directory + "/aliases");
}

Status Core::MakeShard(const ObjectId& id) {
  VRUN_TRY(MakeDirs(options.directory, 0700));
  VRUN_TRY(MakeDirectory(options.directory + "/objects"));
  return MakeDirectory(ShardPath(id));
}

std::string Core::ShardPath(const ObjectId& id) const {
  return options.directory + "/objects/" + id.digest.Hex().substr(0, 2);
}

std::string Core::ContentPath(const ObjectId& id) const {
  return ShardPath(id) + "/" + id.digest.Hex() + "." + static_cast<char>('0' + static_cast<int>(id.algorithm));
}

Result<UniqueFd> Core::Open(const std::string& path, int flags, mode_t mode) {
  flags |= O_NONBLOCK;  // there may be a FIFO at this path
  auto fd = OpenFile(path, flags, mode);
  if (fd || (fd.error().error_number() != EMFILE && fd.error().error_number() != ENFILE)) return fd;
  files.CloseAll();
  return OpenFile(path, flags, mode);
}

Result<UniqueFd> Core::LockShard(const ObjectId& id, int operation) {
  auto opened = Open(ShardPath(id), O_RDONLY | O_DIRECTORY);
  // The directory was removed or replaced.
  if (!opened && operation == LOCK_EX && IsMissing(opened.error()) && MakeShard(id)) {
    opened = Open(ShardPath(id), O_RDONLY | O_DIRECTORY);
  }
  VRUN_ASSIGN(UniqueFd fd, std::move(opened));
  while (::flock(fd.get(), operation) != 0) {
    if (errno != EINTR) return ErrnoError("lock " + ShardPath(id));
  }
  return fd;
}

void Core::Close() {
  std::vector<std::shared_ptr<ObjectBase>> kept;  // destroyed after the lock
  MutexLock lock(mu_);
  kept = index_.TakeResident();
}

Result<std::shared_ptr<ObjectBase>> Core::Acquire(const ObjectId& asked, uint64_t size, bool used) {
  if (!FitsSize(asked, size)) return Error(Code::kInvalid, "store: the kind of object id does not fit the size");
  std::vector<std::shared_ptr<ObjectBase>> trimmed;  // destroyed after the lock
  MutexLock lock(mu_);
  // Under the lock: SetAlias first adds the alias and then removes the provisional object from the table, so one of the
  // two is always visible here.
  ObjectId id = asked;
  if (asked.algorithm == IdAlgorithm::kProvisional) {
    if (auto final_id = aliases_.Find(asked.digest); final_id && FitsSize(*final_id, size)) id = *final_id;
  }
  if (index_.resident() >= kMaxResident) trimmed = index_.TrimResident(kMaxResident / 2);
  auto* known = index_.Find(id);
  if (known && known->resident && known->resident->size() != size) {
    if (known->resident.use_count() > 1) return Error(Code::kInvalid, "store: one object id with two sizes");
    trimmed.push_back(index_.Remove(id));
    known = nullptr;
  }
  if (used) known = nullptr;
  auto& entry = known ? *known : index_.Use(id);
  if (!entry.resident) {
    if (UnitCount(size) > 1)
      entry.resident = std::make_shared<LargeObject>(shared_from_this(), id, size);
    else
      entry.resident = std::make_shared<SmallObject>(shared_from_this(), id, size);
    index_.NoteResident();
  }
  return entry.resident;
}

void Core::SetAlias(const ObjectId& provisional, const ObjectId& final_id) {
  aliases_.Add(provisional.digest, final_id);
  std::shared_ptr<ObjectBase> gone;
  MutexLock lock(mu_);
  gone = index_.Remove(provisional);
}

void Core::SetBytes(const ObjectId& id, uint64_t bytes) {
  MutexLock lock(mu_);
  if (auto* entry = index_.Find(id)) index_.SetBytes(*entry, bytes);
}

void Core::Forget(const ObjectId& id) { SetBytes(id, 0); }

void Core::AddScanned(const ObjectId& id, uint64_t bytes) {
  MutexLock lock(mu_);
  index_.AddOldest(id, bytes);
}

uint64_t Core::bytes() const {
  MutexLock lock(mu_);
  return index_.bytes() + other_bytes_;
}

size_t Core::objects() const {
  MutexLock lock(mu_);
  return index_.size();
}

bool Core::TakeVictim(EvictionIndex::Entry* victim) {
  MutexLock lock(mu_);
  return index_.TakeVictim(victim);
}

// Returns 0 when its files are gone, or an errno. Deletes the map first: content without a map is garbage, but a map
// without content would be wrong.
int Core::RemoveFiles(const ObjectId& id) {
  auto shard = LockShard(id, LOCK_EX);
  if (!shard) {
    return IsMissing(shard.error()) ? 0 : shard.error().error_number();  // the directory was removed
  }
  int failed = 0;
  for (const std::string& path : {MapPath(id), ContentPath(id)}) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) failed = errno;
  }
  return failed;
}

bool Core::EvictOne(uint64_t* freed, bool asked) {
  if (options.never_evict && !asked) return false;
  std::vector<EvictionIndex::Entry> stuck;  // on a disk that became read-only, or an immutable file
  bool evicted = false;
  while (!evicted && stuck.size() < kMostStuck) {
    EvictionIndex::Entry victim;
    if (!TakeVictim(&victim)) {
      if (!stuck.empty()) break;
      {
        MutexLock lock(pressure_mu_);
        if (!release_) break;
        release_();
      }
      if (!TakeVictim(&victim)) break;
    }
    victim.resident.reset();
    evicted = RemoveFiles(victim.id) == 0;
    if (!evicted) {
      stuck.push_back(std::move(victim));
      continue;
    }
    ++evictions;
    *freed += victim.bytes;
  }
  for (const auto& entry : stuck) AddScanned(entry.id, entry.bytes);
  return evicted;
}

uint64_t Core::Remove(const ObjectId& id) {
  std::shared_ptr<ObjectBase> gone;  // destroyed after the lock
  uint64_t bytes = 0;
  {
    MutexLock lock(mu_);
    if (const auto* entry = index_.Find(id)) bytes = entry->bytes;
    gone = index_.Remove(id);
  }
  return RemoveFiles(id) == 0 ? bytes : 0;
}

void Core::FreeSpace(uint64_t* available, uint64_t* keep) const {
  *available = *keep = 0;
  struct statvfs fs;
  if (::statvfs(options.directory.c_str(), &fs) != 0) return;
  const uint64_t total = fs.f_blocks * fs.f_frsize;
  *available = fs.f_bavail * fs.f_frsize;
  // On a small file system the watermark is a tenth of it, or nothing would fit.
  *keep = options.min_free_percent > 0 ? total / 100 * options.min_free_percent
                                       : std::min(options.min_free_bytes, total / 10);
}

uint64_t Core::FreeSpaceShortage(uint64_t bytes, uint64_t* spare) const {
  uint64_t available, keep;
  FreeSpace(&available, &keep);
  if (spare != nullptr) *spare = keep == 0 ? UINT64_MAX : available - std::min(available, keep + bytes);
  if (keep == 0) return 0;
  return available >= keep + bytes ? 0 : keep + bytes - available;
}

uint64_t Core::InodeShortage(uint64_t inodes, uint64_t* spare) const {
  if (spare != nullptr) *spare = UINT64_MAX;
  struct statvfs fs;
  if (::statvfs(options.directory.c_str(), &fs) != 0 || fs.f_files == 0) return 0;
  if (options.min_free_bytes == 0 && options.min_free_percent == 0) return 0;  // no watermark
  const uint64_t keep = inodes + (options.min_free_percent > 0 ? fs.f_files / 100 * options.min_free_percent
                                                               : std::min<uint64_t>(kMinFreeInodes, fs.f_files / 10));
  const uint64_t available = fs.f_favail;
  if (spare != nullptr) *spare = available - std::min(available, keep);
  return keep - std::min(available, keep);
}

bool Core::EvictInodes(uint64_t count) {
  uint64_t freed = 0;
  for (; count > 0; --count) {  // each object has at least one
    if (!EvictOne(&freed)) return false;
  }
  return true;
}

bool Core::MakeRoom(uint64_t bytes) {
  if (options.never_evict) return true;  // the disk reports when it is full
  uint64_t freed = 0;
  while (this->bytes() + bytes > max_bytes_) {
    if (!EvictOne(&freed)) return false;
  }
  if (unchecked_bytes_.fetch_add(bytes) + bytes < kFreeSpaceEvery) return true;
  uint64_t spare, spare_inodes;
  const uint64_t shortage = FreeSpaceShortage(bytes, &spare);
  const uint64_t lacking = InodeShortage(kInodesOfObject, &spare_inodes);
  // Check again before we can have reached the watermark. Once there, every write checks, until there is room. Each
  // object counts as at least one block.
  spare = std::min(spare, spare_inodes > kFreeSpaceEvery ? kFreeSpaceEvery : spare_inodes / kInodesOfObject * 4096);
  unchecked_bytes_ = kFreeSpaceEvery - std::min(kFreeSpaceEvery, spare);
  for (freed = 0; freed < shortage;) {
    if (!EvictOne(&freed)) return false;
  }
  return EvictInodes(lacking);
}

bool Core::EvictAtLeast(uint64_t bytes) {
  for (uint64_t freed = 0; freed < bytes;) {
    if (!EvictOne(&freed)) return false;
  }
  return true;
}

void Core::KeepFreeSpace() {
  // Only what is lacking now: space of files that others hold open is freed later than it is counted here.
  const uint64_t shortage = FreeSpaceShortage(0);
  for (uint64_t freed = 0; freed < shortage;) {
    if (!EvictOne(&freed)) return;
  }
  (void)EvictInodes(InodeShortage(0));
}

void Core::SetLimit(uint64_t max_bytes) {
  max_bytes_ = max_bytes;
  MutexLock lock(mu_);
  index_.SetProtectedLimit(max_bytes / 5 * 4);
}

void Core::OnPressure(std::function<void()> release) {
  MutexLock lock(pressure_mu_);
  release_ = std::move(release);
}

void Core::EvictDownTo(uint64_t bytes) {
  for (uint64_t freed = 0; this->bytes() > bytes;) {
    if (!EvictOne(&freed, true)) return;
  }
}

}  // namespace vrun::store
