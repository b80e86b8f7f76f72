// SPDX-License-Identifier: Apache-2.0
// Explanations: what would help, when the job will start, and what was decided. The tests then try what was said.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "sched/engine/explain.h"
#include "sched/testing/test_world.h"

namespace vrun::sched::core {
namespace {

using Kind = Counterfactual::Kind;

const Counterfactual* Find(const std::vector<Counterfactual>& all, Kind kind) {
  auto it = std::find_if(all.begin(), all.end(), [&](const Counterfactual& c) { return c.kind == kind; });
  return it == all.end() ? nullptr : &*it;
}

JobSpec Firm(JobId id, int pods, int gpus, Micros estimate) {
  JobSpec j = Gang(id, pods, gpus);
  j.preemptible = false;
  j.estimate = estimate;
  return j;
}

TEST(WhatIf, SmallerElsewhereLaterAndWhen) {
  World w;
  NodeSpec a100 = GpuNode("z");
  a100.gpu_type = "a100";
  w.Feed({NodeUp{GpuNode("a")}, NodeUp{GpuNode("b")}, NodeUp{a100}});
  auto on_h100 = [](JobSpec j) {
    j.gpu_types = {"h100"};
    return j;
  };
  w.Feed({JobSubmitted{on_h100(Firm(1, 1, 8, 5 * kHour))}}, kSecond);
  w.Feed({JobSubmitted{on_h100(Firm(2, 1, 4, 9 * kHour))}}, kSecond);
  w.Feed({JobSubmitted{on_h100(Firm(3, 1, 8, kHour))}}, kSecond);
  ASSERT_FALSE(w.Runs(3));
  const auto all = WhatIf(w.state, 3);
  ASSERT_NE(Find(all, Kind::kFewerGpus), nullptr);
  EXPECT_EQ(Find(all, Kind::kFewerGpus)->number, 4);
  ASSERT_NE(Find(all, Kind::kType), nullptr);
  EXPECT_EQ(Find(all, Kind::kType)->gpu_type, "a100");
  ASSERT_NE(Find(all, Kind::kAfter), nullptr);
  EXPECT_EQ(Find(all, Kind::kAfter)->after, 1u);
  EXPECT_EQ(Find(all, Kind::kClass), nullptr) << "nobody may be preempted";
  const auto forecast = ForecastFor(w.state, 3);
  ASSERT_TRUE(forecast);
  EXPECT_EQ(forecast->after, 1u);
  EXPECT_NEAR(static_cast<double>(forecast->start - w.now), 5.0 * kHour, 0.1 * kHour);
  EXPECT_GE(forecast->late, forecast->start);
  EXPECT_LT(forecast->confidence, 500) << "owners' guesses";
  EXPECT_TRUE(WhatIf(w.state, 1).empty()) << "it runs";
  EXPECT_FALSE(ForecastFor(w.state, 1));
}

TEST(WhatIf, PodsLevelsAndClasses) {
  World w;
  w.Feed({NodeUp{GpuNode("a", 8, "r1")}, NodeUp{GpuNode("b", 8, "r2")}, NodeUp{GpuNode("c", 8, "r3")}});
  JobSpec training = Gang(1, 1, 8);
  training.estimate = 30 * kHour;
  training.checkpoint = {true, kSecond, kSecond, 0};
  w.Feed({JobSubmitted{training}}, kSecond);
  w.Run(kHour);
  JobSpec job = Gang(2, 3, 8);
  job.estimate = 300 * kHour;
  job.preemptible = false;
  w.Feed({JobSubmitted{job}}, kSecond);
  ASSERT_FALSE(w.Runs(2));
  auto all = WhatIf(w.state, 2);
  ASSERT_NE(Find(all, Kind::kFewerPods), nullptr);
  EXPECT_EQ(Find(all, Kind::kFewerPods)->number, 2);
  ASSERT_NE(Find(all, Kind::kClass), nullptr);
  EXPECT_GT(Find(all, Kind::kClass)->klass, Class::kTraining);
  // The answer is true.
  const Class klass = Find(all, Kind::kClass)->klass;
  w.Feed({JobEnded{2, false}}, kSecond);
  JobSpec close = Gang(3, 2, 8);
  close.required = Level::kRack;
  w.Feed({JobSubmitted{close}}, kSecond);
  all = WhatIf(w.state, 3);
  ASSERT_NE(Find(all, Kind::kLevel), nullptr);
  EXPECT_EQ(Find(all, Kind::kLevel)->level, Level::kBlock);
  w.Feed({JobEnded{3, false}}, kSecond);
  job.id = 4;
  job.klass = klass;
  w.Feed({JobSubmitted{job}}, kSecond);
  EXPECT_TRUE(w.stopping.contains(1));
}

TEST(Why, TheTermsOfWhatWasDecided) {
  World w;
  JobSpec training = Gang(1, 1, 8);
  training.estimate = 30 * kHour;
  training.checkpoint = {true, kSecond, kSecond, 0};
  w.Feed({NodeUp{GpuNode("a")}, JobSubmitted{training}});
  w.Run(3 * kHour);
  JobSpec brief = Gang(2, 1, 8);
  brief.estimate = 600 * kSecond;
  w.Feed({JobSubmitted{brief}}, kSecond);
  const auto evicted = Why(w.state, 1), claimed = Why(w.state, 2);
  ASSERT_EQ(evicted.size(), 2u);
  EXPECT_EQ(evicted[0].kind, Decision::Kind::kStarted);
  EXPECT_EQ(evicted[1].kind, Decision::Kind::kEvicted);
  EXPECT_EQ(evicted[1].other, 2u);
  ASSERT_EQ(claimed.size(), 1u);
  EXPECT_EQ(claimed[0].kind, Decision::Kind::kClaimed);
  EXPECT_EQ(claimed[0].other, 1u);
  EXPECT_GT(claimed[0].terms.gain, claimed[0].terms.price);
  EXPECT_GT(claimed[0].worth.total(), evicted[1].worth.total());
  EXPECT_GT(claimed[0].worth.remaining, evicted[1].worth.remaining) << "that was the reason";
  EXPECT_EQ(claimed[0].worth.klass, evicted[1].worth.klass);
  w.Feed({JobStopped{1, 0}}, kSecond);
  EXPECT_EQ(Why(w.state, 2).back().kind, Decision::Kind::kStartedLate);
}

// Asking changes nothing, and "would start now with less" is true.
TEST(WhatIf, AskingChangesNothing) {
  EXPECT_TRUE(rc::check([](const std::vector<std::array<int, 4>>& raw) {
    World asked, other;
    std::vector<Event> nodes;
    for (int i = 0; i < 4; ++i)
      nodes.push_back(NodeUp{GpuNode("n" + std::to_string(i), 8, "r" + std::to_string(i / 2))});
    asked.Feed(nodes);
    other.Feed(nodes);
    JobId id = 1;
    for (const auto& r : raw) {
      auto at = [&](int i) { return std::abs(r[i] % 1000); };
      Event event = Tick{};
      if (at(0) % 3 == 0 && !asked.running.empty()) {
        event = JobEnded{asked.running.begin()->first};
      } else if (!asked.stopping.empty()) {
        event = JobStopped{*asked.stopping.begin(), 0};
      } else {
        JobSpec j = Gang(id++, at(1) % 4 + 1, at(2) % 8 + 1);
        j.estimate = (at(3) % 20 + 1) * kHour;
        j.preemptible = at(3) % 2 == 0;
        if (at(3) % 5 == 0) j.required = Level::kRack;
        event = JobSubmitted{j};
      }
      const Micros by = at(3) % 30 * 60 * kSecond;
      const auto a = asked.Feed({event}, by), b = other.Feed({event}, by);
      RC_ASSERT(a.size() == b.size());
      for (size_t i = 0; i < a.size(); ++i) RC_ASSERT(Text(a[i]) == Text(b[i]));
      for (const auto& [job, spec] : asked.jobs) {
        const auto all = WhatIf(asked.state, job);
        ForecastFor(asked.state, job);
        if (asked.Runs(job)) RC_ASSERT(all.empty());
      }
      RC_ASSERT(asked.state.core().Consistent());
    }
  }));
}

}  // namespace
}  // namespace vrun::sched::core
