// SPDX-License-Identifier: Apache-2.0
// Frames of traces on their way to this node, for whoever wants them, here or on other nodes: as UnitExchange, for
// bursts (vfs/content/burst.h). Home gives a frame only to a run that has its table, so this node can get those for
// others whose table one of its own runs has, or is about to get.
//
// Who asks here in vain goes elsewhere, and has the table: it is remembered, since a run here that gets the same table
// later finds there what has left home already.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "vfs/trace/trace.h"

namespace vrun::v1 {
class TraceFrame;
}

namespace vrun::node {

// By store::FrameNamer, of each frame of a table.
Digest FrameNameOf(const vfs::TraceTable& table, uint32_t index);

// Any thread. Callbacks run without locks.
class FrameExchange {
 public:
  // As home sent it; unsigned: put together from units, and not to be passed on. Null: see Get.
  using Frame = std::shared_ptr<const v1::TraceFrame>;
  using Done = std::function<void(Result<Frame>)>;
  using TablePtr = std::shared_ptr<const vfs::TraceTable>;
  using Fetch = std::function<void(const vfs::RunId& run, const TablePtr& table, uint32_t index, Done done)>;
  struct Place {
    vfs::RunId run;
    TablePtr table;
    uint32_t index = 0;
  };

  explicit FrameExchange(Fetch fetch) : fetch_(std::move(fetch)) {}

  // A run here has asked home for its table; on a full uplink that takes a while. CameOrNot follows with what this
  // returned, after Add if it came.
  uint64_t Expect();
  void CameOrNot(uint64_t expected);

  // A run here has this table.
  void Add(const vfs::RunId& run, const TablePtr& table);
  // Null, at once unless a table is expected: no run here has a table with it. `asker`: another node, which has.
  void Get(const Digest& name, Done done, const std::string& asker = {});
  // Of a frame that a run here has in its table; nullopt when it came lately or is under way.
  std::optional<Place> Resting(const Digest& name) const;
  // Home signs with another key from now on.
  void Forget();

  // Another node has asked for a frame of it: it runs the same now.
  bool Shared(const Digest& table) const;
  // Another node had this table of ours before we did, and asked here in vain: it has turned to the next owners.
  bool Late(const Digest& table) const;

 private:
  struct Waiter {
    Done done;
    std::string asker;
  };
  struct Wanted {
    std::vector<Waiter> waiters;
    bool under_way = false;
    uint64_t expected = 0;  // else: once the tables before this one have come or not, it is in none
  };
  struct Kept {
    Frame frame;
    std::list<Digest>::iterator age;
  };
  void Start(const Digest& name, const Place& place);
  void Arrived(const Digest& name, Result<Frame> frame);
  void InVainLocked(const Digest& name, const std::string& asker);

  static constexpr uint64_t kRecentBytes = 48u << 20;
  static constexpr size_t kTables = 16;
  static constexpr size_t kInVain = 4096;  // questions

  const Fetch fetch_;
  mutable std::mutex mutex_;
  uint64_t next_expected_ = 1;
  std::set<uint64_t> expected_;  // tables
  std::unordered_map<Digest, Place, DigestHash> places_;
  std::deque<Digest> tables_;  // of places_, oldest first
  std::unordered_map<Digest, Wanted, DigestHash> wanted_;
  std::unordered_map<Digest, Kept, DigestHash> recent_;
  std::list<Digest> ages_;  // oldest first
  uint64_t recent_bytes_ = 0;
  std::unordered_set<Digest, DigestHash> in_vain_;        // frames that others asked for
  std::deque<Digest> in_vain_ages_;                       // oldest first
  std::unordered_set<Digest, DigestHash> shared_, late_;  // of tables_
};

}  // namespace vrun::node
