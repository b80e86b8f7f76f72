// SPDX-License-Identifier: Apache-2.0
#include "sandbox/mounts/mount_api.h"

#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/escape.h"

namespace vrun::sandbox {
namespace {

// The kernel's explanation of a refused mount, read from the context as lines: "e overlay: ...".
std::string Explanation(int context) {
  std::string text;
  char line[512];
  for (int i = 0; i < 8; ++i) {
    ssize_t n = ::read(context, line, sizeof line);
    if (n <= 2) break;
    if (line[0] != 'e' && line[0] != 'w') continue;
    text += ": " + Escape({line + 2, static_cast<size_t>(n) - 2});
  }
  return text;
}

}  // namespace

Result<UniqueFd> NewMount(const char* type, const MountOptions& options, unsigned attributes) {
  UniqueFd context(::fsopen(type, FSOPEN_CLOEXEC));
  if (!context) return ErrnoError(std::string("fsopen ") + type);
  for (const auto& [key, value] : options) {
    int rc = value.empty() ? ::fsconfig(context.get(), FSCONFIG_SET_FLAG, key.c_str(), nullptr, 0)
                           : ::fsconfig(context.get(), FSCONFIG_SET_STRING, key.c_str(), value.c_str(), 0);
    if (rc != 0) {
      Error error = ErrnoError(std::string(type) + " option " + key + "=" + Escape(value));
      return std::move(error).With("mount" + Explanation(context.get()));
    }
  }
  if (::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    Error error = ErrnoError(std::string("mount ") + type);
    std::string why = Explanation(context.get());
    return why.empty() ? std::move(error) : std::move(error).With(type + why);
  }
  UniqueFd mount(::fsmount(context.get(), FSMOUNT_CLOEXEC, attributes));
  if (!mount) return ErrnoError(std::string("fsmount ") + type);
  return mount;
}

Result<UniqueFd> CloneMount(int dir, const std::string& path, unsigned attributes) {
  unsigned flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC;
  if (path.empty()) flags |= AT_EMPTY_PATH;
  UniqueFd mount(::open_tree(dir, path.c_str(), flags));
  if (!mount) return ErrnoError("open_tree " + Escape(path));
  VRUN_TRY(AddAttributes(mount.get(), attributes));
  return mount;
}

Status AddAttributes(int mount, unsigned attributes) {
  if (attributes == 0) return {};
  mount_attr attr{};
  attr.attr_set = attributes;
  if (::mount_setattr(mount, "", AT_EMPTY_PATH, &attr, sizeof attr) != 0) return ErrnoError("mount_setattr");
  return {};
}

Status AttachMount(int mount, int dir, const std::string& path) {
  unsigned flags = MOVE_MOUNT_F_EMPTY_PATH;
  if (path.empty()) flags |= MOVE_MOUNT_T_EMPTY_PATH;
  if (::move_mount(mount, "", dir, path.c_str(), flags) != 0) return ErrnoError("move_mount to " + Escape(path));
  return {};
}

Result<UniqueFd> OpenInRoot(int root, const std::string& path, int flags, uint64_t resolve) {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags | O_PATH | O_CLOEXEC);
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | resolve;
  UniqueFd fd(static_cast<int>(::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how)));
  if (!fd) return ErrnoError("open /" + Escape(path) + " in the root");
  return fd;
}

}  // namespace vrun::sandbox
