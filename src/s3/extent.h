// SPDX-License-Identifier: Apache-2.0
// The format of one object in the bucket: the units of a file up to 1 MiB, or of an aligned 4 MiB of a larger one, as
// far as they were available when it was written. Each unit is compressed and sealed separately, so a range of the
// object can be read and checked alone.
//
//   offset  bytes
//   0       8      "vrunS3" 0 1: magic, version
//   8       4      unit_count, little endian: of the extent, present or not
//   12      4      reserved, 0
//   16      16     salt, random for each object
//   32      37 n   the table, sealed: for each unit its SHA-256, bytes as stored (4, little endian; 0: not here), flags
//   ...     16     its tag
//   ...            the units that are here, in order: as stored, each followed by a tag of 16 bytes
//
// Sealed: AES-256-GCM under HMAC-SHA256(key, "vrun-extent-1" salt name), nonce 0 for the table and 1 + i for unit i.
// The first 32 bytes and the name are authenticated with the table. `name` says which content the extent belongs to, so
// a moved or exchanged object does not open. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"

namespace vrun::s3 {

inline constexpr uint64_t kMaxExtentUnits = 256;
inline constexpr uint64_t kMaxExtentObject = 5u << 20;  // larger than any of our objects

constexpr uint64_t ExtentHeaderBytes(uint64_t units) { return 32 + 37 * units + 16; }

struct ExtentUnit {
  Digest digest;
  std::string_view data;  // uncompressed
};

// The object for these units (nullopt: not available).
std::string SealExtent(std::string_view key, std::string_view name, const std::vector<std::optional<ExtentUnit>>& units,
                       int zstd_level = 1);

// The table, opened from the first ExtentHeaderBytes(units) bytes of an object.
class ExtentTable {
 public:
  // kCorrupt: not an extent with that name and number of units, damaged, or sealed with another key.
  static Result<ExtentTable> Open(std::string_view key, std::string_view name, uint64_t units, std::string_view header);

  bool Has(uint64_t unit) const { return units_[unit].stored > 0; }
  uint64_t units() const { return units_.size(); }
  const Digest& digest(uint64_t unit) const { return units_[unit].digest; }
  // The offset of unit `unit` in the object, and its size there, including the tag.
  uint64_t OffsetOf(uint64_t unit) const;
  uint64_t BytesOf(uint64_t unit) const { return units_[unit].stored + 16; }
  // Decodes a unit's stored bytes to its content of `length` bytes and checks the digest; else kCorrupt.
  Result<std::string> OpenUnit(uint64_t unit, std::string_view stored, uint64_t length) const;

 private:
  struct Unit {
    Digest digest;
    uint32_t stored = 0;
    bool zstd = false;
  };
  std::string key_;
  std::vector<Unit> units_;
};

}  // namespace vrun::s3
