// SPDX-License-Identifier: Apache-2.0
// Copies the content of files with their holes: a sparse file of 64 GiB with 2 MB of data costs 2 MB.
//
// All functions move the descriptors' file offsets. Thread safety: any thread, for different files.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"

namespace vrun {

// Visits the data of [begin, end) of an open file in order, without its holes. Where the file system cannot tell holes
// from data, all of it is data. Stops with the first error of `visit`.
Status ForEachData(int fd, uint64_t begin, uint64_t end,
                   const std::function<Status(uint64_t offset, uint64_t length)>& visit);

// Makes the content of `to` that of the first `size` bytes of `from`, and returns the new size of `to`: less than
// `size` only if `from` is shorter. Clones if the file system can; otherwise copies the data. Where `from` has holes
// `to` gets them too, whatever it had there. `to` must be open for writing, without O_APPEND.
Result<uint64_t> CopyContent(int from, int to, uint64_t size);

// Allocates room in `to` for the data of the first `size` bytes of `from`, so that a CopyContent does not fill the disk
// halfway. Fails only where there is no room; file systems without fallocate(2) reserve nothing.
Status ReserveForContent(int from, int to, uint64_t size);

}  // namespace vrun
