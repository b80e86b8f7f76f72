// SPDX-License-Identifier: Apache-2.0
#include "home/pack/hot_units.h"

namespace vrun::home {
namespace {

constexpr int64_t kRacyNanos = 2'000'000'000;
constexpr uint64_t kOverhead = 256;  // per entry, about

uint64_t Weight(const v1::Piece& piece) { return piece.data().size() + kOverhead; }
uint64_t UnitsIn(const v1::Piece& piece) { return piece.digests().size() / sizeof(Digest::bytes); }

}  // namespace

bool HotUnits::Find(const tree::FileVersion& version, uint64_t first, uint64_t count, v1::Units* units) {
  std::vector<std::shared_ptr<const v1::Piece>> found;
  {
    MutexLock lock(mutex_);
    uint64_t unit = first;
    while (unit < first + count) {
      const auto it = kept_.find({version, unit});
      if (it == kept_.end()) return false;
      used_.splice(used_.end(), used_, it->second.used);
      found.push_back(it->second.piece);
      unit += UnitsIn(*found.back());
    }
    if (unit != first + count) return false;
  }
  for (const auto& piece : found) *units->add_piece() = *piece;
  return true;
}

void HotUnits::Keep(const tree::FileVersion& version, uint64_t first, const v1::Units& units, int64_t now_ns) {
  if (now_ns - version.ctime_ns < kRacyNanos) return;
  MutexLock lock(mutex_);
  for (const v1::Piece& piece : units.piece()) {
    const Key key{version, first};
    first += UnitsIn(piece);
    if (!piece.zstd() || kept_.contains(key)) continue;
    used_.push_back(key);
    kept_[key] = {std::make_shared<const v1::Piece>(piece), std::prev(used_.end())};
    bytes_ += Weight(piece);
  }
  while (bytes_ > max_bytes_) {
    const auto oldest = kept_.find(used_.front());
    bytes_ -= Weight(*oldest->second.piece);
    kept_.erase(oldest);
    used_.pop_front();
  }
}

uint64_t HotUnits::bytes() const {
  MutexLock lock(mutex_);
  return bytes_;
}

}  // namespace vrun::home
