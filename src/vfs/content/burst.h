// SPDX-License-Identifier: Apache-2.0
// Fetches what home's trace says that a run will touch, while the run starts: the frames of the trace that this node
// does not have, in order, as fast as they come. A reader who wants what will come in a moment waits for it; who wants
// what comes later asks home, and is answered first.
//
//   Start ─▶ table asked for ─▶ frames under way, at most a window of them ─▶ over
//
// A frame that does not come is no error: readers ask for what they miss. It stops when its run ends. Bounded: what is
// under way, and the runs that fetch at the same time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "vfs/gate.h"
#include "vfs/trace/trace.h"

namespace vrun::vfs {

class Backend;
class FileContent;

// How far one burst has come; FileContent looks at it to see whether waiting is better than asking.
struct BurstProgress {
  // Frames so close behind the last one that has come are on the wire, or will be in some ten milliseconds.
  static constexpr uint32_t kSoonFrames = 8;
  static constexpr int64_t kLeastPatienceMicros = 200'000, kMostPatienceMicros = 5'000'000;
  std::atomic<uint32_t> front{0};   // frames before this one have come, or never will
  std::atomic<uint32_t> newest{0};  // those of before this one that have not come are on their way from several nodes
  std::atomic<int64_t> took{0};     // microseconds from the question for a frame to its arrival, as of late
  std::atomic<bool> over{false};
  bool Soon(uint32_t frame) const {
    return !over && frame >= front && frame < std::max(front.load(), newest.load()) + kSoonFrames;
  }
  // For a frame that comes soon. Where all frames take long, asking for one of them a second time makes it worse.
  int64_t Patience() const { return std::clamp(2 * took.load(), kLeastPatienceMicros, kMostPatienceMicros); }
};

// Thread safety: any thread. Owned by the Backend.
class Bursts {
 public:
  explicit Bursts(Backend& backend) : backend_(backend) {}

  // Asks home for the trace of this run and fetches what is not here.
  void Start(const RunId& run);
  // The run is over: no more is asked for.
  void Stop(uint64_t job, uint32_t attempt);
  // What the bursts of the runs that there are hold, once for each that does. They need it to add what comes, and it
  // has to know that a trace tells of it: not its object in the store. Any thread; the store's locks may be held.
  std::vector<std::shared_ptr<FileContent>> Held();
  void Close() { gate_->Close(); }

 private:
  using Contents = std::vector<std::shared_ptr<FileContent>>;
  struct Burst {
    RunId run;
    std::shared_ptr<const TraceTable> table;
    std::shared_ptr<const Contents> contents;       // by file of the table, while the run is; null: it waits
    bool leads = false;                             // it fetches, or has; else it waits for another one
    std::vector<std::shared_ptr<Burst>> followers;  // of the same table, that wait for it
    std::deque<uint32_t> wanted;                    // frames not asked for yet
    std::map<uint32_t, int64_t> on_the_way;         // asked for, and not here yet; since when
    size_t under_way = 0;                           // requests
    std::shared_ptr<BurstProgress> progress = std::make_shared<BurstProgress>();
    bool over = false;
    bool stopped = false;
    bool incomplete = false;
  };
  using BurstPtr = std::shared_ptr<Burst>;

  void Ask(const BurstPtr& burst, std::vector<Digest> have, int64_t delay);  // delay: until it is asked again
  bool Wanted(const BurstPtr& burst);
  void Begin(const BurstPtr& burst, TraceTable table);
  void LeadOrFollow(const BurstPtr& burst);
  void FetchMissing(const BurstPtr& burst);
  void Pump(const BurstPtr& burst);
  void Arrived(const BurstPtr& burst, const TraceFrame& frame);
  void BatchOver(const BurstPtr& burst, const std::vector<uint32_t>& frames, const Status& status);
  // These have come, or never will. Several nodes give them, so the later one may be first.
  void Settle(const BurstPtr& burst, const std::vector<uint32_t>& frames, bool arrived);
  void Over(const BurstPtr& burst);
  BurstPtr TakeLocked(uint64_t job, uint32_t attempt);
  // What was taken, if anything, was its run's; without the lock.
  void Drop(const BurstPtr& taken);

  static constexpr size_t kMaxBursts = 256;
  static constexpr size_t kHaveKept = 16;

  Backend& backend_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::mutex mutex_;
  std::map<std::pair<uint64_t, uint32_t>, BurstPtr> bursts_;
  std::deque<Digest> have_;      // tables of which everything is here, latest first
  uint64_t have_evictions_ = 0;  // what the store had evicted by then: with the next one they may not be any more
};

}  // namespace vrun::vfs
