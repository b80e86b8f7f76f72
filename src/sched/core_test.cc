// SPDX-License-Identifier: Apache-2.0
#include "sched/core.h"

#include <gtest/gtest.h>

#include "sched/engine/explain.h"
#include "sched/testing/test_world.h"

namespace vrun::sched::core {
namespace {

using Kind = Blocker::Kind;

TEST(Core, AGangStartsWholeOrNotAtAll) {
  World w;
  w.Feed({NodeUp{GpuNode("a")}, NodeUp{GpuNode("b")}});
  w.Feed({JobSubmitted{Gang(1, 3, 8)}}, kSecond);
  EXPECT_FALSE(w.Runs(1));
  auto actions = w.Feed({NodeUp{GpuNode("c")}}, kSecond);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<Place>(actions[0]).pods.size(), 3u);
}

TEST(Core, GangsGoTogetherAndFillWhatIsTight) {
  World w;
  std::vector<Event> nodes;
  for (int i = 0; i < 8; ++i) nodes.push_back(NodeUp{GpuNode("n" + std::to_string(i), 8, i < 4 ? "r1" : "r2")});
  w.Feed(nodes);
  w.Feed({JobSubmitted{Gang(1, 2, 8)}}, kSecond);  // half of a rack
  w.Feed({JobSubmitted{Gang(2, 4, 8)}}, kSecond);  // the other rack, whole
  w.Feed({JobSubmitted{Gang(3, 2, 8)}}, kSecond);  // the other half
  std::set<std::string> racks;
  for (const PodPlace& pod : w.running.at(2)) racks.insert(w.nodes.at(pod.node).rack);
  EXPECT_EQ(racks.size(), 1u);
  EXPECT_TRUE(w.Runs(3));
}

TEST(Core, DistinctPodsAreOnNodesOfTheirOwn) {
  World w;
  for (const char* node : {"a", "b", "c", "d"})
    w.Feed({NodeUp{GpuNode(node, 8, node < std::string("c") ? "r1" : "r2")}});
  JobSpec job = Gang(1, 3, 1);
  job.roles[0].request.distinct = true;
  w.Feed({JobSubmitted{job}}, kSecond);
  std::set<std::string> nodes;
  for (const PodPlace& pod : w.running.at(1)) nodes.insert(pod.node);
  EXPECT_EQ(nodes.size(), 3u);
  // Blocks, each within one rack.
  job = Gang(2, 4, 1);
  job.roles[0].request.distinct = true;
  job.roles[0].segment = 2;
  job.roles[0].segment_level = Level::kRack;
  w.Feed({JobSubmitted{job}}, kSecond);
  nodes.clear();
  for (const PodPlace& pod : w.running.at(2)) nodes.insert(pod.node);
  EXPECT_EQ(nodes.size(), 4u);
  job = Gang(3, 5, 1);
  job.roles[0].request.distinct = true;
  EXPECT_FALSE(Feasible(w.state, job)) << "there are four nodes";
}

// Two full racks of two nodes, except for one free node in each.
void OneFreeNodeInEachOfTwoRacks(World& w, JobId* in_first) {
  for (const char* r : {"r1", "r2"}) {
    w.Feed({NodeUp{GpuNode(std::string("a") + r, 4, r)}, NodeUp{GpuNode(std::string("b") + r, 4, r)}});
  }
  for (JobId id = 100; id < 104; ++id) {
    JobSpec pin = Gang(id, 1, 4);
    pin.preemptible = false;
    w.Feed({JobSubmitted{pin}}, kSecond);
  }
  std::map<std::string, std::vector<JobId>> racks;
  for (const auto& [id, pods] : w.running) racks[w.nodes.at(pods[0].node).rack].push_back(id);
  ASSERT_EQ(racks.size(), 2u);
  w.Feed({JobEnded{racks["r1"][0]}, JobEnded{racks["r2"][0]}}, kSecond);
  *in_first = racks["r1"][1];
}

TEST(Core, ARequiredLevelIsWaitedFor) {
  World w;
  JobId in_first = 0;
  OneFreeNodeInEachOfTwoRacks(w, &in_first);
  JobSpec job = Gang(1, 2, 4);
  job.required = Level::kRack;
  w.Feed({JobSubmitted{job}}, kSecond);
  w.Run(24 * kHour);
  EXPECT_FALSE(w.Runs(1));
  EXPECT_EQ(Explain(w.state, 1)->at(0).kind, Kind::kTopology);
  w.Feed({JobEnded{in_first}}, kSecond);
  EXPECT_TRUE(w.Runs(1));
}

TEST(Core, APreferredLevelIsWaitedForAsLongAsItIsWorth) {
  World w;
  JobId in_first = 0;
  OneFreeNodeInEachOfTwoRacks(w, &in_first);
  JobSpec job = Gang(1, 2, 4);
  job.preferred = Level::kRack;
  w.Feed({JobSubmitted{job}}, kSecond);
  w.Run(60 * kSecond);
  EXPECT_FALSE(w.Runs(1));
  EXPECT_EQ(Explain(w.state, 1)->at(0).kind, Kind::kPatience);
  w.Run(kHour);
  EXPECT_TRUE(w.Runs(1));
}

TEST(Core, SlicesShareOneGpuBeforeTheyTouchAnother) {
  World w;
  w.Feed({NodeUp{GpuNode("a", 2)}});
  JobSpec slice = Gang(1, 2, 0);
  slice.roles[0].request.gpu_milli = 500;
  w.Feed({JobSubmitted{slice}}, kSecond);
  ASSERT_TRUE(w.Runs(1));
  EXPECT_EQ(w.running.at(1)[0].gpu_mask, w.running.at(1)[1].gpu_mask);
  w.Feed({JobSubmitted{Gang(2, 1, 1)}}, kSecond);
  EXPECT_TRUE(w.Runs(2));
}

TEST(Core, TypesLabelsAndTaints) {
  World w;
  NodeSpec a = GpuNode("a");
  a.gpu_type = "a100";
  a.labels = {"nvme"};
  NodeSpec t = GpuNode("t");
  t.taints = {"debug"};
  w.Feed({NodeUp{a}, NodeUp{t}});
  JobSpec h = Gang(1, 1, 1);
  h.gpu_types = {"h100", "a100"};
  JobSpec only = Gang(2, 1, 1);
  only.gpu_types = {"h100"};
  JobSpec tolerant = only;
  tolerant.id = 3;
  tolerant.tolerations = {"debug"};
  JobSpec label = Gang(4, 1, 1);
  label.labels = {"nvme"};
  w.Feed({JobSubmitted{h}, JobSubmitted{only}, JobSubmitted{tolerant}, JobSubmitted{label}}, kSecond);
  EXPECT_EQ(w.running.at(1)[0].node, "a") << "the first choice does not want it";
  EXPECT_FALSE(w.Runs(2));
  EXPECT_EQ(w.running.at(3)[0].node, "t");
  EXPECT_EQ(w.running.at(4)[0].node, "a");
}

TEST(Core, RolesOfOneGang) {
  World w;
  NodeSpec cpu = GpuNode("cpu", 0);
  w.Feed({NodeUp{GpuNode("a")}, NodeUp{cpu}});
  JobSpec job = Gang(1, 1, 8);
  job.roles.push_back({"driver", 1, {0, 0, 60'000, 1}});
  w.Feed({JobSubmitted{job}}, kSecond);
  ASSERT_TRUE(w.Runs(1));
  JobSpec second = job;
  second.id = 2;
  w.Feed({JobSubmitted{second}}, kSecond);
  EXPECT_FALSE(w.Runs(2)) << "no part of it either";
}

TEST(Core, DependenciesAndBeginTimes) {
  World w;
  w.Feed({NodeUp{GpuNode("a")}});
  JobSpec later = Gang(2, 1, 1);
  later.after = {1};
  JobSpec timed = Gang(3, 1, 1);
  timed.begin_after = kHour;
  w.Feed({JobSubmitted{Gang(1, 1, 1)}, JobSubmitted{later}, JobSubmitted{timed}}, kSecond);
  EXPECT_EQ(Explain(w.state, 2)->at(0).other, 1u);
  EXPECT_EQ(Explain(w.state, 3)->at(0).kind, Kind::kBeginTime);
  EXPECT_EQ(NextWake(w.state), kHour);
  w.Feed({JobEnded{1}}, kSecond);
  EXPECT_TRUE(w.Runs(2));
  EXPECT_FALSE(w.Runs(3));
  w.Run(kHour);
  EXPECT_TRUE(w.Runs(3));
}

TEST(Core, ShortBeforeLongOnceRunTimesAreKnown) {
  World w;
  w.Feed({NodeUp{GpuNode("a", 1)}});
  JobId id = 0;
  auto run = [&](const std::string& name, Micros time) {
    JobSpec j = Gang(++id, 1, 1);
    j.name = name;
    w.Feed({JobSubmitted{j}}, kSecond);
    w.Feed({JobEnded{id}}, time);
  };
  for (int i = 0; i < 10; ++i) run("long", 9 * kHour), run("short", 60 * kSecond);
  JobSpec wait = Gang(100, 1, 1), a = Gang(101, 1, 1), b = Gang(102, 1, 1);
  a.name = "long";
  b.name = "short";
  w.Feed({JobSubmitted{wait}}, kSecond);
  w.Feed({JobSubmitted{a}, JobSubmitted{b}}, kSecond);
  w.Feed({JobEnded{100}}, kSecond);
  EXPECT_TRUE(w.Runs(102));
  EXPECT_FALSE(w.Runs(101));
}

TEST(Core, WaitingIsExplainedAndTheImpossibleIsNamed) {
  World w;
  JobSpec job = Gang(1, 2, 8);
  EXPECT_TRUE(Feasible(w.state, job)) << "no node yet";
  w.Feed({NodeUp{GpuNode("a", 8, "r1")}, NodeUp{GpuNode("b", 8, "r2")}});
  EXPECT_TRUE(Feasible(w.state, job));
  EXPECT_FALSE(Feasible(w.state, Gang(2, 3, 8)));
  job.required = Level::kRack;
  EXPECT_FALSE(Feasible(w.state, job));
  w.Feed({JobSubmitted{job}}, kSecond);
  EXPECT_EQ(Explain(w.state, 1)->at(0).kind, Kind::kTopology);
  w.Feed({JobSubmitted{Gang(3, 1, 8)}}, kSecond);
  w.Feed({JobSubmitted{Gang(4, 2, 8)}}, kSecond);
  EXPECT_EQ(Explain(w.state, 4)->at(0).kind, Kind::kNoRoom);
  EXPECT_EQ(Explain(w.state, 4)->at(0).have, 1);
  EXPECT_EQ(Explain(w.state, 4)->at(0).need, 2);
  EXPECT_FALSE(Explain(w.state, 3)) << "it runs";
}

TEST(Core, ARestartRestoresWhatWasDecided) {
  World w;
  w.Feed({JobSubmitted{Gang(1, 1, 8)}});
  w.running[1] = {{0, "a", 255}};
  w.Feed({JobStarted{1, {{0, "a", 255}}, 0}, NodeUp{GpuNode("a")}, JobSubmitted{Gang(2, 1, 1)}}, kSecond);
  EXPECT_FALSE(w.Runs(2));
  w.Feed({JobEnded{1}}, kSecond);
  EXPECT_TRUE(w.Runs(2));
}

TEST(Core, ALostNodeKeepsWhatRunsThereAccounted) {
  World w;
  w.Feed({NodeUp{GpuNode("a")}, JobSubmitted{Gang(1, 1, 8)}});
  w.Feed({NodeLost{"a"}, JobSubmitted{Gang(2, 1, 8)}}, kSecond);
  w.Feed({NodeUp{GpuNode("a")}}, kSecond);
  EXPECT_FALSE(w.Runs(2));
  w.Feed({JobEnded{1}}, kSecond);
  EXPECT_TRUE(w.Runs(2));
}

}  // namespace
}  // namespace vrun::sched::core
