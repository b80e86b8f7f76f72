// SPDX-License-Identifier: Apache-2.0
// Order, prices and quotas: one rule of the policy per test.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "sched/engine/explain.h"
#include "sched/model/fixed.h"
#include "sched/share/history.h"
#include "sched/share/teams.h"
#include "sched/testing/test_world.h"

namespace vrun::sched::core {
namespace {

TEST(Fixed, LogarithmsAndPowers) {
  for (uint64_t x : {1ull, 2ull, 3ull, 10ull, 1000ull, 123456789ull, 1ull << 50}) {
    EXPECT_NEAR(Log2(x) / 65536.0, std::log2(static_cast<double>(x)), 1e-4) << x;
  }
  for (int q : {0, 1 << 16, 3 << 15, 20 << 16}) {
    EXPECT_NEAR(static_cast<double>(Exp2Milli(q)) / (1000 * std::exp2(q / 65536.0)), 1, 2e-3) << q;
  }
}

// --- run times ---

TEST(History, RemainingTimeIsLearnedPerGroup) {
  Policy policy;
  History h(policy);
  JobSpec job = Gang(1, 1, 8);
  job.name = "train";
  auto groups = h.Join(job, job.submitted);
  EXPECT_EQ(h.Remaining(job, groups, 8000, 0).source, 4) << "nothing known";
  for (int i = 0; i < 20; ++i) {
    job.submitted += kHour;
    auto earlier = h.Join(job, job.submitted);
    h.Completed(earlier, i % 2 ? 600 * kSecond : 10 * kHour);
    h.Leave(earlier);
  }
  auto fresh = h.Remaining(job, groups, 8000, 0);
  EXPECT_EQ(fresh.source, 0);
  EXPECT_GT(fresh.expected, 4 * kHour);
  EXPECT_LT(fresh.service, kHour) << "half of them end soon";
  auto old = h.Remaining(job, groups, 8000, kHour);
  EXPECT_GT(old.expected, 8 * kHour) << "it is one of the long ones";
  EXPECT_GT(old.rank, fresh.rank);
  job.name = "new";
  EXPECT_EQ(h.Remaining(job, h.Join(job, job.submitted), 8000, 0).source, 1) << "the user's other jobs";
}

TEST(History, SiblingsRunAboutEquallyLong) {
  Policy policy;
  History h(policy);
  JobSpec job = Gang(1, 1, 8);
  for (int i = 0; i < 40; ++i) {  // each submitted separately
    job.submitted += kHour;
    auto alone = h.Join(job, job.submitted);
    h.Completed(alone, i % 2 ? 600 * kSecond : 20 * kHour);
    h.Leave(alone);
  }
  auto ask = [&](const History::Groups& g) { return h.Remaining(job, g, 8000, 0); };
  job.submitted += kHour;
  auto first = h.Join(job, job.submitted);
  const auto before = ask(first);
  EXPECT_NE(before.source, 5) << "nothing to tell yet";
  job.submitted += 60 * kSecond;
  auto second = h.Join(job, job.submitted);
  EXPECT_EQ(second.siblings, first.siblings);
  // A running sibling predicts too.
  h.Remaining(job, first, 8000, 5 * kHour);
  EXPECT_EQ(ask(second).source, 5);
  EXPECT_GT(ask(second).service, 2 * before.service);
  EXPECT_GT(ask(second).expected, 15 * kHour);
  // And so does an ended one, here with the opposite prediction, so that nothing else can explain it.
  job.submitted += 2 * policy.sibling_gap;
  auto other = h.Join(job, job.submitted);
  EXPECT_NE(other.siblings, first.siblings) << "submitted later";
  for (int i = 0; i < 2; ++i) {
    auto brief = h.Join(job, job.submitted);
    h.Completed(brief, 600 * kSecond);
    h.Leave(brief);
  }
  EXPECT_LT(ask(other).expected, before.expected / 2);
  EXPECT_LT(ask(other).late, 2 * kHour);
}

TEST(History, SiblingsThatAreGoneAreForgotten) {
  Policy policy;
  History h(policy);
  JobSpec job = Gang(1, 1, 8);
  auto first = h.Join(job, job.submitted);
  h.Leave(first);
  auto second = h.Join(job, job.submitted);
  h.Completed(second, kHour);
  h.Leave(second);
  EXPECT_EQ(h.Join(job, job.submitted).siblings, first.siblings) << "places are used again";
}

TEST(History, WithoutAnyLevelsOfAttainedService) {
  Policy policy;
  History h(policy);
  JobSpec job = Gang(1, 1, 1);
  auto groups = h.Join(job, job.submitted);
  Log first = h.Remaining(job, groups, 1000, 0).rank;
  EXPECT_EQ(h.Remaining(job, groups, 1000, 800 * kSecond).rank, first);
  EXPECT_EQ(h.Remaining(job, groups, 1000, 1000 * kSecond).rank, first + 2 * kLogOne);
}

// --- teams ---

TEST(Teams, LimitsGuaranteesAndFairShares) {
  Policy policy;
  Teams t(policy);
  t.Set({"lab", "", 1000, {{"", 0, 16'000}}});
  t.Set({"a", "lab", 1000, {{"", 8000, INT64_MAX}}});
  t.Set({"b", "lab", 3000, {}});
  TeamId a = t.Find("a"), b = t.Find("b");
  EXPECT_TRUE(t.Admits(a, {{0, 16'000, 0}}, true).ok);
  EXPECT_FALSE(t.Admits(a, {{0, 17'000, 0}}, true).ok) << "the limit above it";
  EXPECT_FALSE(t.Admits(a, {{0, 9000, 0}}, false).ok) << "not preemptible beyond its guarantee";
  t.Take(b, {{0, 12'000, 1000}}, true, 0);
  EXPECT_FALSE(t.Admits(a, {{0, 8000, 0}}, true).ok) << "together too much";
  EXPECT_TRUE(t.WithinGuarantee(a, {{0, 4000, 0}}));
  EXPECT_FALSE(t.Protected(b, {{0, 12'000, 0}}, a));
  t.Demand(a, 20'000);
  t.Share(16'000, 0);
  EXPECT_GE(t.fair(a), 8000) << "the guarantee first";
  EXPECT_EQ(t.fair(a) + t.fair(b), 16'000);
  EXPECT_GT(t.Fairness(a), t.Fairness(b));
}

TEST(Teams, PastUsageCountsAndFades) {
  Policy policy;
  Teams t(policy);
  TeamId a = t.Find("a"), b = t.Find("b");
  t.Take(a, {{0, 8000, 1000}}, true, 0);
  t.Release(a, {{0, 8000, 1000}}, true, 24 * kHour);
  t.Demand(a, 8000);
  t.Demand(b, 8000);
  t.Share(8000, 24 * kHour);
  EXPECT_GT(t.fair(b), 3 * t.fair(a)) << "b's turn";
}

// --- preemption ---

JobSpec Long(JobId id, int pods, int gpus) {
  JobSpec j = Gang(id, pods, gpus);
  j.estimate = 24 * kHour;
  j.checkpoint = {true, 10 * kSecond, 60 * kSecond, 0};
  return j;
}

TEST(Preemption, WhatIsShortGoesBeforeWhatIsLong) {
  World w;
  w.Feed({NodeUp{GpuNode("a")}, JobSubmitted{Long(1, 1, 8)}});
  w.Run(3 * kHour);
  JobSpec brief = Gang(2, 1, 8);
  brief.estimate = 600 * kSecond;
  auto actions = w.Feed({JobSubmitted{brief}}, kSecond);
  ASSERT_EQ(actions.size(), 1u);
  const auto& p = std::get<Preempt>(actions[0]);
  EXPECT_EQ(p.job, 1u);
  EXPECT_EQ(p.beneficiary, 2u);
  EXPECT_EQ(p.mode, StopMode::kSave);
  EXPECT_GT(p.terms.gain, p.terms.price);
  EXPECT_EQ(Explain(w.state, 2)->at(0).kind, Blocker::Kind::kClaiming);
  // The freed room belongs to the beneficiary, whatever other jobs come.
  w.Feed({JobSubmitted{Gang(3, 1, 1)}}, kSecond);
  w.Feed({JobStopped{1, 0}}, 10 * kSecond);
  EXPECT_TRUE(w.Runs(2));
  EXPECT_FALSE(w.Runs(3));
}

TEST(Preemption, AnUrgentJobDoesNotWaitForNewPricesOfJobsThatHaveJustStarted) {
  World w;
  JobSpec victim = Long(1, 1, 8);
  victim.klass = Class::kExperiment;
  w.Feed({NodeUp{GpuNode("a")}, JobSubmitted{victim}});
  for (JobId id = 2; id < 6; ++id) {
    ASSERT_TRUE(w.Runs(1));
    JobSpec urgent = Gang(id, 1, 8);
    urgent.klass = Class::kProduction;
    const auto actions = w.Feed({JobSubmitted{urgent}}, kSecond / 10);
    ASSERT_EQ(actions.size(), 1u) << id;
    EXPECT_EQ(std::get<Preempt>(actions[0]).job, 1u);
    w.Feed({JobStopped{1, 0}}, kSecond / 10);
    ASSERT_TRUE(w.Runs(id));
    w.Feed({JobEnded{id, false}}, kSecond / 10);
  }
}

TEST(Preemption, NotWhenItEndsSoonAndNotAtAnyPrice) {
  for (bool soon : {false, true}) {
    World w;
    JobSpec v = Long(1, 1, 8);
    v.estimate = soon ? 3700 * kSecond : 24 * kHour;
    if (!soon) v.checkpoint = {false, -1, 24 * kHour, 0};  // it would lose everything, and its restore takes long
    w.Feed({NodeUp{GpuNode("a")}, JobSubmitted{v}});
    w.Run(kHour);
    JobSpec other = Gang(2, 1, 8);
    other.estimate = soon ? 600 * kSecond : 6 * kHour;
    w.Feed({JobSubmitted{other}}, kSecond);
    EXPECT_EQ(w.preemptions, 0) << soon;
  }
}

TEST(Preemption, NobodyIsDelayedLongerThanTheQueueTakesToDrain) {
  World w;
  JobSpec firm = Gang(1, 1, 8);
  firm.preemptible = false;
  firm.estimate = 3 * kHour;
  w.Feed({NodeUp{GpuNode("a")}, JobSubmitted{firm}});
  JobSpec small = Long(2, 1, 1);
  small.estimate = 48 * kHour;
  w.Feed({NodeUp{GpuNode("b")}, JobSubmitted{small}}, kSecond);
  w.Run(kHour);
  // In two hours there is room for all, so both wait that long, not the six hours of the large one.
  JobSpec large = Long(3, 1, 8);
  large.estimate = 6 * kHour;
  auto actions = w.Feed({JobSubmitted{large}}, kSecond);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<Preempt>(actions[0]).job, 2u);
  EXPECT_EQ(std::get<Preempt>(actions[0]).reason, StopReason::kWorth);
}

TEST(Preemption, WholeGangsAndNoMoreOfThemThanNeeded) {
  World w;
  std::vector<Event> events;
  for (int i = 0; i < 4; ++i) events.push_back(NodeUp{GpuNode("n" + std::to_string(i))});
  events.push_back(JobSubmitted{Long(1, 2, 8)});
  w.Feed(events);
  w.Feed({JobSubmitted{Long(2, 1, 8)}}, kSecond);
  w.Feed({JobSubmitted{Long(3, 1, 8)}}, kSecond);
  w.Run(kHour);
  JobSpec brief = Gang(4, 1, 8);
  brief.estimate = 600 * kSecond;
  auto actions = w.Feed({JobSubmitted{brief}}, kSecond);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_NE(std::get<Preempt>(actions[0]).job, 1u) << "half of a gang of two would be idle";
}

TEST(Preemption, WhoHasMostToRunLeavesFirst) {
  World w;
  JobSpec shorter = Long(1, 1, 8);
  shorter.estimate = 6 * kHour;
  w.Feed({NodeUp{GpuNode("a")}, JobSubmitted{shorter}});
  w.Feed({NodeUp{GpuNode("b")}, JobSubmitted{Long(2, 1, 8)}}, kSecond);
  w.Run(kHour);
  JobSpec brief = Gang(3, 1, 8);
  brief.estimate = 600 * kSecond;
  auto actions = w.Feed({JobSubmitted{brief}}, kSecond);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<Preempt>(actions[0]).job, 2u) << "the other would come back at once, by evicting this one";
}

TEST(Preemption, ALongGangLeavesWhenOthersWaitForItsRest) {
  World w;
  std::vector<Event> events;
  for (int i = 0; i < 3; ++i) events.push_back(NodeUp{GpuNode("n" + std::to_string(i))});
  JobSpec shorter = Long(1, 1, 8), gang = Long(2, 2, 8);
  shorter.estimate = 6 * kHour;
  gang.estimate = 96 * kHour;
  events.push_back(JobSubmitted{shorter});
  events.push_back(JobSubmitted{gang});
  w.Feed(events);
  w.Run(kHour);
  JobSpec brief = Gang(3, 1, 8), next = Gang(4, 1, 8);
  brief.estimate = next.estimate = 600 * kSecond;
  auto actions = w.Feed({JobSubmitted{brief}, JobSubmitted{next}}, kSecond);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<Preempt>(actions[0]).job, 2u);
  w.Feed({JobStopped{2, 0}}, 10 * kSecond);
  w.Run(kSecond);
  EXPECT_TRUE(w.Runs(3));
  EXPECT_TRUE(w.Runs(4));
}

// Two nodes are half free. The small jobs are worth more per GPU than the large one, so none is evicted.
struct Scattered {
  World w;
  explicit Scattered(Micros restore = 10 * kSecond) {
    w.Feed({NodeUp{GpuNode("a")}});
    for (JobId id : {1, 2}) {
      JobSpec small = Long(id, 1, 3);
      small.estimate = 2 * kHour;
      small.checkpoint = {true, kSecond, restore, 0};
      if (id == 1) {
        w.Feed({JobSubmitted{small}}, kSecond);
        // A full node prevents the second from joining the first.
        JobSpec rest = Gang(9, 1, 5);
        w.Feed({JobSubmitted{rest}, NodeUp{GpuNode("b")}}, kSecond);
      } else {
        w.Feed({JobSubmitted{small}}, kSecond);
        w.Feed({JobEnded{9}}, kSecond);
      }
    }
    w.Run(kHour);
  }
};

TEST(Moves, ScatteredRoomIsPutTogetherWhenThatIsWorthIt) {
  Scattered s;
  JobSpec large = Long(3, 1, 8);
  auto actions = s.w.Feed({JobSubmitted{large}}, kSecond);
  ASSERT_EQ(actions.size(), 1u) << "one of the small ones is enough";
  const auto moved = std::get<Preempt>(actions[0]);
  EXPECT_EQ(moved.reason, StopReason::kMove);
  EXPECT_EQ(moved.beneficiary, 3u);
  // Its new room is reserved while it leaves.
  JobSpec thief = Gang(4, 1, 5);
  thief.estimate = 60 * kSecond;
  s.w.Feed({JobSubmitted{thief}}, kSecond);
  EXPECT_FALSE(s.w.Runs(4));
  actions = s.w.Feed({JobStopped{moved.job, 0}}, kSecond);
  EXPECT_TRUE(s.w.Runs(moved.job)) << "it goes on at once";
  EXPECT_TRUE(s.w.Runs(3));
}

TEST(Moves, NotWhenItCostsMoreThanTheWait) {
  Scattered s(100 * kHour);
  s.w.Feed({JobSubmitted{Long(3, 1, 8)}}, kSecond);
  EXPECT_EQ(s.w.preemptions, 0);
}

TEST(Moves, ToANodeThatIsLostGoesNobody) {
  Scattered s;
  const auto moved = std::get<Preempt>(s.w.Feed({JobSubmitted{Long(3, 1, 8)}}, kSecond).at(0));
  const std::string from = s.w.running.at(moved.job).at(0).node;
  s.w.Feed({NodeLost{from == "a" ? "b" : "a"}}, kSecond);
  s.w.Feed({JobStopped{moved.job, 0}}, kSecond);
  EXPECT_FALSE(s.w.Runs(moved.job)) << "it waits";
  EXPECT_TRUE(s.w.Runs(3));
}

TEST(Moves, OneThatEndsInsteadGivesItsNewRoomBack) {
  Scattered s;
  const auto moved = std::get<Preempt>(s.w.Feed({JobSubmitted{Long(3, 1, 8)}}, kSecond).at(0));
  s.w.Feed({JobEnded{moved.job}}, kSecond);
  EXPECT_TRUE(s.w.Runs(3));
  s.w.Feed({JobSubmitted{Gang(4, 1, 5)}}, kSecond);
  EXPECT_TRUE(s.w.Runs(4));
}

TEST(Preemption, WhatMayNotBePreemptedIsNot) {
  World w;
  JobSpec firm = Long(1, 1, 8);
  firm.preemptible = false;
  w.Feed({NodeUp{GpuNode("a")}, JobSubmitted{firm}});
  w.Run(kHour);
  JobSpec urgent = Gang(2, 1, 8);
  urgent.klass = Class::kInference;
  w.Feed({JobSubmitted{urgent}}, kSecond);
  w.Run(kHour);
  EXPECT_EQ(w.preemptions, 0);
}

TEST(Preemption, AGuaranteeIsTakenBackFromBorrowers) {
  World w;
  w.Feed({NodeUp{GpuNode("a")}, NodeUp{GpuNode("b")}, TeamSet{{"owner", "", 1000, {{"", 8000, INT64_MAX}}}}});
  JobSpec borrower = Long(1, 1, 8), second = Long(2, 1, 8);
  borrower.team = second.team = "borrower";
  w.Feed({JobSubmitted{borrower}, JobSubmitted{second}}, kSecond);
  w.Run(60 * kSecond);
  JobSpec owner = Long(3, 1, 8);
  owner.team = "owner";
  owner.estimate = 240 * kHour;  // by its density it would wait
  auto actions = w.Feed({JobSubmitted{owner}}, kSecond);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<Preempt>(actions[0]).reason, StopReason::kGuarantee);
  w.Feed({JobStopped{std::get<Preempt>(actions[0]).job, 0}}, kSecond);
  EXPECT_TRUE(w.Runs(3));
  // But not more than that.
  owner.id = 4;
  w.Feed({JobSubmitted{owner}}, kSecond);
  w.Run(600 * kSecond);
  EXPECT_EQ(w.preemptions, 1);
}

// Two teams ask for the same room, the first without a right to it. The second still gets its guarantee in the same
// pass.
TEST(Preemption, AGuaranteeIsTakenBackWhoeverAskedInVainBefore) {
  World w;
  w.Feed({NodeUp{GpuNode("a")}, TeamSet{{"owner", "", 1000, {{"", 8000, INT64_MAX}}}}});
  JobSpec borrower = Long(1, 1, 8);
  borrower.team = "borrower";
  w.Feed({JobSubmitted{borrower}}, kSecond);
  w.Run(60 * kSecond);
  JobSpec greedy = Long(2, 1, 8), owner = Long(3, 1, 8);
  greedy.team = "greedy";
  greedy.estimate = 23 * kHour;  // denser than the owner's, but not enough to evict
  owner.team = "owner";
  owner.estimate = 240 * kHour;
  auto actions = w.Feed({JobSubmitted{greedy}, JobSubmitted{owner}}, kSecond);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<Preempt>(actions[0]).beneficiary, 3u);
  EXPECT_EQ(std::get<Preempt>(actions[0]).reason, StopReason::kGuarantee);
}

// The scarce resource here is not the one that the guarantee counts, so both teams stay below it forever.
TEST(Preemption, WithinOneGuaranteeNobodyTakesItBackFromAnother) {
  World w;
  NodeSpec node = GpuNode("a");
  node.nics = 1;
  w.Feed({TeamSet{{"lab", "", 1000, {{"", 4000, INT64_MAX}}, {}}}, TeamSet{{"group", "lab", 1000, {}, {}}}});
  w.Feed({NodeUp{node}});
  JobSpec parent = Gang(1, 1, 1), child = Gang(2, 1, 1);
  parent.team = "lab";
  child.team = "group";
  for (JobSpec* job : {&parent, &child}) {
    job->roles[0].request.nics = 1;
    job->estimate = 10 * kHour;
    job->checkpoint = {true, kSecond, kSecond, 0};
  }
  w.Feed({JobSubmitted{parent}}, kSecond);
  ASSERT_TRUE(w.Runs(1));
  w.Feed({JobSubmitted{child}}, kSecond);
  w.Run(kHour);
  EXPECT_EQ(w.preemptions, 0);
}

TEST(Holds, ARoomThatAQuotaForbidsIsNotKeptFromOthers) {
  Policy policy;
  policy.preemption = false;
  World w(policy);
  w.Feed({NodeUp{GpuNode("a")}, TeamSet{{"t", "", 1000, {{"h100", 0, 4000}}}}});
  JobSpec busy = Gang(1, 1, 8);
  busy.preemptible = false;
  w.Feed({JobSubmitted{busy}}, kSecond);
  JobSpec never = Gang(2, 1, 8);  // of any type, so only its placement shows that it may not start
  never.team = "t";
  w.Feed({JobSubmitted{never}}, kSecond);
  w.Run(policy.starvation_bound + policy.level_base * policy.starvation_stretch / 1000 + kHour);
  w.Feed({JobEnded{1}}, kSecond);
  JobSpec other = Gang(3, 1, 8);
  other.preemptible = false;
  other.estimate = 100 * kHour;
  w.Feed({JobSubmitted{other}}, kSecond);
  w.Run(120 * kSecond);
  EXPECT_TRUE(w.Runs(3));
}

TEST(Preemption, ACancelledBeneficiaryGivesTheRoomBack) {
  World w;
  w.Feed({NodeUp{GpuNode("a")}, JobSubmitted{Long(1, 1, 8)}});
  w.Run(3 * kHour);
  JobSpec brief = Gang(2, 1, 4);
  brief.estimate = 600 * kSecond;
  w.Feed({JobSubmitted{brief}}, kSecond);
  ASSERT_EQ(w.preemptions, 1);
  w.Feed({JobEnded{2, false}}, kSecond);
  w.Feed({JobSubmitted{Gang(3, 1, 8)}}, kSecond);
  EXPECT_FALSE(w.Runs(3)) << "the victim is still there";
  w.Feed({JobStopped{1, 0}}, kSecond);
  EXPECT_TRUE(w.Runs(3));
}

// --- holds ---

TEST(Holds, OnlyWhoIsGoneInTimeOrCheapMayUseHeldRoom) {
  Policy policy;
  policy.preemption = false;
  World w(policy);
  w.Feed({NodeUp{GpuNode("a")}, NodeUp{GpuNode("b")}});
  JobSpec firm = Gang(1, 1, 8);
  firm.preemptible = false;
  firm.estimate = 48 * kHour;
  w.Feed({JobSubmitted{firm}}, kSecond);
  w.Feed({JobSubmitted{Gang(2, 2, 8)}}, kSecond);
  w.Run(policy.starvation_bound + policy.level_base * policy.starvation_stretch / 1000 + kHour);
  ASSERT_EQ(w.holds, 1);
  JobSpec brief = Gang(3, 1, 4), endless = Gang(4, 1, 4), cheap = Gang(5, 1, 4);
  brief.estimate = 600 * kSecond;
  endless.estimate = 1000 * kHour;
  endless.preemptible = false;
  cheap.estimate = 1000 * kHour;
  cheap.checkpoint = {true, kSecond, kSecond, 0};
  w.Feed({JobSubmitted{endless}}, kSecond);
  EXPECT_FALSE(w.Runs(4));
  EXPECT_EQ(Explain(w.state, 4)->at(0).kind, Blocker::Kind::kHolds);
  EXPECT_EQ(Explain(w.state, 4)->at(0).other, 2u);
  w.Feed({JobSubmitted{brief}, JobSubmitted{cheap}}, kSecond);
  EXPECT_TRUE(w.Runs(3));
  EXPECT_TRUE(w.Runs(5));
  // The gang's time has come, so the job that is cheap to evict leaves.
  w.Feed({JobEnded{3}, JobEnded{1}}, kSecond);
  w.Run(60 * kSecond);
  ASSERT_TRUE(w.stopping.contains(5));
  w.Feed({JobStopped{5, 0}}, kSecond);
  EXPECT_TRUE(w.Runs(2));
}

}  // namespace
}  // namespace vrun::sched::core
