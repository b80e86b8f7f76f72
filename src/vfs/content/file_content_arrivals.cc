// SPDX-License-Identifier: Apache-2.0
// The parts of FileContent for content that arrives unasked (bursts, requests of other nodes) or ahead of need, that
// readers get before the store does, or that is read for other nodes.
#include <algorithm>
#include <bit>
#include <utility>

#include "base/thread/mutex.h"
#include "store/store.h"
#include "vfs/content/backend.h"
#include "vfs/content/burst.h"
#include "vfs/content/file_cache.h"
#include "vfs/content/prefetch.h"
#include "vfs/content/write_behind.h"
#include "vfs/trace/recorder.h"

namespace vrun::vfs {
namespace {

constexpr int64_t kRestMicros = 5'000'000;        // from the first read of a borrowed file until the rest is fetched
constexpr int64_t kAheadPatienceMicros = 10'000;  // for content requested ahead; most of it is on the wire

}  // namespace

bool FileContent::Expect(const Place& place, uint64_t first, uint64_t count,
                         const std::shared_ptr<BurstProgress>& burst, uint32_t frame, bool all) {
  MutexLock lock(mutex_);
  if (all) touched_ = traced_ = true;  // no need to ask home about it
  if (lost_) return false;
  place_ = place;
  const std::vector<uint64_t> missing = MissingLocked(first, count);
  if (missing.empty()) return false;
  if (burst_ != burst) expected_.clear();
  burst_ = burst;
  for (const uint64_t unit : missing) expected_[unit] = frame;
  return true;
}

bool FileContent::ExpectedLocked(uint64_t unit, bool soon) const {
  if (!burst_ || burst_->over) return false;
  const auto it = expected_.find(unit);
  return it != expected_.end() && (soon ? burst_->Soon(it->second) : it->second >= burst_->front);
}

uint64_t FileContent::AwaitBurstLocked(uint64_t unit) {
  const uint64_t id = AddFetchLocked(unit, unit + 1);
  cache_.backend_.timers().After(burst_->Patience(), [self = shared_from_this(), id] { self->Start(id); });
  return id;
}

uint64_t FileContent::OvertakeLocked(uint64_t ahead, uint64_t first, uint64_t needed_end) {
  const Fetch& fetch = fetches_.at(ahead);
  const uint64_t id = AddFetchLocked(first, std::min(fetch.first + fetch.count, needed_end));
  cache_.backend_.timers().After(kAheadPatienceMicros, [self = shared_from_this(), id] { self->Start(id); });
  return id;
}

void FileContent::Arrived(uint64_t first, std::span<const Digest> digests, std::string_view data, Origin origin,
                          std::shared_ptr<const std::string> buffer) {
  Count(first, digests.size(), data.size(), origin);
  if (version_.size > store::kWholeFileLimit) {
    // Write to the store at once: there are few such files, and the memory is needed for the next units.
    WriteArrived(first, digests, data);
    return FinishArrived(first, digests.size());
  }
  // One of many small files: the store's file is created later, because that is the slowest step.
  if (!buffer) {
    buffer = std::make_shared<const std::string>(data);
    data = *buffer;
  }
  {
    MutexLock lock(mutex_);
    for (uint64_t i = 0; i < digests.size(); ++i) {
      memory_[first + i] = {buffer, data.substr(i * unit_bytes_, unit_bytes_)};
    }
  }
  FinishArrived(first, digests.size());
  auto write = [self = shared_from_this(), first, names = std::vector<Digest>(digests.begin(), digests.end()), buffer,
                data] {
    self->WriteArrived(first, names, data);
    MutexLock lock(self->mutex_);
    for (size_t i = 0; i < names.size(); ++i) {
      const auto it = self->memory_.find(first + i);
      if (it != self->memory_.end() && it->second.buffer == buffer) self->memory_.erase(it);
    }
  };
  if (!cache_.backend_.write_behind().Post(data.size(), write)) write();
}

void FileContent::FinishArrived(uint64_t first, uint64_t count) {
  std::vector<uint64_t> over;
  {
    MutexLock lock(mutex_);
    for (uint64_t unit = first; unit < first + count; ++unit) expected_.erase(unit);
    for (const auto& [id, fetch] : fetches_) {
      if (fetch.first + fetch.count > first && fetch.first < first + count &&
          MissingLocked(fetch.first, fetch.count).empty()) {
        over.push_back(id);
      }
    }
  }
  for (const uint64_t id : over) Finish(id, {});
}

void FileContent::WriteArrived(uint64_t first, std::span<const Digest> digests, std::string_view data) {
  std::vector<store::PutUnit> put;
  for (size_t i = 0; i < digests.size(); ++i) put.push_back({digests[i], data.substr(i * unit_bytes_, unit_bytes_)});
  // Put keeps in memory what the disk cannot take; readers find out about content that the store rejects.
  (void)Put(first, put, std::nullopt);
}

Status FileContent::StoreSmall(FetchedUnit* unit, Origin origin) {
  {
    MutexLock lock(mutex_);
    const auto object = ObjectLocked();
    if (object && object->id().algorithm == store::IdAlgorithm::kBlake3 && object->id().digest != unit->digest) {
      return Error(Code::kCorrupt, "fetch content: the content does not match its digest");
    }
  }
  const auto buffer = std::make_shared<const std::string>(std::move(unit->data));
  Arrived(0, {&unit->digest, 1}, *buffer, origin, buffer);
  return {};
}

bool FileContent::Has(uint64_t offset, uint64_t n) {
  if (offset >= version_.size || n == 0) return true;
  n = std::min(n, version_.size - offset);
  const uint64_t first = offset / unit_bytes_;
  MutexLock lock(mutex_);
  return !mixed_ && MissingLocked(first, (offset + n - 1) / unit_bytes_ + 1 - first).empty();
}

bool FileContent::Declines(uint64_t offset, uint64_t n) {
  if (n <= kPageBytes || offset >= version_.size) return false;
  // A kernel with larger folios in its page cache requests a whole folio in the same way, and would pass the error to
  // the reader. Folios are naturally aligned; the range around one page that crosses a unit boundary is not.
  if (std::has_single_bit(n) && offset % n == 0) return false;
  n = std::min(n, version_.size - offset);
  const uint64_t first = offset / unit_bytes_, count = (offset + n - 1) / unit_bytes_ + 1 - first;
  if (count == 1) return false;
  MutexLock lock(mutex_);
  const std::vector<uint64_t> missing = MissingLocked(first, count);
  const size_t expected =
      static_cast<size_t>(std::count_if(missing.begin(), missing.end(), [this](uint64_t unit) VRUN_REQUIRES(mutex_) {
        return ExpectedLocked(unit, false);
      }));
  const bool alike = missing.size() == count && (expected == 0 || expected == count);
  if (missing.empty() || alike || declined_.NextIn(offset, offset + n) < offset + n) return false;
  declined_.Add(offset, n);
  return true;
}

bool FileContent::ComesInPartsLocked(const Place& place) const {
  return traced_ || (unit_count_ > 1 && Prefetcher::IsLibrary(place.path));
}

bool FileContent::ComesInParts(const Place& place) {
  MutexLock lock(mutex_);
  return ComesInPartsLocked(place);
}

bool FileContent::LacksLocked() {
  constexpr uint64_t kAtOnce = 1024;
  for (uint64_t first = 0; first < unit_count_; first += kAtOnce) {
    const std::vector<uint64_t> missing = MissingLocked(first, std::min(kAtOnce, unit_count_ - first));
    if (!std::ranges::all_of(missing,
                             [this](uint64_t unit) VRUN_REQUIRES(mutex_) { return ExpectedLocked(unit, false); }))
      return true;
  }
  return false;
}

void FileContent::Borrow(const Place& place, std::function<void()> done) {
  bool lacks;
  {
    MutexLock lock(mutex_);
    lacks = !lost_ && !mixed_ && LacksLocked();
  }
  if (!lacks) {
    if (done) done();
    return;
  }
  cache_.backend_.source()->Borrow(place.tree, place.path, version_, std::move(done));
  if (version_.size > store::kWholeFileLimit) return;
  cache_.backend_.timers().After(kRestMicros, [self = shared_from_this(), place] {
    Backend& backend = self->cache_.backend_;
    if (backend.recorder().active()) backend.prefetcher().Add(self, place, 0, self->version_.size);
  });
}

void FileContent::FindExtents(const Place& place, std::function<void(ExtentsPtr)> done) {
  ExtentsPtr known;
  {
    MutexLock lock(mutex_);
    known = extents_;
  }
  if (known) return done(std::move(known));
  cache_.backend_.source()->FetchExtents(place.tree, place.path, version_,
                                         [self = shared_from_this(), done = std::move(done)](Result<Extents> found) {
                                           if (!found) return done(nullptr);
                                           auto extents = std::make_shared<const Extents>(*std::move(found));
                                           {
                                             MutexLock lock(self->mutex_);
                                             self->extents_ = extents;
                                           }
                                           done(std::move(extents));
                                         });
}

std::optional<std::string> FileContent::Held(uint64_t first, uint64_t count) {
  std::shared_ptr<store::Object> object;
  std::vector<UnitData> in_memory(count);
  {
    MutexLock lock(mutex_);
    if (mixed_ || first >= unit_count_ || count > unit_count_ - first) return std::nullopt;
    object = ObjectLocked();
    for (uint64_t i = 0; i < count && !memory_.empty(); ++i) {
      if (const auto it = memory_.find(first + i); it != memory_.end()) in_memory[i] = it->second;
    }
  }
  for (uint64_t i = 0; i < count; ++i) {
    if (!in_memory[i].buffer && (!object || !object->Has((first + i) * unit_bytes_, 1))) return std::nullopt;
  }
  std::string data(std::min(count * unit_bytes_, version_.size - first * unit_bytes_), '\0');
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = i * unit_bytes_, length = std::min<uint64_t>(unit_bytes_, data.size() - at);
    if (in_memory[i].buffer) {
      data.replace(at, length, in_memory[i].data);
      continue;
    }
    const auto read = object->Read(first * unit_bytes_ + at, data.data() + at, length);
    if (!read || *read != length) return std::nullopt;
  }
  return data;
}

}  // namespace vrun::vfs
