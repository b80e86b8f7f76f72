// SPDX-License-Identifier: Apache-2.0
#include "home/hot_units.h"

namespace vrun::home {
namespace {

constexpr int64_t kRacyNanos = 2'000'000'000;
constexpr uint64_t kOverhead = 256;  // of one in the tables, about

uint64_t Weight(const v1::Unit& unit) { return unit.data().size() + kOverhead; }

}  // namespace

bool HotUnits::Find(const tree::FileVersion& version, uint64_t first, uint64_t count, v1::Units* units) {
  std::vector<std::shared_ptr<const v1::Unit>> found;
  {
    std::lock_guard lock(mutex_);
    for (uint64_t unit = first; unit < first + count; ++unit) {
      const auto it = kept_.find({version, unit});
      if (it == kept_.end()) return false;
      used_.splice(used_.end(), used_, it->second.used);
      found.push_back(it->second.unit);
    }
  }
  for (const auto& unit : found) *units->add_unit() = *unit;
  return true;
}

void HotUnits::Keep(const tree::FileVersion& version, uint64_t first, const v1::Units& units, int64_t now_ns) {
  if (now_ns - version.ctime_ns < kRacyNanos) return;
  std::lock_guard lock(mutex_);
  for (int i = 0; i < units.unit_size(); ++i) {
    const v1::Unit& unit = units.unit(i);
    const Key key{version, first + static_cast<uint64_t>(i)};
    if (!unit.zstd() || kept_.contains(key)) continue;
    used_.push_back(key);
    kept_[key] = {std::make_shared<const v1::Unit>(unit), std::prev(used_.end())};
    bytes_ += Weight(unit);
  }
  while (bytes_ > max_bytes_) {
    const auto oldest = kept_.find(used_.front());
    bytes_ -= Weight(*oldest->second.unit);
    kept_.erase(oldest);
    used_.pop_front();
  }
}

uint64_t HotUnits::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace vrun::home
