// SPDX-License-Identifier: Apache-2.0
#include "sched/fragmentation.h"

#include <algorithm>
#include <bit>

namespace vrun::sched::core {

namespace {
constexpr int64_t kArrivalsKept = 20'000;  // pods; then all counts are halved
}

void Fragmentation::Arrived(const Request& r, const std::string& gpu_type, int64_t pods) {
  if (r.total_milli() == 0) return;
  arrivals_[{{r.gpus, r.gpu_milli, r.milli_cpus, r.memory_bytes}, gpu_type}] += pods;
  total_ += pods;
  if (total_ > kArrivalsKept) {
    total_ = 0;
    for (auto it = arrivals_.begin(); it != arrivals_.end();) {
      it->second /= 2;
      total_ += it->second;
      it = it->second == 0 ? arrivals_.erase(it) : std::next(it);
    }
  }
  // Soon after the first arrivals, then more and more seldom: the mix settles.
  if (++since_refresh_ >= std::clamp<int64_t>(total_ / 8, 1, kRefresh)) Refresh();
}

void Fragmentation::Refresh() {
  since_refresh_ = 0;
  std::vector<std::pair<int64_t, const Mix::value_type*>> by_count;
  for (const auto& entry : arrivals_) by_count.push_back({-entry.second, &entry});
  std::stable_sort(by_count.begin(), by_count.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  if (by_count.size() > kKinds) by_count.resize(kKinds);
  int64_t counted = 0;
  for (const auto& [minus, entry] : by_count) counted -= minus;
  kinds_.clear();
  for (const auto& [minus, entry] : by_count) {
    const auto& [r, type] = entry->first;
    int64_t share = -minus * kUnit / counted;
    if (share > 0) {
      kinds_.push_back({{static_cast<int32_t>(r[0]), static_cast<int32_t>(r[1]), r[2], r[3]}, type, share});
    }
  }
  for (Memo& memo : memo_) memo.by_state.clear();
}

void Fragmentation::Forget() {
  states_.clear();
  for (auto& [changes, state] : state_of_) changes = UINT64_MAX;
  for (Memo& memo : memo_) memo.by_state.clear();
}

uint32_t Fragmentation::StateOf(NodeId id) {
  const Cluster::Node& n = cluster_.node(id);
  if (state_of_.size() <= id) state_of_.resize(cluster_.size(), {UINT64_MAX, 0});
  auto& [changes, state] = state_of_[id];
  if (changes == n.changes) return state;
  std::array<int16_t, kMaxGpus> sorted = n.free_milli;
  std::sort(sorted.begin(), sorted.begin() + n.spec.gpus);
  std::string key(reinterpret_cast<const char*>(sorted.data()), sizeof(int16_t) * n.spec.gpus);
  key.append(reinterpret_cast<const char*>(&n.free_cpus), sizeof n.free_cpus);
  key.append(reinterpret_cast<const char*>(&n.free_memory), sizeof n.free_memory);
  key.append(n.spec.gpu_type);
  if (states_.size() >= kStates) Forget();
  state = states_.try_emplace(std::move(key), static_cast<uint32_t>(states_.size())).first->second;
  changes = n.changes;
  return state;
}

int64_t Fragmentation::Waste(NodeId id) const { return Waste(cluster_.node(id)); }

int64_t Fragmentation::Waste(const Cluster::Node& n) const {
  int64_t all = n.free_milli_total();
  if (all <= 0) return 0;
  int64_t sum = 0;
  for (const Kind& k : kinds_) {
    const Request& r = k.request;
    bool fits = (k.gpu_type.empty() || k.gpu_type == n.spec.gpu_type) && r.milli_cpus <= n.free_cpus &&
                r.memory_bytes <= n.free_memory && std::popcount(n.whole) >= r.gpus;
    int32_t least = r.gpus > 0 ? kMilli : r.gpu_milli;
    int64_t unusable = 0;
    bool one = r.gpus > 0;
    for (int i = 0; i < n.spec.gpus && fits; ++i) {
      if (n.free_milli[i] < least) {
        unusable += std::max<int>(n.free_milli[i], 0);
      } else {
        one = true;
      }
    }
    sum += k.share * (fits && one ? unusable : all);
  }
  return sum;
}

Fragmentation::Known Fragmentation::Compute(const Request& r, const Cluster::Node& n) const {
  Known best;
  best.known = true;
  int64_t before = Waste(n);
  Cluster::Node after = n;
  after.free_cpus -= r.milli_cpus;
  after.free_memory -= r.memory_bytes;
  if (r.gpu_milli == 0) {
    uint32_t free = n.whole;
    for (int k = 0; k < r.gpus; ++k, free &= free - 1) {
      int i = std::countr_zero(free);
      after.free_milli[i] = 0;
      after.free_total -= kMilli;
      after.whole &= ~(1u << i);
    }
    best.rise = Waste(after) - before;
    return best;
  }
  for (int i = 0; i < n.spec.gpus; ++i) {
    int16_t residual = n.free_milli[i];
    if (residual < r.gpu_milli) continue;
    uint32_t whole = after.whole;
    after.free_milli[i] = static_cast<int16_t>(residual - r.gpu_milli);
    after.free_total = n.free_total - r.gpu_milli;
    after.whole &= ~(1u << i);
    int64_t rise = Waste(after) - before;
    // Of equals the fullest GPU.
    if (best.residual < 0 || rise < best.rise || (rise == best.rise && residual < best.residual)) {
      best.rise = rise;
      best.residual = residual;
    }
    after.free_milli[i] = residual;
    after.whole = whole;
  }
  return best;
}

Fragmentation::Score Fragmentation::Rise(ShapeId shape, NodeId id) {
  const Request& r = cluster_.request(shape);
  uint32_t state = StateOf(id);
  if (memo_.size() <= shape) memo_.resize(shape + 1);
  Memo& memo = memo_[shape];
  if (memo.request != r) memo = {r, {}};
  if (memo.by_state.size() <= state) memo.by_state.resize(std::max<size_t>(state + 1, states_.size()));
  Known& known = memo.by_state[state];
  if (!known.known) known = Compute(r, cluster_.node(id));
  Score score{known.rise, -1};
  if (r.gpu_milli > 0) {
    const Cluster::Node& n = cluster_.node(id);
    for (int i = 0; i < n.spec.gpus && score.gpu < 0; ++i) {
      if (n.free_milli[i] == known.residual) score.gpu = i;
    }
  }
  return score;
}

}  // namespace vrun::sched::core
