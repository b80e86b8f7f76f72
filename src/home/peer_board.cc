// SPDX-License-Identifier: Apache-2.0
#include "home/peer_board.h"

#include <utility>

namespace vrun::home {
namespace {

template <typename T>
T Must(Result<T> result) {
  VRUN_CHECK(result.has_value());  // the kernel gives random bytes, or nothing of this host can be trusted
  return std::move(*result);
}

}  // namespace

PeerBoard::PeerBoard() : key_(Must(SigningKey::Generate())), secret_(Must(RandomSecret(32))) {}

Result<uint64_t> PeerBoard::Join(Member member, Tell tell) {
  std::lock_guard lock(mutex_);
  if (members_.size() >= kMaxMembers) return Error(Code::kExhausted, "too many nodes read from this home together");
  const uint64_t id = next_id_++;
  const std::string pool = member.pool;
  members_[id] = {std::move(member), std::move(tell)};
  TellLocked(pool);
  return id;
}

void PeerBoard::Leave(uint64_t id) {
  Tell dropped;  // freed without the lock
  std::lock_guard lock(mutex_);
  const auto it = members_.find(id);
  if (it == members_.end()) return;
  const std::string pool = it->second.member.pool;
  dropped = std::move(it->second.tell);
  members_.erase(it);
  TellLocked(pool);
}

void PeerBoard::TellLocked(const std::string& pool) {
  v1::Peers peers;
  peers.set_secret(secret_);
  peers.set_public_key(key_.public_key());
  for (const auto& [id, listed] : members_) {
    if (listed.member.pool != pool) continue;
    v1::Peers::Peer* peer = peers.add_peer();
    peer->set_id(id);
    peer->set_name(listed.member.name);
    peer->set_address(listed.member.address);
  }
  for (const auto& [id, listed] : members_) {
    if (listed.member.pool != pool) continue;
    peers.set_self(id);
    listed.tell(peers);
  }
}

}  // namespace vrun::home
