// SPDX-License-Identifier: Apache-2.0
// What two nodes prove to each other, and what one believes of the other: pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "tree/tree.h"
#include "vfs/content/source.h"

namespace vrun::v1 {
class PeerUnits;
}

namespace vrun::node {

// Home's word for the digests of consecutive units (src/store/format/statement.h). Immutable once shared.
struct SignedUnits {
  uint64_t offset = 0;
  std::string digests;    // 32 bytes each
  std::string object_id;  // encoded, or empty
  std::string signature;

  uint64_t count() const { return digests.size() / sizeof(Digest::bytes); }
  Digest DigestAt(uint64_t i) const {
    return *Digest::FromBytes(std::string_view(digests).substr(i * sizeof(Digest::bytes), sizeof(Digest::bytes)));
  }
};
using SignedUnitsPtr = std::shared_ptr<const SignedUnits>;

// A unit that was checked. No statement: it came unsigned, and cannot be passed on.
struct HeldUnit {
  Digest digest;
  std::shared_ptr<const std::string> data;
  SignedUnitsPtr statement;
};

// A range as it came, with what home signed of it.
struct SignedRange {
  uint64_t offset = 0;
  std::vector<HeldUnit> units;
};

// Whose stream it is and to whom: part of the proof, so that it is of no use elsewhere. mTLS says who the two really
// are.
enum class PeerSide { kAsker, kOwner };
Digest PeerProof(std::string_view secret, PeerSide side, std::string_view home_id, std::string_view asker,
                 std::string_view owner, std::string_view nonce);

// The units [first, first + count) of this version, from an answer of another node: every statement signed with home's
// key, every unit of its length and digest; else kCorrupt.
Result<SignedRange> CheckPeerUnits(const v1::PeerUnits& told, std::string_view home_id, std::string_view public_key,
                                   const tree::FileVersion& version, uint64_t first, uint64_t count);

}  // namespace vrun::node
