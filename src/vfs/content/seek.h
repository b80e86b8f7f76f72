// SPDX-License-Identifier: Apache-2.0
// lseek(2) with SEEK_DATA and SEEK_HOLE in home's files.
#pragma once

#include <cstdint>
#include <memory>

#include "vfs/content/file_cache.h"
#include "vfs/fuse/dispatcher.h"

namespace vrun::vfs {

// Whether a file of that size, with that many blocks of 512 bytes, may have holes.
constexpr bool IsSparse(uint64_t size, uint64_t blocks) { return blocks * 512 < size; }

// `sparse`: home is asked once for its holes. A file that is not sparse, or whose holes home cannot tell, is data from
// the first byte to the last. Answers with fuse_lseek_out.
void AnswerSeek(const std::shared_ptr<FileContent>& content, const FileContent::Place& place, bool sparse,
                uint64_t offset, uint32_t whence, Reply reply);

}  // namespace vrun::vfs
