// SPDX-License-Identifier: Apache-2.0
#include "node/source/peer_proof.h"

#include <algorithm>
#include <utility>

#include "base/hash/secret.h"
#include "proto/peer.pb.h"
#include "store/format/object_id.h"
#include "store/format/statement.h"

namespace vrun::node {
namespace {

Error Corrupt(const char* what) { return Error(Code::kCorrupt, std::string("a peer sent ") + what); }

}  // namespace

Digest PeerProof(std::string_view secret, PeerSide side, std::string_view home_id, std::string_view asker,
                 std::string_view owner, std::string_view nonce) {
  std::string text = side == PeerSide::kAsker ? "vrun peer 1 asker" : "vrun peer 1 owner";
  for (const std::string_view part : {home_id, asker, owner, nonce}) {
    text += '\n' + std::to_string(part.size()) + ':';
    text += part;
  }
  return HmacSha256(secret, text);
}

Result<SignedRange> CheckPeerUnits(const v1::PeerUnits& told, std::string_view home_id, std::string_view public_key,
                                   const tree::FileVersion& version, uint64_t first, uint64_t count) {
  const uint64_t unit = store::UnitBytes(version.size), units = store::UnitCount(version.size);
  if (first >= units || count == 0 || count > units - first) return Error(Code::kInvalid, "no such units");
  SignedRange range{first * unit, {}};
  uint64_t next = first;
  const std::string_view data = told.data();
  uint64_t at = 0;
  for (const v1::SignedUnits& said : told.statement()) {
    if (next == first + count) return Corrupt("more than requested");
    const size_t digests = said.digests().size() / sizeof(Digest::bytes);
    if (said.offset() % unit != 0 || said.digests().size() % sizeof(Digest::bytes) != 0 || digests > units ||
        said.offset() / unit > units - digests || next < said.offset() / unit ||
        next >= said.offset() / unit + digests) {
      return Corrupt("a statement about other units");
    }
    if (!said.object_id().empty() && !store::ObjectId::Decode(said.object_id()))
      return Corrupt("a malformed object id");
    if (!VerifySignature(public_key,
                         store::UnitsStatement(home_id, version, said.offset(), said.digests(), said.object_id()),
                         said.signature())) {
      return Corrupt("what home did not sign");
    }
    auto statement = std::make_shared<SignedUnits>();
    *statement = {said.offset(), said.digests(), said.object_id(), said.signature()};
    const uint64_t end = std::min(first + count, said.offset() / unit + digests);
    for (; next < end; ++next) {
      const uint64_t length = std::min(unit, version.size - next * unit);
      if (data.size() - at < length) return Corrupt("less than requested");
      const std::string_view bytes = data.substr(at, length);
      const Digest digest = statement->DigestAt(next - said.offset() / unit);
      if (store::UnitDigest(bytes) != digest) return Corrupt("a unit that does not match its digest");
      range.units.push_back({digest, std::make_shared<const std::string>(bytes), statement});
      at += length;
    }
  }
  if (next != first + count || at != data.size()) return Corrupt("an answer of another length");
  return range;
}

}  // namespace vrun::node
