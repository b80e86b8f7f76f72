// SPDX-License-Identifier: Apache-2.0
#include "home/serve/peer_board.h"

#include <sys/stat.h>

#include <utility>

#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"

namespace vrun::home {
namespace {

template <typename T>
T Must(Result<T> result) {
  VRUN_CHECK(result.has_value());  // without random bytes from the kernel nothing on this host can be trusted
  return std::move(*result);
}

constexpr size_t kSecretBytes = 32;

std::pair<std::string, std::string> SeedAndSecret(const std::string& file) {
  std::string both;
  struct stat st;
  // reading a FIFO would not end
  const bool regular = !file.empty() && ::stat(file.c_str(), &st) == 0 && S_ISREG(st.st_mode);
  if (regular) both = ReadFile(file, 256).value_or("");
  if (both.size() != SigningKey::kSeedBytes + kSecretBytes) {
    both = Must(RandomSecret(SigningKey::kSeedBytes + kSecretBytes));
    const Status written = file.empty() ? Status() : WriteFileAtomic(file, both, 0600);
    if (!written) LogWarning("{}: home will make a new peer key at its next start", Escape(written.error().message()));
  }
  return {both.substr(0, SigningKey::kSeedBytes), both.substr(SigningKey::kSeedBytes)};
}

}  // namespace

PeerBoard::PeerBoard(const std::string& file) : PeerBoard(SeedAndSecret(file)) {}

PeerBoard::PeerBoard(const std::pair<std::string, std::string>& seed_and_secret)
    : key_(Must(SigningKey::FromSeed(seed_and_secret.first))), secret_(seed_and_secret.second) {}

Result<uint64_t> PeerBoard::Join(Member member, Tell tell) {
  MutexLock lock(mutex_);
  if (members_.size() >= kMaxMembers) return Error(Code::kExhausted, "too many nodes read from this home together");
  const uint64_t id = next_id_++;
  const std::string pool = member.pool;
  members_[id] = {std::move(member), std::move(tell)};
  TellLocked(pool);
  return id;
}

void PeerBoard::Leave(uint64_t id) {
  Tell dropped;  // freed without the lock
  MutexLock lock(mutex_);
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
