// SPDX-License-Identifier: Apache-2.0
#include "sched/placement.h"

#include <algorithm>
#include <bit>
#include <tuple>

namespace vrun::sched::core {

namespace {
// Domains of one level tried for a gang of several roles, whose counters say only that each role fits by itself.
constexpr size_t kDomainsTried = 8;

Level Tighter(Level l) { return static_cast<Level>(static_cast<int>(l) - 1); }
}  // namespace

int64_t Demand::total_milli() const {
  int64_t sum = 0;
  for (const Part& p : parts) sum += int64_t{p.request.total_milli()} * p.pods;
  return sum;
}

int32_t Demand::pods() const {
  int32_t sum = 0;
  for (const Part& p : parts) sum += p.pods;
  return sum;
}

bool Placer::DomainFits(const Demand& d, const Demand::Alternative& a, Level level, Domain domain) const {
  for (size_t i = 0; i < d.parts.size(); ++i) {
    if (cluster_.Slots(a.shapes[i], level, domain) < d.parts[i].pods) return false;
  }
  return true;
}

bool Placer::Possible(const Demand& d) const {
  if (cluster_.size() == 0) return false;
  return std::any_of(d.alternatives.begin(), d.alternatives.end(),
                     [&](const Demand::Alternative& a) { return DomainFits(d, a, Level::kCluster, 0); });
}

std::optional<Placement> Placer::Place(const Demand& d, Level loosest, uint64_t allowed) {
  loosest = std::min(loosest, d.required);
  // A wish for one type is kept before a wish for closeness: types differ by more than levels do.
  for (uint32_t a = 0; a < d.alternatives.size(); ++a) {
    const Demand::Alternative& alternative = d.alternatives[a];
    if ((allowed >> a & 1) == 0 || cluster_.size() == 0 || !DomainFits(d, alternative, Level::kCluster, 0)) continue;
    for (int l = 0; l <= static_cast<int>(loosest); ++l) {
      Level level = static_cast<Level>(l);
      if (level == Level::kNode && d.parts.size() == 1) {
        NodeId node = BestNode(alternative.shapes[0], d.parts[0].pods, 0, static_cast<uint32_t>(cluster_.size()));
        if (node == kNoNode) continue;
        Placement out{{}, {}, a};
        PutOn(alternative.shapes[0], d.parts[0].role, node, d.parts[0].pods, &out);
        return out;
      }
      std::vector<std::pair<int32_t, Domain>> candidates;  // room left over, domain
      for (Domain domain = 0; domain < cluster_.domains(level); ++domain) {
        if (!DomainFits(d, alternative, level, domain)) continue;
        candidates.push_back({cluster_.Slots(alternative.shapes[0], level, domain) - d.parts[0].pods, domain});
      }
      size_t tries = std::min(candidates.size(), kDomainsTried);
      std::partial_sort(candidates.begin(), candidates.begin() + static_cast<int64_t>(tries), candidates.end());
      for (size_t i = 0; i < tries; ++i) {
        if (auto placed = PlaceIn(d, a, level, candidates[i].second)) return placed;
      }
    }
  }
  return std::nullopt;
}

std::optional<Placement> Placer::PlaceIn(const Demand& d, uint32_t a, Level level, Domain domain) {
  if (!DomainFits(d, d.alternatives[a], level, domain)) return std::nullopt;
  size_t mark = cluster_.Mark();
  Placement out{{}, {}, a};
  for (size_t i = 0; i < d.parts.size(); ++i) {
    if (Fill(d.alternatives[a].shapes[i], d.parts[i].role, level, domain, d.parts[i].pods, &out)) continue;
    cluster_.Undo(mark);
    return std::nullopt;
  }
  return out;
}

bool Placer::Fill(ShapeId shape, int32_t role, Level level, Domain domain, int32_t pods, Placement* out) {
  if (cluster_.Slots(shape, level, domain) < pods) return false;
  uint32_t first = cluster_.First(level, domain);
  uint32_t last = cluster_.First(level, domain + 1);
  if (level == Level::kNode) {
    PutOn(shape, role, cluster_.At(first), pods, out);
    return true;
  }
  Level inner = Tighter(level);
  std::vector<std::pair<int32_t, Domain>> children;  // minus slots: most first
  for (Domain c = cluster_.DomainOf(inner, first); c <= cluster_.DomainOf(inner, last - 1); ++c) {
    if (int32_t slots = cluster_.Slots(shape, inner, c); slots > 0) children.push_back({-slots, c});
  }
  std::sort(children.begin(), children.end());
  for (size_t next = 0; pods > 0;) {
    if (-children[next].first >= pods) {
      if (inner == Level::kNode) {
        PutOn(shape, role, BestNode(shape, pods, first, last), pods, out);
        return true;
      }
      // The last of those from here on that still has room for all that is left.
      auto end = std::upper_bound(children.begin() + static_cast<int64_t>(next), children.end(),
                                  std::pair<int32_t, Domain>(-pods, UINT32_MAX));
      auto tightest = std::prev(end);
      while (tightest != children.begin() + static_cast<int64_t>(next) && std::prev(tightest)->first == tightest->first)
        --tightest;
      return Fill(shape, role, inner, tightest->second, pods, out);
    }
    int32_t here = -children[next].first;
    Fill(shape, role, inner, children[next].second, here, out);
    pods -= here;
    ++next;
  }
  return true;
}

void Placer::PutOn(ShapeId shape, int32_t role, NodeId node, int32_t pods, Placement* out) {
  const Request& request = cluster_.request(shape);
  for (int32_t i = 0; i < pods; ++i) {
    const Fragmentation::Score score = request.slice() ? fragmentation_.Rise(shape, node) : Fragmentation::Score{};
    out->rooms.push_back(cluster_.Choose(request, node, score.gpu, score.start));
    out->roles.push_back(role);
    cluster_.Take(out->rooms.back());
  }
}

NodeId Placer::BestNode(ShapeId shape, int32_t pods, uint32_t first, uint32_t last) {
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t>;
  NodeId best = kNoNode;
  Key best_key;
  std::span<const uint16_t> fit = cluster_.Fit(shape);
  for (uint32_t p = first; p < last; ++p) {
    if (fit[p] < pods) continue;
    NodeId id = cluster_.At(p);
    const Cluster::Node& n = cluster_.node(id);
    Key key(fragmentation_.Rise(shape, id).rise, n.free_milli_total(), n.free_cpus, n.free_memory);
    if (best == kNoNode || key < best_key) {
      best = id;
      best_key = key;
    }
  }
  return best;
}

std::optional<Placement> Placer::PlaceOn(const Demand& d, std::span<const NodeId> nodes, uint64_t allowed) {
  for (uint32_t a = 0; a < d.alternatives.size(); ++a) {
    if ((allowed >> a & 1) == 0) continue;
    size_t mark = cluster_.Mark();
    Placement out{{}, {}, a};
    bool all = true;
    for (size_t i = 0; i < d.parts.size() && all; ++i) {
      ShapeId shape = d.alternatives[a].shapes[i];
      int32_t left = d.parts[i].pods;
      std::vector<std::pair<int32_t, NodeId>> by_fit;
      for (NodeId n : nodes) {
        if (int32_t fit = cluster_.FitOn(shape, n); fit > 0) by_fit.push_back({-fit, n});
      }
      std::sort(by_fit.begin(), by_fit.end());
      for (size_t k = 0; k < by_fit.size() && left > 0; ++k) {
        // The last one: the tightest that has enough.
        size_t use = k;
        while (use + 1 < by_fit.size() && -by_fit[use + 1].first >= left) ++use;
        int32_t here = std::min(left, -by_fit[use].first);
        PutOn(shape, d.parts[i].role, by_fit[use].second, here, &out);
        left -= here;
      }
      all = left == 0;
    }
    if (all && d.required != Level::kCluster) {
      for (const Room& r : out.rooms) {
        all = all && cluster_.DomainOf(d.required, cluster_.node(r.node).position) ==
                         cluster_.DomainOf(d.required, cluster_.node(out.rooms[0].node).position);
      }
    }
    if (all) return out;
    cluster_.Undo(mark);
  }
  return std::nullopt;
}

}  // namespace vrun::sched::core
