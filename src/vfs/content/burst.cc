// SPDX-License-Identifier: Apache-2.0
#include "vfs/content/burst.h"

#include <algorithm>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "store/store.h"
#include "vfs/content/backend.h"
#include "vfs/content/file_cache.h"
#include "vfs/content/source.h"
#include "vfs/timer_thread.h"
#include "vfs/trace/traced_files.h"

namespace vrun::vfs {
namespace {

// This much under way fills a link of 500 Mbit/s and 20 ms; each request is small in comparison.
constexpr size_t kBatchFrames = 1;
constexpr size_t kBatchesUnderWay = 6;
// The snapshot store may hear of the run after this node asks; until then it denies that the run is this node's.
constexpr int64_t kFirstRetryMicros = 10'000, kLastRetryMicros = 320'000;

}  // namespace

void Bursts::Start(const RunId& run) {
  auto burst = std::make_shared<Burst>();
  burst->run = run;
  std::vector<Digest> have;
  const uint64_t evictions = backend_.store()->stats().evictions;
  {
    MutexLock lock(mutex_);
    if (evictions != have_evictions_) have_.clear();
    if (bursts_.size() >= kMaxBursts || !bursts_.emplace(std::pair(run.job, run.attempt), burst).second) return;
    have.assign(have_.begin(), have_.end());
  }
  Ask(burst, std::move(have), kFirstRetryMicros);
}

void Bursts::Ask(const BurstPtr& burst, std::vector<Digest> have, int64_t delay) {
  auto answered = [this, gate = gate_, burst, have, delay](Result<TraceTable> table) {
    const Gate::Pass pass(gate.get());
    if (!pass) return;
    if (table && !table->frames.empty()) return Begin(burst, *std::move(table));
    if (!table && table.error().code() == Code::kDenied && delay <= kLastRetryMicros && Wanted(burst)) {
      backend_.timers().After(delay, [this, gate, burst, have, delay] {
        const Gate::Pass again(gate.get());
        if (again) Ask(burst, have, 2 * delay);
      });
      return;
    }
    if (!table) LogInfo("no trace: {}", Escape(table.error().message()));
    Over(burst);
  };
  backend_.source()->FetchTrace(burst->run, have, std::move(answered));
}

bool Bursts::Wanted(const BurstPtr& burst) {
  MutexLock lock(mutex_);
  return !burst->stopped;
}

void Bursts::Begin(const BurstPtr& burst, TraceTable table) {
  burst->table = std::make_shared<const TraceTable>(std::move(table));
  backend_.traced().Add(*burst->table);
  LeadOrFollow(burst);
}

// If runs with the same trace begin together, one of them fetches, and the others fetch what it leaves.
void Bursts::LeadOrFollow(const BurstPtr& burst) {
  {
    MutexLock lock(mutex_);
    for (const auto& [run, other] : bursts_) {
      if (other == burst || !other->leads || other->over || other->table->id != burst->table->id) continue;
      other->followers.push_back(burst);
      return;
    }
    burst->leads = true;
  }
  FetchMissing(burst);
}

void Bursts::FetchMissing(const BurstPtr& burst) {
  const TraceTable& trace = *burst->table;
  auto contents = std::make_shared<Contents>();
  contents->reserve(trace.files.size());
  for (const TraceTable::File& file : trace.files) {
    contents->push_back(backend_.files().Get(file.version, file.object_id));
  }
  std::deque<uint32_t> wanted;
  for (uint32_t frame = 0; frame < trace.frames.size(); ++frame) {
    bool missing = false;
    for (const TraceRange& range : trace.frames[frame]) {
      const FileContent::Place place{trace.tree, trace.files[range.file].path};
      missing |= (*contents)[range.file]->Expect(place, range.first, range.count, burst->progress, frame,
                                                 /*all=*/!trace.partial);
    }
    if (missing) wanted.push_back(frame);
  }
  {
    MutexLock lock(mutex_);
    burst->contents = std::move(contents);
    burst->wanted = std::move(wanted);
    if (!burst->wanted.empty()) burst->progress->front = burst->wanted.front();
  }
  LogDebug("job {}: a trace of {} frames, {} wanted", burst->run.job, trace.frames.size(), burst->wanted.size());
  Pump(burst);
}

void Bursts::Pump(const BurstPtr& burst) {
  const int64_t now = MonotonicMicros();
  for (;;) {
    std::vector<uint32_t> frames;
    {
      MutexLock lock(mutex_);
      if (burst->under_way >= kBatchesUnderWay) return;
      if (burst->stopped) burst->wanted.clear();
      while (!burst->wanted.empty() && frames.size() < kBatchFrames) {
        frames.push_back(burst->wanted.front());
        burst->on_the_way[burst->wanted.front()] = now;
        burst->wanted.pop_front();
      }
      if (frames.empty() && burst->under_way > 0) return;
      if (!frames.empty()) ++burst->under_way;
    }
    if (frames.empty()) return Over(burst);
    backend_.source()->FetchFrames(
        burst->run, burst->table, frames,
        [this, gate = gate_, burst](const TraceFrame& frame) {
          const Gate::Pass pass(gate.get());
          if (pass) Arrived(burst, frame);
        },
        [this, gate = gate_, burst, frames](const Status& status) {
          const Gate::Pass pass(gate.get());
          if (pass) BatchOver(burst, frames, status);
        });
  }
}

void Bursts::Arrived(const BurstPtr& burst, const TraceFrame& frame) {
  const TraceTable& trace = *burst->table;
  std::shared_ptr<const Contents> contents;
  {
    MutexLock lock(mutex_);
    contents = burst->contents;
  }
  if (!contents) return;
  const std::string_view data = frame.data;
  size_t unit = 0;
  uint64_t at = 0;
  for (const TraceRange& range : trace.frames[frame.index]) {
    const uint64_t size = trace.files[range.file].version.size;
    const uint64_t unit_bytes = store::UnitBytes(size);
    const uint64_t bytes = std::min(range.count * unit_bytes, size - range.first * unit_bytes);
    (*contents)[range.file]->Arrived(range.first, std::span(frame.digests).subspan(unit, range.count),
                                     data.substr(at, bytes), Origin::kTrace);
    backend_.traced().Arrived(trace.files[range.file].version, {range.first, range.count});
    unit += range.count;
    at += bytes;
  }
  Settle(burst, {frame.index}, true);
}

void Bursts::Settle(const BurstPtr& burst, const std::vector<uint32_t>& frames, bool arrived) {
  BurstProgress& progress = *burst->progress;
  MutexLock lock(mutex_);
  for (const uint32_t frame : frames) {
    const auto it = burst->on_the_way.find(frame);
    if (it == burst->on_the_way.end()) continue;
    if (arrived) {
      // A longer time counts at once, as with TCP.
      const int64_t took = MonotonicMicros() - it->second, old = progress.took;
      progress.took = took > old ? took : old + (took - old) / 8;
      progress.newest = std::max(progress.newest.load(), frame + 1);
    }
    burst->on_the_way.erase(it);
  }
  const uint32_t last = static_cast<uint32_t>(burst->table->frames.size());
  const uint32_t next = burst->wanted.empty() ? last : burst->wanted.front();
  progress.front = burst->on_the_way.empty() ? next : std::min(next, burst->on_the_way.begin()->first);
}

void Bursts::BatchOver(const BurstPtr& burst, const std::vector<uint32_t>& frames, const Status& status) {
  Settle(burst, frames, false);
  if (!status) LogInfo("cannot fetch a part of a trace: {}", Escape(status.error().message()));
  {
    MutexLock lock(mutex_);
    --burst->under_way;
    // A changed file loses only its frames; readers fetch what they miss. If home is unreachable, the burst ends.
    if (!status && status.error().code() != Code::kAborted) burst->stopped = true;
    if (!status) burst->incomplete = true;
  }
  Pump(burst);
}

void Bursts::Over(const BurstPtr& burst) {
  LogDebug("job {}: the burst is over", burst->run.job);
  burst->progress->over = true;
  BurstPtr taken;
  std::vector<BurstPtr> followers;
  const uint64_t evictions = backend_.store()->stats().evictions;
  {
    MutexLock lock(mutex_);
    burst->over = true;
    followers.swap(burst->followers);
    if (burst->stopped) taken = TakeLocked(burst->run.job, burst->run.attempt);
    if (burst->table && !burst->stopped && !burst->incomplete) {
      if (evictions != have_evictions_) have_.clear();
      have_evictions_ = evictions;
      std::erase(have_, burst->table->id);
      have_.push_front(burst->table->id);
      if (have_.size() > kHaveKept) have_.pop_back();
    }
  }
  Drop(taken);
  for (const BurstPtr& follower : followers) LeadOrFollow(follower);
}

void Bursts::Stop(uint64_t job, uint32_t attempt) {
  BurstPtr taken;
  {
    MutexLock lock(mutex_);
    const auto it = bursts_.find({job, attempt});
    if (it == bursts_.end()) return;
    it->second->stopped = true;
    if (it->second->over) taken = TakeLocked(job, attempt);
  }
  Drop(taken);
}

std::vector<std::shared_ptr<FileContent>> Bursts::Held() {
  std::vector<std::shared_ptr<FileContent>> held;
  MutexLock lock(mutex_);
  for (const auto& [run, burst] : bursts_) {
    if (burst->contents) held.insert(held.end(), burst->contents->begin(), burst->contents->end());
  }
  return held;
}

void Bursts::Drop(const BurstPtr& taken) {
  if (taken && taken->table) backend_.traced().Remove(taken->table->id);
}

Bursts::BurstPtr Bursts::TakeLocked(uint64_t job, uint32_t attempt) {
  const auto it = bursts_.find({job, attempt});
  if (it == bursts_.end()) return nullptr;
  BurstPtr burst = std::move(it->second);
  bursts_.erase(it);
  return burst;
}

}  // namespace vrun::vfs
