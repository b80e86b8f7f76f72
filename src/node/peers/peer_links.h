// SPDX-License-Identifier: Apache-2.0
// The members that share a home's content, as listed by home; the health of each, and the streams to them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/thread/mutex.h"
#include "node/peers/peer_client.h"
#include "rpc/credentials.h"
#include "vfs/timer_thread.h"

namespace vrun::v1 {
class Peers;
}

namespace vrun::node {

// Any thread.
class PeerLinks {
 public:
  // One other node, or this one.
  struct Member {
    uint64_t id = 0;  // ascending in the order of joining
    std::string name;
    std::string address;
    uint64_t seed = 0;
    std::shared_ptr<PeerClient> client;  // null: this node
  };
  using MemberPtr = std::shared_ptr<const Member>;

  PeerLinks(std::string home_id, std::string name, rpc::Credentials credentials, vfs::TimerThread* timers)
      : home_id_(std::move(home_id)), name_(std::move(name)), credentials_(std::move(credentials)), timers_(timers) {}
  ~PeerLinks();

  // True if home signs with a new key.
  bool Update(const v1::Peers& peers);
  // The number of other members.
  size_t mates() const;
  // The owners of the key, best first, at most `count`, without members that currently do not work. Empty: this node is
  // the only member.
  std::vector<MemberPtr> Owners(uint64_t key, size_t count) const;
  // The owners before this node joined, likeliest first, at most `count`; empty when that was long ago. Omits members
  // that did not answer recently: home has the content too.
  std::vector<MemberPtr> OwnersBefore(uint64_t key, size_t count) const;
  // Other members with these names, the owner of the key first; omits members as above.
  std::vector<MemberPtr> Named(const std::vector<std::string>& names, uint64_t key) const;
  // Whether that node may ask this one: it is on home's list and knows the secret.
  bool Proved(const std::string& asker, const v1::PeerHello& hello) const;
  // This node's proof, as the owner.
  std::string Proof(const std::string& asker, const std::string& nonce) const;
  std::string public_key() const;

  // Neither suspended now, nor late the last time.
  bool Well(const Member& member) const;
  void Answered(const Member& member);
  void Late(const Member& member);
  void Stalled(const Member& member);
  void Broke(const Member& member);
  void Lied(const Member& member);

  // Opens no more streams.
  void Close();

 private:
  static constexpr int64_t kNewMicros = 120'000'000;  // how long other nodes may still have what this node owns now

  // The best `count` of the members that `choose` accepts.
  std::vector<MemberPtr> RankLocked(uint64_t key, size_t count, const std::function<bool(const Member&)>& choose) const
      VRUN_REQUIRES(mutex_);
  bool WellLocked(const Member& member) const VRUN_REQUIRES(mutex_);
  PeerHealth& HealthLocked(const Member& member) VRUN_REQUIRES(mutex_) { return health_[member.seed]; }

  const std::string home_id_, name_;
  const rpc::Credentials credentials_;
  vfs::TimerThread* const timers_;
  mutable Mutex mutex_;
  std::string secret_ VRUN_GUARDED_BY(mutex_), public_key_ VRUN_GUARDED_BY(mutex_);
  std::vector<MemberPtr> members_ VRUN_GUARDED_BY(mutex_);  // sorted by id
  uint64_t self_ VRUN_GUARDED_BY(mutex_) = 0;
  int64_t joined_ VRUN_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, PeerHealth> health_ VRUN_GUARDED_BY(mutex_);  // health of members, by seed
  bool closed_ VRUN_GUARDED_BY(mutex_) = false;
};

}  // namespace vrun::node
