// SPDX-License-Identifier: Apache-2.0
// Parts of the encoding that only tree.cc needs. Not for other modules.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace vrun::tree {

void EncodeCount(uint64_t count, std::string* out);
// Removes magic and count from the front of *bytes. kCorrupt; the count is limited by the remaining bytes.
Result<uint64_t> DecodeCount(std::string_view* bytes);

// The few fields that the index needs. The bytes must be a valid entry.
struct Peek {
  uint32_t mode = 0;
  uint32_t nlink = 0;    // 0 for directories
  uint64_t size = 0;     // for regular files
  uint64_t dev = 0;      // not for directories
  uint64_t ino = 0;      // not for directories
  size_t digest_at = 0;  // for directories: position of the 32-byte digest
  bool xattrs = false;   // whether it has any
};
Peek PeekEntry(std::string_view entry);
std::string_view PeekName(const char* entry);

}  // namespace vrun::tree
