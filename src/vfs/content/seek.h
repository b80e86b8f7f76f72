// SPDX-License-Identifier: Apache-2.0
// lseek(2) with SEEK_DATA and SEEK_HOLE in files of home.
#pragma once

#include <cstdint>
#include <memory>

#include "vfs/content/file_cache.h"
#include "vfs/fuse/dispatcher.h"

namespace vrun::vfs {

// Whether a file of that size may have holes, with so many blocks of 512 bytes.
constexpr bool IsSparse(uint64_t size, uint64_t blocks) { return blocks * 512 < size; }

// `sparse`: home is asked once where it has holes; a file whose holes home cannot tell, and one that is not sparse, is
// data from the first byte to the last. fuse_lseek_out.
void AnswerSeek(const std::shared_ptr<FileContent>& content, const FileContent::Place& place, bool sparse,
                uint64_t offset, uint32_t whence, Reply reply);

}  // namespace vrun::vfs
