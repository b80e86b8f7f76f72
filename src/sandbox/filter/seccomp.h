// SPDX-License-Identifier: Apache-2.0
// The system call filter of a command: an allow-list in the spirit of Docker's.
//
// Every call up to kLastReviewedCall has been looked at and is allowed unless it is in the table of seccomp.cc; newer
// ones do not exist for a command (ENOSYS) until somebody has looked at them. The same numbers mean other things in
// another ABI: calls of x32 do not exist either, and a 32-bit program is killed (SIGSYS). Made by hand as a classic BPF
// program of some 150 instructions: libseccomp would need longer to compile one than everything else in the start of a
// sandbox takes.
//
// A refusal is EPERM or ENOSYS, whichever programs know to handle.
#pragma once

#include <linux/filter.h>

#include <cstdint>
#include <vector>

namespace vrun::sandbox {

struct SeccompPolicy {
  // Namespaces and mounts of the command's own: bubblewrap, unshare, the sandbox of Chromium.
  bool allow_namespaces = true;
};

// The last system call that the table takes into account.
inline constexpr uint32_t kLastReviewedCall = 469;  // file_setattr, Linux 6.17

std::vector<sock_filter> SeccompProgram(const SeccompPolicy& policy);

}  // namespace vrun::sandbox
