// SPDX-License-Identifier: Apache-2.0
// What one object in the bucket holds: the units of a file up to 1 MiB, or of an aligned 4 MiB of a larger one, those
// of them that were there when it was written. Each unit is compressed and sealed by itself, so that a range of the
// object can be read and checked without the rest.
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
// Sealed: AES-256-GCM under HMAC-SHA256(key, "vrun-extent-1" salt name), nonce 0 for the table and 1 + i for unit i;
// the 32 bytes in front and the name are authenticated with the table. `name` says what the extent is a part of, so an
// object that was moved or exchanged does not open. Pure; any thread.
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
inline constexpr uint64_t kMaxExtentObject = 5u << 20;  // more than any object of ours has

constexpr uint64_t ExtentHeaderBytes(uint64_t units) { return 32 + 37 * units + 16; }

struct ExtentUnit {
  Digest digest;
  std::string_view data;  // uncompressed
};

// The object for these units (nullopt: not here).
std::string SealExtent(std::string_view key, std::string_view name, const std::vector<std::optional<ExtentUnit>>& units,
                       int zstd_level = 1);

// Opened from the first ExtentHeaderBytes(units) bytes of an object.
class ExtentTable {
 public:
  // kCorrupt: not an extent of that name and number of units, damaged, or sealed with another key.
  static Result<ExtentTable> Open(std::string_view key, std::string_view name, uint64_t units, std::string_view header);

  bool Has(uint64_t unit) const { return units_[unit].stored > 0; }
  uint64_t units() const { return units_.size(); }
  const Digest& digest(uint64_t unit) const { return units_[unit].digest; }
  // Where unit `unit` lies in the object; and its bytes there, the tag included.
  uint64_t OffsetOf(uint64_t unit) const;
  uint64_t BytesOf(uint64_t unit) const { return units_[unit].stored + 16; }
  // From the stored bytes of a unit to its content of `length` bytes, checked against its digest; else kCorrupt.
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
