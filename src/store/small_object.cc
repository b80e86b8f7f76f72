// SPDX-License-Identifier: Apache-2.0
#include "store/small_object.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/files.h"

namespace vrun::store {
namespace {

uint64_t DiskBytes(uint64_t size) { return (size + 4095) / 4096 * 4096; }

}  // namespace

std::vector<UnitRange> SmallObject::DoMissing(UnitRange) {
  if (id_.algorithm == IdAlgorithm::kProvisional) return {{0, 1}};
  MutexLock lock(mu_);
  if (present_) return {};
  if (bad_) return {{0, 1}};
  struct stat st;
  // Anything but a regular file under this name is not content; a Put replaces it.
  if (::lstat(core_->ContentPath(id_).c_str(), &st) != 0 || !S_ISREG(st.st_mode)) return {{0, 1}};
  present_ = true;
  core_->SetBytes(id_, DiskBytes(size_));
  return {};
}

void SmallObject::Drop() {
  ++core_->corrupt;
  const bool removed = ::unlink(core_->ContentPath(id_).c_str()) == 0 || errno == ENOENT;
  core_->Forget(id_);
  MutexLock lock(mu_);
  present_ = false;
  bad_ = !removed;
}

Result<UniqueFd> SmallObject::ReadVerified(char* buffer) {
  if (!DoMissing({0, 1}).empty()) {
    ++core_->misses;
    return NotHere();
  }
  auto fd = core_->Open(core_->ContentPath(id_), O_RDONLY | O_NOFOLLOW);
  if (!fd) {
    // Another process evicted it.
    MutexLock lock(mu_);
    present_ = false;
    ++core_->misses;
    return NotHere();
  }
  struct stat st;
  const bool right_size =
      ::fstat(fd->get(), &st) == 0 && S_ISREG(st.st_mode) && static_cast<uint64_t>(st.st_size) == size_;
  auto n = right_size ? PreadUpTo(fd->get(), buffer, size_, 0) : Result<size_t>(size_t{0});
  if (!n || *n != size_ || UnitDigest({buffer, size_}) != id_.digest) {
    Drop();
    return NotHere();
  }
  return std::move(*fd);
}

Result<size_t> SmallObject::DoRead(uint64_t offset, char* buffer, size_t n) {
  if (offset == 0 && n == size_) {
    VRUN_TRY(ReadVerified(buffer).map([](auto&&) {}));
    return n;
  }
  std::string whole(size_, '\0');
  VRUN_TRY(ReadVerified(whole.data()).map([](auto&&) {}));
  std::memcpy(buffer, &whole[offset], n);
  return n;
}

// It is verified when it is opened.
std::optional<uint64_t> SmallObject::DoVerifySome(uint64_t) {
  return DoMissing({0, 1}).empty() ? std::optional<uint64_t>(0) : std::nullopt;
}

Result<UniqueFd> SmallObject::DoOpenForPassthrough() {
  std::string whole(size_, '\0');
  if (size_ == 0) return NotHere();
  return ReadVerified(whole.data());
}

Status SmallObject::WriteFile(std::string_view data) {
  const std::string temporary =
      core_->ShardPath(id_) + "/.tmp-" + std::to_string(::getpid()) + "-" + std::to_string(++core_->temporary_serial);
  auto write = [&]() -> Status {
    auto opened = core_->Open(temporary, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (!opened && IsMissing(opened.error()) && core_->MakeShard(id_)) {
      opened = core_->Open(temporary, O_WRONLY | O_CREAT | O_EXCL, 0600);
    }
    VRUN_ASSIGN(UniqueFd fd, std::move(opened));
    VRUN_TRY(PwriteAll(fd.get(), data, 0));
    const std::string path = core_->ContentPath(id_);
    int failed = ::rename(temporary.c_str(), path.c_str());
    if (failed != 0 && errno == EISDIR && RemoveTree(path)) failed = ::rename(temporary.c_str(), path.c_str());
    if (failed != 0) return ErrnoError("store: rename");
    return {};
  };
  Status status = write();
  if (!status) ::unlink(temporary.c_str());
  return status;
}

Status SmallObject::DoPut(uint64_t, std::span<const PutUnit> units) {
  const PutUnit& unit = units.front();
  if (id_.algorithm == IdAlgorithm::kProvisional) {
    const ObjectId final_id{IdAlgorithm::kBlake3, unit.digest};
    VRUN_ASSIGN(std::shared_ptr<ObjectBase> target, core_->Acquire(final_id, size_));
    VRUN_TRY(target->Put(0, units, true));
    StandFor(target);
    core_->SetAlias(id_, final_id);
    return {};
  }
  if (unit.digest != id_.digest) return Error(Code::kCorrupt, "store: the content does not match its id");
  if (DoMissing({0, 1}).empty()) return {};
  const uint64_t bytes = DiskBytes(size_);
  Status status = core_->MakeRoom(bytes) ? WriteFile(unit.data)
                                         : Status(Error(Code::kExhausted, "store: the cache is full of files in use"));
  if (!status && IsDiskFull(status.error()) && core_->EvictAtLeast(bytes)) status = WriteFile(unit.data);
  if (!status) {
    ++core_->failed_writes;
    return Error(Code::kExhausted, status.error().message());
  }
  core_->SetBytes(id_, bytes);
  MutexLock lock(mu_);
  present_ = true;
  bad_ = false;
  return {};
}

Status SmallObject::MoveInto(const std::shared_ptr<ObjectBase>&) { return {}; }  // nothing of it is on disk

void SmallObject::VerifyAll(Store::VerifyReport* report) {
  if (size_ == 0 || id_.algorithm == IdAlgorithm::kProvisional) return;
  std::string whole(size_, '\0');
  const uint64_t before = core_->corrupt;
  if (DoMissing({0, 1}).empty()) ++report->units;
  if (!ReadVerified(whole.data()) && core_->corrupt != before) ++report->corrupt_units;
}

}  // namespace vrun::store
