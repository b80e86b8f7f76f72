// SPDX-License-Identifier: Apache-2.0
#include "sched/place/fragmentation.h"

#include <algorithm>
#include <bit>
#include <tuple>

#include "sched/model/fit.h"

namespace vrun::sched::core {

namespace {

constexpr int64_t kArrivalsKept = 20'000;  // pods; then all counts are halved

// Everything relevant about one GPU but who is on it.
uint32_t GpuState(const NodeSpec& spec, const FreeRoom& free, int gpu) {
  return static_cast<uint32_t>(static_cast<uint16_t>(free.free_milli[gpu])) << 16 | (spec.bad_gpus >> gpu & 1) << 15 |
         (spec.mig_gpus >> gpu & 1) << 14 | (spec.no_mps >> gpu & 1) << 13 |
         static_cast<uint32_t>(free.sharing[gpu]) << 8 | free.sliced[gpu];
}

// Everything relevant about a node.
std::string KeyOf(const Cluster::Node& node, const FreeRoom& free) {
  std::array<std::pair<uint32_t, uint64_t>, kMaxGpus> gpus;
  bool shared = false;
  for (int i = 0; i < node.spec.gpus; ++i) {
    gpus[i] = {GpuState(node.spec, free, i), free.sharers[i]};
    shared = shared || free.sharers[i] != 0;
  }
  std::sort(gpus.begin(), gpus.begin() + node.spec.gpus);
  std::string key;
  const auto append = [&key](const auto& value) { key.append(reinterpret_cast<const char*>(&value), sizeof value); };
  for (int i = 0; i < node.spec.gpus; ++i) append(gpus[i].first);
  for (int i = 0; i < node.spec.gpus && shared; ++i) append(gpus[i].second);
  key.push_back(shared ? 'S' : 'N');
  key.push_back(node.spec.mig_gpus != 0 ? 'M' : 'D');
  append(node.spec.gpu_memory);
  key.push_back(static_cast<char>(node.mig_model));
  key.append(reinterpret_cast<const char*>(&free.free_cpus), sizeof free.free_cpus);
  key.append(reinterpret_cast<const char*>(&free.free_memory), sizeof free.free_memory);
  key.append(reinterpret_cast<const char*>(&free.free_nics), sizeof free.free_nics);
  key.append(node.spec.gpu_type);
  return key;
}

}  // namespace

void Fragmentation::Arrived(const Request& r, const std::vector<std::string>& gpu_types, int64_t pods) {
  if (r.total_milli() == 0) return;
  arrivals_[{r, gpu_types}] += pods;
  total_ += pods;
  if (total_ > kArrivalsKept) {
    total_ = 0;
    for (auto it = arrivals_.begin(); it != arrivals_.end();) {
      it->second /= 2;
      total_ += it->second;
      it = it->second == 0 ? arrivals_.erase(it) : std::next(it);
    }
  }
  since_refresh_ += pods;
  if (since_refresh_ >= std::min(total_ / 2, kRefresh)) Refresh();
}

// A pod of eight GPUs counts eight times, because the mix is measured by GPUs.
void Fragmentation::Refresh() {
  since_refresh_ = 0;
  std::vector<Futures::Kind> kinds;
  for (const auto& [kind, pods] : arrivals_) {
    kinds.push_back({kind.first, kind.second, pods * std::max(kind.first.gpus, 1)});
  }
  futures_.Draw(std::move(kinds));
  waste_.clear();
  for (Memo& memo : memo_) memo.by_state.clear();
}

uint32_t Fragmentation::StateOf(NodeId id) {
  const Cluster::Node& n = cluster_.node(id);
  if (state_of_.size() <= id) state_of_.resize(cluster_.size(), {UINT64_MAX, 0});
  if (state_of_[id].first != n.changes) {
    if (states_.size() >= kStates) {
      states_.clear();
      for (auto& [changes, state] : state_of_) changes = UINT64_MAX;
      for (Memo& memo : memo_) memo.by_state.clear();
    }
    state_of_[id] = {n.changes, states_.try_emplace(KeyOf(n, n), static_cast<uint32_t>(states_.size())).first->second};
  }
  return state_of_[id].second;
}

int64_t Fragmentation::Waste(NodeId id) { return Waste(cluster_.node(id), cluster_.node(id)); }

int64_t Fragmentation::Waste(const Cluster::Node& node, const FreeRoom& free) {
  if (free.free_total == 0) return 0;
  if (waste_.size() >= kStates) waste_.clear();
  auto [it, fresh] = waste_.try_emplace(KeyOf(node, free), 0);
  if (fresh) it->second = futures_.Idle(node.spec, node.mig_model, free);
  return it->second;
}

Fragmentation::Known Fragmentation::Compute(const Request& asked, const Cluster::Node& n) {
  const Request r = OnNode(asked, n.spec).value_or(asked);
  if (r.kind() != Sharing::kWhole) return ComputeSlice(r, n);
  FreeRoom after = n;
  after.free_cpus -= r.milli_cpus;
  after.free_memory -= r.memory_bytes;
  after.free_nics -= r.nics;
  uint32_t free = after.whole & n.spec.usable_for(Sharing::kWhole);
  for (int k = 0; k < r.gpus; ++k, free &= free - 1) {
    after.free_milli[std::countr_zero(free)] = 0;
    after.free_total -= kMilli;
    after.whole &= ~(free & -free);
  }
  return {Waste(n, after) - Waste(n, n), 0, 0, -1, true};
}

// Tries every GPU, and every slice at which an instance may begin. Ties: the fullest GPU, then the start that leaves
// the most possibilities.
Fragmentation::Known Fragmentation::ComputeSlice(const Request& r, const Cluster::Node& n) {
  using Key = std::tuple<int64_t, int, int>;
  Known best;
  Key best_key;
  const int64_t before = Waste(n, n);
  for (int i = 0; i < n.spec.gpus; ++i) {
    if ((n.spec.usable_for(r.kind()) >> i & 1) == 0 || !n.Shares(i, r) || n.free_milli[i] < r.gpu_milli) continue;
    for (int start = r.mig != 0 ? 0 : -1; start < (r.mig != 0 ? mig::kMostSlices : 0); ++start) {
      const mig::SliceMask slices = mig::At(n.mig_model, r.mig, start, n.sliced[i]);
      if (r.mig != 0 && slices == 0) continue;
      Room room = RoomOf(r, kNoNode);
      TakeSlice(r, n.mig_model, i, slices, &room);
      FreeRoom after = n;
      after.Apply(room, -1, n.spec.usable());
      const Key key(Waste(n, after) - before, n.free_milli[i],
                    -mig::Potential(n.mig_model, static_cast<mig::SliceMask>(n.sliced[i] | slices)));
      if (best.known && key >= best_key) continue;
      best_key = key;
      best = {std::get<0>(key), GpuState(n.spec, n, i), n.sharers[i], static_cast<int8_t>(start), true};
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
      if (GpuState(n.spec, n, i) == known.gpu && n.sharers[i] == known.sharers) score.gpu = i;
    }
  }
  return score;
}

}  // namespace vrun::sched::core
