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

void LeaveOut(const std::string& what, std::string* left_out) {
  if (!left_out->empty()) *left_out += ", ";
  *left_out += what + " (job_writes in config.toml does not allow it)";
}

// The file has exactly this value already.
bool HasCapability(int fd, const std::string& value) {
  std::array<char, 256> now{};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t n = ::getxattr(path.c_str(), kCapability, now.data(), now.size());
  return n >= 0 && std::string_view(now.data(), static_cast<size_t>(n)) == value;
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

v1::Meta Permitted(v1::Meta meta, JobWrites allowed, int fd, const std::optional<struct stat>& before,
                   std::string* left_out) {
  struct stat now {};
  if (allowed == JobWrites::kAny || ::fstat(fd, &now) != 0) return meta;
  if (allowed == JobWrites::kOwn && meta.uid() != ::geteuid() && (!before || meta.uid() != before->st_uid)) {
    if (::geteuid() == 0) LeaveOut("owner " + std::to_string(meta.uid()), left_out);
    meta.set_uid(before ? before->st_uid : ::geteuid());
  }
  if (!S_ISREG(now.st_mode)) return meta;
  // What home has given itself stays while owner and content do: nothing is written into such a file in place
  // (Appender::Open).
  const mode_t keeps =
      (now.st_uid == meta.uid() ? now.st_mode & S_ISUID : 0) | (now.st_gid == meta.gid() ? now.st_mode & S_ISGID : 0);
  const mode_t dropped = meta.mode() & (S_ISUID | S_ISGID) & ~keeps;
  if ((dropped & S_ISUID) != 0) LeaveOut("setuid", left_out);
  if ((dropped & S_ISGID) != 0) LeaveOut("setgid", left_out);
  meta.set_mode(meta.mode() & ~dropped);
  auto* xattrs = meta.mutable_xattrs();
  for (int i = xattrs->size(); i-- > 0;) {
    if (xattrs->Get(i).name() != kCapability) continue;
    if (now.st_uid == meta.uid() && HasCapability(fd, xattrs->Get(i).value())) continue;
    LeaveOut(kCapability, left_out);
    xattrs->DeleteSubrange(i, 1);
  }
  return meta;
}

}  // namespace vrun::home
