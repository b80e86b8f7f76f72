// SPDX-License-Identifier: Apache-2.0
#include "sched/place/placement.h"

#include <algorithm>
#include <bit>
#include <tuple>

namespace vrun::sched::core {

namespace {
// Most domains of one level that are tried for a gang of several roles. Their counters only say that each role fits by
// itself.
constexpr size_t kDomainsTried = 8;

Level Tighter(Level l) { return static_cast<Level>(static_cast<int>(l) - 1); }

// Assigns each block to a domain. `room`: minus the blocks that fit, domain. Few domains: the largest first, and as the
// last the tightest that has enough. Many: in turns.
std::vector<Domain> Distribute(std::vector<std::pair<int32_t, Domain>> room, int32_t blocks, bool spread) {
  std::vector<Domain> where;
  std::sort(room.begin(), room.end());
  if (spread) {
    for (int32_t turn = 1; blocks > 0 && !room.empty() && -room[0].first >= turn; ++turn) {
      for (size_t i = 0; i < room.size() && -room[i].first >= turn && blocks > 0; ++i, --blocks) {
        where.push_back(room[i].second);
      }
    }
    return where;
  }
  for (size_t next = 0; next < room.size() && blocks > 0; ++next) {
    size_t use = next;
    while (use + 1 < room.size() && -room[use + 1].first >= blocks) ++use;
    const int32_t here = std::min(blocks, -room[use].first);
    where.insert(where.end(), static_cast<size_t>(here), room[use].second);
    blocks -= here;
  }
  return where;
}
}  // namespace

class Placer::Distinct {
 public:
  explicit Distinct(Placer* placer) : placer_(*placer), before_(placer->hidden_.size()) {}
  ~Distinct() {
    for (; placer_.hidden_.size() > before_; placer_.hidden_.pop_back()) {
      placer_.cluster_.Unhold(placer_.hidden_.back());
    }
  }
  Distinct(const Distinct&) = delete;
  Distinct& operator=(const Distinct&) = delete;

 private:
  Placer& placer_;
  const size_t before_;
};

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
    const Demand::Part& part = d.parts[i];
    if (cluster_.Slots(a.shapes[i], level, domain) < part.pods) return false;
    if (part.segment <= 1 || level <= part.segment_level) continue;
    int32_t blocks = part.pods / part.segment;
    const uint32_t last = cluster_.First(level, domain + 1) - 1;
    for (Domain c = cluster_.DomainOf(part.segment_level, cluster_.First(level, domain));
         c <= cluster_.DomainOf(part.segment_level, last) && blocks > 0; ++c) {
      blocks -= cluster_.Slots(a.shapes[i], part.segment_level, c) / part.segment;
    }
    if (blocks > 0) return false;
  }
  return true;
}

bool Placer::FillPart(const Demand::Part& part, ShapeId shape, Level level, Domain domain, int32_t pods,
                      Placement* out) {
  if (!part.blocks() || (level <= part.segment_level && !part.spread)) {
    return Fill(shape, part.role, level, domain, pods, out);
  }
  const Level inner = std::min(part.segment_level, level);
  const uint32_t last = cluster_.First(level, domain + 1) - 1;
  std::vector<std::pair<int32_t, Domain>> room;
  for (Domain c = cluster_.DomainOf(inner, cluster_.First(level, domain)); c <= cluster_.DomainOf(inner, last); ++c) {
    const int32_t blocks = cluster_.Slots(shape, inner, c) / part.block();
    if (blocks > 0) room.push_back({-blocks, c});
  }
  const int32_t blocks = pods / part.block();
  const std::vector<Domain> where = Distribute(std::move(room), blocks, part.spread);
  if (static_cast<int32_t>(where.size()) < blocks) return false;
  return std::all_of(where.begin(), where.end(),
                     [&](Domain c) { return Fill(shape, part.role, inner, c, part.block(), out); });
}

bool Placer::Grow(const Demand& d, size_t part, Placement* placement) {
  const Distinct distinct(this);
  const Demand::Part& p = d.parts[part];
  if (p.request.distinct) {
    for (size_t i = 0; i < placement->rooms.size(); ++i) {
      if (placement->roles[i] != p.role) continue;
      hidden_.push_back(placement->rooms[i].node);
      cluster_.Hold(hidden_.back());
    }
  }
  const ShapeId shape = d.alternatives[placement->alternative].shapes[part];
  const uint32_t at = cluster_.node(placement->rooms.front().node).position;
  for (int l = p.spread ? static_cast<int>(d.required) : 0; l <= static_cast<int>(d.required); ++l) {
    const Level level = static_cast<Level>(l);
    const Domain domain = cluster_.DomainOf(level, at);
    if (cluster_.Slots(shape, level, domain) < p.block()) continue;
    if (FillPart(p, shape, level, domain, p.block(), placement)) return true;
  }
  return false;
}

std::optional<Placement> Placer::Place(const Demand& d, Level loosest, uint64_t allowed) {
  loosest = std::min(loosest, d.required);
  const bool spread = std::any_of(d.parts.begin(), d.parts.end(), [](const Demand::Part& p) { return p.spread; });
  // The preferred type comes before the preferred level: types differ by more than levels do.
  for (uint32_t a = 0; a < d.alternatives.size(); ++a) {
    const Demand::Alternative& alternative = d.alternatives[a];
    if ((allowed >> a & 1) == 0 || cluster_.size() == 0 || !DomainFits(d, alternative, Level::kCluster, 0)) continue;
    for (int l = spread ? static_cast<int>(loosest) : 0; l <= static_cast<int>(loosest); ++l) {
      Level level = static_cast<Level>(l);
      if (level == Level::kNode && d.parts.size() == 1 && !spread) {
        NodeId node = BestNode(alternative.shapes[0], d.parts[0].pods, 0, static_cast<uint32_t>(cluster_.size()));
        if (node == kNoNode) continue;
        Placement out{{}, {}, a};
        const Distinct distinct(this);
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
  const Distinct distinct(this);
  size_t mark = cluster_.Mark();
  Placement out{{}, {}, a};
  for (size_t i = 0; i < d.parts.size(); ++i) {
    if (FillPart(d.parts[i], d.alternatives[a].shapes[i], level, domain, d.parts[i].pods, &out)) continue;
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
  std::vector<std::pair<int32_t, Domain>> children;  // minus slots, so that most comes first
  for (Domain c = cluster_.DomainOf(inner, first); c <= cluster_.DomainOf(inner, last - 1); ++c) {
    if (int32_t slots = cluster_.Slots(shape, inner, c); slots > 0) children.push_back({-slots, c});
  }
  std::sort(children.begin(), children.end());
  // Last those that have only suspect nodes; a node that names no island is an island of its own.
  const auto trusted =
      std::stable_partition(children.begin(), children.end(), [&](const std::pair<int32_t, Domain>& c) {
        const uint32_t end = cluster_.First(inner, c.second + 1);
        for (uint32_t p = cluster_.First(inner, c.second); p < end; ++p) {
          if (!cluster_.node(cluster_.At(p)).spec.suspect) return true;
        }
        return false;
      });
  for (size_t next = 0; pods > 0;) {
    if (-children[next].first >= pods) {
      if (inner == Level::kNode) {
        PutOn(shape, role, BestNode(shape, pods, first, last), pods, out);
        return true;
      }
      // From here on, the last child that still has room for all remaining pods.
      const auto from = children.begin() + static_cast<int64_t>(next);
      auto end = std::upper_bound(from, from < trusted ? trusted : children.end(),
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
    if (!request.distinct) continue;
    cluster_.Hold(node);
    hidden_.push_back(node);
  }
}

NodeId Placer::BestNode(ShapeId shape, int32_t pods, uint32_t first, uint32_t last) {
  using Key = std::tuple<bool, int64_t, int64_t, int64_t, int64_t, int32_t>;
  NodeId best = kNoNode;
  Key best_key;
  std::span<const uint16_t> fit = cluster_.Fit(shape);
  for (uint32_t p = first; p < last; ++p) {
    if (fit[p] < pods) continue;
    NodeId id = cluster_.At(p);
    const Cluster::Node& n = cluster_.node(id);
    Key key(n.spec.suspect, fragmentation_.Rise(shape, id).rise, n.free_milli_total(), n.free_cpus, n.free_memory,
            n.free_nics);
    if (best == kNoNode || key < best_key) {
      best = id;
      best_key = key;
    }
  }
  return best;
}

// The nodes with most room first, and as the last the tightest that has enough.
bool Placer::FillNodes(ShapeId shape, int32_t role, std::span<const NodeId> nodes, int32_t pods, Placement* out) {
  std::vector<std::pair<int32_t, NodeId>> by_fit;
  for (NodeId n : nodes) {
    if (std::find(hidden_.begin(), hidden_.end(), n) != hidden_.end()) continue;  // FitOn counts it all the same
    if (int32_t fit = cluster_.FitOn(shape, n); fit > 0) by_fit.push_back({-fit, n});
  }
  std::sort(by_fit.begin(), by_fit.end());
  for (size_t k = 0; k < by_fit.size() && pods > 0; ++k) {
    size_t use = k;
    while (use + 1 < by_fit.size() && -by_fit[use + 1].first >= pods) ++use;
    int32_t here = std::min(pods, -by_fit[use].first);
    PutOn(shape, role, by_fit[use].second, here, out);
    pods -= here;
  }
  return pods == 0;
}

bool Placer::FillPartOn(const Demand::Part& part, ShapeId shape, std::span<const NodeId> nodes, Placement* out) {
  if (!part.blocks()) return FillNodes(shape, part.role, nodes, part.pods, out);
  std::map<Domain, std::vector<NodeId>> by_domain;
  for (NodeId n : nodes) by_domain[cluster_.DomainOf(part.segment_level, cluster_.node(n).position)].push_back(n);
  std::vector<std::pair<int32_t, Domain>> room;
  for (const auto& [domain, inside] : by_domain) {
    int32_t slots = 0;
    for (NodeId n : inside) slots += cluster_.FitOn(shape, n);
    if (slots >= part.block()) room.push_back({-(slots / part.block()), domain});
  }
  const int32_t blocks = part.pods / part.block();
  const std::vector<Domain> where = Distribute(std::move(room), blocks, part.spread);
  if (static_cast<int32_t>(where.size()) < blocks) return false;
  return std::all_of(where.begin(), where.end(),
                     [&](Domain c) { return FillNodes(shape, part.role, by_domain.at(c), part.block(), out); });
}

std::optional<Placement> Placer::PlaceOn(const Demand& d, std::span<const NodeId> nodes, uint64_t allowed) {
  for (uint32_t a = 0; a < d.alternatives.size(); ++a) {
    if ((allowed >> a & 1) == 0) continue;
    const Distinct distinct(this);
    size_t mark = cluster_.Mark();
    Placement out{{}, {}, a};
    bool all = true;
    for (size_t i = 0; i < d.parts.size() && all; ++i) {
      all = FillPartOn(d.parts[i], d.alternatives[a].shapes[i], nodes, &out);
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
