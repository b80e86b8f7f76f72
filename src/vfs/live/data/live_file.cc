// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/data/live_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/escape.h"
#include "vfs/retry.h"

namespace vrun::vfs {
namespace {

constexpr uint64_t kUnit = kLiveUnit;
constexpr int kTries = 8;  // fetched content may be evicted before it is copied

int WriteAt(int fd, const char* data, size_t n, uint64_t offset) {
  while (n > 0) {
    const ssize_t wrote = ::pwrite(fd, data, n, static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return wrote < 0 ? errno : EIO;
    data += wrote;
    offset += static_cast<uint64_t>(wrote);
    n -= static_cast<size_t>(wrote);
  }
  return 0;
}

int OpenErrno(const Error& error) { return error.error_number() != 0 ? error.error_number() : EIO; }

}  // namespace

Result<std::shared_ptr<LiveFiles>> LiveFiles::Open(const std::string& directory) {
  UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return ErrnoError("open the directory of written files " + Escape(directory));
  return std::shared_ptr<LiveFiles>(new LiveFiles(std::move(fd)));
}

UniqueFd LiveFiles::OpenAt(const std::string& name, int flags, mode_t mode) {
  UniqueFd fd(::openat(directory_.get(), name.c_str(), flags | O_CLOEXEC, mode));
  const int error = fd ? 0 : errno;
  if (error != EMFILE && error != ENFILE) return fd;
  {
    std::unordered_map<uint64_t, std::shared_ptr<UniqueFd>> given_up;  // closed after the lock
    MutexLock lock(pin_mutex_);
    given_up.swap(pinned_);
  }
  (void)GiveWay(error, 0);
  fd.Reset(::openat(directory_.get(), name.c_str(), flags | O_CLOEXEC, mode));
  return fd;
}

void LiveFiles::Pin(uint64_t id, std::shared_ptr<UniqueFd> fd) {
  MutexLock lock(pin_mutex_);
  if (fd == nullptr) {
    pinned_.erase(id);
  } else {
    pinned_[id] = std::move(fd);
  }
}

void LiveFiles::Remove(uint64_t id) const {
  if (!kept_) ::unlinkat(directory_.get(), std::to_string(id).c_str(), 0);
}

Status LiveFiles::Restore(uint64_t next, const std::function<bool(uint64_t id)>& wanted) {
  next_ = next;
  DIR* listing = ::fdopendir(::openat(directory_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (listing == nullptr) return ErrnoError("list the directory of written files");
  while (const dirent* entry = ::readdir(listing)) {
    const std::string_view name = entry->d_name;
    uint64_t id = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (error == std::errc() && end == name.data() + name.size() && !wanted(id)) Remove(id);
  }
  ::closedir(listing);
  return {};
}

Result<std::shared_ptr<LiveFile>> LiveFile::Create(LiveFiles& files) {
  const std::shared_ptr<LiveFile> file(new LiveFile(files, files.NextId()));
  const int error = files.Insist(0, [&] {
    const UniqueFd fd = files.OpenAt(file->name_, O_RDWR | O_CREAT | O_EXCL, 0600);
    return fd ? 0 : errno;
  });
  if (error != 0) return ErrnoError(error, "create a backing file");
  return file;
}

Result<std::shared_ptr<LiveFile>> LiveFile::CreateOver(LiveFiles& files, std::shared_ptr<FileContent> lower,
                                                       FileContent::Place place, timespec atime, timespec mtime) {
  VRUN_ASSIGN(auto file, Create(files));
  const uint64_t size = lower->size();
  file->base_ = Base::kHome;
  file->base_size_ = size;
  file->home_version_ = lower->version();
  file->lower_ = std::move(lower);
  file->place_ = std::move(place);
  file->lower_size_ = size;
  file->missing_ = (size + kUnit - 1) / kUnit;
  file->present_.resize(file->missing_);
  if (file->missing_ == 0) file->lower_ = nullptr;
  file->complete_ = file->missing_ == 0;
  VRUN_ASSIGN(const auto fd, file->Descriptor());
  const timespec times[2] = {atime, mtime};
  if (::ftruncate(fd->get(), static_cast<off_t>(size)) != 0 || ::futimens(fd->get(), times) != 0) {
    return ErrnoError("create a backing file");
  }
  return file;
}

LiveFile::~LiveFile() {
  files_->Pin(id_, nullptr);
  files_->Remove(id_);
}

Result<std::shared_ptr<UniqueFd>> LiveFile::Descriptor() {
  MutexLock lock(mutex_);
  return DescriptorLocked();
}

Result<std::shared_ptr<UniqueFd>> LiveFile::DescriptorLocked() {
  if (auto open = descriptor_.lock()) return open;
  // Publishing reads the file too, and must not move the atime that the job set.
  auto fd = std::make_shared<UniqueFd>(files_->OpenAt(name_, O_RDWR | O_NOATIME));
  if (!*fd) return ErrnoError("open a backing file");
  descriptor_ = fd;
  return fd;
}

void LiveFile::Pin(bool on) {
  MutexLock lock(mutex_);
  if (!on) return files_->Pin(id_, nullptr);
  if (auto fd = DescriptorLocked()) files_->Pin(id_, *std::move(fd));
}

// --- filling ---------------------------------------------------------------------------------------------------------

bool LiveFile::MissingLocked(uint64_t unit) const {
  return lower_ != nullptr && unit < present_.size() && !present_[unit];
}

uint64_t LiveFile::NextMissingLocked(uint64_t unit, uint64_t end) const {
  while (unit < end && !MissingLocked(unit)) ++unit;
  return unit;
}

void LiveFile::MarkLocked(uint64_t unit) {
  if (!MissingLocked(unit)) return;
  present_[unit] = true;
  if (--missing_ > 0) return;
  lower_ = nullptr;
  complete_ = true;
}

int LiveFile::MarkWrittenLocked(uint64_t offset, uint64_t n) {
  if (lower_ == nullptr) return 0;
  // The last unit counts as whole if the range covers all of it that was home's.
  const uint64_t end = offset + n >= lower_size_ ? present_.size() : (offset + n) / kUnit;
  const uint64_t first = (offset + kUnit - 1) / kUnit;
  for (uint64_t unit = first; unit < end && lower_ != nullptr; ++unit) MarkLocked(unit);
  return first < end ? NoteUnitsLocked(first, end, LiveJournal::Of::kChange) : 0;
}

// EAGAIN: the content is not here (any more).
int LiveFile::FillLocked(uint64_t unit) {
  thread_local const std::unique_ptr<char[]> buffer(new char[kUnit]);
  const uint64_t offset = unit * kUnit;
  const size_t n = std::min(kUnit, lower_size_ - offset);
  const auto read = lower_->TryRead(offset, buffer.get(), n);
  if (!read || *read != n) return EAGAIN;
  const auto fd = DescriptorLocked();
  if (!fd) return OpenErrno(fd.error());
  // Filling is not a write: the file keeps its times.
  struct stat st {};
  if (::fstat((*fd)->get(), &st) != 0) return errno;
  // A missing unit is a hole here, and home's holes stay holes.
  const bool zeros = buffer[0] == 0 && std::memcmp(buffer.get(), buffer.get() + 1, n - 1) == 0;
  const int error = zeros ? 0 : WriteAt((*fd)->get(), buffer.get(), n, offset);
  if (error != 0) return error;
  const timespec times[2] = {st.st_atim, st.st_mtim};
  if (::futimens((*fd)->get(), times) != 0) return errno;
  MarkLocked(unit);
  (void)NoteUnitsLocked(unit, unit + 1,
                        LiveJournal::Of::kReading);  // if it fails, the unit is filled again; nobody has written to it
  return 0;
}

std::vector<LiveFile::Units> LiveFile::UnitsPartlyWritten(uint64_t offset, uint64_t n, uint64_t size) {
  const uint64_t end = std::min(n > UINT64_MAX - offset ? UINT64_MAX : offset + n, size);
  if (offset >= end) return {};
  const uint64_t first = offset / kUnit, last = (end - 1) / kUnit;
  std::vector<Units> kept;
  if (offset % kUnit != 0) kept.emplace_back(first, first + 1);
  const bool covers_last = end == size || end % kUnit == 0;
  if (!covers_last && (kept.empty() || last != first)) kept.emplace_back(last, last + 1);
  return kept;
}

void LiveFile::Need(uint64_t offset, uint64_t n, bool overwrite, Done done) {
  std::vector<Units> ranges;
  {
    MutexLock lock(mutex_);
    if (lower_ != nullptr && overwrite) {
      ranges = UnitsPartlyWritten(offset, n, lower_size_);
    } else if (lower_ != nullptr) {
      const uint64_t end = std::min(n > UINT64_MAX - offset ? UINT64_MAX : offset + n, lower_size_);
      if (offset < end) ranges.emplace_back(offset / kUnit, (end - 1) / kUnit + 1);
    }
  }
  NeedUnits(std::move(ranges), kTries, std::move(done));
}

void LiveFile::NeedUnits(std::vector<Units> ranges, int tries, Done done) {
  std::shared_ptr<FileContent> lower;
  FileContent::Place place;
  uint64_t offset = 0, length = 0;
  const int error = files_->Insist(kUnit, [&] {
    int failed = 0;
    MutexLock lock(mutex_);
    while (!ranges.empty() && failed == 0) {
      auto& [first, end] = ranges.back();
      first = NextMissingLocked(first, std::min(end, present_.size()));
      if (first >= std::min(end, present_.size())) {
        ranges.pop_back();
        continue;
      }
      failed = FillLocked(first);
      if (failed == EAGAIN && tries > 0) {
        lower = lower_;
        place = place_;
        offset = first * kUnit;
        length = std::min(std::min(end, present_.size()) * kUnit, lower_size_) - offset;
        length = std::min<uint64_t>(length, 4 << 20);  // a large file a part at a time, so that it is not evicted
        return 0;
      }
    }
    return failed;
  });
  if (lower == nullptr) {
    done(error == EAGAIN ? EIO : error);
    return;
  }
  lower->Ensure(place, offset, length,
                [self = shared_from_this(), ranges = std::move(ranges), offset, tries,
                 done = std::move(done)](const Status& came) mutable {
                  const Gate::Pass pass(self->files_->arrivals());
                  if (!pass) return;
                  if (!came) return done(IsLost(came.error()) ? kLost : ErrnoOf(came.error()));
                  bool progress = false;
                  {
                    MutexLock lock(self->mutex_);
                    progress = !self->MissingLocked(offset / kUnit) || self->FillLocked(offset / kUnit) == 0;
                  }
                  self->NeedUnits(std::move(ranges), progress ? kTries : tries - 1, std::move(done));
                });
}

void LiveFile::SetLower(std::shared_ptr<FileContent> lower, FileContent::Place place) {
  MutexLock lock(mutex_);
  if (lower_ == nullptr || lower->size() != lower_->size()) return;
  const bool same = lower->version() == lower_->version();
  if (same && place.path == place_.path && place.tree == place_.tree) return;
  if (base_ == Base::kHome) home_version_ = lower->version();
  if (!same && lower_->IsComplete()) return;  // the same content, and complete here
  lower_ = std::move(lower);
  place_ = std::move(place);
  if (same || files_->journal() == nullptr) return;
  LiveFrame frame;
  frame.File(StateLocked());
  (void)files_->journal()->Append(frame, LiveJournal::Of::kReading);  // if lost, the place is found again
}

// --- content ---------------------------------------------------------------------------------------------------------

int LiveFile::Read(uint64_t offset, char* buffer, size_t n, size_t* got) {
  const auto fd = Descriptor();
  if (!fd) return OpenErrno(fd.error());
  *got = 0;
  while (*got < n) {
    const ssize_t read = ::pread((*fd)->get(), buffer + *got, n - *got, static_cast<off_t>(offset + *got));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return errno;
    if (read == 0) break;
    *got += static_cast<size_t>(read);
  }
  return 0;
}

int LiveFile::Write(uint64_t offset, std::string_view data) {
  return files_->Insist(data.size(), [&] { return WriteOnce(offset, data); });
}

int LiveFile::WriteOnce(uint64_t offset, std::string_view data) {
  MutexLock lock(mutex_);
  const auto fd = DescriptorLocked();
  if (!fd) return OpenErrno(fd.error());
  if (const int error = BeforeChangeLocked((*fd)->get(), offset, data.size()); error != 0) return error;
  const int error = WriteAt((*fd)->get(), data.data(), data.size(), offset);
  ChangedLocked(offset, data.size());  // perhaps only some of it was written
  return error != 0 ? error : MarkWrittenLocked(offset, data.size());
}

int LiveFile::CopyFrom(int from, uint64_t offset, uint64_t to, uint64_t n, size_t* copied) {
  return files_->Insist(n, [&] { return CopyOnce(from, offset, to, n, copied); });
}

int LiveFile::CopyOnce(int from, uint64_t offset, uint64_t to, uint64_t n, size_t* copied) {
  MutexLock lock(mutex_);
  const auto fd = DescriptorLocked();
  if (!fd) return OpenErrno(fd.error());
  if (const int error = BeforeChangeLocked((*fd)->get(), to, n); error != 0) return error;
  auto at = static_cast<off_t>(offset), to_at = static_cast<off_t>(to);
  const ssize_t done = ::copy_file_range(from, &at, (*fd)->get(), &to_at, n, 0);
  if (done < 0) return errno;
  *copied = static_cast<size_t>(done);
  ChangedLocked(to, *copied);
  return 0;
}

int LiveFile::Truncate(uint64_t size) {
  return files_->Insist(kUnit, [&] { return TruncateOnce(size); });
}

int LiveFile::TruncateOnce(uint64_t size) {
  MutexLock lock(mutex_);
  const auto fd = DescriptorLocked();
  if (!fd) return OpenErrno(fd.error());
  struct stat st {};
  if (::fstat((*fd)->get(), &st) != 0) return errno;
  const auto before = static_cast<uint64_t>(st.st_size);
  // If the file grows again, the part cut off now is zeros, which home must be told. Growth alone follows from the
  // size.
  const uint64_t cut = before > size ? before - size : 0;
  if (const int error = BeforeChangeLocked((*fd)->get(), size, cut); error != 0) return error;
  if (::ftruncate((*fd)->get(), static_cast<off_t>(size)) != 0) return errno;
  ChangedLocked(size, cut);
  if (lower_ != nullptr && size < lower_size_) {
    // The part cut off never comes back, also if the file grows again.
    lower_size_ = size;
    const uint64_t units = (size + kUnit - 1) / kUnit;
    for (uint64_t unit = units; unit < present_.size() && lower_ != nullptr; ++unit) MarkLocked(unit);
    present_.resize(units);
    return NoteUnitsLocked(0, 0, LiveJournal::Of::kChange);
  }
  return 0;
}

int LiveFile::Allocate(uint64_t offset, uint64_t length, int mode) {
  return files_->Insist(length, [&] { return AllocateOnce(offset, length, mode); });
}

int LiveFile::AllocateOnce(uint64_t offset, uint64_t length, int mode) {
  MutexLock lock(mutex_);
  const auto fd = DescriptorLocked();
  if (!fd) return OpenErrno(fd.error());
  const bool zeroes = (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) != 0;
  if (const int error = BeforeChangeLocked((*fd)->get(), offset, zeroes ? length : 0); error != 0) return error;
  if (::fallocate((*fd)->get(), mode, static_cast<off_t>(offset), static_cast<off_t>(length)) != 0) return errno;
  if (zeroes) {
    ChangedLocked(offset, length);
    return MarkWrittenLocked(offset, length);
  }
  return 0;
}

int LiveFile::Seek(uint64_t offset, int whence, uint64_t* result) {
  MutexLock lock(mutex_);
  const auto fd = DescriptorLocked();
  if (!fd) return OpenErrno(fd.error());
  if (lower_ != nullptr) {  // holes of the backing file may be unfilled: report all as data, which is always allowed
    struct stat st {};
    if (::fstat((*fd)->get(), &st) != 0) return errno;
    if (offset >= static_cast<uint64_t>(st.st_size)) return ENXIO;
    *result = whence == SEEK_DATA ? offset : static_cast<uint64_t>(st.st_size);
    return 0;
  }
  const off_t at = ::lseek((*fd)->get(), static_cast<off_t>(offset), whence);
  if (at < 0) return errno;
  *result = static_cast<uint64_t>(at);
  return 0;
}

int LiveFile::Sync(bool data_only) {
  const auto fd = Descriptor();
  if (!fd) return OpenErrno(fd.error());
  return (data_only ? ::fdatasync((*fd)->get()) : ::fsync((*fd)->get())) == 0 ? 0 : errno;
}

int LiveFile::SetTimes(const timespec* atime, const timespec* mtime) {
  const timespec keep{0, UTIME_OMIT};
  const timespec times[2] = {atime != nullptr ? *atime : keep, mtime != nullptr ? *mtime : keep};
  MutexLock lock(mutex_);
  return ::utimensat(files_->fd(), name_.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : errno;
}

// Without the mutex, which may be held during disk access: this is called under the tree's lock.
int LiveFile::Stat(struct stat* out) const {
  if (::fstatat(files_->fd(), name_.c_str(), out, AT_SYMLINK_NOFOLLOW) != 0) return errno;
  if (!complete()) out->st_blocks = (out->st_size + 511) / 512;
  return 0;
}

}  // namespace vrun::vfs
