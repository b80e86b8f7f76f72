// SPDX-License-Identifier: Apache-2.0
#include "store/format/aliases.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "base/files.h"

namespace vrun::store {
namespace {

constexpr size_t kRecordBytes = 80;
constexpr size_t kAliasCheckBytes = 8;
constexpr size_t kMaxFileBytes = 64u << 20;  // 800,000 names

std::string Encode(const Digest& provisional, const ObjectId& final_id) {
  std::string record(provisional.view());
  record += final_id.Encode();
  record.resize(kRecordBytes - kAliasCheckBytes);
  record.append(Sha256(record).view().substr(0, kAliasCheckBytes));
  return record;
}

}  // namespace

Status Aliases::Load(const std::string& path) {
  MutexLock lock(mu_);
  path_ = path;
  map_.clear();
  struct stat st;
  // Anything else at this path is not our list, which is only a cache.
  if (::lstat(path.c_str(), &st) == 0 && !S_ISREG(st.st_mode)) VRUN_TRY(RemoveTree(path));
  VRUN_ASSIGN(UniqueFd fd, OpenFile(path, O_RDWR | O_CREAT, 0600));
  if (::fstat(fd.get(), &st) != 0) return ErrnoError("stat " + path);
  if (static_cast<uint64_t>(st.st_size) > kMaxFileBytes) {
    if (::ftruncate(fd.get(), 0) != 0) return ErrnoError("truncate " + path);
    return {};
  }
  std::string bytes(static_cast<size_t>(st.st_size), '\0');
  VRUN_ASSIGN(size_t n, PreadUpTo(fd.get(), bytes.data(), bytes.size(), 0));
  for (size_t at = 0; at + kRecordBytes <= n; at += kRecordBytes) {
    const std::string_view record(&bytes[at], kRecordBytes);
    const Digest check = Sha256(record.substr(0, kRecordBytes - kAliasCheckBytes));
    if (record.substr(kRecordBytes - kAliasCheckBytes) != check.view().substr(0, kAliasCheckBytes)) continue;
    if (auto id = ObjectId::Decode(record.substr(32, 33))) map_[*Digest::FromBytes(record.substr(0, 32))] = *id;
  }
  return {};
}

std::optional<ObjectId> Aliases::Find(const Digest& provisional) const {
  MutexLock lock(mu_);
  auto it = map_.find(provisional);
  if (it == map_.end()) return std::nullopt;
  return it->second;
}

void Aliases::Add(const Digest& provisional, const ObjectId& final_id) {
  {
    MutexLock lock(mu_);
    auto [it, added] = map_.try_emplace(provisional, final_id);
    if (!added && it->second == final_id) return;
    it->second = final_id;
  }
  auto fd = OpenFile(path_, O_RDWR);
  if (!fd || ::flock(fd->get(), LOCK_EX) != 0) return;
  // Cuts off a record torn by a full disk, so that records stay aligned.
  struct stat st;
  if (::fstat(fd->get(), &st) != 0) return;
  const uint64_t end = static_cast<uint64_t>(st.st_size) / kRecordBytes * kRecordBytes;
  if (!PwriteAll(fd->get(), Encode(provisional, final_id), end)) {
    [[maybe_unused]] int ignored = ::ftruncate(fd->get(), static_cast<off_t>(end));
  }
}

size_t Aliases::size() const {
  MutexLock lock(mu_);
  return map_.size();
}

}  // namespace vrun::store
