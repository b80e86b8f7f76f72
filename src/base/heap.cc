// SPDX-License-Identifier: Apache-2.0
#include "base/heap.h"

#include <malloc.h>

namespace vrun {

void KeepFreedMemory() {
  // Larger blocks are mapped individually; 32 MiB is glibc's maximum.
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, kKeptHeapBytes);
  ::mallopt(M_TOP_PAD, 4 << 20);
}

}  // namespace vrun
