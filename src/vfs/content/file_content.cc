// SPDX-License-Identifier: Apache-2.0
#include "vfs/content/file_content.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "store/store.h"
#include "vfs/content/backend.h"
#include "vfs/content/burst.h"
#include "vfs/content/file_cache.h"
#include "vfs/content/prefetch.h"
#include "vfs/content/write_behind.h"
#include "vfs/trace/recorder.h"

namespace vrun::vfs {
namespace {

constexpr uint64_t kWindowBytes = 1 << 20;    // largest fetch from a file that is read at random
constexpr uint64_t kLongRunBytes = 16 << 20;  // from here on a reader is expected to want the whole file
constexpr uint64_t kLongWindowBytes = 4 << 20;
constexpr uint64_t kReadAheadRunBytes = 2 << 20;  // a sequential read of this length triggers fetches ahead

}  // namespace

FileContent::FileContent(FileCache& cache, const tree::FileVersion& version, std::optional<store::ObjectId> known_id)
    : cache_(cache),
      version_(version),
      unit_bytes_(store::UnitBytes(version.size)),
      unit_count_(store::UnitCount(version.size)),
      known_id_(std::move(known_id)) {}

std::shared_ptr<store::Object> FileContent::ObjectLocked() {
  if (acquired_) return object_;
  acquired_ = true;
  Backend& backend = cache_.backend_;
  if (known_id_) {
    if (auto object = backend.store()->Acquire(*known_id_, version_.size)) return object_ = *std::move(object);
  }
  const store::ObjectId id =
      store::ProvisionalId(backend.options().home_id, version_.dev, version_.ino, version_.ctime_ns, version_.size);
  auto object = backend.store()->Acquire(id, version_.size);
  if (object) return object_ = *std::move(object);
  LogWarning("the store cannot open an object, its content stays in memory: {}", object.error().message());
  return nullptr;
}

std::optional<size_t> FileContent::TryRead(uint64_t offset, char* buffer, size_t n) {
  if (offset >= version_.size) return 0;
  n = std::min<uint64_t>(n, version_.size - offset);
  if (n == 0) return 0;
  const uint64_t first = offset / unit_bytes_;
  const uint64_t last = (offset + n - 1) / unit_bytes_;
  std::shared_ptr<store::Object> object;
  std::vector<std::pair<uint64_t, UnitData>> in_memory;
  uint64_t ahead = 0;
  {
    MutexLock lock(mutex_);
    if (mixed_) return std::nullopt;
    object = ObjectLocked();
    if (!memory_.empty()) {
      for (uint64_t unit = first; unit <= last; ++unit) {
        if (const auto it = memory_.find(unit); it != memory_.end()) in_memory.emplace_back(unit, it->second);
      }
    }
    if (offset + n > ahead_mark_) ahead = ReadAheadLocked();
  }
  if (ahead != 0) Start(ahead);

  BackendCounters& counters = cache_.backend_.mutable_counters();
  // Reads units between those in memory from the store in one go.
  uint64_t at = offset;
  const uint64_t end = offset + n;
  size_t next = 0;
  while (at < end) {
    if (next < in_memory.size() && at / unit_bytes_ == in_memory[next].first) {
      const std::string_view data = in_memory[next].second.data;
      const uint64_t within = at - in_memory[next].first * unit_bytes_;
      const uint64_t take = std::min<uint64_t>(data.size() - within, end - at);
      std::memcpy(buffer + (at - offset), data.data() + within, take);
      at += take;
      ++next;
      continue;
    }
    if (!object) return std::nullopt;
    const uint64_t stop = next < in_memory.size() ? std::min(in_memory[next].first * unit_bytes_, end) : end;
    const auto read = object->Read(at, buffer + (at - offset), stop - at);
    if (!read || *read != stop - at) return std::nullopt;
    counters.units_from_store += (stop - 1) / unit_bytes_ - at / unit_bytes_ + 1;
    at = stop;
  }
  return n;
}

void FileContent::Ensure(const Place& place, uint64_t offset, uint64_t n, Done done) {
  std::vector<uint64_t> start;
  std::optional<Error> error;
  bool touched = false, jumped = false;
  Origin origin = Origin::kAhead;
  {
    MutexLock lock(mutex_);
    if (offset < version_.size && n > 0) {
      n = std::min<uint64_t>(n, version_.size - offset);
      const uint64_t first = offset / unit_bytes_;
      const uint64_t end = (offset + n - 1) / unit_bytes_ + 1;
      std::unordered_set<uint64_t> fetches;
      std::vector<uint64_t> missing = MissingLocked(first, end - first);
      // Nobody reads it yet.
      if (!done && ComesInPartsLocked(place)) missing.clear();
      // In a live view the file may have moved with its directory.
      if (lost_ && !mixed_ && (place.path != place_.path || place.tree != place_.tree)) lost_.reset();
      if (lost_ && (mixed_ || !missing.empty())) {
        error = *lost_;
      } else {
        if (!missing.empty()) {
          place_ = place;
          touched = !std::exchange(touched_, true);
        }
        for (const uint64_t unit : missing) {
          uint64_t id = FetchOfLocked(unit);
          if (id != 0 && done && fetches_.at(id).urgency == Urgency::kAhead) {
            id = OvertakeLocked(id, unit, end);
          } else if (id == 0 && ExpectedLocked(unit, true)) {
            id = AwaitBurstLocked(unit);
            if (origin != Origin::kDemand) origin = Origin::kTrace;
          } else if (id == 0) {
            id = PlanFetchLocked(unit, end);
            start.push_back(id);
            origin = Origin::kDemand;
          }
          fetches.insert(id);
        }
        // The first fetch of a sequence of reads; a continued sequence has a window of its own.
        jumped =
            !start.empty() && !traced_ && first > 0 && run_ <= end - first && version_.size > store::kWholeFileLimit;
        // If the reader continues from there, the content around it counts as read.
        if (jumped)
          next_unit_ = std::max(next_unit_, Prefetcher::Around(offset, n, version_.size).second / unit_bytes_);
        if (!start.empty() && run_ * unit_bytes_ >= kReadAheadRunBytes) {
          if (const uint64_t ahead = ReadAheadLocked()) start.push_back(ahead);
        }
        if (!fetches.empty() && done) {
          waiters_.push_back({std::move(fetches), std::exchange(done, nullptr), offset, MonotonicMicros(), origin});
        }
      }
    }
  }
  for (const uint64_t id : start) Start(id);
  if (jumped) {
    const auto [from, to] = Prefetcher::Around(offset, n, version_.size);
    cache_.backend_.prefetcher().Add(shared_from_this(), place, from, to);
  }
  if (touched) cache_.backend_.prefetcher().Touched(place, version_);
  if (error) {
    if (done) done(*std::move(error));
  } else if (done) {
    done({});
  }
}

void FileContent::Prefetch(const Place& place, uint64_t offset, uint64_t n, std::function<void(bool fetched)> done) {
  std::vector<uint64_t> start;
  {
    MutexLock lock(mutex_);
    touched_ = true;  // no need to ask home about it
    if (!lost_ && offset < version_.size && n > 0) {
      place_ = place;
      const uint64_t first = offset / unit_bytes_;
      const uint64_t end = (std::min(offset + n, version_.size) - 1) / unit_bytes_ + 1;
      std::unordered_set<uint64_t> fetches;
      const std::vector<uint64_t> missing = MissingLocked(first, end - first);
      const auto comes = [this](uint64_t unit)
                             VRUN_REQUIRES(mutex_) { return FetchOfLocked(unit) != 0 || ExpectedLocked(unit, false); };
      for (size_t i = 0; i < missing.size();) {
        if (comes(missing[i])) {
          ++i;
          continue;
        }
        const uint64_t begin = missing[i];
        uint64_t stop = begin;
        while (i < missing.size() && missing[i] == stop && !comes(stop)) ++i, ++stop;
        start.push_back(AddFetchLocked(begin, stop, Urgency::kAhead));
        fetches.insert(start.back());
      }
      if (!fetches.empty()) {
        waiters_.push_back(
            {std::move(fetches), [done = std::exchange(done, nullptr)](const Status& s) { done(s.has_value()); }});
      }
    }
  }
  for (const uint64_t id : start) Start(id);
  if (done) done(false);
}

std::vector<uint64_t> FileContent::MissingLocked(uint64_t first, uint64_t count) {
  std::vector<uint64_t> missing;
  const auto add = [&](uint64_t unit) {
    if (memory_.count(unit) == 0) missing.push_back(unit);
  };
  if (const auto object = ObjectLocked()) {
    const uint64_t offset = first * unit_bytes_;
    const uint64_t length = std::min(count * unit_bytes_, version_.size - offset);
    for (const store::UnitRange& range : object->MissingUnits(offset, length)) {
      for (uint64_t unit = range.first; unit < range.first + range.count; ++unit) add(unit);
    }
  } else {
    for (uint64_t unit = first; unit < first + count; ++unit) add(unit);
  }
  return missing;
}

uint64_t FileContent::FetchOfLocked(uint64_t unit) const {
  uint64_t ahead = 0;
  for (const auto& [id, fetch] : fetches_) {
    if (unit < fetch.first || unit >= fetch.first + fetch.count) continue;
    if (fetch.urgency == Urgency::kDemand) return id;
    ahead = id;
  }
  return ahead;
}

uint64_t FileContent::PlanFetchLocked(uint64_t first, uint64_t needed_end) {
  if (version_.size <= store::kWholeFileLimit && !ComesInPartsLocked(place_)) {
    // Fill the whole gap: small files are fetched whole, however they are read.
    uint64_t begin = first;
    const std::vector<uint64_t> before = MissingLocked(0, first);
    for (auto unit = before.rbegin(); unit != before.rend() && *unit + 1 == begin; ++unit) {
      if (FetchOfLocked(*unit) != 0 || ExpectedLocked(*unit, false)) break;
      begin = *unit;
    }
    return AddFetchLocked(begin, HoleEndLocked(first, unit_count_));
  }
  const uint64_t asked = needed_end - first;
  if (first == next_unit_) {
    const uint64_t most = run_ * unit_bytes_ >= kLongRunBytes ? kLongWindowBytes : kWindowBytes;
    window_ = std::max(asked, std::min(std::max(window_, asked) * 2, most / unit_bytes_));
  } else {
    window_ = asked;
    run_ = 0;
    ahead_mark_ = UINT64_MAX;
  }
  const uint64_t end = HoleEndLocked(first, std::min(first + window_, unit_count_), needed_end);
  next_unit_ = end;
  run_ += end - first;
  return AddFetchLocked(first, end);
}

uint64_t FileContent::HoleEndLocked(uint64_t first, uint64_t limit, uint64_t needed_end) {
  uint64_t end = first + 1;
  const std::vector<uint64_t> missing = MissingLocked(first, limit - first);
  for (size_t i = 1; i < missing.size() && missing[i] == end; ++i) {
    if (FetchOfLocked(end) != 0 || ExpectedLocked(end, end < needed_end)) break;
    ++end;
  }
  return end;
}

uint64_t FileContent::ReadAheadLocked() {
  ahead_mark_ = UINT64_MAX;
  if (lost_ || next_unit_ >= unit_count_ || version_.size <= store::kWholeFileLimit) return 0;
  const uint64_t first = next_unit_;
  if (FetchOfLocked(first) != 0 || ExpectedLocked(first, false) || MissingLocked(first, 1).empty()) return 0;
  const uint64_t id = PlanFetchLocked(first, first + 1);
  ahead_mark_ = first * unit_bytes_;
  return id;
}

uint64_t FileContent::AddFetchLocked(uint64_t first, uint64_t end, Urgency urgency) {
  const uint64_t id = next_fetch_++;
  Fetch& fetch = fetches_[id];
  fetch.first = first;
  fetch.count = end - first;
  fetch.urgency = urgency;
  SetDeadlineLocked(id, cache_.backend_.options().home_deadline_micros);
  return id;
}

void FileContent::SetDeadlineLocked(uint64_t id, int64_t micros) {
  Fetch& fetch = fetches_.at(id);
  fetch.retry.deadline = MonotonicMicros() + micros;
  fetch.deadline_timer = cache_.backend_.timers().After(micros, [self = shared_from_this(), id] { self->Late(id); });
}

void FileContent::Late(uint64_t id) {
  {
    MutexLock lock(mutex_);
    if (!fetches_.contains(id)) return;
    // On a slow link many readers wait for each other: go on waiting while content arrives.
    const int64_t until = cache_.last_came_micros_ + cache_.backend_.options().home_deadline_micros;
    if (const int64_t left = until - MonotonicMicros(); left > 0) return SetDeadlineLocked(id, left);
  }
  Finish(id, Error(Code::kTimeout, "fetch content: home did not answer in time"));
}

void FileContent::Start(uint64_t id) {
  Place place;
  uint64_t offset = 0;
  uint64_t length = 0;
  uint64_t attempt = 0;
  Urgency urgency;
  std::optional<store::ObjectId> name;
  {
    MutexLock lock(mutex_);
    const auto it = fetches_.find(id);
    if (it == fetches_.end()) return;
    place = place_;
    urgency = it->second.urgency;
    offset = it->second.first * unit_bytes_;
    length = std::min(it->second.count * unit_bytes_, version_.size - offset);
    attempt = ++it->second.attempt;
    if (known_id_) {
      name = known_id_;
    } else if (object_) {
      name = object_->id();
    }
    if (name && name->algorithm == store::IdAlgorithm::kProvisional) name.reset();
  }
  auto answered = [self = shared_from_this(), gate = cache_.gate_, id, attempt](Result<FetchedRange> answer) {
    const Gate::Pass pass(gate.get());
    if (pass) self->Answered(id, attempt, std::move(answer));
  };
  Source* const source = cache_.backend_.source();
  if (name) {
    source->FetchNamed(*name, place.tree, place.path, version_, offset, length, urgency, std::move(answered));
  } else {
    source->FetchRange(place.tree, place.path, version_, offset, length, urgency, std::move(answered));
  }
}

void FileContent::Answered(uint64_t id, uint64_t attempt, Result<FetchedRange> answer) {
  Fetch fetch;
  {
    MutexLock lock(mutex_);
    const auto it = fetches_.find(id);
    if (it == fetches_.end() || it->second.attempt != attempt) return;
    fetch = it->second;
  }
  Status status;
  if (answer) {
    status = Keep(fetch, &*answer);
  } else {
    status = std::move(answer).error();
  }
  if (status) {
    Finish(id, status);
    FinishArrived(fetch.first, fetch.count);  // for readers that asked for parts of it
    return;
  }
  int64_t delay = -1;
  {
    MutexLock lock(mutex_);
    const auto it = fetches_.find(id);
    if (it == fetches_.end()) return;
    // Nobody needs what is read ahead: home may refuse it because the job that would is over.
    const bool ahead = it->second.urgency == Urgency::kAhead && status.error().code() == Code::kUnavailable;
    if (!mixed_ && !ahead) delay = it->second.retry.Next(status.error(), MonotonicMicros());
  }
  if (delay < 0) {
    Finish(id, status);
    return;
  }
  ++cache_.backend_.mutable_counters().fetch_retries;
  // Through the timer even without delay: a source that fails at once must not cause recursion.
  cache_.backend_.timers().After(
      delay, [self = shared_from_this(), id] { self->Start(id); }, true);
}

Status FileContent::Keep(const Fetch& fetch, FetchedRange* range) {
  bool fits = range->offset == fetch.first * unit_bytes_ && range->units.size() == fetch.count;
  for (uint64_t i = 0; fits && i < fetch.count; ++i) {
    const uint64_t offset = (fetch.first + i) * unit_bytes_;
    fits = range->units[i].data.size() == std::min(unit_bytes_, version_.size - offset);
  }
  if (!fits) return Error(Code::kCorrupt, "fetch content: the answer is not the requested range");
  const Origin origin = fetch.urgency == Urgency::kAhead ? Origin::kAhead : Origin::kDemand;
  if (unit_count_ == 1) {
    VRUN_TRY(StoreSmall(&range->units.front(), origin));
  } else {
    // Some units may have arrived in another way meanwhile.
    std::vector<uint64_t> missing;
    {
      MutexLock lock(mutex_);
      missing = MissingLocked(fetch.first, fetch.count);
    }
    if (missing.empty()) VRUN_TRY(Put(fetch.first, {}, range->object_id));  // still records the name
    for (size_t i = 0; i < missing.size();) {
      const uint64_t first = missing[i];
      std::vector<store::PutUnit> units;
      uint64_t bytes = 0;
      for (; i < missing.size() && missing[i] == first + units.size(); ++i) {
        const FetchedUnit& unit = range->units[missing[i] - fetch.first];
        units.push_back({unit.digest, unit.data});
        bytes += unit.data.size();
      }
      VRUN_TRY(Put(first, units, range->object_id));
      Count(first, units.size(), bytes, origin);
    }
  }
  return {};
}

Status FileContent::Put(uint64_t first, const std::vector<store::PutUnit>& units,
                        const std::optional<store::ObjectId>& name) {
  std::shared_ptr<store::Object> object;
  {
    MutexLock lock(mutex_);
    object = ObjectLocked();
  }
  BackendCounters& counters = cache_.backend_.mutable_counters();
  Status put = Error(Code::kExhausted, "");
  if (object) {
    put = object->Put(first, units, /*verified=*/true);
    if (put && name && object->id().algorithm == store::IdAlgorithm::kProvisional) {
      const Status resolved = object->Resolve(*name);
      if (!resolved && resolved.error().code() == Code::kCorrupt) return resolved;
    }
  }
  if (!put) {
    if (put.error().code() == Code::kCorrupt) return put;
    if (put.error().code() == Code::kAborted) {
      MutexLock lock(mutex_);
      mixed_ = true;
      return put;
    }
    ++counters.store_write_failures;
    cache_.StoreRefuses(put.error());
    {
      MutexLock lock(mutex_);
      for (size_t i = 0; i < units.size(); ++i) {
        auto own = std::make_shared<const std::string>(units[i].data);
        const std::string_view data = *own;
        memory_[first + i] = {std::move(own), data};
      }
    }
    for (size_t i = 0; i < units.size(); ++i) cache_.AddUnstored(shared_from_this(), first + i, unit_bytes_);
  }
  return {};
}

void FileContent::Count(uint64_t first, uint64_t count, uint64_t bytes, Origin origin) {
  BackendCounters& counters = cache_.backend_.mutable_counters();
  counters.units_fetched += count;
  counters.bytes_fetched += bytes;
  cache_.last_came_micros_ = MonotonicMicros();
  Recorder& recorder = cache_.backend_.recorder();
  if (!recorder.active()) return;
  std::string path;
  {
    MutexLock lock(mutex_);
    path = place_.path;
  }
  recorder.Fetched(version_, first, count, bytes, origin, path);
}

void FileContent::Finish(uint64_t id, const Status& status) {
  std::vector<Waiter> ready;
  std::string path;
  TimerThread::Id timer = 0;
  {
    MutexLock lock(mutex_);
    const auto fetch = fetches_.find(id);
    if (fetch == fetches_.end()) return;
    timer = fetch->second.deadline_timer;
    const bool ahead = fetch->second.urgency == Urgency::kAhead;
    fetches_.erase(fetch);
    path = place_.path;
    if (!status && !ahead) {
      if (IsLost(status.error())) {
        lost_ = status.error();  // the views report the error to their users
      } else {
        LogWarning("{}: {}", Escape(place_.path), Escape(status.error().message()));
      }
    }
    for (auto it = waiters_.begin(); it != waiters_.end();) {
      if (it->fetches.erase(id) == 1 && (!status || it->fetches.empty())) {
        ready.push_back(std::move(*it));
        it = waiters_.erase(it);
      } else {
        ++it;
      }
    }
  }
  cache_.backend_.timers().Cancel(timer);
  for (Waiter& waiter : ready) {
    if (waiter.since > 0) {
      cache_.backend_.recorder().Waited(path, waiter.offset, MonotonicMicros() - waiter.since, waiter.origin);
    }
    waiter.done(status);
  }
}

bool FileContent::IsComplete() {
  std::shared_ptr<store::Object> object;
  {
    MutexLock lock(mutex_);
    if (mixed_) return false;
    object = ObjectLocked();
  }
  return object && object->complete();
}

void FileContent::DropUnstored(uint64_t unit) {
  UnitData dropped;
  MutexLock lock(mutex_);
  if (const auto it = memory_.find(unit); it != memory_.end()) {
    dropped = std::move(it->second);
    memory_.erase(it);
  }
}

bool FileContent::HoldsUnstored() {
  MutexLock lock(mutex_);
  return !memory_.empty();
}

void FileContent::ReleaseObject() {
  std::shared_ptr<store::Object> released;  // after the lock
  MutexLock lock(mutex_);
  if (!fetches_.empty()) return;
  released = std::move(object_);
  acquired_ = false;
}

}  // namespace vrun::vfs
