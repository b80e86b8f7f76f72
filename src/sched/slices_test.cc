// SPDX-License-Identifier: Apache-2.0
// Parts of GPUs: where they may lie, and that a GPU is shared in only one way at a time.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <bit>
#include <set>

#include "sched/model/cluster.h"
#include "sched/model/fit.h"
#include "sched/model/mig.h"
#include "sched/place/fragmentation.h"
#include "sched/place/placement.h"

namespace vrun::sched::core {
namespace {

TEST(Mig, AsManyInstancesAsTheVendorSays) {
  // NVIDIA MIG User Guide, "Number of Instances Available".
  const std::vector<std::tuple<const char*, const char*, int>> kTable = {
      {"a100-40gb", "1g.5gb", 7},   {"a100-40gb", "1g.10gb", 4},  {"a100-40gb", "2g.10gb", 3},
      {"a100-40gb", "3g.20gb", 2},  {"a100-40gb", "4g.20gb", 1},  {"a100-40gb", "7g.40gb", 1},
      {"a100-80gb", "1g.10gb", 7},  {"h100-80gb", "1g.10gb", 7},  {"h100-80gb", "1g.20gb", 4},
      {"h100-80gb", "3g.40gb", 2},  {"h200-141gb", "1g.18gb", 7}, {"h200-141gb", "2g.35gb", 3},
      {"b200-180gb", "1g.23gb", 7}, {"b200-180gb", "1g.45gb", 4}, {"b200-180gb", "7g.180gb", 1},
      {"a30-24gb", "1g.6gb", 4},    {"a30-24gb", "2g.12gb", 2},   {"a30-24gb", "4g.24gb", 1},
      {"h100-80gb", "1g.5gb", 0},   {"a30-24gb", "3g.20gb", 0}};
  for (const auto& [model, profile, count] : kTable) {
    EXPECT_EQ(mig::Count(mig::FindModel(model), mig::FindProfile(profile), 0), count) << model << ' ' << profile;
  }
  EXPECT_EQ(mig::FindProfile("9g.1gb"), 0);
  EXPECT_EQ(mig::FindModel("v100"), 0);
}

TEST(Mig, ModelsByTheNameOfTheProduct) {
  auto name = [](const char* product) { return mig::ModelName(mig::ModelOfProduct(product)); };
  EXPECT_EQ(name("NVIDIA A100-SXM4-40GB"), "a100-40gb");
  EXPECT_EQ(name("NVIDIA A100-SXM4-80GB"), "a100-80gb");
  EXPECT_EQ(name("NVIDIA H100 80GB HBM3"), "h100-80gb");
  EXPECT_EQ(name("NVIDIA H100 NVL"), "h100-94gb");
  EXPECT_EQ(name("NVIDIA GH200 480GB"), "h100-96gb");
  EXPECT_EQ(name("NVIDIA H200"), "h200-141gb");
  EXPECT_EQ(name("NVIDIA B200"), "b200-180gb");
  EXPECT_EQ(name("NVIDIA A30"), "a30-24gb");
  EXPECT_EQ(name("NVIDIA L40S"), "");
}

// Tries all ways to place instances side by side.
int MostByTrying(mig::Model model, mig::Profile profile, mig::SliceMask used) {
  int most = 0;
  for (int start = 0; start < mig::kMostSlices; ++start) {
    if (mig::SliceMask m = mig::At(model, profile, start, used); m != 0) {
      most = std::max(most, 1 + MostByTrying(model, profile, static_cast<mig::SliceMask>(used | m)));
    }
  }
  return most;
}

TEST(Mig, CountsEqualTryingAllWays) {
  for (const char* model : {"h100-80gb", "a30-24gb"}) {
    const mig::Model m = mig::FindModel(model);
    for (int profile = 1; !mig::ProfileName(static_cast<mig::Profile>(profile)).empty(); ++profile) {
      for (int used = 0; used < 1 << mig::Slices(m); ++used) {
        const auto p = static_cast<mig::Profile>(profile);
        ASSERT_EQ(mig::Count(m, p, static_cast<mig::SliceMask>(used)),
                  MostByTrying(m, p, static_cast<mig::SliceMask>(used)))
            << model << ' ' << mig::ProfileName(p) << ' ' << used;
      }
    }
  }
}

NodeSpec MigNode(const std::string& name, int gpus = 2) {
  NodeSpec n;
  n.name = name;
  n.pool = "p";
  n.gpus = gpus;
  n.mig_model = "h100-80gb";
  return n;
}

Request Instance(const char* profile) {
  Request r;
  r.mig = mig::FindProfile(profile);
  return r;
}

Request Share(int milli, Sharing how) {
  Request r;
  r.gpu_milli = milli;
  r.sharing = how;
  return r;
}

TEST(Slices, AGpuIsSharedInOneWayUntilItIsEmpty) {
  Cluster c;
  c.Up(MigNode("a", 1));
  c.Settle();
  const Constraint anywhere{"p", "", {}, {}};
  ShapeId mps = c.Shape(Share(300, Sharing::kMps), anywhere),
          turns = c.Shape(Share(300, Sharing::kTimeSlice), anywhere);
  ShapeId instance = c.Shape(Instance("1g.10gb"), anywhere), whole = c.Shape({1, 0, 0, 0}, anywhere);
  const std::vector<ShapeId> all = {mps, turns, instance};
  for (ShapeId first : all) {
    Room room = c.Choose(c.request(first), 0);
    c.Take(room);
    EXPECT_EQ(c.FitOn(whole, 0), 0);
    for (ShapeId other : all) EXPECT_EQ(c.FitOn(other, 0) > 0, other == first);
    c.Release(room);
    for (ShapeId other : all) EXPECT_GT(c.FitOn(other, 0), 0);
    EXPECT_EQ(c.FitOn(whole, 0), 1);
  }
}

TEST(Slices, AGpuThatWasGoneMeanwhileIsWholeAgain) {
  Cluster c;
  c.Up(MigNode("a", 2));
  c.Settle();
  const Constraint anywhere{"p", "", {}, {}};
  ShapeId instance = c.Shape(Instance("1g.10gb"), anywhere), whole = c.Shape({1, 0, 0, 0}, anywhere);
  const Room room = c.Choose(c.request(instance), 0, 1, 0);
  c.Take(room);
  c.Up(MigNode("a", 1));
  c.Release(room);
  c.Up(MigNode("a", 2));
  for (int i = 0; i < 2; ++i) c.Take(c.Choose(c.request(whole), 0));
  EXPECT_EQ(c.FitOn(instance, 0), 0);
}

TEST(Slices, AnInstanceLeavesRoomForLargeOnes) {
  Cluster c;
  c.Up(MigNode("a", 1));
  c.Settle();
  ShapeId small = c.Shape(Instance("1g.10gb"), {"p", "", {}, {}}),
          half = c.Shape(Instance("3g.40gb"), {"p", "", {}, {}});
  Fragmentation f(c);
  for (int i = 0; i < 10; ++i) f.Arrived(Instance("3g.40gb"), {}, 1);
  Demand d;
  d.parts = {{c.request(small), 3, 0}};
  d.alternatives = {{"", {small}}};
  Placer placer(c, f);
  ASSERT_TRUE(placer.Place(d, Level::kCluster));
  EXPECT_EQ(c.FitOn(half, 0), 1) << "three small ones in one half";
  EXPECT_EQ(c.FitOn(small, 0), 4);
}

TEST(Slices, WhatIsTakenIsUndoneExactlyAndNeverOverlaps) {
  EXPECT_TRUE(rc::check([](const std::vector<std::array<int, 3>>& raw) {
    Cluster c;
    for (int i = 0; i < 2; ++i) c.Up(MigNode("n" + std::to_string(i)));
    c.Settle();
    const Constraint anywhere{"p", "", {}, {}};
    std::vector<ShapeId> shapes = {c.Shape({1, 0, 0, 0}, anywhere)};
    for (const char* p : {"1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}) {
      shapes.push_back(c.Shape(Instance(p), anywhere));
    }
    for (Sharing s : {Sharing::kMps, Sharing::kTimeSlice}) shapes.push_back(c.Shape(Share(400, s), anywhere));
    Fragmentation f(c);
    for (ShapeId s : shapes) f.Arrived(c.request(s), {}, 1);
    auto image = [&] {
      std::vector<int64_t> v;
      for (NodeId n = 0; n < c.size(); ++n) {
        const Cluster::Node& node = c.node(n);
        v.insert(v.end(), node.free_milli.begin(), node.free_milli.end());
        for (int i = 0; i < kMaxGpus; ++i) v.insert(v.end(), {static_cast<int>(node.sharing[i]), node.sliced[i]});
      }
      return v;
    };
    std::vector<Room> rooms;
    for (const auto& r : raw) {
      auto at = [&](int i) { return static_cast<uint32_t>(std::abs(r[i] % 1000)); };
      const size_t mark = c.Mark();
      const auto before = image();
      if (at(0) % 3 == 0 && !rooms.empty()) {
        const size_t i = at(1) % rooms.size();
        c.Release(rooms[i]);
        c.Undo(mark);
        RC_ASSERT(image() == before);
        c.Release(rooms[i]);
        rooms.erase(rooms.begin() + static_cast<int64_t>(i));
      } else {
        const ShapeId s = shapes[at(1) % shapes.size()];
        const NodeId n = at(2) % 2;
        if (c.FitOn(s, n) == 0) continue;
        const int32_t fit = c.FitOn(s, n);
        const Fragmentation::Score score = f.Rise(s, n);
        const Room room = c.Choose(c.request(s), n, score.gpu, score.start);
        for (const Room& other : rooms) {
          for (int i = 0; i < kMaxGpus && other.node == n; ++i) {
            if (room.milli[i] == 0 || other.milli[i] == 0) continue;
            RC_ASSERT(room.sharing[i] == other.sharing[i]);
            RC_ASSERT(room.sharing[i] != Sharing::kWhole);
            RC_ASSERT((room.mig[i] & other.mig[i]) == 0);
          }
        }
        c.Take(room);
        RC_ASSERT(c.FitOn(s, n) <= fit - 1);
        c.Undo(mark);
        RC_ASSERT(image() == before);
        c.Take(room);
        rooms.push_back(room);
      }
      RC_ASSERT(c.Recount());
      for (NodeId n = 0; n < c.size(); ++n) {
        for (int i = 0; i < 2; ++i) RC_ASSERT(c.node(n).free_milli[i] >= 0);
      }
    }
  }));
}

// Some GPUs of a node are in MIG mode, some cannot do MPS, and one is broken.
TEST(Slices, EachGpuIsGivenAsItCanBe) {
  Cluster c;
  NodeSpec node = MigNode("a", 5);
  node.mig_gpus = 0b00011;
  node.no_mps = 0b00100;
  node.bad_gpus = 0b10000;
  c.Up(node);
  c.Settle();
  const Constraint anywhere{"p", "", {}, {}};
  const auto fit = [&](const Request& r) { return c.FitOn(c.Shape(r, anywhere), 0); };
  EXPECT_EQ(fit({1, 0, 0, 0}), 2);
  EXPECT_EQ(fit({3, 0, 0, 0}), 0);
  EXPECT_EQ(fit(Share(500, Sharing::kMps)), 2) << "on one GPU";
  EXPECT_EQ(fit(Share(500, Sharing::kTimeSlice)), 4);
  EXPECT_EQ(fit(Instance("3g.40gb")), 4);
  EXPECT_EQ(c.Choose({2, 0, 0, 0}, 0).mask(), 0b01100u);
  EXPECT_EQ(c.Choose(Share(500, Sharing::kMps), 0).mask(), 0b01000u);
}

TEST(Slices, ByMemoryTheSmallestPartThatHasIt) {
  const auto text = [](int gib, NodeSpec node, int gpu_gib, Sharing how = Sharing::kMps) -> std::string {
    node.gpu_memory = gpu_gib * kGiB - kGiB / 3;  // as drivers tell it
    Request r;
    r.gpu_memory = gib * kGiB;
    r.sharing = how;
    r.sharers = 7;
    const auto on = OnNode(r, node);
    if (!on) return "no";
    if (on->mig != 0) return std::string(mig::ProfileName(on->mig)) + (on->sharers == 0 ? "" : "!");
    if (on->gpu_milli > 0) return std::to_string(on->gpu_milli) + (on->sharers == 7 ? "" : "!");
    return std::to_string(on->gpus) + " whole" + (on->sharers == 0 ? "" : "!");
  };
  NodeSpec plain = MigNode("a");
  plain.mig_model.clear();
  EXPECT_EQ(text(20, plain, 80), "250");
  EXPECT_EQ(text(1, plain, 80), "20") << "in hundredths";
  EXPECT_EQ(text(80, plain, 80), "1 whole");
  EXPECT_EQ(text(79, plain, 80), "990");
  EXPECT_EQ(text(81, plain, 80), "no");
  EXPECT_EQ(text(20, plain, 0), "no") << "nobody knows";
  NodeSpec all = MigNode("a");
  all.mig_gpus = 3;
  EXPECT_EQ(text(10, all, 80), "1g.10gb");
  EXPECT_EQ(text(11, all, 80), "1g.20gb");
  EXPECT_EQ(text(21, all, 80), "3g.40gb");
  EXPECT_EQ(text(80, all, 80), "7g.80gb");
  EXPECT_EQ(text(20, all, 0), "1g.20gb") << "the profile's name says it";
  NodeSpec some = all;
  some.mig_gpus = 1;
  EXPECT_EQ(text(20, some, 80), "1g.20gb") << "before a share of the same size";
  EXPECT_EQ(text(24, some, 80), "300") << "smaller than an instance of 40 GB";
  some.no_mps = 2;
  EXPECT_EQ(text(24, some, 80), "3g.40gb") << "smaller than a GPU";
  EXPECT_EQ(text(24, some, 80, Sharing::kTimeSlice), "300");
  NodeSpec old = plain;
  old.no_mps = 3;
  EXPECT_EQ(text(8, old, 16), "1 whole");
}

TEST(Slices, AShareWithTooLittleMemoryFitsNowhere) {
  Cluster c;
  NodeSpec node = MigNode("a", 1);
  node.gpu_memory = 80 * kGiB;
  c.Up(node);
  c.Settle();
  Request r = Share(250, Sharing::kMps);
  const Constraint anywhere{"p", "", {}, {}};
  r.gpu_memory = 20 * kGiB;
  EXPECT_EQ(c.FitOn(c.Shape(r, anywhere), 0), 4);
  r.gpu_memory = 21 * kGiB;
  EXPECT_EQ(c.FitOn(c.Shape(r, anywhere), 0), 0);
  Request i = Instance("1g.10gb");
  i.gpu_memory = 11 * kGiB;
  EXPECT_EQ(c.FitOn(c.Shape(i, anywhere), 0), 0);
}

// How many more pods fit if all ways are tried: each goes on any GPU where nobody or only its own sharers are.
int MostSharesByTrying(std::array<int, 3> free, const std::array<uint64_t, 3>& whose, uint64_t who, int milli) {
  int most = 0;
  for (size_t i = 0; i < free.size(); ++i) {
    if (free[i] < milli || (free[i] < kMilli && whose[i] != who)) continue;
    auto then = free;
    auto theirs = whose;
    then[i] -= milli;
    theirs[i] = who;
    most = std::max(most, 1 + MostSharesByTrying(then, theirs, who, milli));
  }
  return most;
}

TEST(Slices, StrangersNeverShareAndNoRoomIsMissed) {
  EXPECT_TRUE(rc::check([](const std::vector<std::array<int, 3>>& raw) {
    Cluster c;
    NodeSpec node = MigNode("a", 3);
    node.mig_model.clear();
    c.Up(node);
    c.Settle();
    const Constraint anywhere{"p", "", {}, {}};
    const auto share = [](int user, int milli) {
      Request r = Share(milli, Sharing::kMps);
      r.sharers = static_cast<uint64_t>(user);
      return r;
    };
    Fragmentation f(c);
    for (int user = 1; user <= 3; ++user) f.Arrived(share(user, 400), {}, 1);
    std::array<int, 3> free{kMilli, kMilli, kMilli};
    std::array<uint64_t, 3> whose{};
    std::vector<std::pair<Room, int>> rooms;
    for (const auto& move : raw) {
      const auto at = [&](size_t i) { return static_cast<size_t>(std::abs(move[i] % 1000)); };
      if (at(0) % 3 == 0 && !rooms.empty()) {
        const size_t i = at(1) % rooms.size();
        const auto gpu = static_cast<size_t>(std::countr_zero(rooms[i].first.mask()));
        free[gpu] += rooms[i].second;
        c.Release(rooms[i].first);
        rooms.erase(rooms.begin() + static_cast<int64_t>(i));
        continue;
      }
      const int milli = 200 + 200 * static_cast<int>(at(1) % 3);
      const Request r = share(static_cast<int>(at(2) % 3) + 1, milli);
      const ShapeId shape = c.Shape(r, anywhere);
      RC_ASSERT(c.FitOn(shape, 0) == MostSharesByTrying(free, whose, r.sharers, milli));
      if (c.FitOn(shape, 0) == 0) continue;
      const Fragmentation::Score score = f.Rise(shape, 0);
      const Room room = c.Choose(r, 0, score.gpu, score.start);
      const auto gpu = static_cast<size_t>(std::countr_zero(room.mask()));
      RC_ASSERT(free[gpu] >= milli);
      RC_ASSERT(free[gpu] == kMilli || whose[gpu] == r.sharers);
      free[gpu] -= milli;
      whose[gpu] = r.sharers;
      c.Take(room);
      rooms.emplace_back(room, milli);
      RC_ASSERT(c.Recount());
    }
  }));
}

}  // namespace
}  // namespace vrun::sched::core
