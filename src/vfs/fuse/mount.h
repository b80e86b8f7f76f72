// SPDX-License-Identifier: Apache-2.0
// One FUSE mount: create, clone, end.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::vfs {

class FuseMount {
 public:
  enum class Access { kReadOnly, kReadWrite };
  // Mounts `device` (an open /dev/fuse) nodev on `directory`, for all users, with permissions checked by the kernel.
  // kUnsupported: no FUSE here; kDenied: no CAP_SYS_ADMIN. With kReadOnly the superblock is read-only as well: on a
  // writable one every read would mark atime stale and with it all attributes (measured: 1,142 GETATTRs in a warm run
  // instead of 0).
  // instead of 0).
  static Result<FuseMount> Create(int device, const std::string& directory, Access access = Access::kReadOnly);
  // A mount that another process made on `directory` of this mount namespace.
  static Result<FuseMount> Adopt(UniqueFd mount, const std::string& directory);
  FuseMount(FuseMount&& other) noexcept;
  FuseMount& operator=(FuseMount&&) = delete;
  ~FuseMount();  // Abort and Unmount

  // `give_way` is called with the errno when there are no descriptors left; it returns true if it has closed one.
  Result<UniqueFd> Clone(const std::function<bool(int error)>& give_way = nullptr) const;
  int fd() const { return mount_.get(); }  // the mount itself, O_PATH
  // Ends the connection: readers of the device get ENODEV, users of the mount and its clones ENOTCONN. Idempotent.
  void Abort();
  void Unmount();
  // For files opened from now on; FUSE negotiates 128 KiB at most.
  Status SetReadAhead(uint32_t kb) const;

 private:
  FuseMount(UniqueFd mount, std::string directory, unsigned connection)
      : mount_(std::move(mount)), directory_(std::move(directory)), connection_(connection) {}

  UniqueFd mount_;         // keeps the mount alive, wherever it is attached
  std::string directory_;  // empty: unmounted
  unsigned connection_;    // minor number of its device: its name in /sys/fs/fuse/connections and /sys/class/bdi
};

// Opens the FUSE device. If there is none: kUnsupported, with advice in the message.
Result<UniqueFd> OpenFuseDevice(const std::string& path);

}  // namespace vrun::vfs
