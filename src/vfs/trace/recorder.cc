// SPDX-License-Identifier: Apache-2.0
#include "vfs/trace/recorder.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "base/clock.h"
#include "store/format/object_id.h"

namespace vrun::vfs {

void Recorder::Begin(uint64_t job, uint32_t attempt, bool partial) {
  MutexLock lock(mutex_);
  if (runs_.contains({job, attempt})) return;
  if (runs_.size() >= kMaxRuns) {
    runs_.erase(std::min_element(runs_.begin(), runs_.end(),
                                 [](const auto& a, const auto& b) { return a.second.serial < b.second.serial; }));
  }
  Run& run = runs_[{job, attempt}];
  run.began_micros = MonotonicMicros();
  run.serial = next_serial_++;
  run.recording.partial = partial;
  if (runs_.size() > 1) {
    for (auto& [id, other] : runs_) other.recording.shared = true;
  }
  active_ = true;
}

std::optional<Recording> Recorder::End(uint64_t job, uint32_t attempt) {
  MutexLock lock(mutex_);
  const auto it = runs_.find({job, attempt});
  if (it == runs_.end()) return std::nullopt;
  Sum(&it->second);
  Recording recording = std::move(it->second.recording);
  recording.wall_micros = MonotonicMicros() - it->second.began_micros;
  runs_.erase(it);
  active_ = !runs_.empty();
  return recording;
}

void Recorder::Sum(Run* run) {
  Recording& recording = run->recording;
  std::vector<Recording::Fetched>& files = recording.largest;
  for (const auto& [version, file] : run->files) {
    if (!file.fetched) continue;
    Recording::Fetched told;
    told.path = file.index < 0 ? file.path : recording.files[static_cast<size_t>(file.index)].path;
    told.when = file.when;
    const uint64_t unit_bytes = store::UnitBytes(version.size);
    for (uint64_t unit = 0; unit < file.units.size(); ++unit) {
      const uint8_t origin = file.units[unit] >> 1;
      if ((file.units[unit] & 1) || origin == static_cast<uint8_t>(Origin::kCache)) continue;
      const uint64_t bytes = std::min(unit_bytes, version.size - unit * unit_bytes);
      recording.counts[origin].unread_bytes += bytes;
      told.unread_bytes += bytes;
    }
    for (const uint64_t bytes : file.fetched_bytes) told.bytes += bytes;
    told.origin = static_cast<Origin>(std::max_element(file.fetched_bytes.begin(), file.fetched_bytes.end()) -
                                      file.fetched_bytes.begin());
    if (!told.path.empty()) files.push_back(std::move(told));
  }
  const auto more = [](const auto& a, const auto& b) { return std::tie(b.bytes, a.path) < std::tie(a.bytes, b.path); };
  const size_t kept = std::min(files.size(), kLargest);
  std::partial_sort(files.begin(), files.begin() + static_cast<std::ptrdiff_t>(kept), files.end(), more);
  files.resize(kept);
}

Recorder::File* Recorder::FileOf(Run* run, const tree::FileVersion& version) {
  if (const auto it = run->files.find(version); it != run->files.end()) return &it->second;
  const uint64_t units = store::UnitCount(version.size);
  if (run->units + units > kMaxUnits) return nullptr;
  run->units += units;
  File& file = run->files[version];
  file.units.resize(units);
  return &file;
}

bool Recorder::Fresh(const tree::FileVersion& version) {
  if (!active()) return false;
  MutexLock lock(mutex_);
  return std::any_of(runs_.begin(), runs_.end(), [&version](const auto& run) {
    const auto file = run.second.files.find(version);
    return file != run.second.files.end() && file->second.fetched && file->second.used < file->second.units.size();
  });
}

void Recorder::Used(const tree::FileVersion& version, uint64_t first, uint64_t count,
                    const std::function<std::string()>& path) {
  if (!active()) return;
  MutexLock lock(mutex_);
  for (auto& [id, run] : runs_) {
    File* file = FileOf(&run, version);
    if (file == nullptr) continue;
    Recording& recording = run.recording;
    const uint64_t end = std::min<uint64_t>(first + count, file->units.size());
    for (uint64_t unit = first; unit < end; ++unit) {
      if (file->units[unit] & 1) continue;
      file->units[unit] |= 1;
      ++file->used;
      ++recording.counts[file->units[unit] >> 1].used_units;
      if (file->index < 0) {
        std::string name = path();
        if (name.empty()) break;
        file->index = static_cast<int64_t>(recording.files.size());
        recording.files.push_back({std::move(name), version});
      }
      const auto index = static_cast<uint32_t>(file->index);
      if (!recording.ranges.empty()) {
        TraceRange& last = recording.ranges.back();
        if (last.file == index && last.first + last.count == unit) {
          ++last.count;
          continue;
        }
      }
      if (recording.ranges.size() < kMaxRanges) recording.ranges.push_back({index, unit, 1});
    }
  }
}

void Recorder::Fetched(const tree::FileVersion& version, uint64_t first, uint64_t count, uint64_t bytes, Origin origin,
                       const std::string& path) {
  if (!active()) return;
  const int64_t now = MonotonicMicros();
  MutexLock lock(mutex_);
  for (auto& [id, run] : runs_) {
    const int64_t when = std::max<int64_t>(now - run.began_micros, 0);
    Recording::Count& counts = run.recording.counts[static_cast<size_t>(origin)];
    counts.fetched_units += count;
    counts.fetched_bytes += bytes;
    counts.fetched.Add(when);
    File* file = FileOf(&run, version);
    if (file == nullptr) continue;
    file->fetched = true;
    file->fetched_bytes[static_cast<size_t>(origin)] += bytes;
    if (file->index < 0 && file->path.empty()) file->path = path;
    file->when.Add(when);
    for (uint64_t unit = first; unit < std::min<uint64_t>(first + count, file->units.size()); ++unit) {
      file->units[unit] = static_cast<uint8_t>((file->units[unit] & 1) | static_cast<uint8_t>(origin) << 1);
    }
  }
}

void Recorder::Unseen(const tree::FileVersion& version) {
  if (!active()) return;
  MutexLock lock(mutex_);
  for (auto& [id, run] : runs_) {
    const auto file = run.files.find(version);
    run.recording.partial |= file == run.files.end() || file->second.used < file->second.units.size();
  }
}

void Recorder::Waited(const std::string& path, uint64_t offset, int64_t micros, Origin origin) {
  if (!active()) return;
  const int64_t began = MonotonicMicros() - micros;
  MutexLock lock(mutex_);
  for (auto& [id, run] : runs_) {
    Recording& recording = run.recording;
    ++recording.waits;
    recording.waited_micros += micros;
    auto& slowest = recording.slowest;
    if (slowest.size() >= kSlowest && slowest.back().micros >= micros) continue;
    const auto at = std::find_if(slowest.begin(), slowest.end(),
                                 [micros](const Recording::Wait& wait) { return wait.micros < micros; });
    slowest.insert(at, {path, offset, micros, origin, std::max<int64_t>(began - run.began_micros, 0)});
    if (slowest.size() > kSlowest) slowest.pop_back();
  }
}

}  // namespace vrun::vfs
