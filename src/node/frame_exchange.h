// SPDX-License-Identifier: Apache-2.0
// Frames of traces on their way from home to this node, for whoever wants them, here or on other nodes: as
// UnitExchange, for bursts (vfs/burst.h). Home gives a frame only to a run that has its table, so this node can get
// those for others whose table one of its own runs has; nodes that start together get their tables at the same time,
// more or less.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "vfs/timer_thread.h"
#include "vfs/trace.h"

namespace vrun::v1 {
class TraceFrame;
}

namespace vrun::node {

// By store::FrameNamer, of each frame of a table.
Digest FrameNameOf(const vfs::TraceTable& table, uint32_t index);

// Any thread. Callbacks run without locks.
class FrameExchange {
 public:
  using Frame = std::shared_ptr<const v1::TraceFrame>;  // as it came
  using Done = std::function<void(Result<Frame>)>;
  using TablePtr = std::shared_ptr<const vfs::TraceTable>;
  using Fetch = std::function<void(const vfs::RunId& run, const TablePtr& table, uint32_t index, Done done)>;

  // `timers` outlives it. `table_micros`: that a table of ours may be behind another node's.
  FrameExchange(Fetch fetch, vfs::TimerThread* timers, int64_t table_micros = 1'000'000)
      : fetch_(std::move(fetch)), timers_(timers), table_micros_(table_micros) {}

  // A run here has asked home for its table; on a full uplink that takes a while. CameOrNot follows, after Add if it
  // came.
  void Expect();
  void CameOrNot();

  // A run here has this table.
  void Add(const vfs::RunId& run, const TablePtr& table);
  // kNotFound: no run here has a table with it, nor gets one within a moment, nor waits for one.
  void Get(const Digest& name, Done done);
  // Home signs with another key from now on.
  void Forget();

 private:
  struct Place {
    vfs::RunId run;
    TablePtr table;
    uint32_t index = 0;
  };
  struct Kept {
    Frame frame;
    std::list<Digest>::iterator age;
  };
  void Arrived(const Digest& name, Result<Frame> frame);
  void GiveUp(const Digest& name);

  static constexpr uint64_t kRecentBytes = 48u << 20;
  static constexpr size_t kTables = 16;

  const Fetch fetch_;
  vfs::TimerThread* const timers_;
  const int64_t table_micros_;
  std::mutex mutex_;
  int expected_ = 0;  // tables
  std::unordered_map<Digest, Place, DigestHash> places_;
  std::deque<Digest> tables_;                                         // of places_, oldest first
  std::unordered_map<Digest, std::vector<Done>, DigestHash> wanted_;  // under way, or no place known yet
  std::unordered_map<Digest, Kept, DigestHash> recent_;
  std::list<Digest> ages_;  // oldest first
  uint64_t recent_bytes_ = 0;
};

}  // namespace vrun::node
