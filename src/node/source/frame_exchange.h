// SPDX-License-Identifier: Apache-2.0
// Frames of traces on their way to this node, for local and remote callers: the UnitExchange for bursts
// (vfs/content/burst.h). Home gives a frame only to a run that has its table. So this node can fetch frames for others
// if one of its own runs has the table or is about to get it.
//
// A node that asks here without success goes elsewhere. It has the table, which is remembered: a run here that gets the
// same table later knows that these frames have already left home.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "vfs/trace/trace_table.h"

namespace vrun::v1 {
class TraceFrame;
}

namespace vrun::node {

// The name (store::FrameNamer) of one frame of a table.
Digest FrameNameOf(const vfs::TraceTable& table, uint32_t index);

// Any thread. Callbacks run without locks.
class FrameExchange {
 public:
  // As home sent it. Unsigned: assembled from units, must not be passed on. Null: see Get.
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

  // A run here has asked home for its table, which takes a while on a full uplink. Call CameOrNot later with the
  // returned value, after Add if the table arrived.
  uint64_t Expect();
  void CameOrNot(uint64_t expected);

  // A run here has this table.
  void Add(const vfs::RunId& run, const TablePtr& table);
  // Null: no run here has a table with this frame; returned at once unless a table is expected. `asker`: another node,
  // which has the table.
  void Get(const Digest& name, Done done, const std::string& asker = {});
  // The place of a frame in a local run's table; nullopt when it arrived recently or is being fetched.
  std::optional<Place> Resting(const Digest& name) const;
  // Home now signs with another key.
  void Forget();

  // Whether another node has asked for a frame of it, so it runs the same program now.
  bool Shared(const Digest& table) const;
  // Whether another node had this table before us, asked here without success, and turned to the next owners.
  bool Late(const Digest& table) const;

 private:
  struct Waiter {
    Done done;
    std::string asker;
  };
  struct Wanted {
    std::vector<Waiter> waiters;
    bool under_way = false;
    // otherwise: not in any table once all tables expected before this one have arrived or failed
    uint64_t expected = 0;
  };
  struct Kept {
    Frame frame;
    std::list<Digest>::iterator age;
  };
  void Start(const Digest& name, const Place& place);
  void Arrived(const Digest& name, Result<Frame> frame);
  void InVainLocked(const Digest& name, const std::string& asker) VRUN_REQUIRES(mutex_);

  static constexpr uint64_t kRecentBytes = 48u << 20;
  static constexpr size_t kTables = 16;
  static constexpr size_t kInVain = 4096;  // questions

  const Fetch fetch_;
  mutable Mutex mutex_;
  uint64_t next_expected_ VRUN_GUARDED_BY(mutex_) = 1;
  std::set<uint64_t> expected_ VRUN_GUARDED_BY(mutex_);  // ids of expected tables
  std::unordered_map<Digest, Place, DigestHash> places_ VRUN_GUARDED_BY(mutex_);
  std::deque<Digest> tables_ VRUN_GUARDED_BY(mutex_);  // tables in places_, oldest first
  std::unordered_map<Digest, Wanted, DigestHash> wanted_ VRUN_GUARDED_BY(mutex_);
  std::unordered_map<Digest, Kept, DigestHash> recent_ VRUN_GUARDED_BY(mutex_);
  std::list<Digest> ages_ VRUN_GUARDED_BY(mutex_);  // oldest first
  uint64_t recent_bytes_ VRUN_GUARDED_BY(mutex_) = 0;
  std::unordered_set<Digest, DigestHash> in_vain_ VRUN_GUARDED_BY(mutex_);  // frames that others asked for
  std::deque<Digest> in_vain_ages_ VRUN_GUARDED_BY(mutex_);                 // oldest first
  std::unordered_set<Digest, DigestHash> shared_ VRUN_GUARDED_BY(mutex_), late_
      VRUN_GUARDED_BY(mutex_);  // subsets of tables_
};

}  // namespace vrun::node
