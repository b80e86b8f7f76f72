// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/tree/node_attributes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "vfs/fuse/posix_acl.h"
#include "vfs/live/data/live_file.h"

namespace vrun::vfs {
namespace {

constexpr std::string_view kCapability = "security.capability";

bool IsAfter(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

}  // namespace

timespec LiveNow() {
  static const int clock = ::memfd_create("clock", MFD_CLOEXEC);
  struct stat st {};
  // A look at a file's times makes its next ones finer, and all that come after it are later (Linux 6.13,
  // Documentation/filesystems/multigrain-ts.rst).
  if (clock >= 0 && ::fstat(clock, &st) == 0 && ::futimens(clock, nullptr) == 0 && ::fstat(clock, &st) == 0) {
    return st.st_mtim;
  }
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return now;
}

LiveAttributes CurrentAttributes(const LiveNode& node) {
  LiveAttributes a = node.attributes;
  struct stat st {};
  if (!node.file || node.file->Stat(&st) != 0) return a;
  a.size = static_cast<uint64_t>(st.st_size);
  a.blocks = static_cast<uint64_t>(st.st_blocks);
  a.atime = st.st_atim;
  a.mtime = st.st_mtim;
  // A write of data moves both times of the backing file. If only one moved, it was utimens (mtime), or a fill with
  // home's content (ctime), which changes nothing for users.
  const timespec written = IsAfter(st.st_mtim, st.st_ctim) ? st.st_ctim : st.st_mtim;
  if (IsAfter(written, a.ctime)) a.ctime = written;
  return a;
}

void SetMode(LiveNode* node, uint32_t mode) {
  node->attributes.mode = (node->attributes.mode & S_IFMT) | (mode & 07777);
  if (std::string* acl = FindXattr(node, kAccessAcl)) {
    if (auto next = ChmodAcl(*acl, mode)) *acl = *std::move(next);
  }
}

bool HasPrivileges(LiveNode* node) {
  return (node->attributes.mode & (S_ISUID | S_ISGID)) != 0 || FindXattr(node, kCapability) != nullptr;
}

bool DropPrivileges(LiveNode* node, const Request* by, const IdMap& ids) {
  if (node->is_directory()) return false;
  const bool changed = EraseXattr(node, kCapability);
  if (by == nullptr) return changed;
  const uint32_t before = node->attributes.mode;
  uint32_t& mode = node->attributes.mode;
  mode &= ~uint32_t{S_ISUID};
  const bool theirs = by->gid == node->attributes.gid || by->uid == ids.base();
  if ((mode & S_IXGRP) != 0 || !theirs) mode &= ~uint32_t{S_ISGID};
  return changed || mode != before;
}

std::string* FindXattr(LiveNode* node, std::string_view name) {
  for (auto& [key, value] : node->xattrs) {
    if (key == name) return &value;
  }
  return nullptr;
}

bool EraseXattr(LiveNode* node, std::string_view name) {
  return std::erase_if(node->xattrs, [&](const auto& xattr) { return xattr.first == name; }) > 0;
}

int CheckXattrName(std::string_view name) {
  if (name == kAccessAcl || name == kDefaultAcl) return 0;
  for (const std::string_view prefix : {"user.", "trusted.", "security."}) {
    if (name.starts_with(prefix)) return name.size() > prefix.size() ? 0 : EINVAL;
  }
  return EOPNOTSUPP;
}

}  // namespace vrun::vfs
