// SPDX-License-Identifier: Apache-2.0
// Preemption, teams, and the scheduler's journal, with a manual clock and no network.
#include <random>

#include "control/journal/journal.h"
#include "control/testing/state_testing.h"
#include "sched/engine/inspect.h"

namespace vrun::control {
namespace {

class PreemptionTest : public StateTest {
 protected:
  static v1::SubmitRequest JobOf(const std::string& id, v1::JobClass klass, uint32_t gpus, bool requeue = true) {
    v1::SubmitRequest request = SimpleJob(id, 1, gpus);
    request.mutable_spec()->mutable_scheduling()->set_class_(klass);
    request.mutable_spec()->mutable_scheduling()->set_requeue(requeue);
    return request;
  }
  // A node of two GPUs, both used by a running preemptible job.
  v1::Placement Victim(v1::SubmitRequest request = JobOf("victim", v1::TRAINING, 2)) {
    Register(SimpleNode("n1", 8, 2));
    const v1::Placement p = Submit(request).placement();
    Report("n1", ReportOf(p, v1::RUNNING));
    Starts();
    return p;
  }
  void Teams(const std::string& text) {
    auto config = ParseSchedulerConfig(text, "teams.toml");
    ASSERT_TRUE(config) << config.error().message();
    settings_.scheduler = *config;
    Restart();
  }
  v1::WhyAnswer WhyOf(uint64_t id) {
    v1::WhyRequest request;
    request.set_job(id);
    return *Why(*state_, kAnna, request);
  }
  // Some days of submissions, ends and preemptions; then all of it is replayed from the journal.
  void Live(uint32_t seed);
  std::vector<std::string> Journal() {
    return *Transaction([&] { return store_->Journal(); });
  }
};

TEST_F(PreemptionTest, AHigherClassGetsTheRoomAndTheVictimIsStartedAgainWhenItsWritesAreHome) {
  const v1::Placement victim = Victim();
  EXPECT_EQ(victim.gpu_mask(), 3u) << "both";
  clock_.AdvanceSeconds(60);
  const v1::SubmitReply urgent = Submit(JobOf("urgent", v1::PRODUCTION, 2));
  EXPECT_FALSE(urgent.has_placement());
  auto stops = Stops();
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_EQ(stops[0].stop().job(), victim.job());
  EXPECT_EQ(stops[0].stop().signal(), SIGTERM);
  EXPECT_NE(stops[0].stop().preempted().find("job " + std::to_string(urgent.job()) + " (production"), std::string::npos)
      << stops[0].stop().preempted();
  EXPECT_TRUE(Starts().empty()) << "the room is not free yet";
  EXPECT_EQ(WhyOf(urgent.job()).blockers(0).kind(), "being-freed");

  LeavesFor("n1", victim);
  auto starts = Starts();
  ASSERT_EQ(starts.size(), 1u);
  const v1::Placement p = starts[0].start().placement();
  EXPECT_EQ(p.job(), urgent.job());
  EXPECT_EQ(StateOf(victim.job()), v1::PENDING);
  EXPECT_EQ(Event(victim.job()).placement().token(), victim.token()) << "a new home finds the writes";
  WritesAreHome("n1", victim);
  EXPECT_FALSE(Event(victim.job()).has_placement());

  Report("n1", ReportOf(p, v1::RUNNING));
  Report("n1", ExitOf(p, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  starts = Starts();
  ASSERT_EQ(starts.size(), 1u);
  const v1::Placement again = starts[0].start().placement();
  EXPECT_EQ(again.job(), victim.job());
  EXPECT_EQ(again.attempt(), 2u);
  EXPECT_GT(again.epoch(), victim.epoch());
  Report("n1", ReportOf(again, v1::RUNNING));
  Report("n1", ExitOf(again, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  const v1::JobInfo info = InfoOf(victim.job());
  EXPECT_EQ(info.state(), v1::COMPLETED);
  ASSERT_EQ(info.attempts_size(), 2);
  EXPECT_EQ(info.attempts(0).state(), v1::PREEMPTED);
  EXPECT_EQ(info.attempts(0).reason(), "preempted: for the test");
  EXPECT_EQ(info.attempts(1).state(), v1::COMPLETED);
}

TEST_F(PreemptionTest, TheNextAttemptIsNotOrderedBeforeTheWritesOfTheLastAreHome) {
  const v1::Placement victim = Victim();
  Register(SimpleNode("n2", 8, 2));
  const v1::Placement other = Submit(JobOf("other", v1::PRODUCTION, 2, false)).placement();
  ASSERT_EQ(other.node(), "n2");
  Take(v1::ControllerMessage::kStart, "n2");
  clock_.AdvanceSeconds(60);
  Submit(JobOf("urgent", v1::PRODUCTION, 2));
  ASSERT_EQ(Stops().size(), 1u);
  LeavesFor("n1", victim);
  Starts();
  // Now there is room for it elsewhere and it is placed there, but its node is not told yet.
  Report("n2", ExitOf(other, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  EXPECT_EQ(StateOf(victim.job()), v1::STARTING);
  EXPECT_EQ(Event(victim.job()).placement().epoch(), victim.epoch());
  EXPECT_TRUE(Take(v1::ControllerMessage::kStart, "n2").empty());
  // A node that reconnects meanwhile is not told either.
  Register(SimpleNode("n2", 8, 2));
  EXPECT_TRUE(Take(v1::ControllerMessage::kStart, "n2").empty());
  Restart();
  auto n1 = SimpleNode("n1", 8, 2);
  *n1.add_attempts() = ReportOf(victim, v1::COMPLETING);
  Register(n1);
  Register(SimpleNode("n2", 8, 2));
  EXPECT_TRUE(Take(v1::ControllerMessage::kStart, "n2").empty());
  WritesAreHome("n1", victim);
  auto starts = Take(v1::ControllerMessage::kStart, "n2");
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0].start().placement().attempt(), 2u);
  EXPECT_EQ(Event(victim.job()).placement().epoch(), starts[0].start().placement().epoch());
}

TEST_F(PreemptionTest, TheSignalAndTheGraceThatItAskedFor) {
  v1::SubmitRequest request = JobOf("victim", v1::EXPERIMENT, 2);
  request.mutable_spec()->mutable_scheduling()->set_signal(SIGUSR1);
  request.mutable_spec()->mutable_scheduling()->set_grace_s(120);
  request.mutable_spec()->mutable_scheduling()->set_saves(true);
  Register(SimpleNode("n1", 8, 2));
  const v1::Placement p = Submit(request).placement();
  auto starts = Starts();
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0].start().spec().scheduling().grace_s(), 120u);
  Report("n1", ReportOf(p, v1::RUNNING));
  clock_.AdvanceSeconds(3600);
  Submit(JobOf("urgent", v1::PRODUCTION, 2));
  auto stops = Stops();
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_EQ(stops[0].stop().signal(), SIGUSR1);
  EXPECT_EQ(stops[0].stop().grace_ms(), 120'000u);
}

TEST_F(PreemptionTest, WhoMayNotBeRequeuedIsLeftAlone) {
  Victim(JobOf("victim", v1::SCAVENGER, 2, false));
  clock_.AdvanceSeconds(3600);
  const auto urgent = Submit(JobOf("urgent", v1::INFERENCE, 2));
  EXPECT_TRUE(Stops().empty());
  EXPECT_EQ(StateOf(urgent.job()), v1::PENDING);
}

TEST_F(PreemptionTest, AVictimThatIsCancelledOnItsWayOutIsCancelled) {
  const v1::Placement victim = Victim();
  clock_.AdvanceSeconds(60);
  Submit(JobOf("urgent", v1::PRODUCTION, 2));
  ASSERT_EQ(Stops().size(), 1u);
  EXPECT_EQ(CancelJob(victim.job()), v1::RUNNING);
  LeavesFor("n1", victim);
  WritesAreHome("n1", victim);
  EXPECT_EQ(StateOf(victim.job()), v1::CANCELLED);
}

TEST_F(PreemptionTest, AVictimThatEndsByItselfFirstHasEnded) {
  const v1::Placement victim = Victim();
  clock_.AdvanceSeconds(60);
  const auto urgent = Submit(JobOf("urgent", v1::PRODUCTION, 2));
  ASSERT_EQ(Stops().size(), 1u);
  Report("n1", ExitOf(victim, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  EXPECT_EQ(StateOf(victim.job()), v1::COMPLETED);
  EXPECT_EQ(StateOf(urgent.job()), v1::STARTING);
}

TEST_F(PreemptionTest, ACrashAtAnyPointOfAPreemptionLosesNothing) {
  for (int crash = 0; crash < 5; ++crash) {
    SCOPED_TRACE(crash);
    Forget();
    const v1::Placement victim = Victim();
    auto crashes = [&](const v1::AttemptReport& told) {
      Restart();
      sent_.clear();
      auto back = SimpleNode("n1", 8, 2);
      *back.add_attempts() = told;
      Register(back);
    };
    clock_.AdvanceSeconds(60);
    if (crash == 0) crashes(ReportOf(victim, v1::RUNNING));
    const auto urgent = Submit(JobOf("urgent", v1::PRODUCTION, 2));
    EXPECT_EQ(Stops().size(), 1u);
    if (crash == 1) {
      crashes(ReportOf(victim, v1::RUNNING));
      EXPECT_EQ(Stops().size(), 1u) << "the order is repeated";
    }
    v1::AttemptReport left = ReportOf(victim, v1::COMPLETING);
    left.mutable_exit()->set_kind(v1::ExitRecord::PREEMPTED_BY_JOB);
    if (crash == 2) {
      crashes(left);  // it left while no controller was running
    } else {
      LeavesFor("n1", victim);
    }
    auto starts = Starts();
    ASSERT_EQ(starts.size(), 1u);
    const v1::Placement p = starts[0].start().placement();
    EXPECT_EQ(p.job(), urgent.job());
    if (crash == 3) {
      Restart();
      sent_.clear();
      auto back = SimpleNode("n1", 8, 2);
      *back.add_attempts() = left;
      Register(back);
      starts = Starts();
      ASSERT_EQ(starts.size(), 1u) << "the node never got the order";
      EXPECT_EQ(starts[0].start().placement().epoch(), p.epoch());
    }
    WritesAreHome("n1", victim);
    if (crash == 4) crashes(ReportOf(p, v1::RUNNING));
    Report("n1", ExitOf(p, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
    starts = Starts();
    ASSERT_EQ(starts.size(), 1u);
    EXPECT_EQ(starts[0].start().placement().job(), victim.job());
    EXPECT_EQ(starts[0].start().placement().attempt(), 2u);
  }
}

TEST_F(PreemptionTest, ARestartedHostGivesItsRequeueableJobsBack) {
  const v1::Placement p = Victim();
  Register(SimpleNode("n1", 8, 2, 77));
  auto starts = Starts();
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0].start().placement().attempt(), 2u);
  EXPECT_EQ(InfoOf(p.job()).attempts(0).reason(), "node n1 was restarted while the job was on it");
}

TEST_F(PreemptionTest, ALostNodeWithWritesThatNeverCameHomeEndsTheJob) {
  const v1::Placement victim = Victim();
  clock_.AdvanceSeconds(60);
  (void)Heard(*state_, "n1");
  Submit(JobOf("urgent", v1::PRODUCTION, 2));
  LeavesFor("n1", victim);
  PassSeconds(40);
  EXPECT_EQ(StateOf(victim.job()), v1::FAILED);
  EXPECT_NE(Event(victim.job()).reason().find("not all writes of attempt 1 reached home"), std::string::npos);
}

// --- the scheduler's journal ---

TEST_F(PreemptionTest, WhoStartedAMomentAgoIsAskedToLeaveThoughNothingHappens) {
  Register(SimpleNode("n1", 8, 2));
  const v1::Placement first = Submit(JobOf("first", v1::TRAINING, 2)).placement();
  Report("n1", ReportOf(first, v1::RUNNING));
  Submit(JobOf("urgent", v1::PRODUCTION, 2, false));
  ASSERT_EQ(Stops().size(), 1u);  // so the prices of running jobs are computed as of now
  Register(SimpleNode("n2", 8, 2));
  const v1::Placement young = Submit(JobOf("young", v1::TRAINING, 2)).placement();
  ASSERT_EQ(young.node(), "n2");
  Report("n2", ReportOf(young, v1::RUNNING));
  Submit(JobOf("urgent too", v1::PRODUCTION, 2, false));
  for (int i = 0; i < 12 && Take(v1::ControllerMessage::kStop, "n2").empty(); ++i) {
    ASSERT_LT(i, 10) << "nobody was asked to leave";
    ASSERT_TRUE(state_->NextWake());
    clock_.AdvanceMicros(*state_->NextWake());
    for (const char* n : {"n1", "n2"}) (void)Heard(*state_, n);
    Transaction([] { return 0; });
  }
  EXPECT_EQ(WhyOf(young.job()).summary().substr(0, 10), "preempted:");
}

TEST_F(PreemptionTest, TheJournalOfALifeLeadsToTheSameDecisions) {
  for (const uint32_t seed : {7u, 8u, 9u}) {
    SCOPED_TRACE(seed);
    Forget();
    Live(seed);
  }
}

void PreemptionTest::Live(uint32_t seed) {
  std::mt19937 random(seed);
  Register(SimpleNode("n1", 64, 8));
  Register(SimpleNode("n2", 64, 8));
  std::map<uint64_t, v1::Placement> running;
  for (int i = 0; i < 300; ++i) {
    clock_.AdvanceSeconds(random() % 600);
    for (const char* n : {"n1", "n2"}) (void)Heard(*state_, n);
    const auto klass = static_cast<v1::JobClass>(v1::SCAVENGER + random() % 4);
    if (random() % 2 == 0) Submit(JobOf("r" + std::to_string(i), klass, 1 + random() % 8));
    // Asking why changes nothing and is not journaled.
    if (const auto waiting = sched::core::Waiting(state_->scheduler()); !waiting.empty()) {
      EXPECT_GT(WhyOf(waiting[random() % waiting.size()]).blockers_size(), 0);
    }
    for (const char* n : {"n1", "n2"}) {
      for (auto& m : Take(v1::ControllerMessage::kStart, n)) {
        running[m.start().placement().job()] = m.start().placement();
        Report(n, ReportOf(m.start().placement(), v1::RUNNING));
      }
      for (auto& m : Take(v1::ControllerMessage::kStop, n)) {
        const v1::Placement p = running[m.stop().job()];
        LeavesFor(n, p);
        WritesAreHome(n, p);
        running.erase(p.job());
      }
    }
    if (!running.empty() && random() % 2 == 0) {
      const v1::Placement p = running.begin()->second;
      running.erase(running.begin());
      Report(p.node(), ExitOf(p, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
    }
  }
  const std::vector<std::string> rows = Journal();
  ASSERT_GT(rows.size(), 300u);
  sched::core::State again{settings_.scheduler.weights};
  size_t decisions = 0;
  for (const std::string& row : rows) {
    v1::JournalSteps steps;
    ASSERT_TRUE(steps.ParseFromString(row));
    for (const auto& step : steps.steps()) decisions += !step.actions().empty();
    const Status replayed = Replay(steps, &again);
    ASSERT_TRUE(replayed) << replayed.error().message();
  }
  EXPECT_GT(decisions, 100u);
  // The restored scheduler has the same waiting and running jobs.
  EXPECT_EQ(sched::core::Waiting(again), sched::core::Waiting(state_->scheduler()));
  for (const char* n : {"n1", "n2"}) {
    EXPECT_EQ(sched::core::RunningOn(again, n), sched::core::RunningOn(state_->scheduler(), n));
  }
  // Other weights decide differently, and Replay detects it.
  sched::core::Policy other = settings_.scheduler.weights;
  other.class_weight.fill(1000);
  other.preemption = false;
  sched::core::State wrong{other};
  Status replayed;
  for (const std::string& row : rows) {
    v1::JournalSteps steps;
    ASSERT_TRUE(steps.ParseFromString(row));
    if (replayed) replayed = Replay(steps, &wrong);
  }
  EXPECT_EQ(replayed.error().code(), Code::kAborted);
}

TEST_F(PreemptionTest, WithoutAJournalTheJobsSayWhatRuns) {
  const v1::Placement p = Victim();
  const auto waiting = Submit(JobOf("waits", v1::TRAINING, 1));
  ASSERT_TRUE(Transaction([&] { return store_->ClearJournal(); }));
  Restart();
  auto back = SimpleNode("n1", 8, 2);
  *back.add_attempts() = ReportOf(p, v1::RUNNING);
  Register(back);
  EXPECT_TRUE(Starts().empty()) << "the room is taken";
  EXPECT_EQ(Event(waiting.job()).queue_position(), 1u);
  EXPECT_EQ(Event(waiting.job()).reason(), "needs 1 gpu; the best node of pool local has 0 free");
  Report("n1", ExitOf(p, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  EXPECT_EQ(Starts().size(), 1u);
}

TEST_F(PreemptionTest, AJournalThatDoesNotParseIsBegunAnew) {
  const v1::Placement p = Victim();
  ASSERT_TRUE(Transaction([&] { return store_->AppendJournal("\xff\xff"); }));
  Restart();
  EXPECT_EQ(StateOf(p.job()), v1::RUNNING);
  EXPECT_EQ(NodeOf("n1").used().gpus(), 2u);
  v1::JournalSteps steps;
  EXPECT_TRUE(steps.ParseFromString(Journal().back()));
}

TEST_F(PreemptionTest, ALongJournalIsBegunAnewWhileTheControllerRuns) {
  settings_.most_journal_rows = 20;
  Restart();
  const v1::Placement held = Victim(JobOf("held", v1::TRAINING, 1, false));
  const auto waits = Submit(JobOf("waits", v1::TRAINING, 2));
  for (int i = 0; i < 50; ++i) {
    const v1::Placement p = Submit(JobOf("r" + std::to_string(i), v1::TRAINING, 1)).placement();
    ASSERT_EQ(p.node(), "n1") << i;
    Report("n1", ExitOf(p, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
    ASSERT_LE(Journal().size(), 20u);
  }
  EXPECT_EQ(Event(waits.job()).queue_position(), 1u);
  Starts();
  Restart();
  auto back = SimpleNode("n1", 8, 2);
  *back.add_attempts() = ReportOf(held, v1::RUNNING);
  Register(back);
  EXPECT_TRUE(Starts().empty()) << "its one GPU is taken";
}

TEST_F(PreemptionTest, RunTimesOfThePastAreKnownWithoutAJournal) {
  Register(SimpleNode("n1", 8, 2));
  for (int i = 0; i < 12; ++i) {
    const v1::Placement p = Submit(JobOf("r" + std::to_string(i), v1::TRAINING, 2)).placement();
    Report("n1", ReportOf(p, v1::RUNNING));
    clock_.AdvanceSeconds(1000);
    (void)Heard(*state_, "n1");
    Report("n1", ExitOf(p, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  }
  ASSERT_TRUE(Transaction([&] { return store_->ClearJournal(); }));
  Restart();
  Register(SimpleNode("n1", 8, 2));
  const v1::Placement p = Submit(JobOf("next", v1::TRAINING, 2)).placement();
  const auto view = sched::core::InspectJob(state_->scheduler(), p.job());
  ASSERT_TRUE(view);
  EXPECT_TRUE(view->learned);
  EXPECT_NEAR(static_cast<double>(view->expected) / 1e6, 1000, 300);
}

TEST_F(PreemptionTest, WhyTellsWhatWouldHelpWhenItMayStartAndWhatWasDecided) {
  Register(SimpleNode("n1", 8, 2));
  v1::SubmitRequest firm = JobOf("firm", v1::TRAINING, 1, false);
  firm.mutable_spec()->mutable_scheduling()->set_estimate_s(600);
  const v1::Placement first = Submit(firm).placement();
  Report("n1", ReportOf(first, v1::RUNNING));
  const auto second = Submit(JobOf("second", v1::TRAINING, 2));
  v1::WhyAnswer why = WhyOf(second.job());
  EXPECT_EQ(why.blockers(0).kind(), "no-room");
  const std::vector<std::string> helps(why.starts_now().begin(), why.starts_now().end());
  EXPECT_EQ(helps, (std::vector<std::string>{"with -G 1", "if job " + std::to_string(first.job()) + " ended"}));
  EXPECT_NEAR(static_cast<double>(why.expected_us() - clock_.Wall()) / 1e6, 600, 60);
  EXPECT_GE(why.late_us(), why.expected_us());
  EXPECT_GT(why.confidence_percent(), 0u);
  EXPECT_LT(why.confidence_percent(), 50u) << "an owner's word";
  EXPECT_EQ(why.expected_why().find("when job " + std::to_string(first.job()) + " ends"), 0u) << why.expected_why();
  EXPECT_EQ(why.decisions_size(), 0);
  // The suggested change helps.
  Report("n1", ExitOf(first, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  Report("n1", ReportOf(Starts().back().start().placement(), v1::RUNNING));
  why = WhyOf(second.job());
  ASSERT_EQ(why.decisions_size(), 1);
  EXPECT_EQ(why.decisions(0).kind(), "started");
  EXPECT_NEAR(static_cast<double>(why.decisions(0).at_us()), static_cast<double>(clock_.Wall()), 1e6);
  clock_.AdvanceSeconds(60);
  const auto urgent = Submit(JobOf("urgent", v1::PRODUCTION, 2));
  why = WhyOf(second.job());
  ASSERT_EQ(why.decisions_size(), 2);
  EXPECT_NEAR(static_cast<double>(why.decisions(0).at_us()), static_cast<double>(clock_.Wall() - 60'000'000), 1e6);
  EXPECT_EQ(why.decisions(1).kind(), "evicted");
  EXPECT_EQ(why.decisions(1).other_job(), urgent.job());
  EXPECT_GT(why.decisions(1).gain_milli(), why.decisions(1).price_milli());
  EXPECT_GT(why.decisions(1).worth_class(), 0);
  EXPECT_EQ(WhyOf(urgent.job()).decisions(0).kind(), "room-claimed");
}

// --- teams ---

TEST_F(PreemptionTest, ALimitIsHonouredAndExplained) {
  Teams("[team.vision]\nusers = [\"anna\"]\nlimit = { \"\" = 1 }\n");
  Register(SimpleNode("n1", 8, 4));
  ASSERT_TRUE(Submit(JobOf("a", v1::TRAINING, 1)).has_placement());
  const auto second = Submit(JobOf("b", v1::TRAINING, 1));
  EXPECT_FALSE(second.has_placement());
  const v1::WhyAnswer why = WhyOf(second.job());
  ASSERT_GT(why.blockers_size(), 0);
  EXPECT_EQ(why.blockers(0).kind(), "limit");
  EXPECT_EQ(why.blockers(0).text(), "team vision is limited to 1 gpu and uses 1 gpu");
  EXPECT_EQ(Event(second.job()).reason(), "team vision is limited to 1 gpu and uses 1 gpu");
  const v1::TeamList teams = *control::Teams(*state_, kAnna, {});
  ASSERT_EQ(teams.teams_size(), 1);
  EXPECT_EQ(teams.teams(0).used_milli(), 1000);
  EXPECT_EQ(teams.teams(0).waiting_milli(), 1000);
  EXPECT_EQ(teams.teams(0).quotas(0).limit_milli(), 1000);
  // Another team is not blocked.
  EXPECT_TRUE(Submit(JobOf("c", v1::TRAINING, 1), kBob).has_placement());
  // A new limit starts waiting jobs.
  Transaction([&] {
    state_->Configure(*ParseSchedulerConfig("[team.vision]\nusers = [\"anna\"]\nlimit = { \"\" = 2 }\n", "f"));
    return 0;
  });
  EXPECT_EQ(StateOf(second.job()), v1::STARTING);
}

TEST_F(PreemptionTest, AGuaranteeIsTakenBackFromABorrower) {
  Teams("[team.owner]\nusers = [\"bob\"]\nguarantee = { \"\" = 2 }\n[team.guest]\nusers = [\"anna\"]\n");
  const v1::Placement guest = Victim();
  clock_.AdvanceSeconds(3600);
  const auto owner = Submit(JobOf("owner", v1::TRAINING, 2), kBob);
  auto stops = Stops();
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_NE(stops[0].stop().preempted().find("takes back what its team is guaranteed"), std::string::npos);
  LeavesFor("n1", guest);
  EXPECT_EQ(StateOf(owner.job()), v1::STARTING);
}

TEST_F(PreemptionTest, OnlyMembersSubmitForATeamAndOnlyWithinItsClass) {
  Teams("[team.vision]\nusers = [\"anna\"]\nmax_class = \"training\"\n");
  Register(SimpleNode("n1", 8, 4));
  v1::SubmitRequest request = JobOf("a", v1::PRODUCTION, 1);
  Error refused = SubmitError(request);
  EXPECT_EQ(refused.code(), Code::kDenied);
  EXPECT_EQ(refused.message(), "team vision: its jobs may be of class training at most: choose that with --class");
  request.mutable_spec()->mutable_scheduling()->set_class_(v1::TRAINING);
  request.mutable_spec()->mutable_scheduling()->set_team("sound");
  EXPECT_EQ(SubmitError(request).message(), "team sound: no such team: yours are vision");
  request.mutable_spec()->mutable_scheduling()->set_team("vision");
  auto denied = Transaction([&] { return control::Submit(*state_, kBob, request); });
  EXPECT_EQ(denied.error().message(), "team vision: you are not in its list: name none");
  EXPECT_EQ(InfoOf(Submit(request).job()).scheduling().team(), "vision");
  // Whoever is in no team has a share of his own, and no higher classes than others.
  request = JobOf("b", v1::INFERENCE, 1);
  denied = Transaction([&] { return control::Submit(*state_, kBob, request); });
  EXPECT_EQ(denied.error().message(),
            "without a team your jobs may be of class training at most: choose that with --class");
}

TEST(SchedulerConfigTest, WhatIsWrongIsNamedWithItsLine) {
  struct Case {
    const char* text;
    const char* error;
  };
  for (const Case& c : {
           Case{"[weights]\nbeta = 500\n\n[team.a]\nlimt = { \"\" = 1 }\n",
                "f:5: team a: unknown setting limt: known are parent, weight, users, leads, max_class, guarantee, "
                "limit, "
                "budget, month and mail"},
           Case{"[team.a]\nweight = -1\n", "f:2: team a: weight: expected a number above 0"},
           Case{"[team.a]\nparent = \"b\"\n[team.b]\n",
                "f:2: team a: parent: expected the name of a team that stands before it"},
           Case{"# groß\n[team.\"groß\"]\n[team.klüngel]\n", "f:3: a letter outside of ASCII: put the text in quotes"},
           Case{"[team.a]\nlimit = 3\n", "f:2: team a: limit: expected GPUs by type, as in { h100 = 8, \"\" = 16 }"},
           Case{"[team.a]\nbudget = { gpu_hours = 5 }\n",
                "f:2: team a: budget: expected GPU time for a period, as in { gpu_hours = 500, days = 30, burst = 1000 "
                "}"},
           Case{"[price]\nh100 = 0\n", "f:2: price of h100: expected a number from 0.001 to 1000"},
           Case{"admins = \"root\"\n", "f:1: admins: expected a list of names"},
           Case{"topology = 1\n", "f:1: topology: expected the name of a file"},
           Case{"[team.a]\nmax_class = \"urgent\"\n",
                "f:2: team a: max_class: expected scavenger, experiment, training, production or inference"},
           Case{"[team.a]\nguarantee = { \"\" = 3 }\nlimit = { \"\" = 2 }\n",
                "f:1: team a: it is guaranteed more than its limit"},
           Case{"[team.a]\n\n[weights]\nbeta = 1\nspeed = 2\n", "f:5: 'speed': there is no such weight"},
           Case{"[teams]\n",
                "f:1: unknown section or setting teams: known are admins, operators, visibility, commands, max_class, "
                "topology, [weights], [price], [money], [gpus], [bounds], [oidc], [notify], [retention] and "
                "[team.NAME]"},
           Case{"visibility = \"none\"\n", "f:1: visibility: expected \"own\", \"team\" or \"all\""},
           Case{"[bounds]\njobs = -1\n", "f:2: bounds.jobs: expected a number from 0 to 1000000000"},
       }) {
    auto config = ParseSchedulerConfig(c.text, "f");
    ASSERT_FALSE(config) << c.text;
    EXPECT_EQ(config.error().message(), c.error);
  }
  auto config = ParseSchedulerConfig(
      "# comment\n[team.lab]\nguarantee = { \"\" = 8, h100 = 2 }\n[team.vision]\nparent = \"lab\"\nweight = 2.5\n"
      "[weights]\ntheta = 7 # comment\n",
      "f");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->weights.theta, 7);
  ASSERT_EQ(config->teams.size(), 2u);
  EXPECT_EQ(config->teams[1].spec.parent, "lab");
  EXPECT_EQ(config->teams[1].spec.weight, 2500);
  EXPECT_EQ(config->teams[0].spec.quotas.size(), 2u);
}

// --- accounts ---

TEST_F(PreemptionTest, AccountsTellWhatWasHeldAndWhatWasOfUse) {
  const v1::Placement victim = Victim();
  clock_.AdvanceSeconds(60);
  const auto urgent = Submit(JobOf("urgent", v1::PRODUCTION, 2));
  LeavesFor("n1", victim);  // after a second of work, according to its record
  WritesAreHome("n1", victim);
  v1::Placement p = Starts().at(0).start().placement();
  auto ends = [&](const v1::Placement& of, int64_t seconds) {
    v1::AttemptReport report = ExitOf(of, v1::COMPLETED, v1::ExitRecord::EXITED, 0);
    report.mutable_exit()->set_started_us(clock_.Wall());
    report.mutable_exit()->set_ended_us(clock_.Wall() + seconds * 1'000'000);
    Report("n1", report);
  };
  ends(p, 30);
  ends(Starts().at(0).start().placement(), 50);
  const v1::AccountList list = *Accounts(*state_, kAnna, {});
  ASSERT_EQ(list.accounts_size(), 2);
  EXPECT_EQ(list.accounts(0).job().job(), victim.job());
  EXPECT_EQ(list.accounts(0).preemptions(), 1u);
  EXPECT_EQ(list.accounts(0).held_us(), 51'000'000);
  EXPECT_EQ(list.accounts(0).work_us(), 50'000'000) << "what it did before was lost: it does not save";
  EXPECT_EQ(list.accounts(1).job().job(), urgent.job());
  v1::AccountsRequest next;
  next.set_after(victim.job());
  EXPECT_EQ(Accounts(*state_, kAnna, next)->accounts_size(), 1);
}

}  // namespace
}  // namespace vrun::control
