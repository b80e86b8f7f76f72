// SPDX-License-Identifier: Apache-2.0
// The life of elastic gangs: pods leave for other jobs and come back, while the job goes on.
#include "control/testing/gang_testing.h"

namespace vrun::control {
namespace {

class ResizeTest : public GangTest {
 protected:
  // Its pods fill their nodes.
  static v1::SubmitRequest Elastic(const std::string& name, uint32_t least, uint32_t most) {
    v1::SubmitRequest request = GangJob(name, most, 1, 2);
    request.mutable_spec()->mutable_gang()->set_min_pods(least);
    v1::Scheduling* s = request.mutable_spec()->mutable_scheduling();
    s->set_resize_seconds(0);
    s->set_estimate_s(100'000);
    s->set_grace_s(45);
    s->set_signal(SIGUSR1);
    return request;
  }
  v1::Placement RunningOther(const std::string& name, uint32_t pods) {
    v1::SubmitRequest request = GangJob(name, pods, 1, 2);
    request.mutable_spec()->mutable_scheduling()->set_class_(v1::PRODUCTION);
    Submit(request);
    return {};
  }
  // The members that each pod was told last, since the last call.
  std::map<uint32_t, std::set<uint32_t>> Told() {
    std::map<uint32_t, std::set<uint32_t>> told;
    for (auto& [node, m] : TakeAll(v1::ControllerMessage::kMembers)) {
      std::set<uint32_t>& pods = told[m.members().pod()];
      pods.clear();
      for (const v1::GangPod& pod : m.members().pods()) pods.insert(pod.first_rank() / pod.ranks());
    }
    return told;
  }
  const JobRow& RowOf(uint64_t id) { return state_->jobs().at(id); }
  size_t RoomOf(uint64_t id) {
    size_t pods = 0;
    for (const auto& [name, node] : state_->nodes()) {
      const auto running = sched::core::RunningOn(state_->scheduler(), name);
      pods += static_cast<size_t>(std::count(running.begin(), running.end(), id));
    }
    return pods;
  }
  void Leaves(const v1::Placement& p) {
    v1::AttemptReport report = ExitReport(p, v1::COMPLETING, v1::ExitRecord::LEFT_GANG, 0);
    report.mutable_exit()->set_signal(SIGTERM);
    Report(p.node(), report);
  }
  void LeftCompletely(const v1::Placement& p) {
    Report(p.node(), ExitReport(p, v1::COMPLETED, v1::ExitRecord::LEFT_GANG, 0));
  }
  // An elastic job of 2 to 4 pods, and one of 2 pods that takes two of its nodes and has begun there.
  Pods Shrunk() {
    Cluster(4);
    const Pods pods = Running(Elastic("r1", 2, 4));
    EXPECT_EQ(pods.size(), 4u);
    clock_.AdvanceSeconds(600);
    RunningOther("r2", 2);
    EXPECT_EQ(Stopped().size(), 2u);
    return pods;
  }
};

TEST_F(ResizeTest, ItStartsWithWhatThereIs) {
  Cluster(3);
  const Pods pods = Running(Elastic("r1", 2, 8));
  ASSERT_EQ(pods.size(), 3u);
  EXPECT_EQ(StateOf(pods[0].job()), v1::RUNNING);
  EXPECT_EQ(InfoOf(pods[0].job()).pods_size(), 3);
  EXPECT_EQ(Event(pods[0].job()).pods(), 3u);
  for (const v1::Placement& p : pods) Ends(p, 0);
  EXPECT_EQ(StateOf(pods[0].job()), v1::COMPLETED);
  ExpectAllIsFree();
}

TEST_F(ResizeTest, OneThatStartsWithOnePodStartsAsAGang) {
  Cluster(1);
  Submit(Elastic("r1", 1, 4));
  auto starts = TakeAll(v1::ControllerMessage::kStart);
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0].second.start().pods_size(), 1) << "it waits for Go, and knows that others may come";
  const v1::Placement first = starts[0].second.start().placement();
  Ready(first);
  EXPECT_EQ(Went(), (std::set<uint32_t>{0}));
  Report(first.node(), ReportOf(first, v1::RUNNING));
  clock_.AdvanceSeconds(600);
  Back("n2", {});
  const Pods more = Started();
  ASSERT_EQ(more.size(), 1u);
  EXPECT_EQ(more[0].pod(), 1u);
  EXPECT_EQ(more[0].epoch(), first.epoch()) << "the same attempt";
  EXPECT_EQ(Event(first.job()).pods(), 2u);
}

TEST_F(ResizeTest, ItGivesItsLastPodsToAnotherJobAndGetsRoomBack) {
  const Pods pods = Shrunk();
  const uint64_t job = pods[0].job();
  EXPECT_EQ(StateOf(job), v1::RUNNING);
  EXPECT_EQ(Told(), (std::map<uint32_t, std::set<uint32_t>>{{0, {0, 1}}, {1, {0, 1}}, {2, {0, 1}}, {3, {0, 1}}}));
  EXPECT_TRUE(Started().empty()) << "the room is not free yet";
  Leaves(pods[3]);
  EXPECT_TRUE(Started().empty());
  Leaves(pods[2]);
  const Pods others = Started();
  ASSERT_EQ(others.size(), 2u) << "the room is free when their commands have ended, not when their writes are home";
  EXPECT_EQ(RoomOf(job), 2u);
  EXPECT_EQ(StateOf(job), v1::RUNNING);
  EXPECT_TRUE(Stopped().empty()) << "the others go on";
  LeftCompletely(pods[2]);
  LeftCompletely(pods[3]);
  for (const v1::Placement& p : others) Ready(p);
  Went();
  for (const v1::Placement& p : others) Report(p.node(), ReportOf(p, v1::RUNNING));
  clock_.AdvanceSeconds(600);
  for (const v1::Placement& p : others) Ends(p, 0);
  EXPECT_EQ(StateOf(others[0].job()), v1::COMPLETED);

  auto starts = TakeAll(v1::ControllerMessage::kStart);
  ASSERT_EQ(starts.size(), 2u) << "it grows into the free room";
  const v1::Placement e = starts[0].second.start().placement(), f = starts[1].second.start().placement();
  EXPECT_EQ(e.pod(), 4u) << "numbers are not used again";
  EXPECT_EQ(f.pod(), 5u);
  const v1::StartAttempt& start = starts[0].second.start();
  ASSERT_EQ(start.pods_size(), 3);
  EXPECT_EQ(start.pods(2).first_rank(), 4u);
  EXPECT_TRUE(Told().empty());
  Ready(f);
  EXPECT_EQ(Went(), (std::set<uint32_t>{5}));
  EXPECT_EQ(Told()[0], (std::set<uint32_t>{0, 1, 5}));
  Ready(e);
  EXPECT_EQ(Went().count(4), 1u);
  const auto told = Told();
  EXPECT_EQ(told.size(), 4u);
  for (const auto& [pod, members] : told) EXPECT_EQ(members, (std::set<uint32_t>{0, 1, 4, 5})) << pod;
  for (const v1::Placement& p : {e, f}) Report(p.node(), ReportOf(p, v1::RUNNING));
  EXPECT_EQ(InfoOf(job).pods_size(), 6);
  for (const v1::Placement& p : {pods[0], pods[1], e, f}) Ends(p, 0);
  EXPECT_EQ(StateOf(job), v1::COMPLETED) << "the pods that left do not count";
  const v1::JobInfo info = InfoOf(job);
  EXPECT_EQ(info.exit().kind(), v1::ExitRecord::EXITED);
  EXPECT_EQ(info.exit().exit_code(), 0);
  EXPECT_EQ(info.exit().ranks_size(), 6);
  EXPECT_EQ(info.pods(2).exit().kind(), v1::ExitRecord::LEFT_GANG);
  ExpectAllIsFree();
}

TEST_F(ResizeTest, PodsLeaveWithTheSignalAndTheGraceOfTheJob) {
  Cluster(2);
  const Pods pods = Running(Elastic("r1", 1, 2));
  clock_.AdvanceSeconds(600);
  RunningOther("r2", 1);
  const auto stops = TakeAll(v1::ControllerMessage::kStop);
  ASSERT_EQ(stops.size(), 1u);
  const v1::StopAttempt& stop = stops[0].second.stop();
  EXPECT_EQ(stop.pod(), 1u);
  EXPECT_EQ(stop.signal(), SIGUSR1);
  EXPECT_EQ(stop.grace_ms(), 45'000u);
  EXPECT_EQ(stop.resized().find("the job was made smaller: job "), 0u) << stop.resized();
  EXPECT_EQ(stop.preempted() + stop.gang_ended(), "");
}

TEST_F(ResizeTest, TheFailureOfAPodThatLeavesIsNoFailure) {
  const Pods pods = Shrunk();
  // It had failed by itself before it was told.
  CommandEnds(pods[2], 3);
  EXPECT_EQ(Stopped().size(), 3u) << "that ends the job, as ever";
  for (const int i : {0, 1, 3}) Obeys(pods[i], v1::ExitRecord::GANG_ENDED);
  Ends(pods[2], 3);
  EXPECT_EQ(StateOf(pods[0].job()), v1::FAILED);
  EXPECT_EQ(Started().size(), 2u) << "the room of all is free";
}

TEST_F(ResizeTest, ANewPodThatCannotStartIsDropped) {
  Cluster(2);
  const Pods pods = Running(Elastic("r1", 1, 3));
  ASSERT_EQ(pods.size(), 2u);
  const uint64_t job = pods[0].job();
  clock_.AdvanceSeconds(600);
  Back("n3", {});
  Pods more = Started();
  ASSERT_EQ(more.size(), 1u);
  EXPECT_EQ(RoomOf(job), 3u);
  Fails(more[0], "no space left");
  EXPECT_EQ(StateOf(job), v1::RUNNING);
  EXPECT_TRUE(Stopped().empty());
  EXPECT_EQ(RoomOf(job), 2u) << "the scheduler knows its size";
  EXPECT_EQ(NodeOf("n3").used().gpus(), 0u);
  EXPECT_TRUE(state_->nodes().at("n3").suspect);
  clock_.AdvanceSeconds(100);
  Transaction([] { return 0; });
  EXPECT_TRUE(Started().empty());
  for (const v1::Placement& p : pods) Ends(p, 0);
  EXPECT_EQ(StateOf(job), v1::COMPLETED);
  EXPECT_EQ(InfoOf(job).exit().ranks_size(), 2);
  ExpectAllIsFree();
}

TEST_F(ResizeTest, ANewPodIsNotWaitedForWhenTheOthersHaveEnded) {
  Cluster(2);
  const Pods pods = Running(Elastic("r1", 1, 3));
  clock_.AdvanceSeconds(600);
  Back("n3", {});
  const Pods more = Started();
  ASSERT_EQ(more.size(), 1u);
  for (const v1::Placement& p : pods) Ends(p, 0);
  EXPECT_EQ(Stopped().count(2), 1u);
  Ready(more[0]);
  EXPECT_TRUE(Went().empty());
  Obeys(more[0], v1::ExitRecord::LEFT_GANG);
  EXPECT_EQ(StateOf(pods[0].job()), v1::COMPLETED);
  ExpectAllIsFree();
}

TEST_F(ResizeTest, NodesThatLoseAPodThatJoinsOrLeavesDoNotEndTheJob) {
  for (const bool grows : {false, true}) {
    for (const bool lost : {false, true}) {
      SCOPED_TRACE(std::string(grows ? "grows" : "shrinks") + (lost ? ", node lost" : ", node restarted"));
      Forget();
      Pods pods;
      v1::Placement gone;
      if (grows) {
        Cluster(2);
        pods = Running(Elastic("r1", 1, 3));
        clock_.AdvanceSeconds(600);
        Back("n3", {});
        gone = Started().at(0);
      } else {
        pods = Shrunk();
        Leaves(pods[2]);
        gone = pods[3];
      }
      lost ? Lose(gone.node()) : Back(gone.node(), {}, 2);
      EXPECT_EQ(StateOf(pods[0].job()), v1::RUNNING);
      for (const auto& [pod, why] : Stopped()) EXPECT_NE(RowOf(pods[0].job()).pods[pod].membership, Membership::kFull);
      // Without the node the other job has no room any more, so that this one gets what it had given up.
      Pods more;
      for (const v1::Placement& p : Started()) {
        if (p.job() == pods[0].job()) more.push_back(p);
      }
      EXPECT_EQ(more.size(), !grows && lost ? 1u : 0u);
      EXPECT_EQ(RoomOf(pods[0].job()), 2u + more.size());
      if (!grows) LeftCompletely(pods[2]);
      for (int i : {0, 1}) Ends(pods[i], 0);
      for (const v1::Placement& p : more) Obeys(p, v1::ExitRecord::LEFT_GANG);
      // What a pod has written that had run and was lost with its node is missing.
      EXPECT_EQ(StateOf(pods[0].job()), grows ? v1::COMPLETED : v1::FAILED);
      if (!grows) {
        EXPECT_NE(ReasonOf(pods[0].job()).find("writes of a pod that had left"), std::string::npos);
      }
    }
  }
}

TEST_F(ResizeTest, ARestartOfTheControllerInTheMiddleChangesNothing) {
  const Pods pods = Shrunk();
  const uint64_t job = pods[0].job();
  Restart();
  sent_.clear();
  for (const v1::Placement& p : pods) Back(p.node(), {ReportOf(p, v1::RUNNING)});
  const auto stopped = Stopped();
  ASSERT_EQ(stopped.size(), 2u) << "those that leave are told again";
  EXPECT_TRUE(stopped.contains(2) && stopped.contains(3));
  EXPECT_EQ(Told()[0], (std::set<uint32_t>{0, 1}));
  Leaves(pods[3]);
  Restart();
  sent_.clear();
  // One has ended while the controller was away.
  v1::AttemptReport left = ExitReport(pods[2], v1::COMPLETING, v1::ExitRecord::LEFT_GANG, 0);
  v1::AttemptReport earlier = ExitReport(pods[3], v1::COMPLETING, v1::ExitRecord::LEFT_GANG, 0);
  for (const int i : {0, 1}) Back(pods[i].node(), {ReportOf(pods[i], v1::RUNNING)});
  Back(pods[3].node(), {earlier});
  Back(pods[2].node(), {left});
  const Pods others = Started();
  ASSERT_EQ(others.size(), 2u);
  EXPECT_EQ(StateOf(job), v1::RUNNING);
  for (int i : {2, 3}) LeftCompletely(pods[i]);
  for (const v1::Placement& p : others) Ready(p);
  for (const v1::Placement& p : others) Report(p.node(), ReportOf(p, v1::RUNNING));
  clock_.AdvanceSeconds(600);
  for (const v1::Placement& p : others) Ends(p, 0);
  const Pods more = Started();
  ASSERT_EQ(more.size(), 2u);
  Ready(more[0]);
  Restart();
  sent_.clear();
  for (const v1::Placement& p : {pods[0], pods[1]}) Back(p.node(), {ReportOf(p, v1::RUNNING)});
  Back(more[0].node(), {ReadyOf(more[0])});
  Back(more[1].node(), {});
  EXPECT_EQ(Went(), (std::set<uint32_t>{4})) << "Go is repeated";
  const Pods again = Started();
  ASSERT_EQ(again.size(), 1u) << "its node had not got the order";
  EXPECT_EQ(again[0].token(), more[1].token());
  Ready(again[0]);
  EXPECT_EQ(Went().count(5), 1u);
  for (const v1::Placement& p : more) Report(p.node(), ReportOf(p, v1::RUNNING));
  for (const v1::Placement& p : {pods[0], pods[1], more[0], more[1]}) Ends(p, 0);
  EXPECT_EQ(StateOf(job), v1::COMPLETED);
  ExpectAllIsFree();
}

TEST_F(ResizeTest, ASchedulerThatIsRebuiltLearnsTheSize) {
  const Pods pods = Shrunk();
  const uint64_t job = pods[0].job();
  EXPECT_TRUE(Transaction([&] { return store_->ClearJournal(); }));
  Restart();
  sent_.clear();
  for (const v1::Placement& p : pods) Back(p.node(), {ReportOf(p, v1::RUNNING)});
  Stopped();
  Leaves(pods[2]);
  Leaves(pods[3]);
  EXPECT_EQ(RoomOf(job), 2u);
  EXPECT_EQ(Started().size(), 2u) << "the other job starts all the same";
  EXPECT_EQ(StateOf(job), v1::RUNNING);
}

TEST_F(ResizeTest, CancelAndPreemptionEndItInTheMiddleOfAResize) {
  for (const bool cancel : {true, false}) {
    SCOPED_TRACE(cancel);
    Forget();
    Cluster(4);
    const Pods pods = Running(Requeued(Elastic("r1", 2, 4)));
    clock_.AdvanceSeconds(600);
    RunningOther("r2", 2);
    Stopped();
    const uint64_t job = pods[0].job();
    Leaves(pods[3]);
    if (cancel) {
      CancelJob(job);
    } else {
      EXPECT_TRUE(Transaction([&] { return state_->StopToRequeue(job); }));
    }
    EXPECT_EQ(Stopped().size(), 4u - (cancel ? 0 : 0));
    LeftCompletely(pods[2]);
    LeftCompletely(pods[3]);
    for (int i : {0, 1}) Obeys(pods[i], cancel ? v1::ExitRecord::CANCELLED_BY_USER : v1::ExitRecord::PREEMPTED_BY_JOB);
    if (cancel) {
      EXPECT_EQ(StateOf(job), v1::CANCELLED);
    } else {
      EXPECT_EQ(InfoOf(job).attempt(), 2u) << "it starts again with what there is";
    }
  }
}

TEST_F(ResizeTest, ALauncherCannotBeElastic) {
  Cluster(2);
  v1::SubmitRequest request = Elastic("r1", 1, 2);
  request.mutable_spec()->mutable_gang()->set_launcher(true);
  EXPECT_NE(SubmitError(request).message().find("give one number with -N"), std::string::npos);
}

}  // namespace
}  // namespace vrun::control
