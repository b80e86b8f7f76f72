// SPDX-License-Identifier: Apache-2.0
#include "base/id_map.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <utility>

namespace vrun {

struct IdMap::Table {
  std::shared_mutex mutex;
  std::vector<uint32_t> ids;  // home's ids
};

IdMap::IdMap(uint32_t base) : base_(base), table_(std::make_shared<Table>()) {}

IdMap::IdMap(uint32_t base, std::vector<uint32_t> high) : IdMap(base) { SetHigh(std::move(high)); }

uint32_t IdMap::HighToNode(uint32_t home) const {
  const std::shared_lock lock(table_->mutex);
  const auto it = std::ranges::find(table_->ids, home);
  if (it == table_->ids.end()) return base_ + kNobody;
  return high_base() + static_cast<uint32_t>(it - table_->ids.begin());
}

uint32_t IdMap::HighToHome(uint32_t node) const {
  if (node < high_base()) return kNobody;
  const std::shared_lock lock(table_->mutex);
  const uint32_t at = node - high_base();
  return at < table_->ids.size() ? table_->ids[at] : kNobody;
}

void IdMap::SetHigh(std::vector<uint32_t> high) {
  if (high.size() > kHighIds) high.resize(kHighIds);
  const std::unique_lock lock(table_->mutex);
  table_->ids = std::move(high);
}

std::vector<uint32_t> IdMap::high() const {
  const std::shared_lock lock(table_->mutex);
  return table_->ids;
}

}  // namespace vrun
