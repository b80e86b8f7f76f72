// SPDX-License-Identifier: Apache-2.0
#include "sched/fragmentation.h"

#include <algorithm>
#include <bit>
#include <tuple>

namespace vrun::sched::core {

namespace {
constexpr int64_t kArrivalsKept = 20'000;  // pods; then all counts are halved
}

void Fragmentation::Arrived(const Request& r, const std::string& gpu_type, int64_t pods) {
  if (r.total_milli() == 0) return;
  arrivals_[{r, gpu_type}] += pods;
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
      kinds_.push_back({r, type, share});
    }
  }
  for (Memo& memo : memo_) memo.by_state.clear();
}

void Fragmentation::Forget() {
  states_.clear();
  for (auto& [changes, state] : state_of_) changes = UINT64_MAX;
  for (Memo& memo : memo_) memo.by_state.clear();
}

// All that matters of one GPU.
uint32_t Fragmentation::GpuState(const Cluster::Node& n, int gpu) {
  return static_cast<uint32_t>(static_cast<uint16_t>(n.free_milli[gpu])) << 16 | (n.spec.bad_gpus >> gpu & 1) << 15 |
         static_cast<uint32_t>(n.sharing[gpu]) << 8 | n.sliced[gpu];
}

uint32_t Fragmentation::StateOf(NodeId id) {
  const Cluster::Node& n = cluster_.node(id);
  if (state_of_.size() <= id) state_of_.resize(cluster_.size(), {UINT64_MAX, 0});
  auto& [changes, state] = state_of_[id];
  if (changes == n.changes) return state;
  std::array<uint32_t, kMaxGpus> sorted;
  for (int i = 0; i < n.spec.gpus; ++i) sorted[i] = GpuState(n, i);
  std::sort(sorted.begin(), sorted.begin() + n.spec.gpus);
  std::string key(reinterpret_cast<const char*>(sorted.data()), sizeof(uint32_t) * n.spec.gpus);
  key.push_back(static_cast<char>(n.mig_model));
  key.append(reinterpret_cast<const char*>(&n.free_cpus), sizeof n.free_cpus);
  key.append(reinterpret_cast<const char*>(&n.free_memory), sizeof n.free_memory);
  key.append(reinterpret_cast<const char*>(&n.free_nics), sizeof n.free_nics);
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
                r.memory_bytes <= n.free_memory && r.nics <= n.free_nics && std::popcount(n.whole) >= r.gpus;
    int32_t least = r.gpus > 0 ? kMilli : r.gpu_milli;
    int64_t unusable = 0;
    bool one = r.gpus > 0;
    for (int i = 0; i < n.spec.gpus && fits; ++i) {
      if (r.mig != 0) {
        const int count = n.Shares(i, Sharing::kMig) ? mig::Count(n.mig_model, r.mig, n.sliced[i]) : 0;
        const int slices = std::max(mig::Slices(n.mig_model), 1);
        unusable += std::max<int>(n.free_milli[i], 0) - count * mig::Size(n.mig_model, r.mig) * kMilli / slices;
        one = one || count > 0;
      } else if (n.free_milli[i] < least || (r.gpu_milli > 0 && !n.Shares(i, r.sharing))) {
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
  if (r.slice()) return ComputeSlice(r, n);
  Cluster::Node after = n;
  after.free_cpus -= r.milli_cpus;
  after.free_memory -= r.memory_bytes;
  after.free_nics -= r.nics;
  uint32_t free = n.whole;
  for (int k = 0; k < r.gpus; ++k, free &= free - 1) {
    int i = std::countr_zero(free);
    after.free_milli[i] = 0;
    after.free_total -= kMilli;
    after.whole &= ~(1u << i);
  }
  return {Waste(after) - Waste(n), 0, -1, true};
}

// Every GPU, and every slice that an instance may begin at. Of equals the fullest GPU, then what leaves most possible.
Fragmentation::Known Fragmentation::ComputeSlice(const Request& r, const Cluster::Node& n) const {
  using Key = std::tuple<int64_t, int, int>;
  Known best;
  Key best_key;
  const int64_t before = Waste(n);
  for (int i = 0; i < n.spec.gpus; ++i) {
    if ((n.spec.usable() >> i & 1) == 0 || !n.Shares(i, r.kind()) || n.free_milli[i] < r.gpu_milli) continue;
    for (int start = r.mig != 0 ? 0 : -1; start < (r.mig != 0 ? mig::kMostSlices : 0); ++start) {
      const mig::SliceMask slices = mig::At(n.mig_model, r.mig, start, n.sliced[i]);
      if (r.mig != 0 && slices == 0) continue;
      Room room = RoomOf(r, kNoNode);
      TakeSlice(r, n.mig_model, i, slices, &room);
      Cluster::Node after = n;
      after.Apply(room, -1, n.spec.usable());
      const Key key(Waste(after) - before, n.free_milli[i],
                    -mig::Potential(n.mig_model, static_cast<mig::SliceMask>(n.sliced[i] | slices)));
      if (best.known && key >= best_key) continue;
      best_key = key;
      best = {std::get<0>(key), GpuState(n, i), static_cast<int8_t>(start), true};
    }
  }
  best.known = true;
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
  Score score{known.rise, -1, known.start};
  if (r.slice()) {
    const Cluster::Node& n = cluster_.node(id);
    for (int i = 0; i < n.spec.gpus && score.gpu < 0; ++i) {
      if (GpuState(n, i) == known.gpu) score.gpu = i;
    }
  }
  return score;
}

}  // namespace vrun::sched::core
