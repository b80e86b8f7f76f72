// SPDX-License-Identifier: Apache-2.0
// How malloc treats what a daemon frees.
#pragma once

namespace vrun {

// Once, at the beginning of a program that moves content. Messages of up to some MiB come and go thousands of times a
// second; by default glibc gives such blocks back to the kernel each time, which then clears and maps their pages anew:
// half of the time that the transport took (docs/performance.md). Costs up to kKeptHeapBytes of memory that is not
// used at the moment.
void KeepFreedMemory();
inline constexpr int kKeptHeapBytes = 64 << 20;

}  // namespace vrun
