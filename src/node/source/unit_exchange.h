// SPDX-License-Identifier: Apache-2.0
// Units on their way from home to this node, for local and remote callers. Each unit is fetched once, however many
// callers ask meanwhile. Recent units are kept, since others will ask for them next. Home's signed statements are kept
// much longer: they are small, and content cannot be passed on without them.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "node/source/peer_proof.h"
#include "tree/tree.h"
#include "vfs/content/source.h"

namespace vrun::node {

// A file of a tree, as requested.
struct UnitPlace {
  Digest tree;
  std::string path;
  tree::FileVersion version;
  bool for_peer = false;  // another node wants it
};

// Any thread. Callbacks run without locks.
class UnitExchange {
 public:
  using Got = std::function<void(Result<SignedRange>)>;
  using Done = std::function<void(Result<std::vector<HeldUnit>>)>;
  // Gets [first, first + count); calls back once, now or later.
  using Fetch =
      std::function<void(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency, Got got)>;
  struct Limits {
    uint64_t recent_bytes = 32u << 20;
    size_t statements = 1u << 17;  // units
  };

  UnitExchange(Fetch fetch, Limits limits) : fetch_(std::move(fetch)), limits_(limits) {}

  // Fetches what is not already in progress. True if it had to start a fetch. Fails as a whole, and only through its
  // own fetch: if another caller's fetch fails (wrong path, for example), it fetches again itself.
  bool Get(const UnitPlace& place, uint64_t first, uint64_t count, vfs::Urgency urgency, Done done);
  // Recent units; nullopt unless all are there.
  std::optional<std::vector<HeldUnit>> Recent(const tree::FileVersion& version, uint64_t first, uint64_t count);
  bool UnderWay(const tree::FileVersion& version, uint64_t first, uint64_t count) const;

  // Null: unknown.
  SignedUnitsPtr StatementOf(const tree::FileVersion& version, uint64_t unit);
  void Remember(const tree::FileVersion& version, const SignedUnitsPtr& statement);
  // Home now signs with another key.
  void ForgetStatements();

 private:
  struct Key {
    tree::FileVersion version;
    uint64_t unit = 0;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& k) const {
      return tree::FileVersionHash()(k.version) ^ static_cast<size_t>(k.unit * 0x9e3779b97f4a7c15u);
    }
  };
  // A caller that waits for units from one or more fetches.
  struct Waiter {
    UnitPlace place;
    vfs::Urgency urgency = vfs::Urgency::kDemand;
    uint64_t first = 0;
    std::vector<HeldUnit> units;
    size_t missing = 0;
    Done done;
  };
  using WaiterPtr = std::shared_ptr<Waiter>;
  struct Kept {
    HeldUnit unit;
    std::list<Key>::iterator age;
  };
  struct Known {
    SignedUnitsPtr statement;
    std::list<Key>::iterator age;
  };

  // `asker` started this fetch.
  void Arrived(const WaiterPtr& asker, uint64_t first, uint64_t count, Result<SignedRange> range);
  void KeepLocked(const Key& key, const HeldUnit& unit) VRUN_REQUIRES(mutex_);
  void RememberLocked(const Key& key, const SignedUnitsPtr& statement) VRUN_REQUIRES(mutex_);

  const Fetch fetch_;
  const Limits limits_;
  mutable Mutex mutex_;
  std::unordered_map<Key, std::vector<WaiterPtr>, KeyHash> under_way_ VRUN_GUARDED_BY(mutex_);
  std::unordered_map<Key, Kept, KeyHash> recent_ VRUN_GUARDED_BY(mutex_);
  std::list<Key> recent_ages_ VRUN_GUARDED_BY(mutex_);  // oldest first
  uint64_t recent_bytes_ VRUN_GUARDED_BY(mutex_) = 0;
  std::unordered_map<Key, Known, KeyHash> statements_ VRUN_GUARDED_BY(mutex_);
  std::list<Key> statement_ages_ VRUN_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace vrun::node
