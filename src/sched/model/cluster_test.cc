// SPDX-License-Identifier: Apache-2.0
#include "sched/model/cluster.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <bit>
#include <set>

#include "sched/place/fragmentation.h"
#include "sched/place/placement.h"

namespace vrun::sched::core {
namespace {

NodeSpec MakeNode(int i, int gpus, const std::string& rack) {
  NodeSpec n;
  n.name = "n" + std::to_string(i);
  n.pool = "p";
  n.gpus = gpus;
  n.milli_cpus = 8000;
  n.memory_bytes = 100;
  n.nics = 2;
  n.rack = rack;
  return n;
}

TEST(Cluster, CountersFollowEveryChange) {
  Cluster c;
  c.Up(MakeNode(0, 8, "r1"));
  c.Up(MakeNode(1, 4, "r1"));
  c.Up(MakeNode(2, 8, "r2"));
  ShapeId two = c.Shape({2, 0, 1000, 0}, {"p", "", {}, {}});
  c.Settle();
  EXPECT_EQ(c.Slots(two, Level::kCluster, 0), 10);
  EXPECT_EQ(c.Slots(two, Level::kRack, 0), 6);
  Room room = c.Choose({3, 0, 1000, 0}, 0);
  c.Take(room);
  EXPECT_EQ(c.Slots(two, Level::kRack, 0), 4);
  c.Hold(1);
  EXPECT_EQ(c.Slots(two, Level::kRack, 0), 2);
  EXPECT_EQ(c.FitOn(two, 1), 2);
  c.Unhold(1);
  c.Down(2);
  EXPECT_EQ(c.Slots(two, Level::kCluster, 0), 4);
  EXPECT_TRUE(c.Recount());
}

TEST(Cluster, AnIslandIsANodeByItselfUnlessNamed) {
  Cluster c;
  for (int i = 0; i < 4; ++i) {
    NodeSpec n = MakeNode(i, 4, "r");
    if (i < 2) n.island = "nvl";
    c.Up(n);
  }
  c.Settle();
  EXPECT_EQ(c.domains(Level::kIsland), 3u);
  EXPECT_EQ(c.domains(Level::kRack), 1u);
}

TEST(Cluster, GpusOfFewGroups) {
  Cluster c;
  NodeSpec n = MakeNode(0, 8, "r");
  n.gpu_groups = {0x0f, 0xf0};
  c.Up(n);
  c.Settle();
  c.Take(c.Choose({1, 0, 0, 0}, 0));
  EXPECT_EQ(c.Choose({2, 0, 0, 0}, 0).mask() & 0xf0u, 0u) << "the group that is broken already";
  EXPECT_EQ(c.Choose({4, 0, 0, 0}, 0).mask(), 0xf0u) << "the whole one";
}

TEST(Cluster, NicsAreHandedOutOneByOne) {
  Cluster c;
  c.Up(MakeNode(0, 8, "r"));
  const ShapeId two = c.Shape({.gpus = 1, .nics = 2}, {"p", "", {}, {}});
  const ShapeId one = c.Shape({.gpus = 1, .nics = 1}, {"p", "", {}, {}});
  const ShapeId none = c.Shape({.gpus = 1}, {"p", "", {}, {}});
  c.Settle();
  EXPECT_EQ(c.FitOn(one, 0), 2);
  EXPECT_EQ(c.FitOn(two, 0), 1);
  const Room room = c.Choose(c.request(one), 0);
  c.Take(room);
  EXPECT_EQ(c.FitOn(one, 0), 1);
  EXPECT_EQ(c.FitOn(two, 0), 0);
  EXPECT_EQ(c.FitOn(none, 0), 7) << "who needs none does not mind";
  c.Release(room);
  EXPECT_EQ(c.FitOn(two, 0), 1);
}

TEST(Cluster, UndoIsExactAndCountersEqualARecount) {
  bool fine = rc::check([](const std::vector<std::array<int, 4>>& raw) {
    Cluster c;
    for (int i = 0; i < 6; ++i) c.Up(MakeNode(i, 4 + i % 2 * 4, "r" + std::to_string(i / 2)));
    std::vector<ShapeId> shapes;
    for (int g : {1, 2, 4}) shapes.push_back(c.Shape({g, 0, 500, 1}, {"p", "", {}, {}}));
    shapes.push_back(c.Shape({.gpus = 1, .nics = 1}, {"p", "", {}, {}}));
    ShapeId slice = c.Shape({0, 300, 0, 0}, {"p", "", {}, {}});
    shapes.push_back(slice);
    c.Settle();
    auto image = [&] {
      std::vector<int64_t> v;
      for (NodeId n = 0; n < c.size(); ++n) {
        v.insert(v.end(), c.node(n).free_milli.begin(), c.node(n).free_milli.end());
        v.insert(v.end(), {c.node(n).free_cpus, c.node(n).free_memory, c.node(n).free_nics, c.node(n).whole,
                           c.node(n).free_total});
      }
      for (ShapeId s : shapes) v.insert(v.end(), c.Fit(s).begin(), c.Fit(s).end());
      return v;
    };
    std::vector<std::pair<size_t, std::vector<int64_t>>> marks;
    std::vector<std::vector<Room>> rooms{{}};
    for (const auto& r : raw) {
      auto at = [&](int i) { return static_cast<uint32_t>(std::abs(r[i] % 1000)); };
      if (at(0) % 8 == 0) {
        marks.push_back({c.Mark(), image()});
        rooms.push_back(rooms.back());
      } else if (at(0) % 8 == 1 && !marks.empty()) {
        c.Undo(marks.back().first);
        RC_ASSERT(image() == marks.back().second);
        marks.pop_back();
        rooms.pop_back();
      } else if (at(0) % 8 == 2 && !rooms.back().empty()) {
        size_t i = at(1) % rooms.back().size();
        c.Release(rooms.back()[i]);
        rooms.back().erase(rooms.back().begin() + static_cast<int64_t>(i));
      } else {
        ShapeId s = shapes[at(1) % shapes.size()];
        NodeId n = at(2) % 6;
        if (c.FitOn(s, n) == 0) continue;
        rooms.back().push_back(c.Choose(c.request(s), n));
        c.Take(rooms.back().back());
      }
      RC_ASSERT(c.Recount());
    }
  });
  EXPECT_TRUE(fine);
}

// --- the oracle: all ways to place the pods ---

bool AnyWay(const std::vector<int>& free, int pods, int gpus, size_t from) {
  if (pods == 0) return true;
  for (size_t i = from; i < free.size(); ++i) {
    if (free[i] < gpus) continue;
    std::vector<int> left = free;
    left[i] -= gpus;
    if (AnyWay(left, pods - 1, gpus, i)) return true;
  }
  return false;
}

TEST(Placement, FindsRoomExactlyWhenThereIsAny) {
  bool fine = rc::check([](const std::vector<std::array<int, 2>>& taken, int a, int b, int l) {
    Cluster c;
    for (int i = 0; i < 6; ++i) c.Up(MakeNode(i, 4, "r" + std::to_string(i / 2)));
    c.Settle();
    for (const auto& t : taken) {
      NodeId n = static_cast<uint32_t>(std::abs(t[0] % 6));
      int g = std::abs(t[1] % 3) + 1;
      if (std::popcount(c.node(n).whole) >= g) c.Take(c.Choose({g, 0, 0, 0}, n));
    }
    Request r{std::abs(b % 4) + 1, 0, 0, 0};
    Demand d;
    d.parts = {{r, std::abs(a % 6) + 1, 0}};
    d.alternatives = {{"", {c.Shape(r, {"p", "", {}, {}})}}};
    const Level levels[] = {Level::kNode, Level::kRack, Level::kCluster};
    d.required = levels[std::abs(l % 3)];
    bool possible = false;
    for (Domain domain = 0; domain < c.domains(d.required); ++domain) {
      std::vector<int> free;
      for (uint32_t p = c.First(d.required, domain); p < c.First(d.required, domain + 1); ++p) {
        free.push_back(std::popcount(c.node(c.At(p)).whole));
      }
      possible = possible || AnyWay(free, d.parts[0].pods, r.gpus, 0);
    }
    Fragmentation f(c);
    Placer placer(c, f);
    size_t mark = c.Mark();
    auto placed = placer.Place(d, d.required);
    RC_ASSERT(placed.has_value() == possible);
    if (!placed) {
      RC_ASSERT(c.Mark() == mark);
      return;
    }
    RC_ASSERT(placed->rooms.size() == static_cast<size_t>(d.parts[0].pods));
    std::set<Domain> domains;
    for (const Room& room : placed->rooms) {
      RC_ASSERT(std::popcount(room.mask()) == r.gpus);
      domains.insert(c.DomainOf(d.required, c.node(room.node).position));
    }
    RC_ASSERT(domains.size() == 1u);
    RC_ASSERT(c.Recount());
  });
  EXPECT_TRUE(fine);
}

// Tries all ways to put a block's pods on the nodes [from, to), then the other blocks anywhere.
struct BlockOracle {
  std::vector<int> free;                     // GPUs, by node
  std::vector<std::pair<int, int>> domains;  // nodes [first, last) of each
  int gpus = 1, block = 1;

  bool Blocks(int blocks) {
    if (blocks == 0) return true;
    for (const auto& [first, last] : domains) {
      if (Pods(block, first, last, blocks)) return true;
    }
    return false;
  }
  bool Pods(int pods, int from, int to, int blocks) {
    if (pods == 0) return Blocks(blocks - 1);
    for (int n = from; n < to; ++n) {
      if (free[n] < gpus) continue;
      free[n] -= gpus;
      const bool fits = Pods(pods - 1, n, to, blocks);
      free[n] += gpus;
      if (fits) return true;
    }
    return false;
  }
};

TEST(Placement, BlocksFindRoomExactlyWhenThereIsAny) {
  bool fine = rc::check([](const std::vector<std::array<int, 2>>& taken, int a, int b, int l, bool spread) {
    Cluster c;
    for (int i = 0; i < 6; ++i) c.Up(MakeNode(i, 4, "r" + std::to_string(i / 2)));
    c.Settle();
    for (const auto& t : taken) {
      NodeId n = static_cast<uint32_t>(std::abs(t[0] % 6));
      int g = std::abs(t[1] % 3) + 1;
      if (std::popcount(c.node(n).whole) >= g) c.Take(c.Choose({g, 0, 0, 0}, n));
    }
    Request r{std::abs(b % 3) + 1, 0, 0, 0};
    const int block = std::abs(a % 3) + 1, blocks = std::abs(a / 3 % 3) + 1;
    const Level level = l % 2 == 0 ? Level::kNode : Level::kRack;
    Demand d;
    d.parts = {{r, block * blocks, 0, 0, block, level, spread}};
    d.alternatives = {{"", {c.Shape(r, {"p", "", {}, {}})}}};
    BlockOracle oracle{{}, {}, r.gpus, block};
    for (uint32_t p = 0; p < c.size(); ++p) oracle.free.push_back(std::popcount(c.node(c.At(p)).whole));
    for (Domain domain = 0; domain < c.domains(level); ++domain) {
      oracle.domains.push_back(
          {static_cast<int>(c.First(level, domain)), static_cast<int>(c.First(level, domain + 1))});
    }
    Fragmentation f(c);
    Placer placer(c, f);
    auto placed = placer.Place(d, Level::kCluster);
    RC_ASSERT(placed.has_value() == oracle.Blocks(blocks));
    if (!placed) return;
    std::map<Domain, int> pods;
    for (const Room& room : placed->rooms) ++pods[c.DomainOf(level, c.node(room.node).position)];
    for (const auto& [domain, count] : pods) RC_ASSERT(count % block == 0);
    RC_ASSERT(placed->rooms.size() == static_cast<size_t>(block * blocks));
    RC_ASSERT(c.Recount());
  });
  EXPECT_TRUE(fine);
}

// The fewest racks that any placement needs, found by trying all sets of racks.
TEST(Placement, CrossesNoMoreRacksThanItMust) {
  bool fine = rc::check([](const std::vector<std::array<int, 2>>& taken, int a) {
    Cluster c;
    for (int i = 0; i < 8; ++i) c.Up(MakeNode(i, 2, "r" + std::to_string(i / 2)));
    c.Settle();
    for (const auto& t : taken) {
      NodeId n = static_cast<uint32_t>(std::abs(t[0] % 8));
      if (c.node(n).whole != 0) c.Take(c.Choose({1, 0, 0, 0}, n));
    }
    Request r{1, 0, 0, 0};
    Demand d;
    d.parts = {{r, std::abs(a % 10) + 1, 0}};
    d.alternatives = {{"", {c.Shape(r, {"p", "", {}, {}})}}};
    int fewest = 99;
    for (uint32_t set = 1; set < 16; ++set) {
      int room = 0;
      for (Domain k = 0; k < 4; ++k) room += (set >> k & 1) != 0 ? c.Slots(0, Level::kRack, k) : 0;
      if (room >= d.parts[0].pods) fewest = std::min(fewest, std::popcount(set));
    }
    Fragmentation f(c);
    Placer placer(c, f);
    auto placed = placer.Place(d, Level::kCluster);
    RC_ASSERT(placed.has_value() == (fewest < 99));
    if (!placed) return;
    std::set<Domain> racks;
    for (const Room& room : placed->rooms) racks.insert(c.DomainOf(Level::kRack, c.node(room.node).position));
    RC_ASSERT(static_cast<int>(racks.size()) == fewest);
  });
  EXPECT_TRUE(fine);
}

TEST(Fragmentation, APodGoesWhereLeastBecomesUseless) {
  Cluster c;
  c.Up(MakeNode(0, 2, "r"));
  c.Up(MakeNode(1, 2, "r"));
  c.Settle();
  Fragmentation f(c);
  for (int i = 0; i < 10; ++i) f.Arrived({2, 0, 0, 0}, {}, 1);  // all arrivals want whole nodes
  c.Take(c.Choose({0, 500, 0, 0}, 1));
  ShapeId slice = c.Shape({0, 300, 0, 0}, {"p", "", {}, {}});
  EXPECT_LT(f.Rise(slice, 1).rise, f.Rise(slice, 0).rise) << "node 1 is of no use to them already";
  EXPECT_EQ(f.Rise(slice, 1).gpu, 0) << "beside the other slice";
  EXPECT_EQ(f.Waste(0), 0);
  EXPECT_GT(f.Waste(1), 0);
}

// All arrivals want a GPU and 8 cpus. Where cpus are short, a pod that needs few cpus does not cost a GPU.
TEST(Fragmentation, CpusAreKeptForTheGpusBesideThem) {
  Cluster c;
  NodeSpec node = MakeNode(0, 4, "r");
  node.milli_cpus = 20'000;
  c.Up(node);
  node = MakeNode(1, 4, "r");
  node.milli_cpus = 64'000;
  c.Up(node);
  c.Settle();
  Fragmentation f(c);
  for (int i = 0; i < 10; ++i) f.Arrived({1, 0, 8'000, 0}, {}, 1);
  const ShapeId few = c.Shape({1, 0, 2'000, 0}, {"p", "", {}, {}});
  EXPECT_LT(f.Rise(few, 0).rise, f.Rise(few, 1).rise) << "only two of the four GPUs there have cpus";
  const ShapeId none = c.Shape({0, 0, 16'000, 0}, {"p", "", {}, {}});
  EXPECT_EQ(f.Rise(none, 1).rise, 0) << "twice the cpus that its GPUs need";
  EXPECT_GT(f.Rise(none, 0).rise, kMilli * Futures::kUnit) << "it costs both";
}

// Shares are 60 and 40 %: two equal ones never fill a GPU.
TEST(Fragmentation, RemaindersThatGoTogether) {
  Cluster c;
  c.Up(MakeNode(0, 1, "r"));
  c.Up(MakeNode(1, 1, "r"));
  c.Settle();
  Fragmentation f(c);
  for (int i = 0; i < 10; ++i) f.Arrived({0, i % 2 == 0 ? 600 : 400, 0, 0}, {}, 1);
  c.Take(c.Choose({0, 400, 0, 0}, 0));
  c.Take(c.Choose({0, 600, 0, 0}, 1));
  const ShapeId share = c.Shape({0, 400, 0, 0}, {"p", "", {}, {}});
  EXPECT_LT(f.Rise(share, 1).rise, f.Rise(share, 0).rise);
}

// GPUs that no pod may use are idle from the start.
TEST(Fragmentation, ATypeThatNobodyAsksFor) {
  Cluster c;
  NodeSpec node = MakeNode(0, 2, "r");
  node.gpu_type = "old";
  c.Up(node);
  node = MakeNode(1, 2, "r");
  node.gpu_type = "new";
  c.Up(node);
  c.Settle();
  Fragmentation f(c);
  f.Arrived({1, 0, 0, 0}, {"new"}, 10);
  EXPECT_EQ(f.Waste(0), 2 * kMilli * Futures::kUnit);
  EXPECT_LT(f.Waste(1), f.Waste(0) / 10);
}

}  // namespace
}  // namespace vrun::sched::core
