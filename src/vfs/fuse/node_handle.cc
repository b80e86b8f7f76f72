// SPDX-License-Identifier: Apache-2.0
#include "vfs/fuse/node_handle.h"

#include <fcntl.h>

#include <array>
#include <cstring>

namespace vrun::vfs {
namespace {

constexpr int kFuseHandleType = 0x81;   // FILEID_INO64_GEN
using Words = std::array<uint32_t, 3>;  // node id (high, low), generation

struct Handle {
  file_handle handle;
  std::array<unsigned char, MAX_HANDLE_SZ> bytes;
};

}  // namespace

uint64_t NodeOf(int fd) {
  Handle of{};
  of.handle.handle_bytes = MAX_HANDLE_SZ;
  int mount_id = 0;
  if (::name_to_handle_at(fd, "", &of.handle, &mount_id, AT_EMPTY_PATH) != 0) return 0;
  Words words{};
  if (of.handle.handle_type != kFuseHandleType || of.handle.handle_bytes < sizeof words) return 0;
  std::memcpy(words.data(), of.handle.f_handle, sizeof words);
  return uint64_t{words[0]} << 32 | words[1];
}

UniqueFd OpenNode(int mount, uint64_t nodeid) {
  const Words words{static_cast<uint32_t>(nodeid >> 32), static_cast<uint32_t>(nodeid), 0};
  Handle of{};
  of.handle.handle_bytes = sizeof words;
  of.handle.handle_type = kFuseHandleType;
  std::memcpy(of.handle.f_handle, words.data(), sizeof words);
  return UniqueFd(::open_by_handle_at(mount, &of.handle, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOATIME));
}

}  // namespace vrun::vfs
