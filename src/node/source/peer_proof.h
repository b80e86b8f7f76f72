// SPDX-License-Identifier: Apache-2.0
// What two nodes prove to each other, and how content from a peer is checked: pure functions.
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

// Home's signed statement about the digests of consecutive units (src/store/format/statement.h). Immutable once shared.
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

// A verified unit. Without a statement it came unsigned and cannot be passed on.
struct HeldUnit {
  Digest digest;
  std::shared_ptr<const std::string> data;
  SignedUnitsPtr statement;
};

// A received range, with home's signed statements.
struct SignedRange {
  uint64_t offset = 0;
  std::vector<HeldUnit> units;
};

// Which side of whose stream: part of the proof, so that it cannot be reused elsewhere. mTLS proves the two identities.
enum class PeerSide { kAsker, kOwner };
Digest PeerProof(std::string_view secret, PeerSide side, std::string_view home_id, std::string_view asker,
                 std::string_view owner, std::string_view nonce);

// Checks the units [first, first + count) of this version from another node's answer: each statement is signed with
// home's key, each unit has its length and digest; else kCorrupt.
Result<SignedRange> CheckPeerUnits(const v1::PeerUnits& told, std::string_view home_id, std::string_view public_key,
                                   const tree::FileVersion& version, uint64_t first, uint64_t count);

}  // namespace vrun::node
