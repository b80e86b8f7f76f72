// SPDX-License-Identifier: Apache-2.0
// The life of gangs: jobs of several pods that start together and end together.
#include "control/testing/gang_testing.h"
#include "sched/engine/inspect.h"

namespace vrun::control {
namespace {

TEST_F(GangTest, NothingRunsBeforeEverythingCan) {
  Cluster(2);
  const uint64_t job = Submit(GangJob("r1", 2, 3)).job();
  std::vector<v1::StartAttempt> starts;
  for (auto& [node, m] : TakeAll(v1::ControllerMessage::kStart)) starts.push_back(m.start());
  ASSERT_EQ(starts.size(), 2u);
  const v1::Placement a = starts[0].placement(), b = starts[1].placement();
  EXPECT_NE(a.node(), b.node());
  EXPECT_NE(a.token(), b.token()) << "a node does not know the other's secret";
  EXPECT_EQ(b.pod(), 1u);
  EXPECT_EQ(a.epoch(), b.epoch());
  for (const v1::StartAttempt& start : starts) {
    ASSERT_EQ(start.pods_size(), 2);
    EXPECT_EQ(start.pods(0).node(), a.node());
    EXPECT_EQ(start.pods(0).host(), "10.0.0." + a.node().substr(1));
    EXPECT_EQ(start.pods(1).first_rank(), 1u);
    EXPECT_EQ(start.pods(1).role(), "worker");
  }
  Ready(a);
  EXPECT_TRUE(Went().empty());
  EXPECT_EQ(StateOf(job), v1::STARTING);
  Ready(b);
  EXPECT_EQ(Went(), (std::set<uint32_t>{0, 1}));
  EXPECT_EQ(StateOf(job), v1::RUNNING);
  EXPECT_EQ(Event(job).pods(), 2u);
  EXPECT_EQ(PodEvent(job, 1).placement().token(), b.token());
  Report(a.node(), ReportOf(a, v1::RUNNING));
  Report(b.node(), ReportOf(b, v1::RUNNING));

  CommandEnds(a, 0);
  EXPECT_EQ(StateOf(job), v1::RUNNING) << "a clean end lets the others go on";
  EXPECT_TRUE(PodEvent(job, 0).has_exit());
  EXPECT_FALSE(PodEvent(job, 1).has_exit());
  EXPECT_TRUE(Stopped().empty());
  Ends(a, 0);
  CommandEnds(b, 0);
  EXPECT_EQ(StateOf(job), v1::COMPLETING);
  ExpectAllIsFree();
  Ends(b, 0);
  EXPECT_EQ(StateOf(job), v1::COMPLETED);
  const v1::JobInfo info = InfoOf(job);
  ASSERT_EQ(info.pods_size(), 2);
  EXPECT_EQ(info.pods(1).node(), b.node());
  EXPECT_EQ(info.exit().ranks_size(), 2);
  EXPECT_EQ(info.gang().pods(), 2u);
  EXPECT_EQ(PodEvent(job, 1).exit().pod(), 1u) << "each home run reads its pod's record, also later";
}

TEST_F(GangTest, EachPodHasANodeOfItsOwn) {
  Cluster(2);
  const Pods pods = Running(GangJob("r1", 2, 1, 1));
  ASSERT_EQ(pods.size(), 2u);
  EXPECT_NE(pods[0].node(), pods[1].node()) << "though one has room for both";
  EXPECT_EQ(NodeOf("n1").used().gpus(), 1u);
  const auto refused = control::Submit(*state_, kAnna, GangJob("r2", 3, 1));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("pods"), std::string::npos) << refused.error().message();
  for (const v1::Placement& p : pods) Ends(p, 0);
  EXPECT_EQ(StateOf(pods[0].job()), v1::COMPLETED);
  ExpectAllIsFree();
}

// As for mpirun: only the first pod has a command, the others wait for what it starts in them.
TEST_F(GangTest, TheJobOfALauncherEndsWithItsCommand) {
  for (const int status : {0, 4}) {
    sent_.clear();
    if (status == 0) Cluster(3);
    v1::SubmitRequest request = GangJob("r" + std::to_string(status), 3, 3);
    request.mutable_spec()->mutable_gang()->set_launcher(true);
    const Pods pods = Running(request);
    CommandEnds(pods[0], status);
    EXPECT_EQ(Stopped().size(), 2u);
    for (const int pod : {1, 2}) {
      Obeys(pods[pod], v1::ExitRecord::GANG_ENDED);
      Report(pods[pod].node(), ExitReport(pods[pod], v1::FAILED, v1::ExitRecord::GANG_ENDED, 0));
    }
    Ends(pods[0], status);
    EXPECT_EQ(StateOf(pods[0].job()), status == 0 ? v1::COMPLETED : v1::FAILED);
    ExpectAllIsFree();
  }
}

TEST_F(GangTest, TheFirstFailureEndsTheOthersAndIsNamed) {
  Cluster(3);
  v1::SubmitRequest request = GangJob("r1", 3, 3);
  request.mutable_spec()->mutable_gang()->set_ranks_per_pod(2);
  const Pods pods = Running(request);
  v1::AttemptReport report = ExitReport(pods[1], v1::COMPLETING, v1::ExitRecord::EXITED, 3);
  for (int i = 0; i < 2; ++i) {
    v1::RankExit* rank = report.mutable_exit()->add_ranks();
    rank->set_rank(static_cast<uint32_t>(2 + i));
    rank->set_exit_code(i == 1 ? 3 : 0);
    rank->set_signal(i == 1 ? 0 : SIGTERM);
    rank->set_killed(i == 0);
  }
  Report(pods[1].node(), report);
  const std::string why = "rank 3 on " + pods[1].node() + ": exit 3";
  EXPECT_EQ(Stopped(), (std::map<uint32_t, std::string>{{0, why}, {2, why}}));
  EXPECT_EQ(StateOf(pods[0].job()), v1::RUNNING);
  Obeys(pods[0], v1::ExitRecord::GANG_ENDED);
  // A second failure is a consequence of the first.
  CommandEnds(pods[2], 9);
  EXPECT_TRUE(Stopped().empty());
  report.set_state(v1::FAILED);
  Report(pods[1].node(), report);
  EXPECT_EQ(StateOf(pods[0].job()), v1::COMPLETING);
  Ends(pods[2], 9);
  EXPECT_EQ(StateOf(pods[0].job()), v1::FAILED);
  EXPECT_EQ(ReasonOf(pods[0].job()), why);
  const v1::JobInfo info = InfoOf(pods[0].job());
  EXPECT_EQ(info.exit().exit_code(), 9) << "the highest status";
  EXPECT_EQ(info.exit().reason(), why);
  EXPECT_EQ(info.exit().ranks_size(), 6);
  ExpectAllIsFree();
}

TEST_F(GangTest, WithNoKillTheOthersGoOn) {
  Cluster(2);
  v1::SubmitRequest request = GangJob("r1", 2, 3);
  request.mutable_spec()->mutable_gang()->set_no_kill(true);
  const Pods pods = Running(request);
  Ends(pods[0], 1);
  EXPECT_TRUE(Stopped().empty());
  EXPECT_EQ(StateOf(pods[0].job()), v1::RUNNING);
  Ends(pods[1], 0);
  EXPECT_EQ(StateOf(pods[0].job()), v1::FAILED);
  EXPECT_EQ(ReasonOf(pods[0].job()), "rank 0 on " + pods[0].node() + ": exit 1");
}

TEST_F(GangTest, StragglersAreEndedWhenTheirTimeIsOver) {
  Cluster(2);
  v1::SubmitRequest request = GangJob("r1", 2, 3);
  request.mutable_spec()->mutable_gang()->set_wait_s(60);
  const Pods pods = Running(request);
  Ends(pods[0], 0);
  ASSERT_TRUE(state_->NextWake());
  EXPECT_LE(*state_->NextWake(), 60'000'000);
  clock_.AdvanceSeconds(30);
  Restart();
  Back(pods[1].node(), {ReportOf(pods[1], v1::RUNNING)});
  EXPECT_TRUE(Stopped().empty());
  clock_.AdvanceSeconds(31);
  Transaction([] { return 0; });
  const std::string why = "the 60 s that --wait gives after the first end are over";
  EXPECT_EQ(Stopped(), (std::map<uint32_t, std::string>{{1, why}}));
  Obeys(pods[1], v1::ExitRecord::GANG_ENDED);
  EXPECT_EQ(StateOf(pods[0].job()), v1::FAILED);
  EXPECT_EQ(ReasonOf(pods[0].job()), why);
}

TEST_F(GangTest, AGangThatOneNodeCannotStartWaitsAgain) {
  Cluster(3);
  const uint64_t job = Submit(GangJob("r1", 2, 3)).job();
  Pods pods = Started();
  ASSERT_EQ(pods.size(), 2u);
  Ready(pods[0]);
  Fails(pods[1], "no space left");
  const std::string why = "pod 1 on " + pods[1].node() + ": no space left";
  EXPECT_EQ(Stopped(), (std::map<uint32_t, std::string>{{0, why}}));
  EXPECT_EQ(StateOf(job), v1::STARTING);
  EXPECT_TRUE(Started().empty());
  Obeys(pods[0], v1::ExitRecord::GANG_ENDED);
  const Pods again = Started();
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].attempt(), 2u);
  EXPECT_GT(again[0].epoch(), pods[0].epoch());
  for (const sched::core::NodeRoom& room : sched::core::Nodes(state_->scheduler())) {
    EXPECT_EQ(room.spec->suspect, room.spec->name == pods[1].node());
  }
  for (const v1::Placement& p : again) EXPECT_NE(p.node(), pods[1].node()) << "it is suspect";
  EXPECT_EQ(InfoOf(job).attempts(0).reason(), why);
  for (const v1::Placement& p : again) Ready(p);
  EXPECT_EQ(Went().size(), 2u);
}

TEST_F(GangTest, AGangThatCannotBeStartedThreeTimesHasFailed) {
  Cluster(2);
  const uint64_t job = Submit(GangJob("r1", 2, 3)).job();
  for (int i = 0; i < 3; ++i) {
    if (i == 1) {
      Restart();
      Cluster(2);
    }
    const Pods pods = Started();
    ASSERT_GE(pods.size(), 2u) << i;
    Fails(pods[0], "no space left");
    Obeys(pods[1], v1::ExitRecord::GANG_ENDED);
  }
  EXPECT_TRUE(Started().empty());
  EXPECT_EQ(StateOf(job), v1::FAILED);
  EXPECT_EQ(ReasonOf(job).find("could not be started 3 times: pod 0 on n"), 0u) << ReasonOf(job);
  ExpectAllIsFree();
}

TEST_F(GangTest, ThePodThatNeverGetsReadyDoesNotHoldTheRoomOfAll) {
  Cluster(3);
  const uint64_t job = Submit(GangJob("r1", 2, 3)).job();
  const Pods pods = Started();
  ASSERT_EQ(pods.size(), 2u);
  clock_.AdvanceSeconds(600);
  Transaction([] { return 0; });
  EXPECT_TRUE(Stopped().empty()) << "while no pod is ready, home may be off";
  Ready(pods[0]);
  ASSERT_TRUE(state_->NextWake());
  EXPECT_LE(*state_->NextWake(), 120'000'000);
  clock_.AdvanceSeconds(100);
  Restart();
  Back(pods[0].node(), {ReadyOf(pods[0])});
  Back(pods[1].node(), {ReportOf(pods[1], v1::STARTING)});
  clock_.AdvanceSeconds(119);
  Transaction([] { return 0; });
  EXPECT_TRUE(Stopped().empty());
  clock_.AdvanceSeconds(2);
  Transaction([] { return 0; });
  const std::string why = "pod 1 on " + pods[1].node() + " was not ready 120 s after another one";
  EXPECT_EQ(Stopped(), (std::map<uint32_t, std::string>{{0, why}, {1, ""}}));
  Back("n3", {});
  Obeys(pods[0], v1::ExitRecord::GANG_ENDED);
  const Pods again = Started();
  ASSERT_EQ(again.size(), 2u) << "the late node has not answered";
  for (const v1::Placement& p : again) EXPECT_EQ(p.attempt(), 2u);
  EXPECT_EQ(InfoOf(job).attempts(0).reason(), why);
  for (const v1::Placement& p : again) Ready(p);
  EXPECT_EQ(Went().size(), 2u);
  clock_.AdvanceSeconds(600);
  Transaction([] { return 0; });
  EXPECT_TRUE(Stopped().empty());
}

TEST_F(GangTest, ASuspectNodeOnWhichSomethingRunsIsTrustedAgain) {
  Cluster(2);
  const uint64_t job = Submit(GangJob("r1", 2, 1)).job();
  const Pods pods = Started();
  const std::string bad = pods[0].node();
  Fails(pods[0], "no space left");
  EXPECT_TRUE(state_->nodes().at(bad).suspect);
  Obeys(pods[1], v1::ExitRecord::GANG_ENDED);
  const Pods again = Started();
  ASSERT_EQ(again.size(), 2u) << "it is still used when there is no other";
  for (const v1::Placement& p : again) Ready(p);
  for (const v1::Placement& p : again) Report(p.node(), ReportOf(p, v1::RUNNING));
  EXPECT_FALSE(state_->nodes().at(bad).suspect);
  EXPECT_EQ(StateOf(job), v1::RUNNING);
}

TEST_F(GangTest, ALostNodeEndsTheAttemptInEveryState) {
  for (const bool requeue : {false, true}) {
    for (int state = 0; state < 5; ++state) {
      SCOPED_TRACE(std::to_string(state) + (requeue ? " requeue" : ""));
      Forget();
      Cluster(2);
      v1::SubmitRequest request = GangJob("r1", 2, 3);
      request.mutable_spec()->mutable_scheduling()->set_requeue(requeue);
      const uint64_t job = Submit(request).job();
      const Pods pods = Started();
      if (state >= 1) Ready(pods[1]);
      if (state >= 2) Ready(pods[0]);
      for (const v1::Placement& p : pods) {
        if (state >= 3) Report(p.node(), ReportOf(p, v1::RUNNING));
      }
      if (state >= 4) CommandEnds(pods[0], 0);
      Stopped();
      Lose(pods[1].node());
      const std::string why = "node " + pods[1].node() + " is lost";
      if (state < 4) {
        EXPECT_EQ(Stopped(), (std::map<uint32_t, std::string>{{0, why}}));
        Obeys(pods[0], v1::ExitRecord::GANG_ENDED);
      } else {
        EXPECT_TRUE(Stopped().empty()) << "what remains has ended";
        Ends(pods[0], 0);
      }
      // Before it went, nothing had run, so it may start again anyway.
      if (!requeue && state >= 2) {
        EXPECT_EQ(StateOf(job), v1::FAILED);
        EXPECT_EQ(ReasonOf(job), why);
        ExpectAllIsFree();
        continue;
      }
      EXPECT_EQ(StateOf(job), v1::PENDING);
      ExpectAllIsFree();
      // What still runs there is stopped when the node is back, and then the job starts again.
      Back(pods[1].node(), {ReportOf(pods[1], v1::RUNNING)});
      EXPECT_EQ(Stopped().size(), 1u);
      const Pods again = Started();
      ASSERT_EQ(again.size(), 2u);
      EXPECT_EQ(again[0].attempt(), 2u);
    }
  }
}

TEST_F(GangTest, APodWhoseCommandHasEndedKeepsItsWritesOnALostNode) {
  Cluster(2);
  const Pods pods = Running(GangJob("r1", 2, 3));
  CommandEnds(pods[1], 0);
  Lose(pods[1].node());
  EXPECT_EQ(StateOf(pods[0].job()), v1::RUNNING);
  EXPECT_TRUE(Stopped().empty());
  Ends(pods[0], 0);
  EXPECT_EQ(StateOf(pods[0].job()), v1::LOST);
  ExpectAllIsFree();
  Restart();
  Back(pods[1].node(), {ExitReport(pods[1], v1::COMPLETING, v1::ExitRecord::EXITED, 0)});
  EXPECT_EQ(StateOf(pods[0].job()), v1::COMPLETING);
  Ends(pods[1], 0);
  EXPECT_EQ(StateOf(pods[0].job()), v1::COMPLETED);
}

TEST_F(GangTest, ARestartedHostEndsTheAttemptAndNamesItself) {
  for (const bool requeue : {false, true}) {
    Forget();
    Cluster(2);
    v1::SubmitRequest request = GangJob("r1", 2, 3);
    request.mutable_spec()->mutable_scheduling()->set_requeue(requeue);
    const Pods pods = Running(request);
    Back(pods[0].node(), {}, 2);
    const std::string why = "node " + pods[0].node() + " was restarted while the job was on it";
    EXPECT_EQ(Stopped(), (std::map<uint32_t, std::string>{{1, why}}));
    Obeys(pods[1], v1::ExitRecord::GANG_ENDED);
    if (requeue) {
      EXPECT_EQ(Started().size(), 2u);
    } else {
      EXPECT_EQ(StateOf(pods[0].job()), v1::FAILED);
      EXPECT_EQ(ReasonOf(pods[0].job()), why);
    }
  }
}

TEST_F(GangTest, WhatAHostFindsOfItsPodsAfterItsRestartIsNoFailureOfTheJob) {
  for (const uint32_t pods_asked : {1u, 2u}) {
    for (const bool begun : {false, true}) {
      Forget();
      Cluster(2);
      Submit(Requeued(GangJob("r1", pods_asked, 3)));
      const Pods pods = Started();
      ASSERT_EQ(pods.size(), pods_asked);
      for (const v1::Placement& p : pods) Ready(p);
      for (const v1::Placement& p : pods) {
        if (begun) Report(p.node(), ReportOf(p, v1::RUNNING));
      }
      v1::AttemptReport found = ExitReport(pods[0], v1::FAILED, v1::ExitRecord::START_FAILED, 125);
      found.mutable_exit()->set_reason("both were killed");
      Back(pods[0].node(), {found}, 2);
      for (size_t i = 1; i < pods.size(); ++i) Obeys(pods[i], v1::ExitRecord::GANG_ENDED);
      EXPECT_EQ(Started().size(), pods_asked) << "it is started again";
      EXPECT_EQ(StateOf(pods[0].job()), v1::STARTING);
    }
  }
}

TEST_F(GangTest, AGangDoesNotBeginWhileANodeIsAway) {
  Cluster(2);
  Submit(GangJob("r1", 2, 3));
  const Pods pods = Started();
  ASSERT_EQ(pods.size(), 2u);
  Ready(pods[0]);
  ASSERT_TRUE(Transaction([&] {
    state_->Disconnected(pods[0].node());
    return Status();
  }));
  Ready(pods[1]);
  EXPECT_TRUE(Went().empty());
  Back(pods[0].node(), {ReadyOf(pods[0])});
  EXPECT_EQ(Went(), (std::set<uint32_t>{0, 1}));
}

TEST_F(GangTest, AControllerThatIsStartedAgainGoesOnFromEveryState) {
  for (int crash = 0; crash < 8; ++crash) {
    SCOPED_TRACE(crash);
    Forget();
    Cluster(2);
    const uint64_t job = Submit(GangJob("r1", 2, 3)).job();
    const Pods pods = Started();
    ASSERT_EQ(pods.size(), 2u);
    std::map<uint32_t, v1::AttemptReport> journal;  // what the nodes know
    auto crashes = [&](int at) {
      if (crash != at) return;
      Restart();
      sent_.clear();
      for (const v1::Placement& p : pods) {
        std::vector<v1::AttemptReport> known;
        if (journal.contains(p.pod())) known.push_back(journal[p.pod()]);
        Back(p.node(), known);
      }
    };
    auto report = [&](const v1::AttemptReport& r) {
      journal[r.pod()] = r;
      Report(pods[r.pod()].node(), r);
    };
    crashes(0);
    if (crash == 0) {
      const Pods again = Started();
      ASSERT_EQ(again.size(), 2u) << "the nodes never got the order";
      EXPECT_EQ(again[1].token(), pods[1].token());
      EXPECT_EQ(again[1].epoch(), pods[1].epoch());
    }
    report(ReadyOf(pods[0]));
    crashes(1);
    if (crash == 2) {
      journal[1] = ReadyOf(pods[1]);  // nobody heard it
    } else {
      report(ReadyOf(pods[1]));
    }
    crashes(2);
    crashes(3);
    EXPECT_EQ(Went(), (std::set<uint32_t>{0, 1})) << "also when the order was lost";
    report(ReportOf(pods[0], v1::RUNNING));
    crashes(4);
    if (crash == 4) {
      EXPECT_EQ(Went(), (std::set<uint32_t>{1}));
    }
    report(ReportOf(pods[1], v1::RUNNING));
    EXPECT_EQ(StateOf(job), v1::RUNNING);
    report(ExitReport(pods[1], v1::COMPLETING, v1::ExitRecord::EXITED, 7));
    crashes(5);
    EXPECT_EQ(Stopped(), (std::map<uint32_t, std::string>{{0, "rank 1 on " + pods[1].node() + ": exit 7"}}));
    report(ExitReport(pods[0], v1::COMPLETING, v1::ExitRecord::GANG_ENDED, 0));
    crashes(6);
    EXPECT_EQ(StateOf(job), v1::COMPLETING);
    ExpectAllIsFree();
    report(ExitReport(pods[0], v1::FAILED, v1::ExitRecord::GANG_ENDED, 0));
    crashes(7);
    EXPECT_EQ(StateOf(job), v1::COMPLETING);
    report(ExitReport(pods[1], v1::FAILED, v1::ExitRecord::EXITED, 7));
    EXPECT_EQ(StateOf(job), v1::FAILED);
    EXPECT_EQ(ReasonOf(job), "rank 1 on " + pods[1].node() + ": exit 7");
  }
}

TEST_F(GangTest, TheSchedulerKnowsAllPodsWithoutItsJournal) {
  Cluster(2);
  const Pods pods = Running(GangJob("r1", 2, 3));
  const uint64_t next = Submit(GangJob("r2", 2, 3)).job();
  ASSERT_TRUE(Transaction([&] { return store_->ClearJournal(); }));
  Restart();
  for (const v1::Placement& p : pods) Back(p.node(), {ReportOf(p, v1::RUNNING)});
  EXPECT_TRUE(Started().empty()) << "the room is taken";
  Ends(pods[0], 0);
  EXPECT_TRUE(Started().empty());
  Ends(pods[1], 0);
  EXPECT_EQ(Started().size(), 2u);
  EXPECT_EQ(StateOf(next), v1::STARTING);
}

TEST_F(GangTest, CancelFreesEverythingInEveryState) {
  for (int state = 0; state < 5; ++state) {
    SCOPED_TRACE(state);
    Forget();
    if (state > 0) Cluster(2);
    const uint64_t job = Submit(GangJob("r1", 2, 3)).job();
    const Pods pods = Started();
    if (state >= 2) Ready(pods[0]);
    if (state >= 3) Ready(pods[1]);
    for (const v1::Placement& p : pods) {
      if (state >= 3) Report(p.node(), ReportOf(p, v1::RUNNING));
    }
    if (state >= 4) Ends(pods[0], 0);
    Went();
    CancelJob(job);
    const size_t told = Stopped().size();
    EXPECT_EQ(told, state == 0 ? 0u : state == 4 ? 1u : 2u);
    if (state == 2) {
      Ready(pods[1]);  // crosses the order
      EXPECT_TRUE(Went().empty());
    }
    for (const v1::Placement& p : pods) {
      if (state < 4 || p.pod() == 1) Obeys(p, v1::ExitRecord::CANCELLED_BY_USER);
    }
    EXPECT_EQ(StateOf(job), v1::CANCELLED);
    EXPECT_TRUE(state_->jobs().empty());
    ExpectAllIsFree();
  }
}

TEST_F(GangTest, TwoGangsThatNeedMoreThanHalfRunOneAfterTheOther) {
  Cluster(5);
  const uint64_t first = Submit(GangJob("r1", 3, 3)).job(), second = Submit(GangJob("r2", 3, 3)).job();
  Pods pods = Started();
  ASSERT_EQ(pods.size(), 3u) << "one has all, the other holds nothing";
  EXPECT_EQ(StateOf(first), v1::STARTING);
  EXPECT_EQ(StateOf(second), v1::PENDING);
  EXPECT_EQ(ReasonOf(second), "needs room for 3 pods at once; pool local has room for 2");
  for (const v1::Placement& p : pods) Ready(p);
  for (const v1::Placement& p : pods) Ends(p, 0);
  pods = Started();
  ASSERT_EQ(pods.size(), 3u);
  for (const v1::Placement& p : pods) Ready(p);
  for (const v1::Placement& p : pods) Ends(p, 0);
  EXPECT_EQ(StateOf(first), v1::COMPLETED);
  EXPECT_EQ(StateOf(second), v1::COMPLETED);
}

TEST_F(GangTest, APreemptedGangStartsAgainWhenTheWritesOfAllPodsAreHome) {
  Cluster(2);
  v1::SubmitRequest request = Requeued(GangJob("victim", 2, 1, 2));
  const Pods pods = Running(request);
  clock_.AdvanceSeconds(60);
  v1::SubmitRequest urgent = SimpleJob("urgent", 1, 2);
  urgent.mutable_spec()->mutable_scheduling()->set_class_(v1::PRODUCTION);
  const uint64_t winner = Submit(urgent).job();
  const auto stops = Stopped();
  ASSERT_EQ(stops.size(), 2u) << "a gang leaves whole";
  LeavesFor(pods[0].node(), pods[0]);
  EXPECT_TRUE(Started().empty()) << "the other pod has not left";
  LeavesFor(pods[1].node(), pods[1]);
  Pods started = Started();
  ASSERT_EQ(started.size(), 1u);
  EXPECT_EQ(started[0].job(), winner);
  EXPECT_EQ(StateOf(pods[0].job()), v1::PENDING);
  EXPECT_EQ(PodEvent(pods[0].job(), 1).placement().token(), pods[1].token());
  Ends(started[0], 0);
  EXPECT_EQ(StateOf(pods[0].job()), v1::STARTING);
  WritesAreHome(pods[0].node(), pods[0]);
  EXPECT_TRUE(Started().empty()) << "the writes of the other pod are still on the way";
  EXPECT_FALSE(PodEvent(pods[0].job(), 0).has_placement());
  Restart();
  for (const v1::Placement& p : pods) {
    std::vector<v1::AttemptReport> journal;
    if (p.pod() == 1) journal.push_back(ExitOf(p, v1::COMPLETING, v1::ExitRecord::PREEMPTED_BY_JOB, 0));
    Back(p.node(), journal);
  }
  EXPECT_TRUE(Started().empty());
  WritesAreHome(pods[1].node(), pods[1]);
  started = Started();
  ASSERT_EQ(started.size(), 2u);
  EXPECT_EQ(started[0].attempt(), 2u);
  EXPECT_EQ(InfoOf(pods[0].job()).attempts(0).state(), v1::PREEMPTED);
}

TEST_F(GangTest, WhatAPodHadNotSentHomeIsLostWithItsNode) {
  Cluster(2);
  const Pods pods = Running(Requeued(GangJob("victim", 2, 1, 2)));
  clock_.AdvanceSeconds(60);
  v1::SubmitRequest urgent = SimpleJob("urgent", 1, 2);
  urgent.mutable_spec()->mutable_scheduling()->set_class_(v1::PRODUCTION);
  Submit(urgent);
  LeavesFor(pods[0].node(), pods[0]);
  LeavesFor(pods[1].node(), pods[1]);
  WritesAreHome(pods[0].node(), pods[0]);
  Lose(pods[1].node());
  EXPECT_EQ(StateOf(pods[0].job()), v1::FAILED);
  EXPECT_NE(ReasonOf(pods[0].job()).find("not all writes of attempt 1 reached home"), std::string::npos);
}

TEST_F(GangTest, APodThatFailsBecauseAnotherLeavesDoesNotFailTheJob) {
  Cluster(2);
  const Pods pods = Running(Requeued(GangJob("victim", 2, 1, 2)));
  clock_.AdvanceSeconds(60);
  v1::SubmitRequest urgent = SimpleJob("urgent", 1, 2);
  urgent.mutable_spec()->mutable_scheduling()->set_class_(v1::PRODUCTION);
  Submit(urgent);
  ASSERT_EQ(Stopped().size(), 2u);
  Ends(pods[0], 1);  // "connection reset by peer"
  EXPECT_TRUE(Stopped().empty());
  LeavesFor(pods[1].node(), pods[1]);
  EXPECT_EQ(StateOf(pods[0].job()), v1::PENDING);
}

TEST_F(GangTest, APodStartsProcessesInOtherPodsOfItsJobOnly) {
  Cluster(2);
  const Pods pods = Running(GangJob("r1", 2, 3));
  v1::ExecInPod exec;
  exec.set_job(pods[0].job());
  exec.set_attempt(1);
  exec.set_pod(1);
  exec.set_from_pod(0);
  exec.set_id(7);
  const auto pass = [&](const v1::Placement& from) {
    Transaction([&] {
      state_->PassOn(from.node(), exec);
      return 0;
    });
    return TakeAll(v1::ControllerMessage::kExec);
  };
  auto passed = pass(pods[0]);
  ASSERT_EQ(passed.size(), 1u);
  EXPECT_EQ(passed[0].first, pods[1].node());
  EXPECT_EQ(passed[0].second.exec().id(), 7u);
  EXPECT_TRUE(pass(pods[1]).empty()) << "not from a node that is not the pod's";
  exec.set_ended(true);
  passed = pass(pods[1]);
  ASSERT_EQ(passed.size(), 1u);
  EXPECT_EQ(passed[0].first, pods[0].node()) << "the answer goes back";
  exec.set_ended(false);
  exec.set_pod(5);
  passed = pass(pods[0]);
  ASSERT_EQ(passed.size(), 1u);
  EXPECT_EQ(passed[0].first, pods[0].node());
  EXPECT_EQ(passed[0].second.exec().problem(), "pod 5 of the job does not run");
}

TEST_F(GangTest, AGangKeepsToTheNodesThatItMayUse) {
  Cluster(3);
  EXPECT_TRUE(Transaction([&] { return state_->Drain("n1", true, "disk"); }));
  v1::SubmitRequest request = GangJob("r1", 2, 3);
  EXPECT_TRUE(Submit(request).has_placement());
  std::set<std::string> nodes;
  for (const v1::Placement& p : Started()) nodes.insert(p.node());
  EXPECT_EQ(nodes, (std::set<std::string>{"n2", "n3"}));
  request = GangJob("r2", 2, 3);
  request.mutable_spec()->mutable_scheduling()->add_nodes("n3");
  const std::string refused(SubmitError(request).message());
  EXPECT_EQ(refused.find("largest node"), std::string::npos) << "one pod would fit: " << refused;
  Back("n1", {});
  EXPECT_EQ(NodeOf("n1").state(), "drained");
}

TEST_F(GangTest, ANodeThatCouldNotStartAPodStaysDrained) {
  Cluster(2);
  Submit(GangJob("r1", 2, 3));
  const Pods pods = Started();
  ASSERT_EQ(pods.size(), 2u);
  EXPECT_TRUE(Transaction([&] { return state_->Drain(pods[0].node(), true, "disk"); }));
  Fails(pods[0], "no space left");
  Obeys(pods[1], v1::ExitRecord::GANG_ENDED);
  EXPECT_TRUE(Started().empty());
  EXPECT_TRUE(Transaction([&] { return state_->Drain(pods[0].node(), false, ""); }));
  EXPECT_EQ(Started().size(), 2u);
}

TEST_F(GangTest, ARequeuedGangLeavesWholeAndStartsAgain) {
  Cluster(2);
  const Pods pods = Running(Requeued(GangJob("r1", 2, 3)));
  EXPECT_TRUE(Transaction([&] { return state_->StopToRequeue(pods[0].job()); }));
  const std::string why = "preempted: it was requeued";
  EXPECT_EQ(Stopped(), (std::map<uint32_t, std::string>{{0, why}, {1, why}}));
  Obeys(pods[0], v1::ExitRecord::PREEMPTED_BY_JOB);
  EXPECT_TRUE(Started().empty());
  Obeys(pods[1], v1::ExitRecord::PREEMPTED_BY_JOB);
  const Pods again = Started();
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].attempt(), 2u);
}

TEST_F(GangTest, AnyPodMaySayThatTheWorkIsSaved) {
  Cluster(2);
  const Pods pods = Running(Requeued(GangJob("r1", 2, 3)));
  const uint64_t job = pods[0].job();
  clock_.AdvanceSeconds(1000);
  v1::JobWord word;
  word.set_job(job);
  word.set_attempt(1);
  word.set_pod(1);
  word.set_saved(true);
  word.set_at_us(clock_.Wall());
  EXPECT_TRUE(Transaction([&] { return state_->Saved(pods[0].node(), word); }));
  EXPECT_EQ(InfoOf(job).saved_us(), 0) << "the pod is on the other node";
  EXPECT_TRUE(Transaction([&] { return state_->Saved(pods[1].node(), word); }));
  EXPECT_EQ(InfoOf(job).saved_us(), word.at_us());
  clock_.AdvanceSeconds(100);
  Lose(pods[0].node());
  Obeys(pods[1], v1::ExitRecord::GANG_ENDED);
  EXPECT_EQ(StateOf(job), v1::PENDING);
  EXPECT_NEAR(static_cast<double>(InfoOf(job).lost_us()), 100e6, 1e6);
}

TEST_F(GangTest, ImpossibleGangsAreRefusedInOneLine) {
  Cluster(2);
  auto refused = [&](auto change) {
    v1::SubmitRequest request = GangJob("r", 2, 1, 2);
    change(*request.mutable_spec());
    return SubmitError(request).message();
  };
  EXPECT_EQ(refused([](v1::RunSpec& spec) { spec.mutable_gang()->set_pods(3); }),
            "the request can never be met: of 3 pods 2 fit at most: ask for less or choose another pool");
  EXPECT_EQ(refused([](v1::RunSpec& spec) { spec.mutable_gang()->set_pods(5000); }),
            "submit: 5000 nodes are asked for, 1024 are the limit: ask for fewer with -N");
  EXPECT_EQ(refused([](v1::RunSpec& spec) { spec.mutable_gang()->set_min_pods(3); }),
            "submit: at least 3 nodes are asked for, but at most 2: correct -N");
  EXPECT_EQ(refused([](v1::RunSpec& spec) { spec.mutable_gang()->set_ranks_per_pod(1025); }).find("submit: 1025 tasks"),
            0u);
  EXPECT_EQ(refused([](v1::RunSpec& spec) { spec.mutable_command()->set_terminal(true); }),
            "submit: a job of several tasks cannot use a terminal: leave --pty out");
  // A gang of one process is none.
  v1::SubmitRequest one = SimpleJob("one");
  one.mutable_spec()->mutable_gang();
  one.mutable_spec()->mutable_command()->set_terminal(true);
  EXPECT_TRUE(Submit(one).has_placement());
  EXPECT_EQ(TakeAll(v1::ControllerMessage::kStart)[0].second.start().pods_size(), 0);
}

TEST_F(GangTest, GetNamesThePlacesOfAllPodsToTheOwnerOnly) {
  Cluster(2);
  const Pods pods = Running(GangJob("r1", 2, 3));
  v1::GetRequest get;
  get.set_job(pods[0].job());
  const v1::GetReply mine = *Get(*state_, kAnna, get);
  ASSERT_EQ(mine.placements_size(), 2);
  EXPECT_EQ(mine.placements(1).token(), pods[1].token());
  EXPECT_EQ(Get(*state_, kBob, get)->placements_size(), 0);
}

}  // namespace
}  // namespace vrun::control
