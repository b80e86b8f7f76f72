// SPDX-License-Identifier: Apache-2.0
#include "vfs/fuse/mount.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <utility>

#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"

namespace vrun::vfs {
namespace {

Error MountError(int error_number, const std::string& directory) {
  const std::string what = "mount a view on " + Escape(directory);
  if (error_number == ENODEV) {
    return Error(Code::kUnsupported, what + ": the kernel has no FUSE: load the fuse module (modprobe fuse)");
  }
  if (error_number == EPERM) {
    return Error(Code::kDenied, what + ": mounting is not permitted: run the node as root with CAP_SYS_ADMIN");
  }
  return ErrnoError(error_number, what);
}

// Uses the mount API of Linux 5.2: the mount is ours before it is attached anywhere.
Result<UniqueFd> NewMount(int device, bool read_only) {
  const UniqueFd context(::fsopen("fuse", FSOPEN_CLOEXEC));
  if (!context) return ErrnoError("fsopen fuse");
  const auto set = [&](unsigned command, const char* key, const char* value) {
    return ::fsconfig(context.get(), command, key, value, 0) == 0;
  };
  const std::string fd = std::to_string(device);
  if (!set(FSCONFIG_SET_STRING, "source", "vrun") || !set(FSCONFIG_SET_STRING, "fd", fd.c_str()) ||
      !set(FSCONFIG_SET_STRING, "rootmode", "40000") || !set(FSCONFIG_SET_STRING, "user_id", "0") ||
      !set(FSCONFIG_SET_STRING, "group_id", "0") || !set(FSCONFIG_SET_FLAG, "allow_other", nullptr) ||
      !set(FSCONFIG_SET_FLAG, "default_permissions", nullptr) ||
      (read_only && !set(FSCONFIG_SET_FLAG, "ro", nullptr))) {
    return ErrnoError("fsconfig fuse");
  }
  set(FSCONFIG_SET_STRING, "subtype", "vrun");  // for people who read /proc/mounts
  if (!set(FSCONFIG_CMD_CREATE, nullptr, nullptr)) return ErrnoError("create the FUSE superblock");
  UniqueFd mount(::fsmount(context.get(), FSMOUNT_CLOEXEC, (read_only ? MOUNT_ATTR_RDONLY : 0) | MOUNT_ATTR_NODEV));
  if (!mount) return ErrnoError("fsmount fuse");
  return mount;
}

Result<UniqueFd> OldMount(int device, const std::string& directory, bool read_only) {
  const std::string options =
      "fd=" + std::to_string(device) + ",rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions";
  const unsigned long flags = (read_only ? MS_RDONLY : 0) | MS_NODEV;
  if (::mount("vrun", directory.c_str(), "fuse.vrun", flags, options.c_str()) != 0) {
    return MountError(errno, directory);
  }
  UniqueFd mount(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!mount) {
    const int error = errno;
    ::umount2(directory.c_str(), MNT_DETACH | MNT_FORCE);
    return ErrnoError(error, "open the mounted view");
  }
  return mount;
}

}  // namespace

Result<UniqueFd> OpenFuseDevice(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd) return fd;
  if (errno == ENOENT || errno == ENODEV || errno == ENXIO) {
    return Error(Code::kUnsupported, path + ": this host has no FUSE device: load the fuse module (modprobe fuse)");
  }
  return ErrnoError(errno, "open " + path);
}

Result<FuseMount> FuseMount::Create(int device, const std::string& directory, Access access) {
  const bool read_only = access == Access::kReadOnly;
  auto mount = NewMount(device, read_only);
  if (mount) {
    if (::move_mount(mount->get(), "", AT_FDCWD, directory.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0) {
      return MountError(errno, directory);
    }
  } else {
    if (mount.error().error_number() != ENOSYS) return MountError(mount.error().error_number(), directory);
    VRUN_ASSIGN(mount, OldMount(device, directory, read_only));
  }
  auto adopted = Adopt(*std::move(mount), directory);
  if (!adopted) ::umount2(directory.c_str(), MNT_DETACH | MNT_FORCE);
  return adopted;
}

Result<FuseMount> FuseMount::Adopt(UniqueFd mount, const std::string& directory) {
  // Must not send a request: the server may not be running yet.
  struct statx st {};
  if (::statx(mount.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, 0, &st) != 0) {
    return ErrnoError("statx of the mounted view");
  }
  return FuseMount(std::move(mount), directory, st.stx_dev_minor);
}

FuseMount::FuseMount(FuseMount&& other) noexcept
    : mount_(std::move(other.mount_)),
      directory_(std::exchange(other.directory_, {})),
      connection_(other.connection_) {}

FuseMount::~FuseMount() {
  if (!mount_) return;
  Abort();
  Unmount();
}

Result<UniqueFd> FuseMount::Clone(const std::function<bool(int error)>& give_way) const {
  const auto open = [this] {
    return UniqueFd(::open_tree(mount_.get(), "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH));
  };
  UniqueFd clone = open();
  if (!clone && (errno == EMFILE || errno == ENFILE) && give_way && give_way(errno)) clone = open();
  if (!clone) return ErrnoError("clone the mount of a view");
  return clone;
}

void FuseMount::Abort() {
  const std::string control = "/sys/fs/fuse/connections/" + std::to_string(connection_) + "/abort";
  if (WriteKernelFile(control, "1")) return;
  // No fusectl here: a forced unmount aborts the connection as well, whoever else uses it. Through the descriptor,
  // because the mount may have been moved.
  const std::string path = "/proc/self/fd/" + std::to_string(mount_.get());
  if (::umount2(path.c_str(), MNT_FORCE | MNT_DETACH) != 0 && !directory_.empty()) {
    ::umount2(directory_.c_str(), MNT_FORCE | MNT_DETACH);
  }
  directory_.clear();
}

void FuseMount::Unmount() {
  if (directory_.empty()) return;
  const std::string path = "/proc/self/fd/" + std::to_string(mount_.get());
  if (::umount2(path.c_str(), MNT_DETACH) != 0 && ::umount2(directory_.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0) {
    LogWarning("{}", ErrnoError(errno, "unmount " + Escape(directory_)).message());
  }
  directory_.clear();
}

Status FuseMount::SetReadAhead(uint32_t kb) const {
  return WriteKernelFile("/sys/class/bdi/0:" + std::to_string(connection_) + "/read_ahead_kb", std::to_string(kb));
}

}  // namespace vrun::vfs
