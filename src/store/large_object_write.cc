// SPDX-License-Identifier: Apache-2.0
// Writing a large object. Always in this order: content, then the record that marks it present.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/files.h"
#include "base/thread/mutex.h"
#include "store/large_object.h"

namespace vrun::store {
namespace {

// flock on the map, between processes (write_mu_ excludes threads of this one).
class MapLock {
 public:
  explicit MapLock(ObjectFilesPtr files) : files_(std::move(files)) {
    while (::flock(files_->map.get(), LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~MapLock() { ::flock(files_->map.get(), LOCK_UN); }
  MapLock(const MapLock&) = delete;

 private:
  ObjectFilesPtr files_;
};

constexpr size_t kUnitsAWrite = 256;  // 4 MiB and more; the window of a fetch

Error Exhausted(const Error& error) { return Error(Code::kExhausted, error.message()); }

}  // namespace

class LargeObject::OwnWrite {
 public:
  OwnWrite(LargeObject* object, const ObjectFiles& files) : object_(object), files_(files) {
    MutexLock lock(object_->mu_);
    struct stat st;
    if (object_->life_ == files_.life && ::fstat(files_.content.get(), &st) == 0) {
      object_->NoteStampLocked(StampOf(st));
      epoch = object_->epoch_;
    }
    object_->writing_ = true;
  }
  ~OwnWrite() {
    MutexLock lock(object_->mu_);
    object_->writing_ = false;
    struct stat st;
    if (object_->life_ == files_.life && ::fstat(files_.content.get(), &st) == 0) object_->stamp_ = StampOf(st);
  }
  OwnWrite(const OwnWrite&) = delete;

  uint64_t epoch = 0;  // of what is written; 0: the files no longer belong to the object

 private:
  LargeObject* const object_;
  const ObjectFiles& files_;
};

Status LargeObject::CreateFiles() {
  UniqueFd content, map;
  MapHeader header{.id = id_, .size = size_, .nonce = NewMapNonce()};
  struct stat st {};
  const std::string content_path = core_->ContentPath(id_), map_path = core_->MapPath(id_);
  MutexLock lock(mu_);  // before the shard's lock, as in OpenLocked
  auto shard = core_->LockShard(id_, LOCK_EX);
  if (!shard) return Exhausted(shard.error());
  if (PathExists(map_path)) return {};  // another process was first
  ::unlink(content_path.c_str());       // left by a crash between the creation of the two files
  auto make = [&]() -> Status {
    VRUN_ASSIGN(content, core_->Open(content_path, O_RDWR | O_CREAT | O_EXCL, 0600));
    if (::ftruncate(content.get(), static_cast<off_t>(size_)) != 0) return ErrnoError("store: make a file");
    if (::fstat(content.get(), &st) != 0) return ErrnoError("store: stat");
    header.content_inode = st.st_ino;
    VRUN_ASSIGN(map, core_->Open(map_path, O_RDWR | O_CREAT | O_EXCL, 0600));
    return PwriteAll(map.get(), EncodeMapHeader(header), 0);
  };
  Status made = make();
  if (!made) {
    ::unlink(map_path.c_str());
    ::unlink(content_path.c_str());
    return Exhausted(made.error());
  }
  ForgetLocked();
  loaded_ = true;
  life_ = header.nonce;
  map_end_ = kMapHeaderBytes;
  units_.resize(unit_count());
  stamp_ = StampOf(st);
  auto files = std::make_shared<ObjectFiles>();
  files->content = std::move(content);
  files->map = std::move(map);
  files->life = header.nonce;
  core_->files.Insert(files_key_, std::move(files));
  return {};
}

Result<ObjectFilesPtr> LargeObject::FilesForWriting() {
  for (int attempt = 0; attempt < 4; ++attempt) {
    {
      MutexLock lock(mu_);
      if (auto files = FilesLocked()) return files;
      loaded_ = false;  // so that files created by another process are seen
    }
    VRUN_TRY(CreateFiles());
  }
  return Error(Code::kExhausted, "store: cannot open " + core_->ContentPath(id_));
}

Status LargeObject::SyncMap(const ObjectFiles& files) {
  MutexLock lock(mu_);
  if (life_ != files.life) return Error(Code::kAborted, "store: the object was made anew");
  ReadMapLocked(files.map.get());
  struct stat st;
  if (::fstat(files.map.get(), &st) != 0) return ErrnoError("store: stat");
  if (static_cast<uint64_t>(st.st_size) != map_end_ &&
      ::ftruncate(files.map.get(), static_cast<off_t>(map_end_)) != 0) {
    return ErrnoError("store: truncate a map");
  }
  return {};
}

Status LargeObject::Append(const ObjectFiles& files, const std::vector<MapRecord>& records) {
  std::string bytes;
  for (const MapRecord& record : records) EncodeMapRecord(files.life, record, &bytes);
  uint64_t end;
  {
    MutexLock lock(mu_);
    end = map_end_;
  }
  if (Status written = PwriteAll(files.map.get(), bytes, end); !written) {
    [[maybe_unused]] int ignored = ::ftruncate(files.map.get(), static_cast<off_t>(end));
    return written;
  }
  MutexLock lock(mu_);
  if (life_ != files.life) return Error(Code::kAborted, "store: the object was made anew");
  for (const MapRecord& record : records) ApplyLocked(record);
  map_end_ = end + bytes.size();
  AccountLocked();
  return {};
}

Status LargeObject::WriteUnits(const ObjectFiles& files, std::span<const uint64_t> at, uint64_t first_unit,
                               std::span<const PutUnit> units) {
  // Neighbouring units in one call: the kernel then caches them in large folios, which makes scattered 4 KiB reads a
  // fifth faster (measured with 1 MiB against 64 KiB), also through passthrough.
  std::array<iovec, kUnitsAWrite> parts;
  for (size_t i = 0; i < at.size();) {
    const uint64_t first = at[i];
    size_t count = 0;
    size_t bytes = 0;
    while (count < parts.size() && i < at.size() && at[i] == first + count) {
      const std::string_view data = units[at[i++] - first_unit].data;
      parts[count++] = {const_cast<char*>(data.data()), data.size()};
      bytes += data.size();
    }
    ssize_t n;
    do {
      n = ::pwritev(files.content.get(), parts.data(), static_cast<int>(count),
                    static_cast<off_t>(first * unit_bytes()));
    } while (n < 0 && errno == EINTR);
    if (n < 0) return ErrnoError("pwritev");
    // Writes the rest after a short write (perhaps a full disk) one by one, to get its error.
    for (size_t k = 0; static_cast<size_t>(n) < bytes && k < count; ++k) {
      VRUN_TRY(PwriteAll(files.content.get(), units[first + k - first_unit].data, (first + k) * unit_bytes()));
    }
  }
  return {};
}

Status LargeObject::DoPut(uint64_t first_unit, std::span<const PutUnit> units) {
  uint64_t bytes = 4096;
  for (const PutUnit& unit : units) bytes += unit.data.size();
  if (!core_->MakeRoom(bytes)) {
    // Units already present need no room.
    if (DoMissing({first_unit, units.size()}).empty()) return {};
    ++core_->failed_writes;
    return Error(Code::kExhausted, "store: the cache is full of files in use");
  }
  MutexLock writer(write_mu_);
  for (int attempt = 0; attempt < 4; ++attempt) {
    if (moved_) return Error(Code::kAborted, "store: the object has another name now");
    auto files = FilesForWriting();
    if (!files) {
      ++core_->failed_writes;
      return std::move(files).error();
    }
    VRUN_ASSIGN(Outcome outcome, PutInto(*files, first_unit, units));
    if (outcome == Outcome::kDone) return {};
  }
  return Error(Code::kExhausted, "store: no room: the object is evicted while it is written");
}

Result<LargeObject::Outcome> LargeObject::PutInto(const ObjectFilesPtr& files, uint64_t first_unit,
                                                  std::span<const PutUnit> units) {
  MapLock map_lock(files);
  if (!StillLinked(*files)) {
    MutexLock lock(mu_);
    if (life_ == files->life) ForgetLocked();
    loaded_ = false;
    return Outcome::kAgain;
  }
  if (Status synced = SyncMap(*files); !synced) {
    if (synced.error().code() == Code::kAborted) return Outcome::kAgain;
    return Exhausted(synced.error());
  }
  std::vector<uint64_t> absent, rewrite;
  std::vector<MapRecord> records;
  std::string scratch;
  for (size_t i = 0; i < units.size(); ++i) {
    const uint64_t u = first_unit + i;
    Unit there;
    uint64_t present;
    {
      MutexLock lock(mu_);
      there = units_[u];
      present = present_;
    }
    const bool same = there.digest == units[i].digest;
    if (there.present && same && there.verified) continue;
    if (there.present && same) {
      rewrite.push_back(u);  // may be damaged since the restart, and this is a good copy
      continue;
    }
    if (there.present && (there.verified || UnitMatches(*files, u, there.digest, &scratch))) {
      if (id_.algorithm == IdAlgorithm::kProvisional) {
        return Error(Code::kAborted, "store: the file's content changed while it was fetched");
      }
      if (present == unit_count()) return Error(Code::kCorrupt, "store: the content does not match its id");
      // Under a final id one of the two is wrong, and only the complete content shows which: start over.
      RemoveFromDisk(*files);
      return Outcome::kAgain;
    }
    absent.push_back(u);
    records.push_back({true, static_cast<uint32_t>(u), units[i].digest});
  }
  if (absent.empty() && rewrite.empty()) return Outcome::kDone;
  auto write = [&]() -> Status {
    VRUN_TRY(WriteUnits(*files, rewrite, first_unit, units));
    VRUN_TRY(WriteUnits(*files, absent, first_unit, units));
    if (!records.empty()) VRUN_TRY(Append(*files, records));
    return {};
  };
  Status written;
  uint64_t epoch;
  {
    const OwnWrite own(this, *files);
    epoch = own.epoch;
    written = write();
    if (!written && IsDiskFull(written.error()) && core_->EvictAtLeast((absent.size() + 1) * unit_bytes())) {
      written = write();
    }
    if (!written) {
      if (written.error().code() == Code::kAborted) return Outcome::kAgain;
      for (uint64_t u : absent) {
        ::fallocate(files->content.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(u * unit_bytes()), static_cast<off_t>(LengthOf(u)));
      }
    }
  }
  if (!written) {
    ++core_->failed_writes;
    return Exhausted(written.error());
  }
  for (size_t i = 0; i < units.size(); ++i) MarkVerified(epoch, first_unit + i, units[i].digest);
  VRUN_TRY(CheckComplete(files));
  return Outcome::kDone;
}

Status LargeObject::CheckComplete(const ObjectFilesPtr& files) {
  {
    MutexLock lock(mu_);
    if (present_ < unit_count() || life_ != files->life || DigestsMatchIdLocked()) return {};
  }
  core_->corrupt += unit_count();
  RemoveFromDisk(*files);
  return Error(Code::kCorrupt, "store: the content does not match its id");
}

void LargeObject::RemoveFromDisk(const ObjectFiles& files) {
  if (auto shard = core_->LockShard(id_, LOCK_EX); shard && StillLinked(files)) {
    ::unlink(core_->MapPath(id_).c_str());
    ::unlink(core_->ContentPath(id_).c_str());
  }
  MutexLock lock(mu_);
  if (life_ == files.life) ForgetLocked();
  loaded_ = false;
}

void LargeObject::DropUnit(const ObjectFilesPtr& files, uint64_t unit, const Digest& expected) {
  MutexLock writer(write_mu_);
  MapLock map_lock(files);
  if (!SyncMap(*files)) return;
  {
    MutexLock lock(mu_);
    if (!units_[unit].present || units_[unit].digest != expected) return;
  }
  ++core_->corrupt;
  const MapRecord record{false, static_cast<uint32_t>(unit), expected};
  if (Append(*files, {record})) return;
  // The record cannot be written: at least this process never uses the unit again.
  MutexLock lock(mu_);
  if (life_ == files->life) ApplyLocked(record);
}

Status LargeObject::MoveInto(const std::shared_ptr<ObjectBase>& target) {
  auto* to = static_cast<LargeObject*>(target.get());  // same size, hence the same kind
  MutexLock writer(write_mu_);
  if (moved_) return {};
  ObjectFilesPtr files;
  {
    MutexLock lock(mu_);
    files = FilesLocked();
  }
  Status result;
  if (files) {
    MapLock map_lock(files);
    if (StillLinked(*files) && SyncMap(*files)) {
      const OwnWrite own(this, *files);  // renaming counts as a write
      auto adopted = to->Adopt(this, files);
      if (!adopted) result = std::move(adopted).error();
      std::string scratch;
      for (uint64_t u = 0; adopted && !*adopted && result && u < unit_count(); ++u) {
        Unit unit;
        {
          MutexLock lock(mu_);
          unit = units_[u];
        }
        if (!unit.present || to->DoMissing({u, 1}).empty() || !UnitMatches(*files, u, unit.digest, &scratch)) continue;
        const PutUnit put{unit.digest, scratch};
        result = to->DoPut(u, {&put, 1});
      }
    }
    if (result || result.error().code() == Code::kExhausted) RemoveFromDisk(*files);
  }
  if (!result && result.error().code() != Code::kExhausted) return result;
  moved_ = true;
  StandFor(target);
  return result;
}

Result<bool> LargeObject::Adopt(LargeObject* from, const ObjectFilesPtr& from_files) {
  MutexLock writer(write_mu_);
  {
    MutexLock lock(mu_);
    if (FilesLocked()) return false;
  }
  std::vector<Unit> units;
  {
    MutexLock lock(from->mu_);
    units = from->units_;
  }
  // mu_ must not be taken under a shard's lock. Both directories are locked in a global order.
  const bool ours_first = core_->ShardPath(id_) < core_->ShardPath(from->id_);
  auto first = core_->LockShard(ours_first ? id_ : from->id_, LOCK_EX);
  Result<UniqueFd> second = UniqueFd();
  if (core_->ShardPath(id_) != core_->ShardPath(from->id_)) {
    second = core_->LockShard(ours_first ? from->id_ : id_, LOCK_EX);
  }
  struct stat st;
  if (!first || !second || ::fstat(from_files->content.get(), &st) != 0) return false;
  if (PathExists(core_->MapPath(id_)) || !StillLinked(*from_files)) return false;

  const MapHeader header{.id = id_, .size = size_, .nonce = NewMapNonce(), .content_inode = st.st_ino};
  std::string bytes = EncodeMapHeader(header);
  for (size_t u = 0; u < units.size(); ++u) {
    if (units[u].present) EncodeMapRecord(header.nonce, {true, static_cast<uint32_t>(u), units[u].digest}, &bytes);
  }
  // Whatever interrupts this: the next reader refuses a map without content, and the next writer removes content
  // without a map.
  ::unlink(core_->ContentPath(id_).c_str());
  auto map = core_->Open(core_->MapPath(id_), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (!map) return false;
  if (!PwriteAll(map->get(), bytes, 0) ||
      ::rename(core_->ContentPath(from->id_).c_str(), core_->ContentPath(id_).c_str()) != 0) {
    ::unlink(core_->MapPath(id_).c_str());
    return false;
  }
  ::unlink(core_->MapPath(from->id_).c_str());
  const bool known = ::fstat(from_files->content.get(), &st) == 0;
  first->Reset();
  second->Reset();

  auto files = std::make_shared<ObjectFiles>();
  files->content.Reset(::fcntl(from_files->content.get(), F_DUPFD_CLOEXEC, 0));
  files->map = std::move(*map);
  files->life = header.nonce;
  {
    MutexLock lock(mu_);
    ForgetLocked();
    loaded_ = true;
    life_ = header.nonce;
    map_end_ = bytes.size();
    units_ = std::move(units);
    for (const Unit& unit : units_) {
      present_ += unit.present ? 1 : 0;
      verified_ += unit.verified ? 1 : 0;
    }
    if (known) stamp_ = StampOf(st);
    AccountLocked();
    if (files->content) core_->files.Insert(files_key_, files);
  }
  if (!files->content) return true;  // out of descriptors: the next use opens and checks it by name
  MapLock map_lock(files);
  VRUN_TRY(CheckComplete(files));
  return true;
}

}  // namespace vrun::store
