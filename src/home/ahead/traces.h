// SPDX-License-Identifier: Apache-2.0
// Traces of runs: which run may ask for which, the tables and frames that nodes get, and what nodes report in the end.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "home/ahead/trace_frames.h"
#include "home/ahead/trace_store.h"
#include "proto/common.pb.h"
#include "proto/content.pb.h"

namespace vrun::home {

class DigestCache;
class ContentFiles;
class SnapshotTable;

// Any thread. A node gets only what the tree of its own run has and may show, as with ranges; and only for a run whose
// token it has.
class Traces {
 public:
  // `directory`: where they are kept; "" keeps nothing. The others must outlive it.
  Traces(const SnapshotTable* trees, const ContentFiles* files, const DigestCache* digests,
         const std::string& directory);

  // Of a run whose traces another home keeps.
  struct Elsewhere {
    Trace earlier;                                                 // without ranges: there is none
    std::function<void(const v1::ContentRequest::PutTrace&)> put;  // what the run's node tells; any thread
  };
  struct Run {
    uint64_t job = 0;
    uint32_t attempt = 0;
    std::string token;
    Digest tree;  // of the snapshot table
    TraceSubject subject;
    std::optional<std::weak_ptr<const Elsewhere>> elsewhere = std::nullopt;  // instead of what is kept here
  };
  // The files that earlier runs of this kind have touched.
  std::vector<std::string> Touched(const TraceSubject& subject);
  // All that is known of them, for who serves such a run in our place; empty: nothing.
  v1::TraceRecord Earlier(const TraceSubject& subject);
  // A run is about to begin on a node. The latest kMaxRuns are known.
  void Expect(const Run& run);
  // `told` gets the report of the run's node, now or when it comes, on any thread. Null forgets an earlier one; after
  // that it does not run any more.
  void WhenReported(uint64_t job, std::function<void(const v1::IoReport&)> told);

  // --- what a node asks ---
  Result<v1::TraceTable> Table(const v1::ContentRequest::GetTrace& get);
  // The n-th frame that is asked for, and its name.
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
  Known* FindLocked(uint64_t job, uint32_t attempt, const std::string& token);
  // With store_mutex_. Of a run in a directory where there was none yet: what others have outside of theirs.
  std::optional<Trace> LoadLocked(const TraceSubject& subject) const;
  void KeepLocked(const TraceSubject& subject, const Trace& trace, bool shared);
  void MergeLocked(const Digest& key, std::optional<Trace> earlier, const Trace& trace, bool shared);
  // Null: there is no trace.
  PlannedPtr Plan(const Run& run);
  // A node may ask for frames after the end of a run: of the last ones that have ended, and of all that have not.
  void KeepPlannedLocked(uint64_t job, const PlannedPtr& planned);

  static constexpr size_t kMaxRuns = 1024;
  static constexpr size_t kMaxPlanned = 16;

  const SnapshotTable* const trees_;
  const DigestCache* const digests_;
  std::mutex store_mutex_;
  TraceStore store_;  // guarded by store_mutex_
  FrameCache frames_;

  std::mutex mutex_;  // never together with store_mutex_
  std::map<uint64_t, Known> runs_;
  std::deque<uint64_t> order_;    // of runs_, oldest first
  std::deque<uint64_t> planned_;  // runs with a plan, which may be a megabyte; oldest first
};

}  // namespace vrun::home
