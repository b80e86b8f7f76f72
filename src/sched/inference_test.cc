// SPDX-License-Identifier: Apache-2.0
// Inference beside training: it starts at once, at the least cost to others, and they get their room back.
#include <gtest/gtest.h>

#include "sched/engine/explain.h"
#include "sched/place/headroom.h"
#include "sched/testing/test_world.h"

namespace vrun::sched::core {
namespace {

JobSpec Replica(JobId id, int gpus, int pods = 1) {
  JobSpec j = Gang(id, pods, gpus);
  j.klass = Class::kInference;
  j.preemptible = false;
  return j;
}

JobSpec Training(JobId id, int gpus, Micros saved_ago_cost) {
  JobSpec j = Gang(id, 1, gpus);
  j.estimate = 50 * kHour;
  j.checkpoint = {true, saved_ago_cost, 10 * kSecond, 0};
  return j;
}

TEST(Inference, TakesTheCheapestVictimWithoutWaitingForAPass) {
  Policy policy;
  World w(policy);
  w.Feed({NodeUp{GpuNode("a")}, NodeUp{GpuNode("b")}});
  w.Feed({JobSubmitted{Training(1, 8, 600 * kSecond)}}, kSecond);
  w.Feed({JobSubmitted{Training(2, 8, 5 * kSecond)}}, kSecond);
  // The first inference job fills the shelf. Later ones do not wait for a pass.
  w.Feed({JobSubmitted{Replica(90, 1)}}, 3 * kHour);
  w.Feed({JobEnded{90, false}}, kSecond);
  for (JobId id : std::set<JobId>(w.stopping)) w.Feed({JobStopped{id, 0}}, kSecond);
  w.Run(3 * kHour);
  ASSERT_TRUE(w.Runs(1) && w.Runs(2));
  const int before = w.preemptions;
  w.Feed({JobSaved{1, w.now, 0}, JobSaved{2, w.now, 0}}, 60 * kSecond);
  auto actions = w.Feed({JobSubmitted{Replica(3, 4)}}, policy.pass_interval / 2);
  ASSERT_EQ(w.preemptions, before + 1) << "within the same step";
  const auto& p = std::get<Preempt>(actions.at(0));
  EXPECT_EQ(p.job, 2u) << "its state is saved sooner";
  EXPECT_EQ(p.beneficiary, 3u);
  w.Feed({JobStopped{2, 0}}, 5 * kSecond);
  EXPECT_TRUE(w.Runs(3));
  // The room goes back to the job it was taken from, whatever else waits.
  JobSpec rival = Gang(4, 1, 8);
  rival.klass = Class::kProduction;
  rival.preemptible = false;
  rival.estimate = 50 * kHour;
  w.Feed({JobSubmitted{rival}}, kSecond);
  if (w.stopping.contains(1)) w.Feed({JobStopped{1, 0}}, kSecond);
  w.Feed({JobEnded{3}}, kSecond);
  EXPECT_TRUE(w.Runs(2));
}

TEST(Inference, ElasticTrainingShrinksBeforeAnybodyIsEvicted) {
  World w;
  w.Feed({NodeUp{GpuNode("a")}, NodeUp{GpuNode("b")}, NodeUp{GpuNode("c")}});
  JobSpec elastic = Gang(1, 2, 8);
  elastic.roles[0].min_pods = 1;
  elastic.estimate = 50 * kHour;
  elastic.checkpoint = {true, 300 * kSecond, 300 * kSecond, 0, 5 * kSecond};
  w.Feed({JobSubmitted{elastic}}, kSecond);
  w.Feed({JobSubmitted{Training(2, 8, kSecond)}}, kSecond);
  w.Run(kHour);
  w.Feed({JobSubmitted{Replica(3, 8)}}, kSecond);
  EXPECT_EQ(w.preemptions, 0);
  ASSERT_TRUE(w.shrinking.contains(1));
  w.Feed({JobResized{1}}, kSecond);
  EXPECT_TRUE(w.Runs(3));
  w.Feed({JobEnded{3}}, kHour);
  w.Run(60 * kSecond);
  EXPECT_EQ(w.running.at(1).size(), 2u) << "it has its room back";
}

TEST(Inference, NoRoomIsLeftIdleWhereThereIsNone) {
  Policy policy;
  Headroom h(policy);
  h.Advance(1000 * kHour);
  EXPECT_EQ(h.Target(80'000), 0);
}

TEST(Inference, HeadroomIsWhatDemandGrowsByInAWindow) {
  Policy policy;
  policy.headroom_most = 1000;
  Headroom h(policy);
  // Each minute four more GPUs for half of it; once in 200 minutes twenty.
  Micros now = 0;
  for (int minute = 0; minute < 2000; ++minute) {
    const int64_t burst = minute % 200 == 0 ? 20'000 : 4000;
    h.Change(burst, now + kSecond);
    h.Change(-burst, now + 30 * kSecond);
    now += policy.headroom_window;
  }
  EXPECT_EQ(h.Target(1'000'000), 4000) << "nine hundred and ninety of a thousand";
  EXPECT_EQ(h.Target(1000), 1000);
  policy.headroom_most = 100;
  EXPECT_EQ(h.Target(20'000), 2000) << "bounded";
  h.Advance(now + 48 * kHour);
  EXPECT_EQ(h.Target(1'000'000), 0) << "a day without: forgotten";
}

TEST(Inference, WhatIsKeptIdleIsUsedByWhoCanBeKilledAtOnce) {
  Policy policy;
  policy.headroom_most = 500;
  World w(policy);
  w.Feed({NodeUp{GpuNode("a")}, NodeUp{GpuNode("b")}});
  JobId id = 100;
  for (int minute = 0; minute < 30; ++minute) {
    w.Feed({JobSubmitted{Replica(id, 4)}}, 30 * kSecond);
    w.Feed({JobEnded{id++}}, 30 * kSecond);
  }
  for (JobId job = 1; job <= 4; ++job) w.Feed({JobSubmitted{Training(job, 4, kSecond)}}, kSecond);
  EXPECT_TRUE(w.Runs(1) && w.Runs(2) && w.Runs(3));
  EXPECT_FALSE(w.Runs(4));
  JobSpec filler = Gang(5, 1, 4);
  filler.klass = Class::kScavenger;
  auto why = Explain(w.state, 4);
  ASSERT_TRUE(why);
  EXPECT_TRUE(
      std::any_of(why->begin(), why->end(), [](const Blocker& b) { return b.kind == Blocker::Kind::kHeadroom; }));
  w.Feed({JobSubmitted{filler}}, kSecond);
  EXPECT_TRUE(w.Runs(5));
}

}  // namespace
}  // namespace vrun::sched::core
