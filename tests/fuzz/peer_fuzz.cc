// SPDX-License-Identifier: Apache-2.0
// A peer that answers arbitrarily when asked for units of a file.
//
// Input: a byte that selects, then PeerUnits as on the wire. Unless the selection says otherwise, the statements are
// signed and the digests corrected here, as by a lying home, because otherwise nothing would pass the first signature.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/hash/secret.h"
#include "node/source/peer_proof.h"
#include "proto/peer.pb.h"
#include "store/format/object_id.h"
#include "store/format/statement.h"

namespace {

constexpr char kHome[] = "u@h";

void Check(bool holds) {
  if (!holds) std::abort();
}

// Turns the statements into home's statements about exactly this data, as far as their shape allows.
void PutRight(const vrun::tree::FileVersion& version, uint64_t first, bool sign, const vrun::SigningKey& key,
              vrun::v1::PeerUnits* told) {
  const uint64_t unit = vrun::store::UnitBytes(version.size);
  uint64_t at = 0, next = first;
  for (vrun::v1::SignedUnits& said : *told->mutable_statement()) {
    std::string* digests = said.mutable_digests();
    for (size_t i = 0; i + 32 <= digests->size(); i += 32) {
      const uint64_t index = said.offset() / unit + i / 32;
      if (index != next || at >= told->data().size() || index * unit >= version.size) continue;
      const uint64_t length = std::min<uint64_t>({unit, version.size - index * unit, told->data().size() - at});
      digests->replace(i, 32, std::string(vrun::Blake3(std::string_view(told->data()).substr(at, length)).view()));
      at += length;
      ++next;
    }
    if (sign) {
      said.set_signature(
          key.Sign(vrun::store::UnitsStatement(kHome, version, said.offset(), said.digests(), said.object_id())));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const vrun::SigningKey& key = *new vrun::SigningKey(*vrun::SigningKey::Generate());
  vrun::v1::PeerUnits told;
  if (size < 1 || !told.ParseFromArray(data + 1, static_cast<int>(size - 1))) return 0;
  // A small file is one unit. In a large file all units but the last are full.
  const bool large = (data[0] & 1) != 0;
  const vrun::tree::FileVersion version{1, 2, 3, large ? 3 * vrun::store::kUnitBytes + 5 : 100};
  const uint64_t first = large ? (data[0] >> 1) % 4 : 0, count = large ? 4 - first : 1;
  if ((data[0] & 8) == 0) PutRight(version, first, (data[0] & 16) == 0, key, &told);
  const auto range = vrun::node::CheckPeerUnits(told, kHome, key.public_key(), version, first, count);
  if (!range) return 0;
  Check(range->units.size() == count);
  std::string all;
  for (const auto& held : range->units) {
    Check(held.statement != nullptr && vrun::Blake3(*held.data) == held.digest);
    all += *held.data;
  }
  Check(all == told.data() && all.size() == version.size - first * vrun::store::UnitBytes(version.size));
  return 0;
}
