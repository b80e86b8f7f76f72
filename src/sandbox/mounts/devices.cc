// SPDX-License-Identifier: Apache-2.0
#include "sandbox/mounts/devices.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <string>

#include "sandbox/mounts/mount_api.h"

namespace vrun::sandbox {
namespace {

struct Node {
  const char* name;
  unsigned major, minor;
};
constexpr Node kNodes[] = {{"null", 1, 3},   {"zero", 1, 5},    {"full", 1, 7},
                           {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};

struct Link {
  const char* name;
  const char* target;
};
constexpr Link kLinks[] = {{"fd", "/proc/self/fd"},
                           {"stdin", "/proc/self/fd/0"},
                           {"stdout", "/proc/self/fd/1"},
                           {"stderr", "/proc/self/fd/2"},
                           {"ptmx", "pts/ptmx"}};
constexpr const char* kDirectories[] = {"pts", "shm", "mqueue"};

Status BindNode(int dev, const char* name) {
  UniqueFd file(::openat(dev, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666));
  if (!file) return ErrnoError(std::string("create /dev/") + name);
  VRUN_ASSIGN(UniqueFd node, CloneMount(AT_FDCWD, std::string("/dev/") + name, 0));
  Status attached = AttachMount(node.get(), dev, name);
  if (!attached) return std::move(attached).error().With("bind the node's device (mknod is not permitted here)");
  return {};
}

Status MakeNode(int dev, const Node& node, uint32_t uid_base) {
  if (::mknodat(dev, node.name, S_IFCHR | 0666, makedev(node.major, node.minor)) != 0) {
    if (errno != EPERM) return ErrnoError(std::string("mknod /dev/") + node.name);
    return BindNode(dev, node.name);
  }
  // chmod too, because the umask is inherited.
  if (::fchownat(dev, node.name, uid_base, uid_base, 0) != 0 || ::fchmodat(dev, node.name, 0666, 0) != 0) {
    return ErrnoError("chown a device");
  }
  return {};
}

}  // namespace

Result<UniqueFd> MakeDevices(uint32_t uid_base) {
  std::string owner = std::to_string(uid_base);
  VRUN_ASSIGN(UniqueFd dev, NewMount("tmpfs", {{"mode", "0755"}, {"uid", owner}, {"gid", owner}, {"size", "1m"}},
                                     MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC));
  for (const Node& node : kNodes) VRUN_TRY(MakeNode(dev.get(), node, uid_base));
  for (const Link& link : kLinks) {
    if (::symlinkat(link.target, dev.get(), link.name) != 0) return ErrnoError("symlink in /dev");
    if (::fchownat(dev.get(), link.name, uid_base, uid_base, AT_SYMLINK_NOFOLLOW) != 0)
      return ErrnoError("chown in /dev");
  }
  for (const char* directory : kDirectories) {
    if (::mkdirat(dev.get(), directory, 0755) != 0) return ErrnoError("mkdir in /dev");
    if (::fchownat(dev.get(), directory, uid_base, uid_base, 0) != 0) return ErrnoError("chown in /dev");
  }
  return dev;
}

}  // namespace vrun::sandbox
