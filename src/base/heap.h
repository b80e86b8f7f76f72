// SPDX-License-Identifier: Apache-2.0
// Tunes malloc's handling of freed memory in daemons.
#pragma once

namespace vrun {

// Call once, at the start of a program that transfers content. Messages of up to some MiB are allocated and freed
// thousands of times a second. By default glibc returns such blocks to the kernel each time, which then clears and maps
// new pages: half of the transport's time (docs/performance.md). Costs up to kKeptHeapBytes of unused memory.
void KeepFreedMemory();
inline constexpr int kKeptHeapBytes = 64 << 20;

}  // namespace vrun
