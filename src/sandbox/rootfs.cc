// SPDX-License-Identifier: Apache-2.0
#include "sandbox/rootfs.h"

#include <sys/stat.h>

#include "base/escape.h"
#include "base/log.h"
#include "sandbox/mounts/mount_api.h"

namespace vrun::sandbox {
namespace {

Status CopyRootAttributes(int view) {
  UniqueFd directory(::open("upper", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory) return ErrnoError("open upper");
  int upper = directory.get();
  struct stat st;
  if (::fstat(view, &st) != 0) return ErrnoError("stat the view of the root");
  if (!S_ISDIR(st.st_mode)) return Error(Code::kInvalid, "the view of the root is not a directory");
  if (::fchown(upper, st.st_uid, st.st_gid) != 0) return ErrnoError("chown upper");
  if (::fchmod(upper, st.st_mode & 07777) != 0) return ErrnoError("chmod upper");
  timespec times[2] = {st.st_atim, st.st_mtim};
  if (::futimens(upper, times) != 0) return ErrnoError("set the times of upper");
  return {};
}

bool MayBeRefusedOption(const Error& error) {
  return error.error_number() == EINVAL || error.error_number() == EOPNOTSUPP;
}

}  // namespace

Result<UniqueFd> MountRoot(RootViews views, const PrepareUpper& prepare_upper) {
  VRUN_TRY(AttachMount(views.whole.get(), AT_FDCWD, "lower"));
  if (views.apart) VRUN_TRY(AttachMount(views.apart.get(), AT_FDCWD, "apart"));
  VRUN_TRY(prepare_upper ? prepare_upper("upper", "lower", views.apart ? "apart" : "")
                         : CopyRootAttributes(views.whole.get()));

  // Relative paths, so that no character of the task directory's name needs quoting. The most dispensable option is
  // last. volatile: without it the end of every job would sync the node's whole disk, and each fsync inside would wait
  // for it. An attempt does not survive a crash of its node anyway.
  MountOptions options = {{"lowerdir", views.apart ? "apart:lower" : "lower"},
                          {"upperdir", "upper"},
                          {"workdir", "work"},
                          {"redirect_dir", "on"},
                          {"metacopy", "on"},
                          {"index", "off"},
                          {"xino", "on"},
                          {"volatile", ""}};
  constexpr size_t kLayers = 3;
  for (;;) {
    Result<UniqueFd> mount = NewMount("overlay", options, MOUNT_ATTR_NODEV);
    if (mount || options.size() == kLayers || !MayBeRefusedOption(mount.error())) {
      if (!mount) return std::move(mount).error().With("mount the root");
      return mount;
    }
    LogWarning("overlay without {}: {}", options.back().first, mount.error().message());
    options.pop_back();
  }
}

Result<UniqueFd> MountPoint(int root, const char* name, const Spec& spec) {
  Result<UniqueFd> fd = OpenInRoot(root, name, O_DIRECTORY);
  if (fd || fd.error().error_number() != ENOENT) return fd;
  if (spec.live_root) {
    // A directory made there would be made at home.
    return Error(Code::kNotFound, std::string("/") + name + ": the root has none: make that directory at home");
  }
  struct stat before;
  if (::fstat(root, &before) != 0) return ErrnoError("stat the root");
  if (::mkdirat(root, name, 0755) != 0) {
    return Error(Code::kInvalid, std::string("/") + name + " in the root: a link to nowhere: make it a directory");
  }
  if (::fchownat(root, name, spec.ids.base(), spec.ids.base(), AT_SYMLINK_NOFOLLOW) != 0)
    return ErrnoError(std::string("chown /") + name);
  // Not a change by the command: restores the root's times, or they would be carried home as a change of /.
  timespec times[2] = {before.st_atim, before.st_mtim};
  if (::utimensat(root, "", times, AT_EMPTY_PATH) != 0) return ErrnoError("set the times of the root");
  return OpenInRoot(root, name, O_DIRECTORY);
}

}  // namespace vrun::sandbox
