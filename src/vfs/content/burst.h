// SPDX-License-Identifier: Apache-2.0
// Fetches what home's trace says that a run will touch, while the run starts: the frames of the trace that this node
// does not have, in order, as fast as they come. A reader waits for content that will arrive in a moment. A reader of
// content that comes later asks home, and is served first.
//
//   Start ─▶ request the table ─▶ frames under way, at most a window of them ─▶ over
//
// A missing frame is no error: readers fetch what they miss. A burst stops when its run ends. The bytes under way and
// the number of runs that fetch at the same time are bounded.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "vfs/gate.h"
#include "vfs/trace/trace_table.h"

namespace vrun::vfs {

class Backend;
class FileContent;

// Progress of one burst. FileContent uses it to decide between waiting and asking home.
struct BurstProgress {
  // Frames this close behind the last arrived one are on the wire, or will be within some ten milliseconds.
  static constexpr uint32_t kSoonFrames = 8;
  static constexpr int64_t kLeastPatienceMicros = 200'000, kMostPatienceMicros = 5'000'000;
  std::atomic<uint32_t> front{0};   // frames before this one have arrived, or never will
  std::atomic<uint32_t> newest{0};  // frames before this one that have not arrived are on their way from several nodes
  std::atomic<int64_t> took{0};     // recent microseconds from the request for a frame to its arrival
  std::atomic<bool> over{false};
  bool Soon(uint32_t frame) const {
    return !over && frame >= front && frame < std::max(front.load(), newest.load()) + kSoonFrames;
  }
  // How long to wait for a frame that comes soon. Where all frames take long, a second request makes it worse.
  int64_t Patience() const { return std::clamp(2 * took.load(), kLeastPatienceMicros, kMostPatienceMicros); }
};

// Thread safety: any thread. Owned by the Backend.
class Bursts {
 public:
  explicit Bursts(Backend& backend) : backend_(backend) {}

  // Asks home for the trace of this run and fetches what this node lacks.
  void Start(const RunId& run);
  // The run is over: requests no more frames.
  void Stop(uint64_t job, uint32_t attempt);
  // The files that the bursts of current runs hold, once per burst that holds them. A burst needs them to add arriving
  // content and to mark them as traced; it does not need their objects in the store. Any thread; the store's locks may
  // be held.
  std::vector<std::shared_ptr<FileContent>> Held();
  void Close() { gate_->Close(); }

 private:
  using Contents = std::vector<std::shared_ptr<FileContent>>;
  struct Burst {
    RunId run;
    std::shared_ptr<const TraceTable> table;
    std::shared_ptr<const Contents> contents;       // by file of the table, while the run is; null: waits
    bool leads = false;                             // it fetches, or has fetched; otherwise it waits for another burst
    std::vector<std::shared_ptr<Burst>> followers;  // bursts of the same table that wait for this one
    std::deque<uint32_t> wanted;                    // frames not requested yet
    std::map<uint32_t, int64_t> on_the_way;         // frames requested and not arrived, and since when
    size_t under_way = 0;                           // requests
    std::shared_ptr<BurstProgress> progress = std::make_shared<BurstProgress>();
    bool over = false;
    bool stopped = false;
    bool incomplete = false;
  };
  using BurstPtr = std::shared_ptr<Burst>;

  void Ask(const BurstPtr& burst, std::vector<Digest> have, int64_t delay);  // delay: until the retry
  bool Wanted(const BurstPtr& burst);
  void Begin(const BurstPtr& burst, TraceTable table);
  void LeadOrFollow(const BurstPtr& burst);
  void FetchMissing(const BurstPtr& burst);
  void Pump(const BurstPtr& burst);
  void Arrived(const BurstPtr& burst, const TraceFrame& frame);
  void BatchOver(const BurstPtr& burst, const std::vector<uint32_t>& frames, const Status& status);
  // These frames have arrived, or never will. Several nodes send frames, so they may come out of order.
  void Settle(const BurstPtr& burst, const std::vector<uint32_t>& frames, bool arrived);
  void Over(const BurstPtr& burst);
  BurstPtr TakeLocked(uint64_t job, uint32_t attempt) VRUN_REQUIRES(mutex_);
  // Releases what `taken` held for its run, if anything. Call without the lock.
  void Drop(const BurstPtr& taken);

  static constexpr size_t kMaxBursts = 256;
  static constexpr size_t kHaveKept = 16;

  Backend& backend_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  Mutex mutex_;
  std::map<std::pair<uint64_t, uint32_t>, BurstPtr> bursts_ VRUN_GUARDED_BY(mutex_);
  std::deque<Digest> have_ VRUN_GUARDED_BY(mutex_);  // tables of which everything is here, latest first
  uint64_t have_evictions_ VRUN_GUARDED_BY(mutex_) =
      0;  // the store's eviction count then; after another eviction the tables may be incomplete
};

}  // namespace vrun::vfs
