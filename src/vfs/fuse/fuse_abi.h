// SPDX-License-Identifier: Apache-2.0
// The FUSE wire format: <linux/fuse.h> of Debian 12 (protocol 7.38) plus additions of newer kernels.
//
// Nothing here is required of the kernel: a kernel ignores flags that it does not know, and a kernel that does not
// offer a flag is served without it.
#pragma once

#include <linux/fuse.h>
#include <sys/ioctl.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace vrun::vfs {

// INIT flags as one 64-bit word: `flags` below, `flags2` above.
inline constexpr uint64_t kFusePassthrough = 1ull << 37;    // 7.40, Linux 6.9
inline constexpr uint64_t kFuseHasExpireOnly = 1ull << 35;  // 7.38
inline constexpr uint32_t kFuseExpireOnly = 1;              // of FUSE_NOTIFY_INVAL_ENTRY
inline constexpr uint64_t kFuseHasResend = 1ull << 39;      // 7.40: FUSE_NOTIFY_RESEND

// OPEN answers.
inline constexpr uint32_t kOpenKeepCache = 1u << 1;
inline constexpr uint32_t kOpenCacheDir = 1u << 3;
inline constexpr uint32_t kOpenNoFlush = 1u << 5;
inline constexpr uint32_t kOpenPassthrough = 1u << 7;  // with a backing id; only kOpenNoFlush may accompany it

// fuse_init_out with the fields after flags2 that 7.38 leaves unused.
struct InitOut {
  uint32_t major;
  uint32_t minor;
  uint32_t max_readahead;
  uint32_t flags;
  uint16_t max_background;
  uint16_t congestion_threshold;
  uint32_t max_write;
  uint32_t time_gran;
  uint16_t max_pages;
  uint16_t map_alignment;
  uint32_t flags2;
  uint32_t max_stack_depth;  // 1: backing files on a plain file system, and an overlayfs may be mounted on top
  uint16_t request_timeout;
  uint16_t unused[11];
};
static_assert(sizeof(InitOut) == sizeof(fuse_init_out));
static_assert(offsetof(InitOut, flags2) == offsetof(fuse_init_out, flags2));

// fuse_open_out with the backing id in place of the padding.
struct OpenOut {
  uint64_t fh;
  uint32_t open_flags;
  int32_t backing_id;
};
static_assert(sizeof(OpenOut) == sizeof(fuse_open_out));

struct BackingMap {
  int32_t fd;
  uint32_t flags;
  uint64_t padding;
};
inline constexpr unsigned long kIoctlBackingOpen = _IOW(FUSE_DEV_IOC_MAGIC, 1, BackingMap);
inline constexpr unsigned long kIoctlBackingClose = _IOW(FUSE_DEV_IOC_MAGIC, 2, uint32_t);

inline constexpr int kNotifyResend = 7;  // 7.40: no body

inline constexpr size_t kOpcodeCount = 64;  // counters are kept for 0..63

// The minor version of Linux 5.4. Older kernels expect shorter answers.
inline constexpr uint32_t kMinimumMinor = 31;
// The version that we offer. No later version changes a layout that we use.
inline constexpr uint32_t kSpokenMinor = 40;

// A timeout that means "for ever" (a hundred years) and overflows in no kernel.
inline constexpr uint64_t kForeverSeconds = 100ull * 365 * 24 * 3600;

}  // namespace vrun::vfs
