// SPDX-License-Identifier: Apache-2.0
#include "sched/model/cluster.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <tuple>

#include "sched/model/fit.h"

namespace vrun::sched::core {

namespace {

// Unused shapes to keep: the next job is often like the last.
constexpr size_t kUnusedShapes = 64;

bool HasAll(const std::vector<std::string>& have, const std::vector<std::string>& want) {
  return std::all_of(want.begin(), want.end(),
                     [&](const std::string& w) { return std::find(have.begin(), have.end(), w) != have.end(); });
}

bool Has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool Admits(const Constraint& c, const NodeSpec& node) {
  return c.pool == node.pool && (c.gpu_type.empty() || c.gpu_type == node.gpu_type) && HasAll(node.labels, c.labels) &&
         HasAll(c.tolerations, node.taints) && (c.nodes.empty() || Has(c.nodes, node.name)) &&
         !Has(c.excluded, node.name);
}

uint32_t Room::mask() const {
  uint32_t mask = 0;
  for (int i = 0; i < kMaxGpus; ++i) mask |= static_cast<uint32_t>(milli[i] > 0) << i;
  return mask;
}

int8_t Room::mig_start() const {
  for (mig::SliceMask m : mig) {
    if (m != 0) return static_cast<int8_t>(std::countr_zero(m));
  }
  return -1;
}

int64_t Room::total_milli() const { return std::accumulate(milli.begin(), milli.end(), int64_t{0}); }

// --- nodes ---

NodeId Cluster::Name(const std::string& name) {
  auto [it, fresh] = by_name_.try_emplace(name, static_cast<NodeId>(nodes_.size()));
  if (fresh) {
    nodes_.emplace_back().spec.name = name;
    settled_ = false;
  }
  return it->second;
}

NodeId Cluster::Find(const std::string& name) const {
  auto it = by_name_.find(name);
  return it == by_name_.end() ? kNoNode : it->second;
}

NodeId Cluster::Up(const NodeSpec& spec) {
  NodeId id = Name(spec.name);
  Node& n = nodes_[id];
  const NodeSpec& old = n.spec;
  bool same_place =
      std::tie(old.zone, old.block, old.rack, old.island) == std::tie(spec.zone, spec.block, spec.rack, spec.island);
  for (int i = 0; i < kMaxGpus; ++i) {
    auto had = static_cast<int16_t>(i < old.gpus ? kMilli : 0);
    auto has = static_cast<int16_t>(i < spec.gpus ? kMilli : 0);
    n.free_milli[i] = static_cast<int16_t>(n.free_milli[i] + has - had);
    n.free_total += has - had;
  }
  n.free_cpus += spec.milli_cpus - old.milli_cpus;
  n.free_memory += spec.memory_bytes - old.memory_bytes;
  n.free_nics += spec.nics - old.nics;
  total_milli_ += kMilli * (std::popcount(spec.usable()) - (n.up ? std::popcount(old.usable()) : 0));
  n.spec = spec;
  n.mig_model = mig::FindModel(spec.mig_model);
  n.up = true;
  n.whole = 0;
  for (int i = 0; i < spec.gpus; ++i) n.whole |= static_cast<uint32_t>(n.free_milli[i] == kMilli) << i;
  n.whole &= spec.usable();
  // The users of a shared GPU may have left while the GPU did not belong to the node.
  for (int i = 0; i < kMaxGpus; ++i) {
    if (n.free_milli[i] >= kMilli) n.sharing[i] = Sharing::kWhole, n.sharers[i] = 0;
  }
  ++n.changes;
  settled_ = settled_ && same_place;
  for (ShapeId s : active_) {
    ShapeState& shape = shapes_[s];
    if (shape.admits.size() < nodes_.size()) shape.admits.resize(nodes_.size(), 0);
    shape.admits[id] = Fits(shape.constraint, n, now_);
  }
  Refresh(id);
  return id;
}

void Cluster::Down(NodeId id) {
  if (nodes_[id].up) total_milli_ -= kMilli * std::popcount(nodes_[id].spec.usable());
  nodes_[id].up = false;
  ++nodes_[id].changes;
  Refresh(id);
}

void Cluster::Limit(NodeId id, Micros horizon, bool closed, Micros now) {
  Node& n = nodes_[id];
  if (horizon == kNever && n.horizon == kNever && n.closed == closed) return;
  now_ = now;
  n.horizon = horizon;
  n.closed = closed;
  ++n.changes;
  for (ShapeId s : active_) {
    ShapeState& shape = shapes_[s];
    if (shape.admits.size() < nodes_.size()) shape.admits.resize(nodes_.size(), 0);
    shape.admits[id] = Fits(shape.constraint, n, now);
  }
  Refresh(id);
}

bool Cluster::Limited(ShapeId shape, NodeId id) const {
  const Node& n = nodes_[id];
  return n.up && n.horizon != kNever && Admits(shapes_[shape].constraint, n.spec) &&
         (n.closed || !shapes_[shape].admits[id]) && n.Count(shapes_[shape].request, n.mig_model, n.spec) > 0;
}

void Cluster::Hold(NodeId id) {
  if (nodes_[id].held++ == 0) Refresh(id);
}

void Cluster::Unhold(NodeId id) {
  if (--nodes_[id].held == 0) Refresh(id);
}

// --- shapes ---

ShapeId Cluster::Shape(const Request& request, const Constraint& constraint) {
  Key key{request, constraint};
  if (auto it = by_key_.find(key); it != by_key_.end()) {
    ShapeState& s = shapes_[it->second];
    if (s.references++ == 0) --unused_;
    return it->second;
  }
  ShapeId id = 0;
  while (id < shapes_.size() && shapes_[id].exists) ++id;
  if (id == shapes_.size()) shapes_.emplace_back();
  ShapeState& s = shapes_[id];
  s = {};
  s.request = request;
  s.constraint = constraint;
  s.references = 1;
  s.exists = true;
  by_key_[key] = id;
  active_.insert(std::lower_bound(active_.begin(), active_.end(), id), id);
  s.admits.resize(nodes_.size());
  for (NodeId n = 0; n < nodes_.size(); ++n) s.admits[n] = Fits(constraint, nodes_[n], now_);
  if (settled_) Fill(s);
  return id;
}

void Cluster::Drop(ShapeId id) {
  ShapeState& s = shapes_[id];
  if (--s.references > 0) return;
  s.dropped = ++drops_;
  if (++unused_ > kUnusedShapes) Retire();
}

void Cluster::Retire() {
  ShapeId oldest = UINT32_MAX;
  for (ShapeId s : active_) {
    if (shapes_[s].references > 0) continue;
    if (oldest == UINT32_MAX || shapes_[s].dropped < shapes_[oldest].dropped) oldest = s;
  }
  ShapeState& s = shapes_[oldest];
  by_key_.erase({s.request, s.constraint});
  std::erase(active_, oldest);
  s = {};
  --unused_;
}

int32_t FreeRoom::Count(const Request& r, mig::Model model, const NodeSpec& node) const {
  if (r.gpu_memory > 0) {
    std::optional<Request> fitted = OnNode(r, node);
    if (!fitted) return 0;
    fitted->gpu_memory = 0;
    return Count(*fitted, model, node);
  }
  int64_t count = UINT16_MAX;
  if (r.gpus > 0) {
    count = std::popcount(whole & node.usable_for(Sharing::kWhole)) / r.gpus;
  } else if (r.slice()) {
    count = 0;
    for (uint32_t usable = node.usable_for(r.kind()); usable != 0; usable &= usable - 1) {
      const int i = std::countr_zero(usable);
      if (!Shares(i, r)) continue;
      count += r.mig != 0 ? mig::Count(model, r.mig, sliced[i]) : std::max<int>(free_milli[i], 0) / r.gpu_milli;
    }
  }
  if (count > 0 && r.milli_cpus > 0) count = std::min(count, std::max<int64_t>(free_cpus, 0) / r.milli_cpus);
  if (count > 0 && r.memory_bytes > 0) count = std::min(count, std::max<int64_t>(free_memory, 0) / r.memory_bytes);
  if (count > 0 && r.nics > 0) count = std::min<int64_t>(count, std::max(free_nics, 0) / r.nics);
  if (r.distinct) count = std::min<int64_t>(count, 1);
  return static_cast<int32_t>(count);
}

int32_t Cluster::FitNow(const ShapeState& s, const Node& n, NodeId id) const {
  return Open(n) && n.held == 0 && s.admits[id] ? n.Count(s.request, n.mig_model, n.spec) : 0;
}

int32_t Cluster::FitOn(ShapeId shape, NodeId id) const {
  const Node& n = nodes_[id];
  return Open(n) && shapes_[shape].admits[id] ? n.Count(shapes_[shape].request, n.mig_model, n.spec) : 0;
}

int32_t Cluster::FitWith(ShapeId shape, NodeId id, std::span<const Room* const> freed) const {
  const Node& n = nodes_[id];
  if (!Open(n) || !shapes_[shape].admits[id]) return 0;
  FreeRoom then = n;
  for (const Room* r : freed) then.Apply(*r, 1, n.spec.usable());
  return then.Count(shapes_[shape].request, n.mig_model, n.spec);
}

int32_t Cluster::FitEmpty(ShapeId shape, NodeId id) const {
  const ShapeState& s = shapes_[shape];
  return Admits(s.constraint, nodes_[id].spec) ? PodsWhenEmpty(s.request, nodes_[id].spec) : 0;
}

int32_t Cluster::PodsWhenEmpty(const Request& request, const NodeSpec& n) {
  FreeRoom empty;
  empty.free_milli.fill(kMilli);
  empty.whole = n.usable();
  empty.free_cpus = n.milli_cpus;
  empty.free_memory = n.memory_bytes;
  empty.free_nics = n.nics;
  return empty.Count(request, mig::FindModel(n.mig_model), n);
}

void Cluster::Fill(ShapeState& s) {
  s.fit.assign(order_.size(), 0);
  for (int l = 0; l < kLevels; ++l) s.slots[l].assign(first_[l].size() - 1, 0);
  for (uint32_t p = 0; p < order_.size(); ++p) {
    NodeId id = order_[p];
    int32_t fit = FitNow(s, nodes_[id], id);
    if (fit == 0) continue;
    s.fit[p] = static_cast<uint16_t>(fit);
    for (int l = 0; l < kLevels; ++l) s.slots[l][domain_[l][p]] += fit;
  }
}

// --- order of topology ---

void Cluster::Settle() {
  if (settled_) return;
  settled_ = true;
  order_.resize(nodes_.size());
  std::iota(order_.begin(), order_.end(), 0);
  auto place = [this](NodeId id) {
    const NodeSpec& s = nodes_[id].spec;
    return std::tie(s.zone, s.block, s.rack, s.island, s.name);
  };
  std::sort(order_.begin(), order_.end(), [&](NodeId a, NodeId b) { return place(a) < place(b); });
  for (int l = 0; l < kLevels; ++l) {
    domain_[l].assign(order_.size(), 0);
    first_[l].clear();
  }
  for (uint32_t p = 0; p < order_.size(); ++p) {
    nodes_[order_[p]].position = p;
    const NodeSpec& s = nodes_[order_[p]].spec;
    // A new domain begins at the loosest level where the node differs from its neighbour, and at all tighter levels.
    int differs = static_cast<int>(Level::kCluster) + 1;
    if (p > 0) {
      const NodeSpec& t = nodes_[order_[p - 1]].spec;
      differs = s.zone != t.zone                           ? static_cast<int>(Level::kZone) + 1
                : s.block != t.block                       ? static_cast<int>(Level::kBlock) + 1
                : s.rack != t.rack                         ? static_cast<int>(Level::kRack) + 1
                : s.island != t.island || s.island.empty() ? static_cast<int>(Level::kIsland) + 1
                                                           : 1;
    }
    for (int l = 0; l < kLevels; ++l) {
      if (l < differs) first_[l].push_back(p);
      domain_[l][p] = static_cast<Domain>(first_[l].size() - 1);
    }
  }
  for (int l = 0; l < kLevels; ++l) first_[l].push_back(static_cast<uint32_t>(order_.size()));
  for (ShapeId s : active_) {
    shapes_[s].admits.resize(nodes_.size(), 0);
    Fill(shapes_[s]);
  }
}

// --- changes ---

void Cluster::Refresh(NodeId id) {
  if (!settled_) return;
  const Node& n = nodes_[id];
  for (ShapeId sid : active_) {
    ShapeState& s = shapes_[sid];
    if (!s.admits[id] && s.fit[n.position] == 0) continue;
    int32_t fit = FitNow(s, n, id);
    int32_t delta = fit - s.fit[n.position];
    if (delta == 0) continue;
    s.fit[n.position] = static_cast<uint16_t>(fit);
    for (int l = 0; l < kLevels; ++l) s.slots[l][domain_[l][n.position]] += delta;
  }
}

void FreeRoom::Apply(const Room& room, int sign, uint32_t usable) {
  for (int i = 0; i < kMaxGpus; ++i) {
    if (room.milli[i] == 0) continue;
    free_milli[i] = static_cast<int16_t>(free_milli[i] + sign * room.milli[i]);
    free_total += sign * room.milli[i];
    uint32_t bit = 1u << i;
    whole = (usable & bit) != 0 && free_milli[i] == kMilli ? whole | bit : whole & ~bit;
    sliced[i] = static_cast<mig::SliceMask>(sign < 0 ? sliced[i] | room.mig[i] : sliced[i] & ~room.mig[i]);
    if (free_milli[i] >= kMilli) {
      sharing[i] = Sharing::kWhole;
      sharers[i] = 0;
    } else if (sign < 0 && sharing[i] == Sharing::kWhole) {
      sharing[i] = room.sharing[i];
      sharers[i] = room.sharers[i];
    }
  }
  free_cpus += sign * room.milli_cpus;
  free_memory += sign * room.memory_bytes;
  free_nics += sign * room.nics;
}

void Cluster::Apply(const Room& room, int sign) {
  Node& n = nodes_[room.node];
  n.Apply(room, sign, n.spec.usable());
  ++n.changes;
  Refresh(room.node);
}

void Cluster::Change(const Room& room, int sign) {
  Apply(room, sign);
  journal_.push_back({room, sign});
}

void Cluster::Undo(size_t mark) {
  while (journal_.size() > mark) {
    Apply(journal_.back().room, -journal_.back().sign);
    journal_.pop_back();
  }
}

Room RoomOf(const Request& r, NodeId node) {
  Room room;
  room.node = node;
  room.milli_cpus = r.milli_cpus;
  room.memory_bytes = r.memory_bytes;
  room.nics = r.nics;
  return room;
}

void TakeSlice(const Request& r, mig::Model model, int gpu, mig::SliceMask slices, Room* room) {
  room->sharing[gpu] = r.kind();
  room->sharers[gpu] = r.sharers;
  room->mig[gpu] = slices;
  room->profile = r.mig;
  const int all = mig::Slices(model);
  // An unknown model: the least that the instance takes.
  room->milli[gpu] = static_cast<uint16_t>(r.gpu_milli > 0 ? r.gpu_milli
                                           : all == 0      ? mig::NominalMilli(r.mig)
                                                           : std::popcount(slices) * kMilli / all);
}

Room Cluster::Choose(const Request& asked, NodeId id, int slice_gpu, int mig_start) const {
  const Node& n = nodes_[id];
  const Request r = OnNode(asked, n.spec).value_or(asked);
  Room room = RoomOf(r, id);
  if (r.slice()) {
    auto takes = [&](int i) {
      if ((n.spec.usable_for(r.kind()) >> i & 1) == 0 || !n.Shares(i, r)) return false;
      return r.mig != 0 ? mig::Count(n.mig_model, r.mig, n.sliced[i]) > 0 : n.free_milli[i] >= r.gpu_milli;
    };
    int best = slice_gpu;
    for (int i = 0; i < n.spec.gpus && slice_gpu < 0; ++i) {
      if (takes(i) && (best < 0 || n.free_milli[i] < n.free_milli[best])) best = i;
    }
    mig::SliceMask slices = mig::At(n.mig_model, r.mig, mig_start, n.sliced[best]);
    int most = -1;
    for (int start = 0; start < mig::kMostSlices && r.mig != 0 && mig_start < 0; ++start) {
      const mig::SliceMask here = mig::At(n.mig_model, r.mig, start, n.sliced[best]);
      const int potential = mig::Potential(n.mig_model, static_cast<mig::SliceMask>(n.sliced[best] | here));
      if (here != 0 && potential > most) most = potential, slices = here;
    }
    TakeSlice(r, n.mig_model, best, slices, &room);
    return room;
  }
  int left = r.gpus;
  uint32_t free = n.whole & n.spec.usable_for(Sharing::kWhole);
  auto take = [&](uint32_t from) {
    for (; left > 0 && from != 0; from &= from - 1, --left) {
      int i = std::countr_zero(from);
      room.milli[i] = kMilli;
      free &= ~(1u << i);
    }
  };
  // The smallest group that has enough, else the largest and so on: crosses few groups and keeps large ones whole.
  while (left > 0 && !n.spec.gpu_groups.empty()) {
    uint32_t best = 0;
    int best_count = 0;
    for (uint32_t group : n.spec.gpu_groups) {
      int count = std::popcount(group & free);
      bool better = best_count >= left ? count >= left && count < best_count : count > best_count;
      if (better) best = group & free, best_count = count;
    }
    if (best == 0) break;
    take(best);
  }
  take(free);
  return room;
}

bool Cluster::Recount() const {
  if (!settled_) return false;
  for (ShapeId sid : active_) {
    const ShapeState& s = shapes_[sid];
    std::array<std::vector<int32_t>, kLevels> slots;
    for (int l = 0; l < kLevels; ++l) slots[l].assign(first_[l].size() - 1, 0);
    for (uint32_t p = 0; p < order_.size(); ++p) {
      int32_t fit = FitNow(s, nodes_[order_[p]], order_[p]);
      if (fit != s.fit[p]) return false;
      for (int l = 0; l < kLevels; ++l) slots[l][domain_[l][p]] += fit;
    }
    if (slots != s.slots) return false;
  }
  return true;
}

}  // namespace vrun::sched::core
