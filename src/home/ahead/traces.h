// SPDX-License-Identifier: Apache-2.0
// Traces of runs: which run may request which trace, the tables and frames that nodes get, and the reports of nodes at
// the end of a run.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "home/ahead/trace_frames.h"
#include "home/ahead/trace_store.h"
#include "proto/common.pb.h"
#include "proto/content.pb.h"

namespace vrun::home {

class DigestCache;
class ContentFiles;
class TreeTable;

// Any thread. A node gets only content that the tree of its own run has and may show, as with ranges, and only for a
// run whose token it has.
class Traces {
 public:
  // `directory`: the storage; "" stores nothing. The other arguments must outlive it.
  Traces(const TreeTable* trees, const ContentFiles* files, const DigestCache* digests, const std::string& directory);

  // For a run whose traces another home stores.
  struct Elsewhere {
    Trace earlier;                                                 // no ranges: there is no trace
    std::function<void(const v1::ContentRequest::PutTrace&)> put;  // takes the report of the run's node; any thread
  };
  struct Run {
    uint64_t job = 0;
    uint32_t attempt = 0;
    std::string token;
    Digest tree;  // of the snapshot table
    TraceSubject subject;
    std::optional<std::weak_ptr<const Elsewhere>> elsewhere = std::nullopt;  // used instead of the local traces
  };
  // The files that earlier runs of this kind have touched.
  std::vector<std::string> Touched(const TraceSubject& subject);
  // All that is known of such runs, for a server that serves the run in our place; empty: nothing.
  v1::TraceRecord Earlier(const TraceSubject& subject);
  // A run is about to begin on a node. The latest kMaxRuns runs are remembered.
  void Expect(const Run& run);
  // `told` gets the report of the run's node, now or when it comes, on any thread. Null removes an earlier callback,
  // which does not run after the return.
  void WhenReported(uint64_t job, std::function<void(const v1::IoReport&)> told);

  // --- requests of nodes ---
  Result<v1::TraceTable> Table(const v1::ContentRequest::GetTrace& get);
  // The n-th requested frame, and its name.
  Result<v1::TraceFrame> Frame(const v1::ContentRequest::GetFrames& get, int n, Digest* name);
  Status Put(const v1::ContentRequest::PutTrace& put);

  FrameCache& frames() { return frames_; }

 private:
  struct Planned {
    Digest id;
    v1::TraceTable table;
    std::vector<FramePlan> frames;
  };
  using PlannedPtr = std::shared_ptr<const Planned>;
  struct Known {
    Run run;
    PlannedPtr planned;
    std::optional<v1::IoReport> report;
    std::function<void(const v1::IoReport&)> told;
  };
  Known* FindLocked(uint64_t job, uint32_t attempt, const std::string& token) VRUN_REQUIRES(mutex_);
  // For the first run in a directory: what runs in other directories touched outside of theirs.
  std::optional<Trace> LoadLocked(const TraceSubject& subject) const VRUN_REQUIRES(store_mutex_);
  void KeepLocked(const TraceSubject& subject, const Trace& trace, bool shared) VRUN_REQUIRES(store_mutex_);
  void MergeLocked(const Digest& key, std::optional<Trace> earlier, const Trace& trace, bool shared)
      VRUN_REQUIRES(store_mutex_);
  // Null: there is no trace.
  PlannedPtr Plan(const Run& run);
  // A node may request frames after the end of a run: plans are kept for all running jobs and for the last that ended.
  void KeepPlannedLocked(uint64_t job, const PlannedPtr& planned) VRUN_REQUIRES(mutex_);

  static constexpr size_t kMaxRuns = 1024;
  static constexpr size_t kMaxPlanned = 16;

  const TreeTable* const trees_;
  const DigestCache* const digests_;
  Mutex store_mutex_;
  TraceStore store_ VRUN_GUARDED_BY(store_mutex_);
  FrameCache frames_;

  Mutex mutex_;  // never together with store_mutex_
  std::map<uint64_t, Known> runs_ VRUN_GUARDED_BY(mutex_);
  std::deque<uint64_t> order_ VRUN_GUARDED_BY(mutex_);    // of runs_, oldest first
  std::deque<uint64_t> planned_ VRUN_GUARDED_BY(mutex_);  // runs with a plan, which may be a megabyte; oldest first
};

}  // namespace vrun::home
