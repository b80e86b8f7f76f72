// SPDX-License-Identifier: Apache-2.0
#include "home/ahead/trace.h"

#include <algorithm>
#include <climits>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "base/hash/blake3.h"
#include "proto/content.pb.h"
#include "store/format/object_id.h"

namespace vrun::home {
namespace {

// One number per unit of a file.
uint64_t Key(uint64_t file, uint64_t unit) { return file << 40 | unit; }

std::vector<uint64_t> UnitsOf(const Trace& trace, const std::vector<uint32_t>& files) {
  std::vector<uint64_t> units;
  for (const Trace::Range& range : trace.ranges) {
    for (uint64_t i = 0; i < range.count; ++i) units.push_back(Key(files[range.file], range.first + i));
  }
  return units;
}

// Whether the common units are in about the same order, within an eighth of their number on average, since several
// threads read.
bool HaveOneOrder(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  const std::unordered_set<uint64_t> in_b(b.begin(), b.end());
  std::unordered_map<uint64_t, uint64_t> place;
  for (const uint64_t unit : a) {
    if (in_b.contains(unit)) place.emplace(unit, place.size());
  }
  uint64_t at = 0, off = 0;
  for (const uint64_t unit : b) {
    const auto it = place.find(unit);
    if (it == place.end()) continue;
    off += std::max(it->second, at) - std::min(it->second, at);
    ++at;
  }
  return off <= at * at / 8;
}

// Accepts files within the limits.
class FileLimit {
 public:
  bool Takes(const std::string& path) {
    if (files_ >= Trace::kMaxFiles || bytes_ + path.size() > Trace::kMaxPathBytes) return false;
    ++files_;
    bytes_ += path.size();
    return true;
  }

 private:
  size_t files_ = 0, bytes_ = 0;
};

}  // namespace

uint64_t Trace::units() const {
  uint64_t units = 0;
  for (const Range& range : ranges) units += range.count;
  return units;
}

std::optional<Trace> ReadTrace(const v1::TraceRecord& record) {
  if (record.path_size() != record.size_size() || record.range_size() % 3 != 0) return std::nullopt;
  Trace trace;
  FileLimit limit;
  trace.partial = record.partial();
  std::vector<int64_t> index;  // in trace.files; -1: left out
  for (int i = 0; i < record.path_size(); ++i) {
    const std::string& path = record.path(i);
    if (!path.starts_with('/') || path.find('\0') != std::string::npos) return std::nullopt;
    if (record.size(i) > Trace::kMaxFileBytes) return std::nullopt;
    // A path that is too long cannot be requested.
    index.push_back(path.size() < PATH_MAX && limit.Takes(path) ? static_cast<int64_t>(trace.files.size()) : -1);
    if (index.back() >= 0) trace.files.push_back({path, record.size(i)});
  }
  uint64_t units = 0;
  for (int i = 0; i < record.range_size(); i += 3) {
    const uint64_t file = record.range(i), first = record.range(i + 1), count = record.range(i + 2);
    if (file >= index.size()) return std::nullopt;
    const uint64_t all = store::UnitCount(record.size(static_cast<int>(file)));
    if (count == 0 || first >= all || count > all - first) return std::nullopt;
    if (index[file] < 0) continue;
    const uint64_t kept = std::min(count, Trace::kMaxUnits - units);
    if (kept == 0) break;
    trace.ranges.push_back({static_cast<uint32_t>(index[file]), first, kept});
    units += kept;
  }
  return trace;
}

v1::TraceRecord WriteTrace(const Trace& trace) {
  v1::TraceRecord record;
  record.set_partial(trace.partial);
  for (const Trace::File& file : trace.files) {
    record.add_path(file.path);
    record.add_size(file.size);
  }
  for (const Trace::Range& range : trace.ranges) {
    for (const uint64_t n : {uint64_t{range.file}, range.first, range.count}) record.add_range(n);
  }
  return record;
}

Trace MergeTraces(const Trace& earlier, const Trace& later) {
  Trace merged;
  merged.partial = earlier.partial && later.partial;
  std::unordered_map<std::string, uint32_t> names;
  const auto place = [&](const Trace& trace) {
    std::vector<uint32_t> files;
    for (const Trace::File& file : trace.files) {
      const auto [it, fresh] = names.emplace(file.path, static_cast<uint32_t>(merged.files.size()));
      if (fresh) merged.files.push_back(file);
      merged.files[it->second].size = file.size;
      files.push_back(it->second);
    }
    return files;
  };
  const std::vector<uint32_t> earlier_files = place(earlier), later_files = place(later);
  FileLimit limit;
  size_t kept = 0;
  while (kept < merged.files.size() && limit.Takes(merged.files[kept].path)) ++kept;
  std::vector<uint64_t> base = UnitsOf(earlier, earlier_files), extra = UnitsOf(later, later_files);
  if (!HaveOneOrder(base, extra)) base.swap(extra);

  std::unordered_map<uint64_t, size_t> where;  // in `base`, from 1
  for (size_t i = 0; i < base.size(); ++i) where.emplace(base[i], i + 1);
  std::map<size_t, std::vector<uint64_t>> after;
  size_t last = 0;
  for (const uint64_t unit : extra) {
    const auto [it, fresh] = where.emplace(unit, last);
    if (fresh)
      after[last].push_back(unit);
    else
      last = it->second;
  }
  uint64_t units = 0;
  const auto emit = [&](uint64_t key) {
    const auto file = static_cast<uint32_t>(key >> 40);
    const uint64_t unit = key & ((uint64_t{1} << 40) - 1);
    if (file >= kept) return;
    // The file has become shorter, or its units larger.
    if (unit >= store::UnitCount(merged.files[file].size) || units >= Trace::kMaxUnits) return;
    ++units;
    if (!merged.ranges.empty()) {
      Trace::Range& previous = merged.ranges.back();
      if (previous.file == file && previous.first + previous.count == unit) {
        ++previous.count;
        return;
      }
    }
    merged.ranges.push_back({file, unit, 1});
  };
  for (size_t i = 0; i <= base.size(); ++i) {
    if (i > 0) emit(base[i - 1]);
    if (const auto it = after.find(i); it != after.end()) {
      for (const uint64_t unit : it->second) emit(unit);
    }
  }
  merged.files.resize(kept);
  return merged;
}

Trace TraceOutside(const Trace& trace, const std::string& directory) {
  const std::string below = directory.ends_with('/') ? directory : directory + "/";
  Trace outside;
  outside.partial = trace.partial;
  std::vector<int64_t> index;
  for (const Trace::File& file : trace.files) {
    const bool left = !file.path.starts_with(below);
    index.push_back(left ? static_cast<int64_t>(outside.files.size()) : -1);
    if (left) outside.files.push_back(file);
  }
  for (const Trace::Range& range : trace.ranges) {
    if (index[range.file] < 0) continue;
    outside.ranges.push_back({static_cast<uint32_t>(index[range.file]), range.first, range.count});
  }
  return outside;
}

std::vector<std::vector<Trace::Range>> PlanFrames(const std::vector<Trace::File>& files,
                                                  const std::vector<Trace::Range>& ranges) {
  // files have a possible boundary every kMore
  constexpr uint64_t kLeast = 512 << 10, kMore = 512 << 10, kMost = 1 << 20;
  std::vector<std::vector<Trace::Range>> frames;
  uint64_t bytes = kMost;  // of the last frame
  for (const Trace::Range& range : ranges) {
    const uint64_t unit_bytes = store::UnitBytes(files[range.file].size);
    const uint64_t name = DigestHash()(Blake3(files[range.file].path));  // must be stable: frames are stored
    for (uint64_t unit = range.first; unit < range.first + range.count; ++unit) {
      const bool mark = (name + unit) % (kMore / unit_bytes) == 0;
      if (bytes + unit_bytes > kMost || (bytes >= kLeast && mark)) {
        frames.emplace_back();
        bytes = 0;
      }
      bytes += unit_bytes;
      std::vector<Trace::Range>& frame = frames.back();
      if (unit > range.first && !frame.empty())
        ++frame.back().count;
      else
        frame.push_back({range.file, unit, 1});
    }
  }
  return frames;
}

}  // namespace vrun::home
