// SPDX-License-Identifier: Apache-2.0
// Gangs that grow and shrink, and gangs of blocks.
#include <gtest/gtest.h>

#include "sched/engine/explain.h"
#include "sched/engine/inspect.h"
#include "sched/testing/test_world.h"

namespace vrun::sched::core {
namespace {

JobSpec Elastic(JobId id, int least, int most, int gpus) {
  JobSpec j = Gang(id, most, gpus);
  j.roles[0].min_pods = least;
  j.estimate = 10 * kHour;
  j.checkpoint = {true, 10 * kSecond, 10 * kSecond, 0, 5 * kSecond};
  return j;
}

std::vector<Event> Nodes(int count, int gpus, int per_rack = 1000) {
  std::vector<Event> events;
  for (int i = 0; i < count; ++i) {
    events.push_back(NodeUp{GpuNode("n" + std::to_string(10 + i), gpus, "r" + std::to_string(10 + i / per_rack))});
  }
  return events;
}

TEST(Elastic, ItStartsWithWhatThereIsAndGrowsIntoFreeRoom) {
  World w;
  w.Feed(Nodes(3, 8));
  JobSpec firm = Gang(1, 1, 8);
  firm.preemptible = false;
  w.Feed({JobSubmitted{firm}}, kSecond);
  auto actions = w.Feed({JobSubmitted{Elastic(2, 1, 3, 8)}}, kSecond);
  ASSERT_EQ(actions.size(), 1u) << "what it starts with is said at once";
  EXPECT_EQ(w.running.at(2).size(), 2u);
  w.Feed({JobEnded{1}}, kHour);
  EXPECT_EQ(w.running.at(2).size(), 3u);
  JobSpec never = Elastic(3, 2, 4, 8);
  w.Feed({JobSubmitted{never}}, kSecond);
  w.Run(60 * kSecond);
  EXPECT_FALSE(w.preemptions > 0);
}

TEST(Elastic, WhoComesGetsTheSurplusForThePriceOfAResize) {
  World w;
  w.Feed(Nodes(3, 8));
  w.Feed({JobSubmitted{Elastic(1, 1, 3, 8)}}, kSecond);
  EXPECT_EQ(w.running.at(1).size(), 3u);
  JobSpec large = Gang(2, 2, 8);
  large.estimate = 100 * kHour;  // so it could not evict any job
  w.Feed({JobSubmitted{large}}, kHour);
  ASSERT_EQ(w.shrinking.at(1).size(), 2u);
  EXPECT_FALSE(w.Runs(2)) << "not before they have left";
  large = Gang(3, 1, 8);
  large.estimate = 1000 * kHour;
  w.Feed({JobSubmitted{large}}, kSecond);
  EXPECT_FALSE(w.Runs(3)) << "it is not for others";
  w.Feed({JobResized{1}}, kSecond);
  EXPECT_TRUE(w.Runs(2));
  EXPECT_EQ(w.running.at(1).size(), 1u);
  EXPECT_EQ(w.preemptions, 0);
  // It gives up no more than needed, and gets it back later.
  w.Feed({JobEnded{2}}, kHour);
  EXPECT_TRUE(w.Runs(3));
  EXPECT_EQ(w.running.at(1).size(), 2u);
}

TEST(Elastic, NoMoreIsTakenThanIsNeededAndNeverBelowTheLeast) {
  World w;
  w.Feed(Nodes(4, 8));
  w.Feed({JobSubmitted{Elastic(1, 2, 4, 8)}}, kSecond);
  JobSpec one = Gang(2, 1, 8);
  one.estimate = 100 * kHour;
  w.Feed({JobSubmitted{one}}, kHour);
  EXPECT_EQ(w.shrinking.at(1).size(), 1u);
  w.Feed({JobResized{1}}, kSecond);
  one = Gang(3, 2, 8);
  one.estimate = 100 * kHour;
  w.Feed({JobSubmitted{one}}, kHour);
  EXPECT_TRUE(w.shrinking.empty());
  EXPECT_EQ(w.preemptions, 0);
}

TEST(Elastic, ItsBeneficiaryCancelledItGrowsAgain) {
  World w;
  w.Feed(Nodes(2, 8));
  w.Feed({JobSubmitted{Elastic(1, 1, 2, 8)}}, kSecond);
  w.Feed({JobSubmitted{Gang(2, 1, 8)}}, kHour);
  ASSERT_TRUE(w.shrinking.contains(1));
  w.Feed({JobEnded{2, false}}, kSecond);
  w.Feed({JobResized{1}}, kSecond);
  w.Run(kHour);
  EXPECT_EQ(w.running.at(1).size(), 2u);
}

TEST(Elastic, OneThatEndsWhileItShrinksGivesAllOfIt) {
  World w;
  w.Feed(Nodes(2, 8));
  w.Feed({JobSubmitted{Elastic(1, 1, 2, 8)}}, kSecond);
  w.Feed({JobSubmitted{Gang(2, 1, 8)}}, kHour);
  w.Feed({JobEnded{1}}, kSecond);
  EXPECT_TRUE(w.Runs(2));
  w.Feed({JobSubmitted{Gang(3, 1, 8)}}, kSecond);
  EXPECT_TRUE(w.Runs(3));
}

TEST(Elastic, APodThatCannotStartIsGivenUpAndTriedAgainLater) {
  World w;
  w.Feed(Nodes(3, 8));
  JobSpec firm = Gang(1, 1, 8);
  firm.preemptible = false;
  w.Feed({JobSubmitted{firm}}, kSecond);
  w.Feed({JobSubmitted{Elastic(2, 1, 3, 8)}}, kSecond);
  w.Feed({JobEnded{1}}, kHour);
  ASSERT_EQ(w.running.at(2).size(), 3u);
  w.Feed({PodsGone{2, {w.running.at(2).back()}}}, kSecond);
  EXPECT_EQ(w.running.at(2).size(), 2u);
  w.Run(100 * kSecond);
  EXPECT_EQ(w.running.at(2).size(), 2u) << "not at once";
  w.Feed({JobSubmitted{Gang(3, 1, 8)}}, kSecond);
  EXPECT_TRUE(w.Runs(3)) << "its room is free";
  w.Feed({JobEnded{3}}, kSecond);
  w.Run(kHour);
  EXPECT_EQ(w.running.at(2).size(), 3u);
}

TEST(Elastic, OfPodsThatLookAlikeOnlyTheNamedOneIsGone) {
  World w;
  w.Feed(Nodes(1, 8));
  w.Feed({JobSubmitted{Elastic(1, 1, 3, 0)}}, kSecond);  // without GPUs, all on one node
  ASSERT_EQ(w.running.at(1).size(), 3u);
  w.Feed({PodsGone{1, {w.running.at(1).back()}}}, kSecond);
  EXPECT_EQ(w.running.at(1).size(), 2u);
  EXPECT_EQ(InspectJob(w.state, 1)->pods, 2u);
}

TEST(Elastic, ItsFirstPodStays) {
  World w;
  w.Feed(Nodes(4, 8, 2));  // two racks
  w.Feed({JobSubmitted{Elastic(1, 1, 4, 8)}}, kSecond);
  ASSERT_EQ(w.running.at(1).size(), 4u);
  const PodPlace first = w.running.at(1).front();
  JobSpec rack = Gang(2, 2, 8);
  rack.required = Level::kRack;
  rack.estimate = 100 * kHour;
  w.Feed({JobSubmitted{rack}}, kHour);
  ASSERT_TRUE(w.shrinking.contains(1));
  for (const PodPlace& pod : w.shrinking.at(1)) EXPECT_NE(pod, first);
}

TEST(Elastic, WorkIsCountedAtTheSizeThatItWasDoneWith) {
  World w;
  w.Feed(Nodes(1, 8));
  w.Feed({JobSubmitted{Elastic(1, 1, 2, 8)}}, kSecond);
  w.Run(10 * kHour);
  JobSpec waits = Gang(2, 1, 8);
  waits.estimate = 1000 * kHour;
  w.Feed({JobSubmitted{waits}}, kSecond);
  // Half of the ten hours' work is done: ten hours remain at its size, five at full size.
  EXPECT_NEAR(static_cast<double>(w.state.core().Find(1)->estimate.expected), 10.0 * kHour, 0.1 * kHour);
  w.Feed({JobEnded{2, false}}, kSecond);
  w.Feed(Nodes(2, 8), kSecond);
  w.Run(60 * kSecond);
  ASSERT_EQ(w.running.at(1).size(), 2u);
  waits.id = 3;
  waits.klass = Class::kScavenger;
  waits.roles[0].pods = 2;
  w.Feed({JobSubmitted{waits}}, 10 * kSecond);
  w.Feed({Tick{}}, 10 * kSecond);
  w.Run(kHour);
  EXPECT_NEAR(static_cast<double>(w.state.core().Find(1)->estimate.expected), 4.0 * kHour, 0.2 * kHour);
}

std::map<std::string, int> RacksOf(const World& w, JobId id) {
  std::map<std::string, int> racks;
  for (const PodPlace& pod : w.running.at(id)) ++racks[w.nodes.at(pod.node).rack];
  return racks;
}

TEST(Segments, EachBlockLiesInOneDomain) {
  World w;
  w.Feed(Nodes(9, 8, 3));  // three racks of three
  JobSpec job = Gang(1, 4, 8);
  job.roles[0].segment = 2;
  job.roles[0].segment_level = Level::kRack;
  w.Feed({JobSubmitted{job}}, kSecond);
  ASSERT_TRUE(w.Runs(1));
  for (const auto& [rack, pods] : RacksOf(w, 1)) EXPECT_EQ(pods % 2, 0) << rack;
  // Five nodes are free, but each rack has room for at most one block.
  job.id = 2;
  w.Feed({JobSubmitted{job}}, kSecond);
  EXPECT_FALSE(w.Runs(2)) << "two of its pods would be apart";
  w.Feed({JobSubmitted{Gang(3, 5, 8)}}, kSecond);
  EXPECT_TRUE(w.Runs(3)) << "there is room otherwise";
}

TEST(Segments, BlocksAreCloseOrSpread) {
  for (bool spread : {false, true}) {
    World w;
    w.Feed(Nodes(16, 8, 4));
    JobSpec job = Gang(1, 4, 8);
    job.roles[0].segment = 2;
    job.roles[0].segment_level = Level::kRack;
    job.roles[0].spread = spread;
    w.Feed({JobSubmitted{job}}, kSecond);
    EXPECT_EQ(RacksOf(w, 1).size(), spread ? 2u : 1u);
    JobSpec replicas = Gang(2, 8, 1);
    replicas.roles[0].segment_level = Level::kRack;
    replicas.roles[0].spread = spread;
    w.Feed({JobSubmitted{replicas}}, kSecond);
    EXPECT_EQ(RacksOf(w, 2).size(), spread ? 4u : 1u);
  }
}

TEST(Segments, AHoldAndAClaimKeepBlocksWhole) {
  Policy policy;
  policy.starvation_bound = kHour;
  World w(policy);
  w.Feed(Nodes(6, 8, 3));
  for (JobId id = 10; id < 16; ++id) {
    JobSpec busy = Gang(id, 1, 8);
    busy.preemptible = id % 2 == 0;
    busy.estimate = 100 * kHour;
    w.Feed({JobSubmitted{busy}}, kSecond);
  }
  JobSpec job = Gang(1, 4, 8);
  job.roles[0].segment = 2;
  job.roles[0].segment_level = Level::kRack;
  job.estimate = kHour;
  w.Feed({JobSubmitted{job}}, kHour);
  for (int i = 0; i < 400 && !w.Runs(1); ++i) {
    std::vector<Event> events;
    for (JobId id : w.stopping) events.push_back(JobStopped{id, 0});
    if (i % 20 == 19 && i / 20 < 6 && w.Runs(static_cast<JobId>(10 + i / 20))) {
      events.push_back(JobEnded{static_cast<JobId>(10 + i / 20)});
    }
    events.push_back(Tick{});
    w.Feed(events, 600 * kSecond);
  }
  ASSERT_TRUE(w.Runs(1));
  for (const auto& [rack, pods] : RacksOf(w, 1)) EXPECT_EQ(pods % 2, 0) << rack;
}

TEST(Segments, AnElasticGangGrowsByBlocks) {
  World w;
  w.Feed(Nodes(4, 8, 2));
  JobSpec firm = Gang(1, 1, 8);
  firm.preemptible = false;
  w.Feed({JobSubmitted{firm}}, kSecond);
  JobSpec job = Elastic(2, 2, 4, 8);
  job.roles[0].segment = 2;
  job.roles[0].segment_level = Level::kRack;
  w.Feed({JobSubmitted{job}}, kSecond);
  EXPECT_EQ(w.running.at(2).size(), 2u) << "one node alone is no block";
  w.Feed({JobEnded{1}}, kHour);
  EXPECT_EQ(w.running.at(2).size(), 4u);
}

TEST(Segments, WhatMakesNoSenseIsRefused) {
  JobSpec job = Gang(1, 4, 8);
  job.roles[0].segment = 3;
  EXPECT_FALSE(Validate(job));
  job.roles[0].segment = 2;
  EXPECT_TRUE(Validate(job));
  job.roles[0].min_pods = 3;
  EXPECT_FALSE(Validate(job));
  job.roles[0].min_pods = 2;
  job.required = Level::kNode;
  EXPECT_FALSE(Validate(job)) << "blocks of islands on one node";
}

}  // namespace
}  // namespace vrun::sched::core
