// SPDX-License-Identifier: Apache-2.0
// The name of a file's content, and the algorithm that computed it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/hash/blake3.h"
#include "base/hash/digest.h"

namespace vrun::store {

// Verification units: the piece that is fetched, checked and stored. For `import torch`, 16 KiB units are 124 MB where
// the touched pages are 102 MB; 64 KiB units would be 168 MB. A file's digest list is 0.2 % of it; above 1 GiB the size
// of that list matters more.
inline constexpr uint64_t kUnitBytes = 16 * 1024;
inline constexpr uint64_t kLargeUnitBytes = 64 * 1024;
// files up to this size are fetched whole, unless little is read
inline constexpr uint64_t kWholeFileLimit = 1024 * 1024;

inline uint64_t UnitBytes(uint64_t file_size) { return file_size > (1ull << 30) ? kLargeUnitBytes : kUnitBytes; }
inline uint64_t UnitCount(uint64_t file_size) { return (file_size + UnitBytes(file_size) - 1) / UnitBytes(file_size); }

enum class IdAlgorithm : uint8_t {
  kProvisional = 0,  // SHA-256 over (home id, dev, ino, ctime_ns, size): one version at one home, content unknown
  // 1 and 2 were SHA-256 (docs/decisions/0026).
  kBlake3 = 3,       // of the whole content; for files of one unit, and the empty file
  kBlake3Units = 4,  // BLAKE3 over the concatenated unit digests; for larger files
};

constexpr bool IsIdAlgorithm(uint8_t number) {
  switch (static_cast<IdAlgorithm>(number)) {
    case IdAlgorithm::kProvisional:
    case IdAlgorithm::kBlake3:
    case IdAlgorithm::kBlake3Units: return true;
  }
  return false;
}

struct ObjectId {
  IdAlgorithm algorithm = IdAlgorithm::kProvisional;
  Digest digest;

  bool operator==(const ObjectId&) const = default;
  std::string Encode() const { return std::string(1, static_cast<char>(algorithm)) + std::string(digest.view()); }
  static std::optional<ObjectId> Decode(std::string_view raw) {
    if (raw.size() != 33 || !IsIdAlgorithm(static_cast<uint8_t>(raw[0]))) return std::nullopt;
    return ObjectId{static_cast<IdAlgorithm>(raw[0]), *Digest::FromBytes(raw.substr(1))};
  }
};

struct ObjectIdHash {
  size_t operator()(const ObjectId& id) const { return DigestHash()(id.digest) + static_cast<size_t>(id.algorithm); }
};

// The digest that verifies a unit.
inline Digest UnitDigest(std::string_view unit) { return Blake3(unit); }
// The name of a content of `size` bytes, from the digests of all its units.
ObjectId ContentId(uint64_t size, std::span<const Digest> units);
ObjectId ProvisionalId(std::string_view home_id, uint64_t dev, uint64_t ino, int64_t ctime_ns, uint64_t size);

}  // namespace vrun::store
