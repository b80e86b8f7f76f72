// SPDX-License-Identifier: Apache-2.0
#include "vfs/content/prefetch.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "tree/file_kind.h"
#include "vfs/content/backend.h"

namespace vrun::vfs {
namespace {

constexpr uint64_t kPieceBytes = 128 << 10;
// Bytes under way: enough to keep the link busy, but few enough that a reader's own request does not queue behind them.
// Pieces that take longer than the best time have queued (as in TCP Vegas, Brakmo and Peterson 1995).
constexpr uint64_t kLeastWindow = 8 * kPieceBytes;
constexpr uint64_t kMostWindow = 8 << 20;
constexpr int64_t kQueueMicros = 2'000;
constexpr int64_t kForgetMicros = 10'000'000;  // an older best time says nothing about the link now
constexpr uint64_t kQueuedBytes = 256 << 20;
constexpr uint64_t kAroundBytes = 256 << 10;
constexpr size_t kDirectories = 65536;
constexpr size_t kKinds = 4;  // per directory: unrelated names would make many

std::string_view DirectoryOf(std::string_view path) { return path.substr(0, std::max<size_t>(path.rfind('/'), 1)); }

}  // namespace

void Prefetcher::Touched(const FileContent::Place& place, const tree::FileVersion& version) {
  bool siblings;
  uint64_t stops;
  {
    MutexLock lock(mutex_);
    siblings = AskForLocked(place);
    stops = stops_;
  }
  // Any other small file is fetched whole anyway. (Libraries load libraries.)
  if (!siblings && version.size <= store::kWholeFileLimit && !IsLibrary(place.path)) return;
  backend_.source()->FetchResident(
      place.tree, place.path, version, siblings,
      [this, gate = gate_, tree = place.tree, stops](Result<std::vector<ResidentFile>> files) {
        const Gate::Pass pass(gate.get());
        if (pass && files) Take(tree, stops, *files);
      });
}

bool Prefetcher::AskForLocked(const FileContent::Place& place) {
  if (directories_.size() >= kDirectories) directories_.clear();
  Kinds& kinds = directories_[std::string(place.tree.view()) + std::string(DirectoryOf(place.path))];
  std::string kind = tree::KindOf(place.path);
  if (kinds.size() >= kKinds || std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) return false;
  kinds.push_back(std::move(kind));
  return true;
}

bool Prefetcher::IsLibrary(std::string_view path) {
  return path.find(".so", path.rfind('/') + 1) != std::string_view::npos;
}

void Prefetcher::Take(const Digest& tree, uint64_t stops, const std::vector<ResidentFile>& files) {
  {
    MutexLock lock(mutex_);
    if (stops != stops_) return;
  }
  // A loader first looks into each library, in order, and then processes them from the last to the first.
  std::vector<Item> items, heads;
  std::vector<std::vector<Item>> rests;
  uint64_t bytes = 0;
  for (const ResidentFile& file : files) {
    auto content = backend_.files().Get(file.version, file.object_id);
    for (const auto& [first, end] : file.loader) {
      items.push_back({content, {tree, file.path}, first, end});
      bytes += end - first;
    }
    std::vector<Item>& rest = rests.emplace_back();
    for (const auto& [first, end] : file.ranges) {
      for (uint64_t at = first; at < end && bytes < kQueuedBytes; at += kPieceBytes) {
        const uint64_t piece_end = std::min(at + kPieceBytes, end);
        std::vector<Item>& into = at == 0 ? heads : rest;
        into.push_back({content, {tree, file.path}, at, piece_end});
        bytes += piece_end - at;
      }
    }
  }
  items.insert(items.end(), std::make_move_iterator(heads.begin()), std::make_move_iterator(heads.end()));
  for (auto rest = rests.rbegin(); rest != rests.rend(); ++rest) {
    items.insert(items.end(), std::make_move_iterator(rest->begin()), std::make_move_iterator(rest->end()));
  }
  Push(std::move(items));
}

void Prefetcher::Push(std::vector<Item> items) {
  std::vector<Item> dropped;  // freed without the lock
  {
    MutexLock lock(mutex_);
    for (const Item& item : items) queued_bytes_ += item.end - item.first;
    queue_.insert(queue_.begin(), std::make_move_iterator(items.begin()), std::make_move_iterator(items.end()));
    while (queued_bytes_ > kQueuedBytes) {
      queued_bytes_ -= queue_.back().end - queue_.back().first;
      dropped.push_back(std::move(queue_.back()));
      queue_.pop_back();
    }
  }
  Pump();
}

void Prefetcher::Stop() {
  std::deque<Item> dropped;  // freed without the lock
  MutexLock lock(mutex_);
  dropped.swap(queue_);
  queued_bytes_ = 0;
  ++stops_;
}

std::pair<uint64_t, uint64_t> Prefetcher::Around(uint64_t offset, uint64_t n, uint64_t size) {
  const uint64_t step = std::max(kAroundBytes, store::UnitBytes(size));
  return {offset / step * step, std::min((offset + n + step - 1) / step * step, size)};
}

void Prefetcher::Add(const std::shared_ptr<FileContent>& content, const FileContent::Place& place, uint64_t first,
                     uint64_t end) {
  Push({{content, place, first, end}});
}

void Prefetcher::Pump() {
  MutexLock lock(mutex_);
  if (pumping_) return;  // the thread that pumps sees the freed room
  pumping_ = true;
  while (!queue_.empty() && under_way_bytes_ < window_bytes_) {
    Item item = std::move(queue_.front());
    queue_.pop_front();
    const uint64_t bytes = item.end - item.first;
    queued_bytes_ -= bytes;
    under_way_bytes_ += bytes;
    lock.unlock();
    item.content->Prefetch(item.place, item.first, bytes,
                           [this, gate = gate_, bytes, began = MonotonicMicros()](bool fetched) {
                             const Gate::Pass pass(gate.get());
                             if (pass) Over(bytes, fetched, began);
                           });
    lock.lock();
  }
  pumping_ = false;
}

void Prefetcher::Over(uint64_t bytes, bool fetched, int64_t began) {
  {
    MutexLock lock(mutex_);
    under_way_bytes_ -= bytes;
    const int64_t now = MonotonicMicros(), took = now - began;
    if (fetched && bytes == kPieceBytes) {
      if (took <= best_micros_ || now - best_time_ > kForgetMicros) {
        best_micros_ = took;
        best_time_ = now;
      }
      if (took <= best_micros_ + best_micros_ / 2 + kQueueMicros)
        window_bytes_ += kPieceBytes * kPieceBytes / window_bytes_;
      else
        window_bytes_ -= kPieceBytes * kPieceBytes / window_bytes_;
      window_bytes_ = std::clamp(window_bytes_, kLeastWindow, kMostWindow);
    }
  }
  Pump();
}

}  // namespace vrun::vfs
