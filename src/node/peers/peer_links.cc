// SPDX-License-Identifier: Apache-2.0
#include "node/peers/peer_links.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/hash/secret.h"
#include "base/log.h"
#include "node/peers/rendezvous.h"
#include "node/source/peer_proof.h"
#include "proto/content.pb.h"

namespace vrun::node {
namespace {

constexpr int kMaxMembers = 4096;

}  // namespace

PeerLinks::~PeerLinks() { Close(); }

void PeerLinks::Close() {
  std::vector<MemberPtr> members;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    members.swap(members_);
  }
  for (const MemberPtr& member : members) {
    if (member->client) member->client->Close();
  }
}

bool PeerLinks::Update(const v1::Peers& peers) {
  std::vector<MemberPtr> gone;
  bool other_key;
  {
    MutexLock lock(mutex_);
    if (closed_) return false;
    other_key = peers.public_key() != public_key_;
    const bool other_secret = peers.secret() != secret_;
    if (peers.self() != self_) joined_ = MonotonicMicros();
    self_ = peers.self();
    secret_ = peers.secret();
    public_key_ = peers.public_key();
    std::vector<MemberPtr> members;
    for (const v1::Peers::Peer& told : peers.peer()) {
      if (members.size() >= kMaxMembers) break;
      const auto known = std::find_if(members_.begin(), members_.end(), [&](const MemberPtr& m) {
        return m->id == told.id() && m->name == told.name() && m->address == told.address();
      });
      if (known != members_.end() && !other_secret) {
        members.push_back(*known);
        continue;
      }
      auto member = std::make_shared<Member>();
      member->id = told.id();
      member->name = told.name();
      member->address = told.address();
      member->seed = MemberSeed(told.name(), told.address());
      if (told.id() != self_) {
        member->client = std::make_shared<PeerClient>(
            PeerClient::Options{home_id_, secret_, name_, member->name, member->address, credentials_}, timers_);
      }
      members.push_back(std::move(member));
    }
    std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) { return a->id < b->id; });
    for (const MemberPtr& old : members_) {
      if (old->client && std::find(members.begin(), members.end(), old) == members.end()) gone.push_back(old);
    }
    members_ = std::move(members);
    std::erase_if(health_, [this](const auto& health) VRUN_REQUIRES(mutex_) {
      return std::none_of(members_.begin(), members_.end(),
                          [&](const MemberPtr& member) { return member->seed == health.first; });
    });
  }
  if (!gone.empty()) {
    timers_->After(0, [gone] {
      for (const MemberPtr& member : gone) member->client->Close();
    });
  }
  return other_key;
}

size_t PeerLinks::mates() const {
  MutexLock lock(mutex_);
  return members_.empty() ? 0 : members_.size() - 1;
}

std::vector<PeerLinks::MemberPtr> PeerLinks::RankLocked(uint64_t key, size_t count,
                                                        const std::function<bool(const Member&)>& choose) const {
  std::vector<std::pair<uint64_t, const MemberPtr*>> ranked;
  ranked.reserve(members_.size());
  for (const MemberPtr& member : members_) {
    if (choose(*member)) ranked.emplace_back(Weight(key, member->seed), &member);
  }
  count = std::min(count, ranked.size());
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<ptrdiff_t>(count), ranked.end(),
                    [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<MemberPtr> best;
  for (size_t i = 0; i < count; ++i) best.push_back(*ranked[i].second);
  return best;
}

bool PeerLinks::WellLocked(const Member& member) const {
  const auto health = health_.find(member.seed);
  return health == health_.end() || (!health->second.Down(MonotonicMicros()) && !health->second.doubtful());
}

std::vector<PeerLinks::MemberPtr> PeerLinks::Owners(uint64_t key, size_t count) const {
  const int64_t now = MonotonicMicros();
  MutexLock lock(mutex_);
  if (members_.size() < 2) return {};
  return RankLocked(key, count, [this, now](const Member& member) VRUN_REQUIRES(mutex_) {
    const auto health = health_.find(member.seed);
    return !member.client || health == health_.end() || !health->second.Down(now);
  });
}

std::vector<PeerLinks::MemberPtr> PeerLinks::OwnersBefore(uint64_t key, size_t count) const {
  const int64_t now = MonotonicMicros();
  MutexLock lock(mutex_);
  if (now - joined_ > kNewMicros) return {};
  auto owners =
      RankLocked(key, count, [this](const Member& member) VRUN_REQUIRES(mutex_) { return member.id < self_; });
  std::erase_if(owners, [this](const MemberPtr& member) VRUN_REQUIRES(mutex_) { return !WellLocked(*member); });
  return owners;
}

std::vector<PeerLinks::MemberPtr> PeerLinks::Named(const std::vector<std::string>& names, uint64_t key) const {
  MutexLock lock(mutex_);
  return RankLocked(key, names.size(), [&](const Member& member) VRUN_REQUIRES(mutex_) {
    return member.client && std::find(names.begin(), names.end(), member.name) != names.end() && WellLocked(member);
  });
}

bool PeerLinks::Proved(const std::string& asker, const v1::PeerHello& hello) const {
  std::string secret;
  {
    MutexLock lock(mutex_);
    const bool listed = std::any_of(members_.begin(), members_.end(), [&](const MemberPtr& m) VRUN_REQUIRES(mutex_) {
      return m->id != self_ && m->name == asker;
    });
    if (!listed || secret_.empty()) return false;
    secret = secret_;
  }
  const Digest proof = PeerProof(secret, PeerSide::kAsker, home_id_, asker, name_, hello.nonce());
  return hello.home_id() == home_id_ && SameSecret(hello.proof(), proof.view());
}

std::string PeerLinks::Proof(const std::string& asker, const std::string& nonce) const {
  MutexLock lock(mutex_);
  return std::string(PeerProof(secret_, PeerSide::kOwner, home_id_, asker, name_, nonce).view());
}

std::string PeerLinks::public_key() const {
  MutexLock lock(mutex_);
  return public_key_;
}

bool PeerLinks::Well(const Member& member) const {
  MutexLock lock(mutex_);
  return WellLocked(member);
}

void PeerLinks::Answered(const Member& member) {
  MutexLock lock(mutex_);
  if (const auto health = health_.find(member.seed); health != health_.end()) health->second.Answered();
}

void PeerLinks::Late(const Member& member) {
  MutexLock lock(mutex_);
  HealthLocked(member).Late(MonotonicMicros());
}

void PeerLinks::Stalled(const Member& member) {
  MutexLock lock(mutex_);
  HealthLocked(member).Stalled(MonotonicMicros());
}

void PeerLinks::Broke(const Member& member) {
  MutexLock lock(mutex_);
  HealthLocked(member).Broke(MonotonicMicros());
}

void PeerLinks::Lied(const Member& member) {
  LogWarning("peer {} sent what home did not sign: it is left alone for a while", Escape(member.name));
  MutexLock lock(mutex_);
  HealthLocked(member).Lied(MonotonicMicros());
}

}  // namespace vrun::node
