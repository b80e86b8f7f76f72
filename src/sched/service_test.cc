// SPDX-License-Identifier: Apache-2.0
// External conditions of the core: broken GPUs, maintenance, dependencies, deadlines, budgets.
#include <gtest/gtest.h>

#include "sched/engine/explain.h"
#include "sched/share/teams.h"
#include "sched/testing/test_world.h"

namespace vrun::sched::core {
namespace {

using Kind = Blocker::Kind;

template <typename T>
const T* Find(const std::vector<Action>& actions) {
  for (const Action& a : actions) {
    if (const T* t = std::get_if<T>(&a)) return t;
  }
  return nullptr;
}

TEST(Health, BrokenGpusAreGivenToNobodyAndSuspectNodesLast) {
  World w;
  NodeSpec broken = GpuNode("a");
  broken.bad_gpus = 0b101;
  NodeSpec suspect = GpuNode("b", 4);
  suspect.suspect = true;
  w.Feed({NodeUp{broken}, NodeUp{suspect}});
  w.Feed({JobSubmitted{Gang(1, 1, 4)}}, kSecond);
  ASSERT_TRUE(w.Runs(1));
  EXPECT_EQ(w.running.at(1)[0].node, "a") << "the other would be the tighter fit";
  w.Feed({JobSubmitted{Gang(2, 1, 4)}}, kSecond);
  EXPECT_EQ(w.running.at(2)[0].node, "b");
  w.Feed({JobSubmitted{Gang(3, 1, 2)}}, kSecond);
  EXPECT_TRUE(w.Runs(3));
  w.Feed({JobSubmitted{Gang(4, 1, 1)}}, kSecond);
  EXPECT_FALSE(w.Runs(4));
  EXPECT_FALSE(Feasible(w.state, Gang(5, 1, 8)));
  w.Feed({NodeUp{GpuNode("a")}}, kSecond);
  EXPECT_TRUE(w.Runs(4)) << "mended";
}

JobSpec Firm(JobId id, Micros limit) {
  JobSpec j = Gang(id, 1, 2);
  j.preemptible = false;
  j.limit = limit;
  return j;
}

TEST(Maintenance, OnlyWhoIsGoneByThenOrMayBeToldToLeaveStarts) {
  World w;
  w.Feed({NodeUp{GpuNode("a")}, JobSubmitted{Firm(99, 0)}});
  w.Feed({JobEnded{99}}, kSecond);
  const Micros from = w.now + 10 * kHour;
  w.Feed({MaintenanceSet{{"disks", {"a"}, from, from + 2 * kHour}}}, kSecond);
  JobSpec flexible = Gang(4, 1, 2);
  flexible.checkpoint = {true, 60 * kSecond, 60 * kSecond, 0};
  w.Feed({JobSubmitted{Firm(1, 0)}, JobSubmitted{Firm(2, 2 * kHour)}, JobSubmitted{Firm(3, 11 * kHour)},
          JobSubmitted{flexible}},
         kSecond);
  EXPECT_FALSE(w.Runs(1)) << "nobody knows when it ends";
  EXPECT_TRUE(w.Runs(2));
  EXPECT_FALSE(w.Runs(3)) << "it would run into it";
  EXPECT_TRUE(w.Runs(4));
  auto why = Explain(w.state, 1);
  ASSERT_TRUE(why);
  EXPECT_EQ(why->at(0).kind, Kind::kMaintenance);
  EXPECT_EQ(why->at(0).time, from + 2 * kHour);
  w.Feed({JobEnded{2}}, kHour);
  // Just before the window nothing starts. Jobs that may be told to leave are told in time, but late enough to lose
  // nothing.
  auto actions = w.Run(from - w.now - 30 * kSecond);
  const Preempt* told = Find<Preempt>(actions);
  ASSERT_NE(told, nullptr);
  EXPECT_EQ(told->job, 4u);
  EXPECT_EQ(told->reason, StopReason::kMaintenance);
  EXPECT_EQ(told->mode, StopMode::kSave);
  w.Feed({JobStopped{4, 0}}, kSecond);
  EXPECT_FALSE(w.Runs(4));
  w.Run(from + 2 * kHour - w.now + kSecond);
  EXPECT_TRUE(w.Runs(1)) << "it is over";
  EXPECT_TRUE(w.Runs(3));
  EXPECT_TRUE(w.Runs(4));
}

TEST(Maintenance, WhoWaitedForOthersToLeaveStartsOnlyIfThereIsStillTime) {
  Policy policy;
  policy.theta = 0;
  policy.quantum_factor = 0;
  policy.lost_budget = 1000;
  World w(policy);
  JobSpec first = Gang(1, 1, 8);
  first.klass = Class::kScavenger;
  first.checkpoint = {true, 60 * kSecond, 60 * kSecond, 0};
  w.Feed({NodeUp{GpuNode("a")}, JobSubmitted{first}});
  const Micros from = w.now + 12 * kHour;
  w.Feed({MaintenanceSet{{"disks", {"a"}, from, from + kHour}}}, kSecond);
  JobSpec second = Firm(2, 3 * kHour);
  second.roles[0].request.gpus = 8;
  second.klass = Class::kInference;
  w.Feed({JobSubmitted{second}}, 8 * kHour);
  ASSERT_TRUE(w.stopping.contains(1));
  w.Feed({JobStopped{1, 0}}, 2 * kHour);
  EXPECT_FALSE(w.Runs(2)) << "it would run into it";
  w.Feed({JobEnded{1}}, from + kHour - w.now);
  w.Run(kSecond);
  EXPECT_TRUE(w.Runs(2));
}

TEST(Maintenance, AJobIsToldOfAWindowAsLongBeforeAsItAskedFor) {
  World w;
  JobSpec job = Gang(1, 1, 2);
  job.checkpoint = {true, 60 * kSecond, 60 * kSecond, 0};
  job.notice = 300 * kSecond;
  w.Feed({NodeUp{GpuNode("a")}, JobSubmitted{job}});
  const Micros from = w.now + 4 * kHour;
  w.Feed({MaintenanceSet{{"disks", {"a"}, from, from + kHour}}}, kSecond);
  w.Run(from - w.now - 301 * kSecond);
  EXPECT_FALSE(w.stopping.contains(1));
  w.Run(2 * kSecond);
  EXPECT_TRUE(w.stopping.contains(1));
}

// Slurm's --signal=R:
TEST(Maintenance, WhoSaysSoMayMeetAWindowAndIsToldInTime) {
  World w;
  JobSpec job = Firm(1, 11 * kHour), other = Firm(2, 11 * kHour);
  job.may_meet_maintenance = true;
  job.notice = 120 * kSecond;
  w.Feed({NodeUp{GpuNode("a")}});
  const Micros from = w.now + 4 * kHour;
  w.Feed({MaintenanceSet{{"disks", {"a"}, from, from + kHour}}}, kSecond);
  w.Feed({JobSubmitted{job}, JobSubmitted{other}}, kSecond);
  EXPECT_TRUE(w.Runs(1));
  EXPECT_FALSE(w.Runs(2));
  w.Run(from - w.now - 60 * kSecond);
  EXPECT_TRUE(w.stopping.contains(1));
}

TEST(Maintenance, CalledOffItIsForgotten) {
  World w;
  w.Feed({NodeUp{GpuNode("a")}, MaintenanceSet{{"m", {"a"}, kHour, 2 * kHour}}});
  w.Feed({JobSubmitted{Firm(1, 0)}}, kSecond);
  EXPECT_FALSE(w.Runs(1));
  w.Feed({MaintenanceOver{"m"}}, kSecond);
  w.Run(kSecond);
  EXPECT_TRUE(w.Runs(1));
}

TEST(Maintenance, AnnouncedForOtherNodesTheFirstOnesAreFree) {
  World w;
  w.Feed({NodeUp{GpuNode("a")}, NodeUp{GpuNode("b", 4)}, MaintenanceSet{{"m", {"a"}, kHour, 2 * kHour}}});
  w.Feed({MaintenanceSet{{"m", {"b"}, kHour, 2 * kHour}}}, kSecond);
  JobSpec firm = Firm(1, 0);
  firm.roles[0].request.gpus = 8;
  w.Feed({JobSubmitted{firm}}, kSecond);
  EXPECT_TRUE(w.Runs(1));
}

TEST(Dependencies, AfterOkNeedsSuccessAndAfterAnyDoesNot) {
  World w;
  w.Feed({NodeUp{GpuNode("a")}, JobSubmitted{Gang(1, 1, 1)}, JobSubmitted{Gang(2, 1, 1)}});
  JobSpec any = Gang(3, 1, 1), ok = Gang(4, 1, 1), fine = Gang(5, 1, 1);
  any.after = {1};
  ok.after_ok = {1, 2};
  fine.after_ok = {2};
  w.Feed({JobSubmitted{any}, JobSubmitted{ok}, JobSubmitted{fine}}, kSecond);
  auto actions = w.Feed({JobEnded{1, true, false}, JobEnded{2}}, kSecond);
  EXPECT_TRUE(w.Runs(3));
  EXPECT_TRUE(w.Runs(5));
  EXPECT_FALSE(w.Runs(4));
  const Doomed* doomed = Find<Doomed>(actions);
  ASSERT_NE(doomed, nullptr);
  EXPECT_EQ(doomed->job, 4u);
  EXPECT_EQ(doomed->dependency, 1u);
  EXPECT_EQ(Explain(w.state, 4)->at(0).kind, Kind::kDoomed);
  EXPECT_EQ(NextWake(w.state), kNever) << "nothing to wait for";
}

TEST(Deadlines, AHardOneIsPromisedOrRefusedAtOnce) {
  World w;
  JobSpec busy = Gang(1, 1, 8);
  busy.preemptible = false;
  busy.limit = 2 * kHour;
  w.Feed({NodeUp{GpuNode("a")}, JobSubmitted{busy}});
  auto hard = [&](JobId id, Micros deadline) {
    JobSpec j = Gang(id, 1, 8);
    j.limit = kHour;
    j.deadline = deadline;
    j.hard_deadline = true;
    return j;
  };
  auto actions = w.Feed({JobSubmitted{hard(2, w.now + 2 * kHour)}}, kSecond);
  const Admission* answer = Find<Admission>(actions);
  ASSERT_NE(answer, nullptr);
  EXPECT_FALSE(answer->met) << "two hours until there is room, and one to run";
  EXPECT_GT(answer->end, w.now + 2 * kHour);
  EXPECT_EQ(Find<Hold>(actions), nullptr);
  actions = w.Feed({JobSubmitted{hard(3, w.now + 4 * kHour)}}, kSecond);
  answer = Find<Admission>(actions);
  ASSERT_NE(answer, nullptr);
  EXPECT_TRUE(answer->met);
  EXPECT_LE(answer->end, w.now + 4 * kHour);
  // A promise is kept, whatever other jobs come.
  JobSpec rival = Gang(4, 1, 8);
  rival.estimate = 60 * kSecond;
  rival.preemptible = false;
  w.Feed({JobSubmitted{rival}}, kSecond);
  w.Feed({JobEnded{1}}, kHour);
  w.Run(kSecond);
  EXPECT_TRUE(w.Runs(3));
  // Where there is room it starts at once.
  w.Feed({NodeUp{GpuNode("b")}}, kSecond);
  w.Feed({JobEnded{2}, JobEnded{4}}, kSecond);
  actions = w.Feed({JobSubmitted{hard(5, w.now + 2 * kHour)}}, kSecond);
  EXPECT_TRUE(Find<Admission>(actions)->met);
  EXPECT_TRUE(w.Runs(5));
}

int Admissions(const std::vector<Action>& actions) {
  return static_cast<int>(std::count_if(actions.begin(), actions.end(),
                                        [](const Action& a) { return std::holds_alternative<Admission>(a); }));
}

TEST(Deadlines, NothingIsPromisedOfAProgramThatWasNeverSeenAndHasNoLimit) {
  World w;
  w.Feed({NodeUp{GpuNode("a")}});
  JobId id = 0;
  const auto hard = [&](const std::string& name) {
    JobSpec j = Gang(++id, 1, 1);
    j.name = name;
    j.deadline = w.now + 100 * kHour;
    j.hard_deadline = true;
    return j;
  };
  // Others of this size are well known, which predicts nothing for this program.
  for (int i = 0; i < 20; ++i) {
    JobSpec other = hard("known");
    other.hard_deadline = false;
    w.Feed({JobSubmitted{other}}, kSecond);
    w.Feed({JobEnded{id}}, 600 * kSecond);
  }
  auto actions = w.Feed({JobSubmitted{hard("new")}}, kSecond);
  const Admission* answer = Find<Admission>(actions);
  ASSERT_NE(answer, nullptr);
  EXPECT_FALSE(answer->met);
  EXPECT_FALSE(answer->known);
  EXPECT_TRUE(w.Runs(id)) << "there is room, and nothing else to wait for";
  actions = w.Feed({JobSubmitted{hard("known")}}, kSecond);
  answer = Find<Admission>(actions);
  ASSERT_NE(answer, nullptr);
  EXPECT_TRUE(answer->met && answer->known);
}

TEST(Deadlines, ABrokenPromiseIsTakenBackOnceAndNotRepeated) {
  World w;
  w.Feed({NodeUp{GpuNode("a")}});
  JobSpec j = Gang(1, 1, 8);
  j.limit = kHour;
  j.deadline = w.now + 90 * 60 * kSecond;
  j.hard_deadline = true;
  auto actions = w.Feed({JobSubmitted{j}}, kSecond);
  ASSERT_TRUE(Find<Admission>(actions)->met);
  ASSERT_TRUE(w.Runs(1));
  actions = w.Feed({NodeLost{"a"}, JobStopped{1, w.now}}, 40 * 60 * kSecond);
  for (const Action& a : w.Run(2 * 60 * kSecond)) actions.push_back(a);
  ASSERT_EQ(Admissions(actions), 1);
  EXPECT_FALSE(Find<Admission>(actions)->met);
  actions = w.Feed({NodeUp{GpuNode("a")}}, kSecond);
  EXPECT_TRUE(w.Runs(1));
  EXPECT_EQ(Admissions(actions) + Admissions(w.Run(3 * kHour)), 0);
}

TEST(Deadlines, AProgramThatRunsLongerThanEverBreaksItsPromise) {
  World w;
  w.Feed({NodeUp{GpuNode("a")}});
  JobSpec j = Gang(0, 1, 1);
  j.name = "nightly";
  for (j.id = 1; j.id <= 20; ++j.id) {
    w.Feed({JobSubmitted{j}}, kSecond);
    w.Feed({JobEnded{j.id}}, 600 * kSecond);
  }
  j.hard_deadline = true;
  j.deadline = w.now + kHour;
  auto actions = w.Feed({JobSubmitted{j}}, kSecond);
  ASSERT_TRUE(Find<Admission>(actions)->met);
  actions = w.Run(kHour);
  ASSERT_EQ(Admissions(actions), 1);
  EXPECT_FALSE(Find<Admission>(actions)->met);
}

TEST(Deadlines, OneThatCannotBeMetIsInNobodysWay) {
  World w;
  w.Feed({NodeUp{GpuNode("a", 1)}, JobSubmitted{Gang(1, 1, 1)}});
  JobSpec lost = Gang(2, 1, 1), plain = Gang(3, 1, 1), due = Gang(4, 1, 1);
  lost.estimate = 2 * kHour, lost.deadline = w.now + kHour;
  plain.estimate = 3 * kHour;
  due.estimate = 4 * kHour, due.deadline = w.now + 5 * kHour;
  w.Feed({JobSubmitted{lost}, JobSubmitted{plain}, JobSubmitted{due}}, kSecond);
  w.Feed({JobEnded{1}}, kSecond);
  EXPECT_TRUE(w.Runs(4)) << "the longest, and the only one that a deadline can still be met of";
  w.Feed({JobEnded{4}}, kSecond);
  EXPECT_TRUE(w.Runs(2)) << "as if it had none: the shorter first";
}

TEST(Deadlines, OfTwoAlikeTheOneThatCannotWaitGoesFirst) {
  World w;
  w.Feed({NodeUp{GpuNode("a", 1)}, JobSubmitted{Gang(1, 1, 1)}});
  JobSpec far = Gang(2, 1, 1), near = Gang(3, 1, 1);
  far.estimate = near.estimate = kHour;
  far.deadline = w.now + 20 * kHour;
  near.deadline = w.now + 80 * 60 * kSecond;
  w.Feed({JobSubmitted{far}, JobSubmitted{near}}, kSecond);
  w.Feed({JobEnded{1}}, kSecond);
  EXPECT_TRUE(w.Runs(3));
}

TEST(Deadlines, WhatPartOfTheirTimeOthersNeededTellsOfOneThatWasNeverSeen) {
  World w;
  w.Feed({NodeUp{GpuNode("a")}});
  JobSpec j = Gang(0, 1, 1);
  for (j.id = 1; j.id <= 60; ++j.id) {
    const Micros run = (1 + static_cast<Micros>(j.id) * 7919 % 40) * 600 * kSecond;
    j.deadline = w.now + 2 * run;
    w.Feed({JobSubmitted{j}}, kSecond);
    w.Feed({JobEnded{j.id}}, run);
  }
  for (const Micros window : {kHour, 10 * kHour}) {
    ++j.id;
    j.deadline = w.now + window;
    w.Feed({JobSubmitted{j}});
    const Micros expected = w.state.core().Find(j.id)->estimate.expected;
    EXPECT_GT(expected, window / 3);
    EXPECT_LT(expected, window * 3 / 4);
  }
}

TEST(Deadlines, OfSoftStepsTheOneThatCanStillBeMetCounts) {
  for (bool late : {false, true}) {
    World w;
    w.Feed({NodeUp{GpuNode("a", 1)}, JobSubmitted{Gang(1, 1, 1)}});
    JobSpec plain = Gang(2, 1, 1), steps = Gang(3, 1, 1);
    plain.estimate = kHour;
    steps.estimate = 2 * kHour;
    // The first deadline is missed in both cases.
    steps.deadline_steps = {{w.now + kHour, 1000}, {w.now + (late ? 90 * 60 * kSecond : 150 * 60 * kSecond), 900}};
    w.Feed({JobSubmitted{plain}, JobSubmitted{steps}}, kSecond);
    w.Feed({JobEnded{1}}, kSecond);
    EXPECT_EQ(w.Runs(3), !late);
    EXPECT_EQ(w.Runs(2), late);
  }
}

TEST(Budgets, WhoHasUsedItUpIsAScavengerAndNotBlocked) {
  Policy policy;
  World w(policy);
  TeamSpec rich{"rich", "", 1000, {}, {}}, poor = rich;
  poor.name = "poor";
  poor.budget = {8 * 3600, 240 * kHour, 8 * 3600};  // an hour of the node in ten days
  w.Feed({NodeUp{GpuNode("a")}, TeamSet{rich}, TeamSet{poor}});
  JobSpec first = Gang(1, 1, 8);
  first.team = "poor";
  first.estimate = 4 * kHour;
  first.checkpoint = {true, kSecond, kSecond, 0};
  w.Feed({JobSubmitted{first}}, kSecond);
  w.Run(1800 * kSecond);
  EXPECT_FALSE(w.state.core().teams().OverBudget(w.state.core().Find(1)->team));
  // It runs on when the budget is used up, because no other job wants the room.
  for (int i = 0; i < 60; ++i) w.Feed({JobSaved{1, w.now, 0}}, 60 * kSecond);
  EXPECT_TRUE(w.Runs(1));
  EXPECT_TRUE(w.state.core().teams().OverBudget(w.state.core().Find(1)->team));
  // But any new job goes before it, however long that job runs.
  JobSpec other = Gang(2, 1, 8);
  other.team = "rich";
  other.estimate = 20 * kHour;
  auto actions = w.Feed({JobSubmitted{other}}, kSecond);
  const Preempt* out = Find<Preempt>(actions);
  ASSERT_NE(out, nullptr);
  EXPECT_EQ(out->job, 1u);
}

TEST(Budgets, RefilledEvenlyAndUsedUpOnlyByWhatIsCharged) {
  Policy policy;
  Teams t(policy);
  t.Set({"a", "", 1000, {}, {3600, kHour, 7200}});  // one GPU forever, and savings of two GPU-hours
  const TeamId a = t.Find("a");
  t.Set({"b", "a", 1000, {}, {}});
  t.Take(t.Find("b"), {{0, 2000, 1000}}, true, 0);
  t.Share(8000, kHour);
  EXPECT_NEAR(static_cast<double>(t.budget(a)), 3600e3, 10e3) << "one GPU more than is refilled";
  EXPECT_FALSE(t.OverBudget(t.Find("b")));
  t.Share(8000, 3 * kHour);
  EXPECT_TRUE(t.OverBudget(a));
  EXPECT_TRUE(t.OverBudget(t.Find("b"))) << "those below it, too";
  t.Share(8000, 3 * kHour + 60 * kSecond);
  EXPECT_TRUE(t.OverBudget(a)) << "not in and out of it all the time";
  t.Share(8000, 4 * kHour);
  EXPECT_FALSE(t.OverBudget(a)) << "what it uses meanwhile is not charged";
}

}  // namespace
}  // namespace vrun::sched::core
