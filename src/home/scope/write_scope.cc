// SPDX-License-Identifier: Apache-2.0
#include "home/scope/write_scope.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>

#include "base/escape.h"
#include "base/files.h"
#include "tree/rules.h"

namespace vrun::home {
namespace {

constexpr char kCapability[] = "security.capability";
constexpr char kAccessList[] = "system.posix_acl_access";

void LeaveOut(const std::string& what, std::string* left_out) {
  if (!left_out->empty()) *left_out += ", ";
  *left_out += what + " (job_writes in config.toml does not allow it)";
}

// The file has exactly this value already.
bool HasAttribute(int fd, const std::string& name, const std::string& value) {
  std::array<char, 4096> now{};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t n = ::getxattr(path.c_str(), name.c_str(), now.data(), now.size());
  return n >= 0 && std::string_view(now.data(), static_cast<size_t>(n)) == value;
}

// For root. Otherwise the kernel refuses owners, and ACLs are this user's own matter, as modes are.
void LeaveForeign(JobWrites allowed, const Owners& owners, const Receiver& file, v1::Meta* meta,
                  std::string* left_out) {
  const uid_t me = ::geteuid();
  const auto& before = file.before;
  if (!before || meta->uid() != before->st_uid) {
    const bool fits = allowed == JobWrites::kOwn ? meta->uid() == me : owners.Fits(meta->uid(), file.directory);
    if (!fits) meta->set_uid(before ? before->st_uid : me);
  }
  if (allowed == JobWrites::kOwn) return;
  if (!before || meta->gid() != before->st_gid) {
    struct stat now {};
    if (!owners.GroupFits(meta->gid(), meta->uid(), file.directory) && ::fstat(file.fd, &now) == 0) {
      meta->set_gid(now.st_gid);
    }
  }
  auto* xattrs = meta->mutable_xattrs();
  for (int i = xattrs->size(); i-- > 0;) {
    const v1::Xattr xattr = xattrs->Get(i);
    if (!xattr.name().starts_with("system.posix_acl_") || owners.AclFits(xattr.value(), file.directory)) continue;
    if (HasAttribute(file.fd, xattr.name(), xattr.value())) continue;
    // Without the list, the bits of the group would be those of its mask.
    if (xattr.name() == kAccessList) meta->set_mode((meta->mode() & ~S_IRWXG) | GroupBits(xattr.value(), meta->mode()));
    LeaveOut(xattr.name(), left_out);
    xattrs->DeleteSubrange(i, 1);
  }
}

}  // namespace

WriteScope::WriteScope(std::string root, std::string mountinfo) : root_(std::move(root)), path_(std::move(mountinfo)) {
  if (auto fd = OpenFile(path_, O_RDONLY)) mountinfo_ = *std::move(fd);
}

const tree::MountTable* WriteScope::Mounts() {
  pollfd changed{mountinfo_.get(), POLLPRI, 0};
  if (!mounts_ || !mountinfo_ || ::poll(&changed, 1, 0) != 0) {
    const auto text = ReadFile(path_);
    auto table = text ? tree::MountTable::Parse(*text, root_) : Result<tree::MountTable>(text.error());
    if (!table) return nullptr;
    mounts_ = *std::move(table);
  }
  return &*mounts_;
}

Status WriteScope::Check(const std::string& path) {
  for (const char* place : {"/proc", "/sys", "/dev", "/run", "/tmp"}) {
    if (!tree::IsBelow(path, place)) continue;
    return Error(Code::kDenied, Escape(path) + ": jobs may not write here: each has a " + place + " of its own");
  }
  const tree::MountTable* mounts = Mounts();
  if (mounts == nullptr) return Error(Code::kUnavailable, Escape(path) + ": the mounts of this machine cannot be read");
  const tree::Mount* on = nullptr;
  for (const tree::Mount& mount : mounts->mounts()) {
    if (tree::IsBelow(path, mount.point) && (on == nullptr || mount.point.size() >= on->point.size())) on = &mount;
  }
  if (on == nullptr || on->included || on->point == "/") return {};
  return Error(Code::kDenied, Escape(path) + ": jobs may not write here: " + Escape(on->point) + " (" +
                                  Escape(on->type) + ") is not mirrored");
}

v1::Meta Permitted(v1::Meta meta, JobWrites allowed, const Owners& owners, const Receiver& file,
                   std::string* left_out) {
  struct stat now {};
  if (allowed == JobWrites::kAny || ::fstat(file.fd, &now) != 0) return meta;
  if (::geteuid() == 0) LeaveForeign(allowed, owners, file, &meta, left_out);
  if (S_ISREG(now.st_mode)) {
    // What home has given itself stays while owner and content do: nothing is written into such a file in place
    // (Appender::Open).
    const mode_t keeps =
        (now.st_uid == meta.uid() ? now.st_mode & S_ISUID : 0) | (now.st_gid == meta.gid() ? now.st_mode & S_ISGID : 0);
    const mode_t dropped = meta.mode() & (S_ISUID | S_ISGID) & ~keeps;
    if ((dropped & S_ISUID) != 0) LeaveOut("setuid", left_out);
    if ((dropped & S_ISGID) != 0) LeaveOut("setgid", left_out);
    meta.set_mode(meta.mode() & ~dropped);
  }
  auto* xattrs = meta.mutable_xattrs();
  for (int i = xattrs->size(); i-- > 0;) {
    if (xattrs->Get(i).name() != kCapability) continue;
    if (now.st_uid == meta.uid() && HasAttribute(file.fd, kCapability, xattrs->Get(i).value())) continue;
    LeaveOut(kCapability, left_out);
    xattrs->DeleteSubrange(i, 1);
  }
  return meta;
}

bool MayBring(const struct stat& file, JobWrites allowed, const Owners& owners, int directory) {
  return allowed == JobWrites::kAny || ::geteuid() != 0 || owners.Fits(file.st_uid, directory);
}

}  // namespace vrun::home
