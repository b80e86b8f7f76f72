// SPDX-License-Identifier: Apache-2.0
// The format of a unit map: which units of an object are on disk, and their digests.
//
//   map     = header record*
//   header  = "VRM2" u32(unit bytes) u64(size) id[33] pad[7] nonce[16] u64(inode of the content file) pad zero check[8]
//   record  = u32(kind: 1 present, 2 dropped) u32(unit) digest[32] check[8]
// The file only grows; records are appended under flock. A record's check also covers its header's nonce, so a record
// of another file, a torn one or a damaged one ends the map. The next writer cuts off what follows.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/hash/digest.h"
#include "base/result.h"
#include "store/format/object_id.h"

namespace vrun::store {

inline constexpr size_t kMapHeaderBytes = 128;
inline constexpr size_t kMapRecordBytes = 48;

// Random; distinguishes successive lives of an object under the same name.
using MapNonce = std::array<uint8_t, 16>;
MapNonce NewMapNonce();

struct MapHeader {
  ObjectId id;
  uint64_t size = 0;
  MapNonce nonce{};
  uint64_t content_inode = 0;
};

struct MapRecord {
  bool present = false;
  uint32_t unit = 0;
  Digest digest;
};

std::string EncodeMapHeader(const MapHeader& header);
// kCorrupt.
Result<MapHeader> DecodeMapHeader(std::string_view bytes);

void EncodeMapRecord(const MapNonce& nonce, const MapRecord& record, std::string* out);
// `bytes` has kMapRecordBytes. nullopt when it is damaged or belongs to another map.
std::optional<MapRecord> DecodeMapRecord(const MapNonce& nonce, std::string_view bytes);

}  // namespace vrun::store
