// SPDX-License-Identifier: Apache-2.0
// The life of a large object on disk, and reading it. For writing see large_object_write.cc.
#include "store/large_object.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/files.h"

namespace vrun::store {
LargeObject::LargeObject(std::shared_ptr<Core> core, const ObjectId& id, uint64_t size)
    : ObjectBase(std::move(core), id, size), files_key_(core_->files.NewKey()) {}

LargeObject::~LargeObject() { core_->files.Erase(files_key_); }

void LargeObject::ForgetLocked() {
  life_.reset();
  map_end_ = 0;
  present_ = verified_ = 0;
  units_.clear();
  stamp_.reset();
  ++epoch_;
  core_->files.Erase(files_key_);
  core_->Forget(id_);
}

void LargeObject::AccountLocked() { core_->SetBytes(id_, std::min(present_ * unit_bytes(), size_) + 4096 + map_end_); }

void LargeObject::ApplyLocked(const MapRecord& record) {
  if (record.unit >= units_.size()) return;
  Unit& unit = units_[record.unit];
  if (unit.present) --present_;
  if (unit.verified) --verified_;
  unit = {record.digest, record.present, false};
  if (unit.present) ++present_;
}

void LargeObject::ReadMapLocked(int map_fd) {
  char buffer[kMapRecordBytes * 1024];
  for (;;) {
    auto n = PreadUpTo(map_fd, buffer, sizeof buffer, map_end_);
    const size_t whole = n ? *n / kMapRecordBytes : 0;
    for (size_t i = 0; i < whole; ++i) {
      auto record = DecodeMapRecord(*life_, {buffer + i * kMapRecordBytes, kMapRecordBytes});
      if (!record) return;
      ApplyLocked(*record);
      map_end_ += kMapRecordBytes;
    }
    if (whole * kMapRecordBytes < sizeof buffer) return;
  }
}

bool LargeObject::DigestsMatchIdLocked() const {
  if (id_.algorithm != IdAlgorithm::kBlake3Units) return true;
  std::vector<Digest> digests(units_.size());
  std::transform(units_.begin(), units_.end(), digests.begin(), [](const Unit& unit) { return unit.digest; });
  return ContentId(size_, digests) == id_;
}

ObjectFilesPtr LargeObject::FilesLocked() {
  if (loaded_ && !life_) return nullptr;
  auto open = core_->files.Get(files_key_);
  if (open && UntouchedLocked(open.get())) return open;
  struct stat st;
  // Another process has evicted it: open files stay readable.
  if (open && !StillLinked(*open) && ::fstat(open->content.get(), &st) == 0) {
    NoteStampLocked(StampOf(st));
    return open;
  }
  return OpenLocked();
}

bool LargeObject::StillLinked(const ObjectFiles& files) {
  struct stat st;
  return ::fstat(files.map.get(), &st) == 0 && st.st_nlink > 0;
}

LargeObject::Stamp LargeObject::StampOf(const struct stat& st) {
  return {st.st_dev, st.st_ino, st.st_size, st.st_ctim.tv_sec, st.st_ctim.tv_nsec};
}

bool LargeObject::UntouchedLocked(const ObjectFiles* files) const {
  if (writing_) return true;
  struct stat st;
  const int failed =
      files != nullptr ? ::fstat(files->content.get(), &st) : ::lstat(core_->ContentPath(id_).c_str(), &st);
  return failed == 0 && stamp_ == StampOf(st);
}

void LargeObject::NoteStampLocked(const Stamp& now) {
  if (writing_ || stamp_ == now) return;
  stamp_ = now;
  for (uint64_t u = 0; verified_ > 0 && u < units_.size(); ++u) units_[u].verified = false;
  verified_ = 0;
  ++epoch_;
}

ObjectFilesPtr LargeObject::OpenLocked() {
  // First as one of many readers. An unusable object is checked again, and removed, by only one process.
  for (int operation : {LOCK_SH, LOCK_EX}) {
    auto shard = core_->LockShard(id_, operation);
    if (!shard && SaysNothing(shard.error())) return nullptr;
    if (!shard) break;
    auto map = core_->Open(core_->MapPath(id_), O_RDWR | O_NOFOLLOW);
    if (!map && map.error().error_number() == ENOENT) break;
    auto content = core_->Open(core_->ContentPath(id_), O_RDWR | O_NOFOLLOW);
    if ((!map && SaysNothing(map.error())) || (!content && SaysNothing(content.error()))) return nullptr;

    char bytes[kMapHeaderBytes];
    auto n = map ? PreadUpTo(map->get(), bytes, sizeof bytes, 0) : Result<size_t>(size_t{0});
    auto header = DecodeMapHeader({bytes, n ? *n : 0});
    struct stat st {};
    const bool ours = header && header->id == id_ && header->size == size_;
    bool usable = ours && content && ::fstat(content->get(), &st) == 0 && S_ISREG(st.st_mode) &&
                  st.st_ino == header->content_inode;
    // A crash between the steps of CreateFiles or Adopt leaves an empty map, or one without its content: that is not
    // damage.
    uint64_t damaged = n && *n > 0 && !ours ? 1 : 0;
    if (ours && (content || content.error().error_number() != ENOENT)) {
      if (life_ != header->nonce) {
        ForgetLocked();
        life_ = header->nonce;
        map_end_ = kMapHeaderBytes;
        units_.resize(unit_count());
      }
      ReadMapLocked(map->get());
      damaged = std::max<uint64_t>(1, present_);
      usable = usable && (present_ < unit_count() || DigestsMatchIdLocked());
    }
    // The file has grown: whoever gets the descriptor must not read beyond the object's size.
    if (usable && static_cast<uint64_t>(st.st_size) > size_) {
      usable = ::ftruncate(content->get(), static_cast<off_t>(size_)) == 0 && ::fstat(content->get(), &st) == 0;
    }
    if (usable) {
      NoteStampLocked(StampOf(st));
      loaded_ = true;
      AccountLocked();
      auto files = std::make_shared<ObjectFiles>();
      files->content = std::move(*content);
      files->map = std::move(*map);
      files->life = *life_;
      core_->files.Insert(files_key_, files);
      return files;
    }
    if (operation == LOCK_EX) {
      ::unlink(core_->MapPath(id_).c_str());
      ::unlink(core_->ContentPath(id_).c_str());
      core_->corrupt += damaged;
    }
  }
  ForgetLocked();
  loaded_ = true;
  return nullptr;
}

std::vector<UnitRange> LargeObject::DoMissing(UnitRange range) {
  MutexLock lock(mu_);
  if (!loaded_) RefreshLocked();
  auto missing = MissingLocked(range);
  if (missing.empty()) return missing;
  RefreshLocked();
  return MissingLocked(range);
}

void LargeObject::RefreshLocked() {
  const int64_t now = MonotonicMicros();
  if (loaded_ && now - refreshed_micros_ < core_->options.refresh_micros) return;
  refreshed_micros_ = now;
  if (auto open = life_ ? core_->files.Get(files_key_) : nullptr)
    ReadMapLocked(open->map.get());
  else
    OpenLocked();
}

std::vector<UnitRange> LargeObject::MissingLocked(UnitRange range) const {
  if (units_.empty()) return {range};
  std::vector<UnitRange> missing;
  for (uint64_t u = range.first; u < range.first + range.count; ++u) {
    if (units_[u].present) continue;
    if (!missing.empty() && missing.back().first + missing.back().count == u)
      ++missing.back().count;
    else
      missing.push_back({u, 1});
  }
  return missing;
}

bool LargeObject::UnitMatches(const ObjectFiles& files, uint64_t unit, const Digest& digest,
                              std::string* scratch) const {
  scratch->resize(LengthOf(unit));
  auto n = PreadUpTo(files.content.get(), scratch->data(), scratch->size(), unit * unit_bytes());
  return n && *n == scratch->size() && UnitDigest(*scratch) == digest;
}

void LargeObject::MarkVerified(uint64_t epoch, uint64_t unit, const Digest& digest) {
  MutexLock lock(mu_);
  if (epoch_ != epoch || !units_[unit].present || units_[unit].digest != digest || units_[unit].verified) return;
  units_[unit].verified = true;
  ++verified_;
}

bool LargeObject::VerifyUnit(const ObjectFilesPtr& files, uint64_t unit, std::string* scratch) {
  Digest digest;
  uint64_t epoch;
  {
    MutexLock lock(mu_);
    if (life_ != files->life || !units_[unit].present) return false;
    digest = units_[unit].digest;
    epoch = epoch_;
  }
  if (!UnitMatches(*files, unit, digest, scratch)) {
    DropUnit(files, unit, digest);
    return false;
  }
  MarkVerified(epoch, unit, digest);
  return true;
}

Result<size_t> LargeObject::DoRead(uint64_t offset, char* buffer, size_t n) {
  const UnitRange range = Touched(offset, n);
  ObjectFilesPtr files;
  std::vector<std::pair<uint64_t, Digest>> unverified;
  uint64_t epoch;
  {
    MutexLock lock(mu_);
    if (!MissingLocked(range).empty()) RefreshLocked();
    files = FilesLocked();  // may detect a new life of the object, so call it before examining the units
    epoch = epoch_;
    uint64_t absent = files ? 0 : range.count;
    for (uint64_t u = range.first; files && u < range.first + range.count; ++u) {
      if (!units_[u].present)
        ++absent;
      else if (!units_[u].verified)
        unverified.emplace_back(u, units_[u].digest);
    }
    if (absent > 0) {
      core_->misses += absent;
      return NotHere();
    }
  }
  std::string scratch;
  auto got = PreadUpTo(files->content.get(), buffer, n, offset);
  if (!got || *got < n) {
    // The file was truncated, or the disk is failing: find the affected units and drop them.
    for (uint64_t u = range.first; u < range.first + range.count; ++u) VerifyUnit(files, u, &scratch);
    return NotHere();
  }
  bool good = true;
  for (const auto& [unit, digest] : unverified) {
    const uint64_t begin = unit * unit_bytes(), length = LengthOf(unit);
    if (begin >= offset && begin + length <= offset + n) {
      if (UnitDigest({buffer + (begin - offset), length}) == digest) {
        MarkVerified(epoch, unit, digest);
        continue;
      }
      DropUnit(files, unit, digest);
      good = false;
      continue;
    }
    // Only part of the unit was requested. Returns the bytes that were hashed, not a second read.
    if (!VerifyUnit(files, unit, &scratch)) {
      good = false;
      continue;
    }
    const uint64_t from = std::max(begin, offset), to = std::min(begin + length, offset + n);
    std::memcpy(buffer + (from - offset), scratch.data() + (from - begin), to - from);
  }
  if (!good) return NotHere();
  return n;
}

std::optional<uint64_t> LargeObject::DoVerifySome(uint64_t bytes) {
  ObjectFilesPtr files;
  std::vector<uint64_t> unverified;
  {
    MutexLock lock(mu_);
    if (present_ < unit_count()) RefreshLocked();
    if (present_ < unit_count()) return std::nullopt;
    // Avoids opening descriptors when there is nothing to do.
    if (verified_ == unit_count() && UntouchedLocked(core_->files.Get(files_key_).get())) return 0;
    files = FilesLocked();
    if (!files || present_ < unit_count()) return std::nullopt;
    for (uint64_t u = 0; u < unit_count() && unverified.size() * unit_bytes() < bytes; ++u) {
      if (!units_[u].verified) unverified.push_back(u);
    }
  }
  std::string scratch;
  for (uint64_t u : unverified) VerifyUnit(files, u, &scratch);
  MutexLock lock(mu_);
  if (present_ < unit_count()) return std::nullopt;
  return std::min(size_, (unit_count() - verified_) * unit_bytes());
}

Result<UniqueFd> LargeObject::DoOpenForPassthrough() {
  if (DoVerifySome(size_) != uint64_t{0}) return NotHere();
  // Another file may have this name by now; only the verified one may be returned.
  VRUN_ASSIGN(UniqueFd fd, core_->Open(core_->ContentPath(id_), O_RDONLY | O_NOFOLLOW));
  struct stat named;
  if (::fstat(fd.get(), &named) != 0) return ErrnoError("store: stat");
  MutexLock lock(mu_);
  if (verified_ < unit_count() || stamp_ != StampOf(named)) return NotHere();
  return fd;
}

Result<UniqueFd> LargeObject::DoOpenPart(UnitRange range) {
  ObjectFilesPtr files;
  std::vector<uint64_t> unverified;
  {
    MutexLock lock(mu_);
    if (!MissingLocked(range).empty()) RefreshLocked();
    files = FilesLocked();
    if (!files || !MissingLocked(range).empty()) return NotHere();
    for (uint64_t u = range.first; u < range.first + range.count; ++u) {
      if (!units_[u].verified) unverified.push_back(u);
    }
  }
  std::string scratch;
  bool good = true;
  // all: so that the caller fetches all of them in one go
  for (uint64_t u : unverified) good &= VerifyUnit(files, u, &scratch);
  if (!good) return NotHere();
  UniqueFd fd(::fcntl(files->content.get(), F_DUPFD_CLOEXEC, 0));
  if (!fd) return ErrnoError("store: open");
  return fd;
}

void LargeObject::VerifyAll(Store::VerifyReport* report) {
  ObjectFilesPtr files;
  std::vector<uint64_t> present;
  {
    MutexLock lock(mu_);
    files = FilesLocked();
    for (uint64_t u = 0; files && u < unit_count(); ++u) {
      if (units_[u].present) present.push_back(u);
    }
  }
  std::string scratch;
  for (uint64_t u : present) {
    ++report->units;
    report->bytes += LengthOf(u);
    if (!VerifyUnit(files, u, &scratch)) ++report->corrupt_units;
  }
}

}  // namespace vrun::store
