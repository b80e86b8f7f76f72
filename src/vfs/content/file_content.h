// SPDX-License-Identifier: Apache-2.0
// The content of one version of a file: from the store, from memory while the store's disk is full, else from home.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
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
  static constexpr uint64_t kPageBytes = 4096;  // the kernel asks for at least one, and never in vain

  FileContent(FileCache& cache, const tree::FileVersion& version, std::optional<store::ObjectId> known_id);

  // Where home finds the file.
  struct Place {
    Digest tree;
    std::string path;
  };

  // Copies what is here already; nullopt when something is missing. Short only at the end of the file.
  std::optional<size_t> TryRead(uint64_t offset, char* buffer, size_t n);
  // Fetches what a read of [offset, offset+n) lacks: whole small files, adaptive ranges of large ones. `done` runs
  // once, on any thread, perhaps at once; after success TryRead finds it (barring eviction by another process: try
  // again). Null: nobody waits for it yet.
  void Ensure(const Place& place, uint64_t offset, uint64_t n, Done done);
  // Fetches what [offset, offset + n) lacks and is not on its way, for nobody in particular: what fails is given up.
  // `done` runs once, as above: whether there was anything to fetch, and it came.
  void Prefetch(const Place& place, uint64_t offset, uint64_t n, std::function<void(bool fetched)> done);
  // Units [first, first + count) come with `frame` of a burst. Whether any of them is missing. `all`: no more than what
  // is expected will be read of it.
  bool Expect(const Place& place, uint64_t first, uint64_t count, const std::shared_ptr<BurstProgress>& burst,
              uint32_t frame, bool all);
  // Units that came unasked, verified; `data` has them all. With a `buffer`, which `data` is a part of, nothing is
  // copied that has to wait for the store.
  void Arrived(uint64_t first, std::span<const Digest> digests, std::string_view data, Origin origin,
               std::shared_ptr<const std::string> buffer = nullptr);
  // Units [first, first + count), which others ask for: as if nobody had read them. nullopt when one is not here. Reads
  // the disk.
  std::optional<std::string> Held(uint64_t first, uint64_t count);
  bool IsComplete();
  // A read of [offset, offset + n) would wait for nobody.
  bool Has(uint64_t offset, uint64_t n);
  // A page is read, and the kernel asks for those around it as well; some of all that is here or comes with a burst,
  // and some is not or does not. Then the one that is wanted mostly is or does: the request is to be refused, with an
  // error that the kernel keeps to itself, and it asks for that page alone. Once for each place, since what is asked
  // for again somebody needs. Not of requests past the page cache.
  bool Declines(uint64_t offset, uint64_t n);
  // Where it has data, once home has said so; null: nobody can tell. `done` runs once, on any thread, perhaps at once.
  void FindExtents(const Place& place, std::function<void(ExtentsPtr)> done);
  // What of it is going to be read a trace says, or home does (of libraries): it is not fetched whole.
  bool ComesInParts(const Place& place);
  // Home is to hold the file for its reader (home/serve/lent_files.h), whatever becomes of its name there, if something
  // is missing that does not come by itself. The rest of a small file follows when the beginning of a job is over, as
  // long as there is one: what is written in place home cannot hold. `done`, unless null, runs once it does, or nothing
  // is missing.
  void Borrow(const Place& place, std::function<void()> done = nullptr);
  // As of store.h. Not of what only memory has.
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
    // For the record, of somebody who waits.
    uint64_t offset = 0;
    int64_t since = 0;
    Origin origin = Origin::kDemand;
  };
  struct UnitData {
    std::shared_ptr<const std::string> buffer;  // of many, perhaps
    std::string_view data;                      // in it
  };

  bool ComesInPartsLocked(const Place& place) const;
  // Null when the store refuses the object: then only memory serves.
  std::shared_ptr<store::Object> ObjectLocked();
  // Units of [first, first+count) that are nowhere yet, fetches under way left out of account.
  std::vector<uint64_t> MissingLocked(uint64_t first, uint64_t count);
  bool LacksLocked();                           // anything that no burst brings
  uint64_t FetchOfLocked(uint64_t unit) const;  // 0: none; one that somebody waits for before one ahead
  // A reader needs units from `first` on of a fetch ahead, up to `needed_end`: they are asked for again as his if they
  // do not come in a moment. The first answer counts.
  uint64_t OvertakeLocked(uint64_t ahead, uint64_t first, uint64_t needed_end);
  // Starts at `first`, which is missing; at least to `needed_end`, at most a window.
  uint64_t PlanFetchLocked(uint64_t first, uint64_t needed_end);
  // Up to where, at most `limit`, all from `first` on is one hole: neither here nor on its way; what a burst brings in
  // a moment is on its way, below `needed_end`, and what it ever brings above.
  uint64_t HoleEndLocked(uint64_t first, uint64_t limit, uint64_t needed_end = 0);
  uint64_t AddFetchLocked(uint64_t first, uint64_t end, Urgency urgency = Urgency::kDemand);
  uint64_t ReadAheadLocked();
  // The unit will come with a burst: soon, or at all.
  bool ExpectedLocked(uint64_t unit, bool soon) const;
  // A fetch that starts only if the burst does not bring the unit in time.
  uint64_t AwaitBurstLocked(uint64_t unit);
  void Start(uint64_t id);
  void SetDeadlineLocked(uint64_t id, int64_t micros);
  // Its deadline is over; while other content comes there is another one.
  void Late(uint64_t id);
  void Answered(uint64_t id, uint64_t attempt, Result<FetchedRange> answer);
  Status Keep(const Fetch& fetch, FetchedRange* range);
  // All of a file that is one unit: readers have it at once, the store later. Making its file takes longer than all
  // else.
  Status KeepSmall(FetchedUnit* unit, Origin origin);
  // Into the store, else into memory.
  Status Put(uint64_t first, const std::vector<store::PutUnit>& units, const std::optional<store::ObjectId>& name);
  void Count(uint64_t first, uint64_t count, uint64_t bytes, Origin origin);
  void WriteArrived(uint64_t first, std::span<const Digest> digests, std::string_view data);
  // The units are here: whoever waited for them goes on.
  void FinishArrived(uint64_t first, uint64_t count);
  void Finish(uint64_t id, const Status& status);
  void DropUnstored(uint64_t unit);
  // Holds units that are only in memory.
  bool HoldsUnstored();
  // Lets go of the object in the store; the next use finds it again.
  void ReleaseObject();

  FileCache& cache_;
  const tree::FileVersion version_;
  const uint64_t unit_bytes_;
  const uint64_t unit_count_;

  std::mutex mutex_;
  std::optional<store::ObjectId> known_id_;
  std::shared_ptr<store::Object> object_;
  bool acquired_ = false;
  bool touched_ = false;  // the prefetcher knows
  bool traced_ = false;   // a trace said what of it will be read
  Place place_;
  ExtentsPtr extents_;                             // null: home was not asked yet
  ByteRanges declined_;                            // by Declines
  std::optional<Error> lost_;                      // final for this version where `place_` has it
  bool mixed_ = false;                             // what is here is of two states: not to be read either
  std::unordered_map<uint64_t, UnitData> memory_;  // units just fetched, or that the store could not take
  std::unordered_map<uint64_t, Fetch> fetches_;
  std::list<Waiter> waiters_;
  std::shared_ptr<BurstProgress> burst_;
  std::unordered_map<uint64_t, uint32_t> expected_;  // by unit: the frame that brings it
  uint64_t next_fetch_ = 1;
  // Sequential reading: where the last fetch ended, the units fetched in one go, the units of this run.
  uint64_t next_unit_ = UINT64_MAX;
  uint64_t window_ = 0;
  uint64_t run_ = 0;
  uint64_t ahead_mark_ = UINT64_MAX;  // a read that passes this byte asks for the next window
};

}  // namespace vrun::vfs
