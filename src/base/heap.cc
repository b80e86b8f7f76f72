// SPDX-License-Identifier: Apache-2.0
#include "base/heap.h"

#include <malloc.h>

namespace vrun {

void KeepFreedMemory() {
  // What is larger than this is mapped by itself; 32 MiB is the most that glibc takes.
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, kKeptHeapBytes);
  ::mallopt(M_TOP_PAD, 4 << 20);
}

}  // namespace vrun
