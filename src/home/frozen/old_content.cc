// SPDX-License-Identifier: Apache-2.0
#include "home/frozen/old_content.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/escape.h"
#include "base/files.h"
#include "base/io/copy_content.h"

namespace vrun::home {
namespace {

std::string NameOf(const tree::FileVersion& v) {
  char name[96];
  std::snprintf(name, sizeof name, "%lx-%lx-%lx-%lx", v.dev, v.ino, static_cast<uint64_t>(v.ctime_ns), v.size);
  return name;
}

std::optional<tree::FileVersion> VersionOf(const std::string& name) {
  tree::FileVersion v;
  uint64_t ctime;
  int end = 0;
  if (std::sscanf(name.c_str(), "%lx-%lx-%lx-%lx%n", &v.dev, &v.ino, &ctime, &v.size, &end) != 4) return std::nullopt;
  v.ctime_ns = static_cast<int64_t>(ctime);
  if (static_cast<size_t>(end) != name.size()) return std::nullopt;
  return v;
}

// A sparse file counts by its data.
uint64_t BytesOnDisk(const struct stat& st) {
  return std::min(static_cast<uint64_t>(st.st_size), static_cast<uint64_t>(st.st_blocks) * 512);
}

}  // namespace

OldContent::Copy::Copy(Copy&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)),
      path_(std::move(other.path_)),
      bytes_(other.bytes_),
      fd_(std::move(other.fd_)) {}

OldContent::Copy& OldContent::Copy::operator=(Copy&& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

OldContent::Copy::~Copy() {
  if (owner_ == nullptr) return;
  ::unlink(path_.c_str());
  owner_->Unreserve(bytes_);
}

OldContent::OldContent(Options options) : options_(std::move(options)) {
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(options_.directory, ignored)) {
    const std::string name = file.path().filename();
    const auto version = VersionOf(name);
    if (!version) {
      ::unlink(file.path().c_str());
      continue;
    }
    struct stat st {};
    if (::stat(file.path().c_str(), &st) != 0) continue;
    kept_[*version] = BytesOnDisk(st);
    bytes_ += kept_[*version];
  }
}

std::string OldContent::PathOf(const tree::FileVersion& version) const {
  return options_.directory + "/" + NameOf(version);
}

Status OldContent::Reserve(uint64_t bytes) {
  struct statvfs fs;
  const bool known = ::statvfs(options_.directory.c_str(), &fs) == 0;
  const uint64_t free = known ? fs.f_bavail * fs.f_frsize : 0;
  MutexLock lock(mutex_);
  if (bytes > options_.max_bytes || bytes_ > options_.max_bytes - bytes) {
    return Error(Code::kExhausted, "more than " + std::to_string(options_.max_bytes >> 20) + " MiB of old content");
  }
  if (known && free < options_.min_free_bytes + bytes) {
    return Error(Code::kExhausted, Escape(options_.directory) + ": the disk is nearly full");
  }
  bytes_ += bytes;
  return {};
}

void OldContent::Unreserve(uint64_t bytes) {
  MutexLock lock(mutex_);
  bytes_ -= bytes;
}

Result<UniqueFd> OldContent::MakeTemporary(std::string* path) {
  {
    MutexLock lock(mutex_);
    *path = options_.directory + "/new-" + std::to_string(next_++);
  }
  return OpenFile(*path, O_RDWR | O_CREAT | O_EXCL, 0600);
}

Result<OldContent::Copy> OldContent::Make(int fd, const tree::FileVersion& version) {
  VRUN_TRY(MakeDirs(options_.directory, 0700));
  struct stat st {};
  if (::fstat(fd, &st) != 0) return ErrnoError("copy");
  const uint64_t bytes = BytesOnDisk(st);
  VRUN_TRY(Reserve(bytes));
  Copy copy;
  auto made = MakeTemporary(&copy.path_);
  if (!made) {
    Unreserve(bytes);
    return std::move(made).error();
  }
  copy.owner_ = this;
  copy.bytes_ = bytes;
  copy.fd_ = *std::move(made);
  VRUN_ASSIGN(const uint64_t copied, CopyContent(fd, copy.fd_.get(), version.size));
  if (copied < version.size) return Error(Code::kAborted, "the file ends before its size");
  return copy;
}

Status OldContent::Keep(Copy copy, const tree::FileVersion& version) {
  if (::fdatasync(copy.fd_.get()) != 0) return ErrnoError("sync " + Escape(copy.path_));
  MutexLock lock(mutex_);
  if (kept_.contains(version)) return {};  // the copy is not needed: it is deleted after the unlock
  if (::rename(copy.path_.c_str(), PathOf(version).c_str()) != 0) return ErrnoError("rename " + Escape(copy.path_));
  copy.owner_ = nullptr;
  kept_[version] = copy.bytes_;
  return {};
}

bool OldContent::Has(const tree::FileVersion& version) const {
  MutexLock lock(mutex_);
  return kept_.contains(version);
}

Result<UniqueFd> OldContent::Open(const tree::FileVersion& version) const {
  if (!Has(version)) return Error(Code::kNotFound, "no such old content");
  return OpenFile(PathOf(version), O_RDONLY);
}

void OldContent::Drop(const tree::FileVersion& version) {
  MutexLock lock(mutex_);
  const auto kept = kept_.find(version);
  if (kept == kept_.end()) return;
  bytes_ -= kept->second;
  kept_.erase(kept);
  ::unlink(PathOf(version).c_str());
}

void OldContent::Retain(const std::function<bool(const tree::FileVersion&)>& wanted) {
  std::vector<tree::FileVersion> gone;
  {
    MutexLock lock(mutex_);
    for (const auto& [version, bytes] : kept_) {
      if (!wanted(version)) gone.push_back(version);
    }
  }
  for (const tree::FileVersion& version : gone) Drop(version);
}

OldContent::Stats OldContent::stats() const {
  MutexLock lock(mutex_);
  return {kept_.size(), bytes_};
}

}  // namespace vrun::home
