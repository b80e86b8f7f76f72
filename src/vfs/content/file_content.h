// SPDX-License-Identifier: Apache-2.0
// The content of one version of a file: from the store, from memory while the store's disk is full, else from home.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"
#include "store/format/object_id.h"
#include "tree/tree.h"
#include "vfs/byte_ranges.h"
#include "vfs/content/source.h"
#include "vfs/retry.h"
#include "vfs/timer_thread.h"

namespace vrun::store {
class Object;
struct PutUnit;
}  // namespace vrun::store

namespace vrun::vfs {

class FileCache;
struct BurstProgress;

// Thread safety: any thread.
class FileContent : public std::enable_shared_from_this<FileContent> {
 public:
  using Done = std::function<void(Status)>;
  static constexpr uint64_t kPageBytes = 4096;  // the kernel asks for at least one page, and always needs it

  FileContent(FileCache& cache, const tree::FileVersion& version, std::optional<store::ObjectId> known_id);

  // Where home finds the file.
  struct Place {
    Digest tree;
    std::string path;
  };

  // Copies content that is here; nullopt when something is missing. Short only at the end of the file.
  std::optional<size_t> TryRead(uint64_t offset, char* buffer, size_t n);
  // Fetches what a read of [offset, offset+n) lacks: small files whole, large files in adaptive ranges. `done` runs
  // once, on any thread, perhaps before this returns. After success TryRead finds the content, unless another process
  // evicted it: then retry. Null: nobody waits for it yet.
  void Ensure(const Place& place, uint64_t offset, uint64_t n, Done done);
  // Fetches what [offset, offset + n) lacks and is not on its way, though nobody waits for it. Failures are not
  // retried. `done` runs once, as above: whether there was something to fetch and it arrived.
  void Prefetch(const Place& place, uint64_t offset, uint64_t n, std::function<void(bool fetched)> done);
  // Units [first, first + count) come with `frame` of a burst. Returns whether any of them is missing. `all`: readers
  // will read only the expected units.
  bool Expect(const Place& place, uint64_t first, uint64_t count, const std::shared_ptr<BurstProgress>& burst,
              uint32_t frame, bool all);
  // Takes verified units that nobody asked for; `data` has them all. With a `buffer` that contains `data`, nothing is
  // copied while it waits for the store.
  void Arrived(uint64_t first, std::span<const Digest> digests, std::string_view data, Origin origin,
               std::shared_ptr<const std::string> buffer = nullptr);
  // Units [first, first + count) for another node; does not count as a read. nullopt when one is not here. Reads the
  // disk.
  std::optional<std::string> Held(uint64_t first, uint64_t count);
  bool IsComplete();
  // Whether a read of [offset, offset + n) would find everything here.
  bool Has(uint64_t offset, uint64_t n);
  // Whether to refuse a read request. One page is read, and the kernel asks for its neighbours as well; some of them
  // are here (or come with a burst) and some are not. Usually the page that is read is here. So the request is refused
  // with an error that the kernel does not pass on, and the kernel then asks for that page alone. Refuses once per
  // place, since somebody needs what is asked for again. Not for requests past the page cache.
  bool Declines(uint64_t offset, uint64_t n);
  // Where the file has data, once home has said so; null: unknown. `done` runs once, on any thread, perhaps before this
  // returns.
  void FindExtents(const Place& place, std::function<void(ExtentsPtr)> done);
  // A trace, or home (for libraries), says which parts will be read: the file is not fetched whole.
  bool ComesInParts(const Place& place);
  // Asks home to lend the file (home/serve/lent_files.h), so that it stays readable whatever happens to its name there,
  // if something is missing that no burst brings. The rest of a small file is fetched some seconds later if a run is
  // still active (not during its start), because home cannot protect a file from a write in place. `done`, unless null,
  // runs once home lends it, or when nothing is missing.
  void Borrow(const Place& place, std::function<void()> done = nullptr);
  // As in store.h. Excludes units that only memory holds.
  std::optional<uint64_t> VerifySome(uint64_t bytes);
  Result<UniqueFd> OpenForPassthrough();
  uint64_t size() const { return version_.size; }
  const tree::FileVersion& version() const { return version_; }

 private:
  friend class FileCache;
  struct Fetch {
    uint64_t first = 0;  // unit
    uint64_t count = 0;
    Urgency urgency = Urgency::kDemand;
    Retry retry;
    uint64_t attempt = 0;
    TimerThread::Id deadline_timer = 0;
  };
  struct Waiter {
    std::unordered_set<uint64_t> fetches;
    Done done;
    // Of a reader that waits, for the recording.
    uint64_t offset = 0;
    int64_t since = 0;
    Origin origin = Origin::kDemand;
  };
  struct UnitData {
    std::shared_ptr<const std::string> buffer;  // perhaps shared with others
    std::string_view data;                      // part of `buffer`
  };

  bool ComesInPartsLocked(const Place& place) const VRUN_REQUIRES(mutex_);
  // Null when the store refuses the object: then content is served from memory only.
  std::shared_ptr<store::Object> ObjectLocked() VRUN_REQUIRES(mutex_);
  // Units of [first, first+count) that are not here, whether or not a fetch for them is under way.
  std::vector<uint64_t> MissingLocked(uint64_t first, uint64_t count) VRUN_REQUIRES(mutex_);
  bool LacksLocked() VRUN_REQUIRES(mutex_);                           // anything missing that no burst brings
  uint64_t FetchOfLocked(uint64_t unit) const VRUN_REQUIRES(mutex_);  // 0: none; a demand fetch before a fetch ahead
  // A reader needs units from `first` up to `needed_end` of a fetch ahead. If they do not arrive in a moment, they are
  // requested again as a demand fetch. The first answer counts.
  uint64_t OvertakeLocked(uint64_t ahead, uint64_t first, uint64_t needed_end) VRUN_REQUIRES(mutex_);
  // Plans a fetch from `first`, which is missing, at least to `needed_end` and at most a window.
  uint64_t PlanFetchLocked(uint64_t first, uint64_t needed_end) VRUN_REQUIRES(mutex_);
  // End of the gap that begins at `first`, at most `limit`: units neither here nor on their way. Below `needed_end`,
  // units that a burst brings in a moment count as on their way; above it, all units that a burst brings.
  uint64_t HoleEndLocked(uint64_t first, uint64_t limit, uint64_t needed_end = 0) VRUN_REQUIRES(mutex_);
  uint64_t AddFetchLocked(uint64_t first, uint64_t end, Urgency urgency = Urgency::kDemand) VRUN_REQUIRES(mutex_);
  uint64_t ReadAheadLocked() VRUN_REQUIRES(mutex_);
  // The unit will come with a burst: soon, or at any time.
  bool ExpectedLocked(uint64_t unit, bool soon) const VRUN_REQUIRES(mutex_);
  // Starts a fetch that runs only if the burst does not bring the unit in time.
  uint64_t AwaitBurstLocked(uint64_t unit) VRUN_REQUIRES(mutex_);
  void Start(uint64_t id);
  void SetDeadlineLocked(uint64_t id, int64_t micros) VRUN_REQUIRES(mutex_);
  // Its deadline has passed. It gets another one while other content arrives.
  void Late(uint64_t id);
  void Answered(uint64_t id, uint64_t attempt, Result<FetchedRange> answer);
  Status Keep(const Fetch& fetch, FetchedRange* range);
  // Takes all content of a file of one unit: readers get it at once, the store later, because creating the store's file
  // is the slowest step.
  Status StoreSmall(FetchedUnit* unit, Origin origin);
  // Into the store, else into memory.
  Status Put(uint64_t first, const std::vector<store::PutUnit>& units, const std::optional<store::ObjectId>& name);
  void Count(uint64_t first, uint64_t count, uint64_t bytes, Origin origin);
  void WriteArrived(uint64_t first, std::span<const Digest> digests, std::string_view data);
  // The units are here: their waiters continue.
  void FinishArrived(uint64_t first, uint64_t count);
  void Finish(uint64_t id, const Status& status);
  void DropUnstored(uint64_t unit);
  // Some units are only in memory.
  bool HoldsUnstored();
  // Releases the object in the store; the next use looks it up again.
  void ReleaseObject();

  FileCache& cache_;
  const tree::FileVersion version_;
  const uint64_t unit_bytes_;
  const uint64_t unit_count_;

  Mutex mutex_;
  std::optional<store::ObjectId> known_id_ VRUN_GUARDED_BY(mutex_);
  std::shared_ptr<store::Object> object_ VRUN_GUARDED_BY(mutex_);
  bool acquired_ VRUN_GUARDED_BY(mutex_) = false;
  bool touched_ VRUN_GUARDED_BY(mutex_) = false;  // the prefetcher has been told
  bool traced_ VRUN_GUARDED_BY(mutex_) = false;   // a trace says which parts will be read
  Place place_ VRUN_GUARDED_BY(mutex_);
  ExtentsPtr extents_ VRUN_GUARDED_BY(mutex_);         // null: home has not been asked yet
  ByteRanges declined_;                                // requests refused by Declines
  std::optional<Error> lost_ VRUN_GUARDED_BY(mutex_);  // final for this version at `place_`
  bool mixed_ VRUN_GUARDED_BY(mutex_) = false;     // the units here are of two states of the file: not readable either
  std::unordered_map<uint64_t, UnitData> memory_;  // units just fetched, or refused by the store
  std::unordered_map<uint64_t, Fetch> fetches_ VRUN_GUARDED_BY(mutex_);
  std::list<Waiter> waiters_ VRUN_GUARDED_BY(mutex_);
  std::shared_ptr<BurstProgress> burst_ VRUN_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, uint32_t> expected_ VRUN_GUARDED_BY(mutex_);  // by unit: the frame that brings it
  uint64_t next_fetch_ VRUN_GUARDED_BY(mutex_) = 1;
  // Sequential reading: end of the last fetch, number of units per fetch, number of units read in this sequence.
  uint64_t next_unit_ VRUN_GUARDED_BY(mutex_) = UINT64_MAX;
  uint64_t window_ VRUN_GUARDED_BY(mutex_) = 0;
  uint64_t run_ VRUN_GUARDED_BY(mutex_) = 0;
  uint64_t ahead_mark_ VRUN_GUARDED_BY(mutex_) =
      UINT64_MAX;  // a read beyond this byte starts the fetch of the next window
};

}  // namespace vrun::vfs
