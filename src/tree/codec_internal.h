// SPDX-License-Identifier: Apache-2.0
// What tree.cc needs of the encoding beside codec.h. Not for other modules.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace vrun::tree {

void EncodeCount(uint64_t count, std::string* out);
// Takes magic and count off the front of *bytes. kCorrupt; the count is bounded by what may follow.
Result<uint64_t> DecodeCount(std::string_view* bytes);

// The few fields that the index needs. The bytes must be a valid entry.
struct Peek {
  uint32_t mode = 0;
  uint32_t nlink = 0;    // 0 for directories
  uint64_t size = 0;     // regular files
  uint64_t dev = 0;      // not of directories
  uint64_t ino = 0;      // not of directories
  size_t digest_at = 0;  // of directories: where the 32 bytes are
  bool xattrs = false;   // it has some
};
Peek PeekEntry(std::string_view entry);
std::string_view PeekName(const char* entry);

}  // namespace vrun::tree
