// SPDX-License-Identifier: Apache-2.0
// The life of jobs and nodes, with a manual clock and no network.
#include <algorithm>
#include "control/needs/default_memory.h"
#include "control/testing/state_testing.h"

namespace vrun::control {
namespace {

TEST_F(StateTest, AJobRunsFromSubmitToItsExitRecord) {
  Register(SimpleNode("n1"));
  auto reply = Submit(SimpleJob("r1"));
  ASSERT_TRUE(reply.has_placement());
  const v1::Placement p = reply.placement();
  EXPECT_EQ(p.node(), "n1");
  EXPECT_EQ(p.token().size(), 16u);
  EXPECT_EQ(p.addresses(0), "10.0.0.1:7000");
  auto starts = Starts();
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0].start().placement().token(), p.token());
  EXPECT_EQ(starts[0].start().user(), "anna@h");
  EXPECT_EQ(starts[0].start().spec().command().argv(0), "true");

  Report("n1", ReportOf(p, v1::RUNNING));
  EXPECT_EQ(StateOf(p.job()), v1::RUNNING);
  Report("n1", ExitOf(p, v1::COMPLETING, v1::ExitRecord::EXITED, 3));
  EXPECT_EQ(StateOf(p.job()), v1::COMPLETING);
  EXPECT_EQ(Event(p.job()).exit().exit_code(), 3);
  Report("n1", ExitOf(p, v1::FAILED, v1::ExitRecord::EXITED, 3));
  EXPECT_EQ(StateOf(p.job()), v1::FAILED);
  EXPECT_EQ(Take(v1::ControllerMessage::kReportAck).size(), 3u);
  EXPECT_TRUE(state_->jobs().empty());
  EXPECT_EQ(NodeOf("n1").used().milli_cpus(), 0u);
}

TEST_F(StateTest, WhatAJobHeldIsFreeOnceItsCommandIsOver) {
  // Writing home may take long, or wait until somebody frees disk space there.
  Register(SimpleNode("n1"));
  v1::SubmitRequest all = SimpleJob("r1");
  all.mutable_spec()->mutable_resources()->set_milli_cpus(SimpleNode("n1").total().milli_cpus());
  const v1::Placement first = Submit(all).placement();
  all.set_request_id("r2");
  EXPECT_FALSE(Submit(all).has_placement());
  (void)Starts();
  Report("n1", ReportOf(first, v1::RUNNING));
  EXPECT_TRUE(Starts().empty());
  Report("n1", ExitOf(first, v1::COMPLETING, v1::ExitRecord::EXITED, 0));
  auto starts = Starts();
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_NE(starts[0].start().placement().job(), first.job());
  EXPECT_EQ(StateOf(first.job()), v1::COMPLETING);
  Report("n1", ExitOf(first, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  EXPECT_EQ(NodeOf("n1").jobs(), 1u);
}

TEST_F(StateTest, AJobThatAsksForNoMemoryBooksItsPartOfTheNode) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  v1::Register large = SimpleNode("n1", 4);
  large.mutable_total()->set_memory_bytes(40 * kGiB);
  Register(large);
  Submit(SimpleJob("r1"));
  auto starts = Starts();
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0].start().spec().resources().memory_bytes(), 9 * kGiB) << "a quarter of nine tenths";
  EXPECT_EQ(NodeOf("n1").used().memory_bytes(), 9 * kGiB) << "what is limited is booked";
  v1::SubmitRequest more = SimpleJob("r2");
  more.mutable_spec()->mutable_resources()->set_memory_bytes(32 * kGiB);
  EXPECT_FALSE(Submit(more).has_placement());
  more.set_request_id("r3");
  more.mutable_spec()->mutable_resources()->set_memory_bytes(30 * kGiB);
  EXPECT_TRUE(Submit(more).has_placement());
  (void)Starts();
}

TEST_F(StateTest, OfALittleMemoryAJobMayUseMoreThanItsPart) {
  Register(SimpleNode("n1", 100));  // with 8 GiB
  Submit(SimpleJob("r1"));
  auto starts = Starts();
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0].start().spec().resources().memory_bytes(), uint64_t{2} << 30);
  EXPECT_LT(NodeOf("n1").used().memory_bytes(), uint64_t{1} << 27);
}

// A workstation: one job has the only GPU, and the others have all the processors that are left.
TEST_F(StateTest, JobsThatAskForNoMemoryNeverWaitForMemoryBecauseOfEachOther) {
  v1::Register node = SimpleNode("n1", 8);
  node.mutable_total()->set_gpus(1);
  Register(node);
  v1::SubmitRequest trains = SimpleJob("gpu");
  trains.mutable_spec()->mutable_resources()->set_gpus(1);
  EXPECT_TRUE(Submit(trains).has_placement());
  for (int i = 0; i < 7; ++i) EXPECT_TRUE(Submit(SimpleJob("r" + std::to_string(i))).has_placement()) << i;
  EXPECT_FALSE(Submit(SimpleJob("one more")).has_placement());
  (void)Starts();
}

TEST_F(StateTest, TheExitRecordDecidesNotTheNodesWord) {
  Register(SimpleNode("n1", 100));
  struct Case {
    v1::JobState said;
    v1::ExitRecord::Kind kind;
    int code;
    v1::JobState is;
  };
  int n = 0;
  for (const Case& c : {Case{v1::FAILED, v1::ExitRecord::EXITED, 0, v1::COMPLETED},
                        Case{v1::COMPLETED, v1::ExitRecord::EXITED, 1, v1::FAILED},
                        Case{v1::COMPLETED, v1::ExitRecord::SIGNALED, 0, v1::FAILED},
                        Case{v1::FAILED, v1::ExitRecord::TIME_LIMIT, 0, v1::TIMEOUT},
                        Case{v1::FAILED, v1::ExitRecord::OUT_OF_MEMORY_KILL, 0, v1::OUT_OF_MEMORY},
                        Case{v1::FAILED, v1::ExitRecord::CANCELLED_BY_USER, 0, v1::CANCELLED},
                        Case{v1::FAILED, v1::ExitRecord::START_FAILED, 0, v1::FAILED},
                        Case{v1::COMPLETED, v1::ExitRecord::KIND_UNSPECIFIED, 0, v1::FAILED}}) {
    auto p = Submit(SimpleJob("r" + std::to_string(n++))).placement();
    Report("n1", ExitOf(p, c.said, c.kind, c.code));
    EXPECT_EQ(StateOf(p.job()), c.is) << v1::ExitRecord::Kind_Name(c.kind);
  }
  // Success without a record is never accepted.
  auto p = Submit(SimpleJob("none")).placement();
  Report("n1", ReportOf(p, v1::COMPLETED));
  EXPECT_EQ(StateOf(p.job()), v1::FAILED);
  EXPECT_FALSE(Event(p.job()).has_exit());
}

TEST_F(StateTest, TheSameRequestIsTheSameJob) {
  Register(SimpleNode("n1"));
  auto first = Submit(SimpleJob("r1"));
  auto again = Submit(SimpleJob("r1"));
  EXPECT_EQ(again.job(), first.job());
  EXPECT_EQ(again.placement().token(), first.placement().token());
  EXPECT_NE(Submit(SimpleJob("r1"), kBob).job(), first.job());
  Restart();
  EXPECT_EQ(Submit(SimpleJob("r1")).job(), first.job());
  Report("n1", ExitOf(first.placement(), v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  EXPECT_EQ(Submit(SimpleJob("r1")).job(), first.job());
}

TEST_F(StateTest, StaleReportsAreAcknowledgedWithoutEffect) {
  Register(SimpleNode("n1"));
  Register(SimpleNode("n2"));
  auto p = Submit(SimpleJob("r1")).placement();
  Report("n1", ReportOf(p, v1::RUNNING));
  Take(v1::ControllerMessage::kReportAck);
  v1::Placement stale = p;
  stale.set_epoch(p.epoch() - 1);
  Report("n1", ExitOf(stale, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  stale = p;
  stale.set_attempt(p.attempt() + 1);
  Report("n1", ReportOf(stale, v1::RUNNING));
  Report("n2", ExitOf(p, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  Report("n1", ReportOf(p, v1::STARTING));  // backwards
  EXPECT_EQ(StateOf(p.job()), v1::RUNNING);
  EXPECT_EQ(Take(v1::ControllerMessage::kReportAck).size(), 3u);
  ASSERT_EQ(Stops().size(), 1u) << "an attempt that nobody wants is stopped";
}

TEST_F(StateTest, WaitingIsExplainedAndCancelledAtOnce) {
  auto first = Submit(SimpleJob("r1", 4));
  EXPECT_FALSE(first.has_placement());
  EXPECT_EQ(Event(first.job()).reason(), "no node has joined pool local yet");
  Register(SimpleNode("n1"));
  EXPECT_EQ(StateOf(first.job()), v1::STARTING);
  auto second = Submit(SimpleJob("r2", 2));
  auto third = Submit(SimpleJob("r3", 1));
  EXPECT_EQ(Event(second.job()).queue_position(), 1u);
  EXPECT_EQ(Event(second.job()).reason(), "needs 2 cores; the best node of pool local has 0 cores free");
  EXPECT_EQ(Event(third.job()).queue_position(), 2u);
  EXPECT_EQ(CancelJob(second.job()), v1::CANCELLED);
  EXPECT_EQ(Event(third.job()).queue_position(), 1u);
  EXPECT_EQ(CancelJob(second.job()), v1::CANCELLED) << "again is fine";
}

TEST_F(StateTest, ImpossibleAndUnknownIsRefusedAtSubmit) {
  EXPECT_EQ(SubmitError(SimpleJob("")).code(), Code::kInvalid);
  Register(SimpleNode("n1", 4, 2));
  EXPECT_EQ(SubmitError(SimpleJob("r1", 1, 3)).code(), Code::kInvalid);
  Error unknown = SubmitError(SimpleJob("r1", 1, 0, "lokal"));
  EXPECT_EQ(unknown.code(), Code::kNotFound);
  EXPECT_EQ(unknown.message(),
            "pool lokal: no such pool: known pools are local: name one with -P, or as `pool` in config.toml");
  v1::SubmitRequest empty = SimpleJob("r1");
  empty.mutable_spec()->mutable_command()->clear_argv();
  EXPECT_EQ(SubmitError(empty).code(), Code::kInvalid);
}

TEST_F(StateTest, CancelOfARunningJobIsToldUntilTheNodeHasEndedIt) {
  Register(SimpleNode("n1"));
  auto p = Submit(SimpleJob("r1")).placement();
  Report("n1", ReportOf(p, v1::RUNNING));
  EXPECT_EQ(CancelJob(p.job()), v1::RUNNING);
  auto stops = Stops();
  ASSERT_EQ(stops.size(), 1u);
  Restart();
  auto again = SimpleNode("n1");
  *again.add_attempts() = ReportOf(p, v1::RUNNING);
  Register(again);
  EXPECT_EQ(Stops().size(), 1u);
  Report("n1", ExitOf(p, v1::CANCELLED, v1::ExitRecord::CANCELLED_BY_USER, 0));
  EXPECT_EQ(StateOf(p.job()), v1::CANCELLED);
}

TEST_F(StateTest, OnlyTheOwnerMayCancelAndSeeWhatRuns) {
  Register(SimpleNode("n1"));
  auto p = Submit(SimpleJob("r1")).placement();
  v1::CancelRequest cancel;
  cancel.set_job(p.job());
  EXPECT_EQ(Transaction([&] { return control::Cancel(*state_, kBob, cancel); }).error().code(), Code::kDenied);
  EXPECT_TRUE(Event(p.job(), "anna@h").has_placement());
  EXPECT_FALSE(Event(p.job(), "bob@h").has_placement());
  v1::GetRequest get;
  get.set_job(p.job());
  auto mine = *Get(*state_, kAnna, get);
  auto his = *Get(*state_, kBob, get);
  EXPECT_EQ(mine.placement().token(), p.token());
  EXPECT_EQ(mine.info().argv(0), "true");
  EXPECT_FALSE(his.has_placement());
  EXPECT_EQ(his.info().argv_size(), 0);
  EXPECT_EQ(his.info().directory(), "");
  EXPECT_EQ(List(*state_, kBob, {})->jobs_size(), 1);
  get.set_job(99);
  EXPECT_EQ(Get(*state_, kAnna, get).error().code(), Code::kNotFound);
}

TEST_F(StateTest, AfterARestartNothingIsLostAndPendingJobsGoOn) {
  Register(SimpleNode("n1", 2));
  auto running = Submit(SimpleJob("r1", 2)).placement();
  auto waiting = Submit(SimpleJob("r2", 2));
  Report("n1", ReportOf(running, v1::RUNNING));
  Starts();
  Restart();
  EXPECT_EQ(StateOf(running.job()), v1::RUNNING);
  EXPECT_EQ(StateOf(waiting.job()), v1::PENDING);
  auto back = SimpleNode("n1", 2);
  *back.add_attempts() = ReportOf(running, v1::RUNNING);
  Register(back);
  EXPECT_TRUE(Starts().empty()) << "the room is taken";
  Report("n1", ExitOf(running, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  auto starts = Starts();
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0].start().placement().job(), waiting.job());
  EXPECT_GT(starts[0].start().placement().epoch(), running.epoch());
}

TEST_F(StateTest, AnOrderThatTheNodeNeverGotIsRepeatedUnderTheSameEpoch) {
  Register(SimpleNode("n1"));
  auto p = Submit(SimpleJob("r1")).placement();
  Starts();
  Restart();
  Register(SimpleNode("n1"));
  auto starts = Starts();
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0].start().placement().epoch(), p.epoch());
  EXPECT_EQ(starts[0].start().placement().token(), p.token());
  EXPECT_EQ(starts[0].start().spec().command().argv(0), "true");
}

TEST_F(StateTest, ARestartedHostHasLostItsJobs) {
  Register(SimpleNode("n1", 4, 0, 1));
  auto starting = Submit(SimpleJob("r1")).placement();
  auto running = Submit(SimpleJob("r2")).placement();
  auto ended = Submit(SimpleJob("r3")).placement();
  Report("n1", ReportOf(running, v1::RUNNING));
  Starts();
  auto back = SimpleNode("n1", 4, 0, 2);
  *back.add_attempts() = ExitOf(ended, v1::COMPLETED, v1::ExitRecord::EXITED, 0);  // its journal survived
  Register(back);
  EXPECT_TRUE(Starts().empty());
  EXPECT_EQ(StateOf(starting.job()), v1::FAILED);
  EXPECT_EQ(StateOf(running.job()), v1::FAILED);
  EXPECT_EQ(Event(running.job()).reason(), "node n1 was restarted while the job was on it");
  EXPECT_FALSE(Event(running.job()).has_exit());
  EXPECT_EQ(StateOf(ended.job()), v1::COMPLETED);
  EXPECT_EQ(NodeOf("n1").jobs(), 0u);
}

TEST_F(StateTest, ANodeWithoutItsJournalEndsWhatRanThere) {
  Register(SimpleNode("n1"));
  auto p = Submit(SimpleJob("r1")).placement();
  Report("n1", ReportOf(p, v1::RUNNING));
  Register(SimpleNode("n1"));
  EXPECT_EQ(StateOf(p.job()), v1::FAILED);
}

TEST_F(StateTest, WhatTheControllerDoesNotKnowIsStopped) {
  v1::Placement unknown;
  unknown.set_job(77);
  unknown.set_attempt(1);
  unknown.set_epoch(1);
  auto node = SimpleNode("n1");
  *node.add_attempts() = ReportOf(unknown, v1::RUNNING);
  Register(node);
  ASSERT_EQ(Stops().size(), 1u);
  EXPECT_EQ(Take(v1::ControllerMessage::kReportAck).size(), 1u);
}

TEST_F(StateTest, ASilentNodeIsLostAndComesBackWithItsJobRunning) {
  Register(SimpleNode("n1", 1));
  auto p = Submit(SimpleJob("r1")).placement();
  auto waiting = Submit(SimpleJob("r2"));
  Report("n1", ReportOf(p, v1::RUNNING));
  PassSeconds(14);
  EXPECT_EQ(StateOf(p.job()), v1::RUNNING);
  PassSeconds(2);
  EXPECT_EQ(StateOf(p.job()), v1::LOST);
  EXPECT_NE(Event(p.job()).reason().find("node n1 is lost"), std::string::npos);
  EXPECT_EQ((*Nodes(*state_, kAnna, {})).nodes(0).state(), "lost");
  EXPECT_EQ(Event(waiting.job()).reason(), "no node of pool local is up");

  Restart();
  EXPECT_EQ(StateOf(p.job()), v1::LOST);
  auto back = SimpleNode("n1", 1);
  *back.add_attempts() = ReportOf(p, v1::RUNNING);
  Starts();
  Register(back);
  EXPECT_EQ(StateOf(p.job()), v1::RUNNING);
  EXPECT_TRUE(Starts().empty()) << "its resources were accounted all the time";
  EXPECT_EQ((*Nodes(*state_, kAnna, {})).nodes(0).state(), "ready");
}

TEST_F(StateTest, ALostJobMayHaveEndedMeanwhile) {
  Register(SimpleNode("n1"));
  auto p = Submit(SimpleJob("r1")).placement();
  PassSeconds(20);
  EXPECT_EQ(StateOf(p.job()), v1::LOST);
  auto back = SimpleNode("n1");
  *back.add_attempts() = ExitOf(p, v1::FAILED, v1::ExitRecord::EXITED, 9);
  Register(back);
  EXPECT_EQ(StateOf(p.job()), v1::FAILED);
  EXPECT_EQ(Event(p.job()).exit().exit_code(), 9);
}

TEST_F(StateTest, AJobWhoseNodeIsLostCanBeCancelled) {
  Register(SimpleNode("n1", 1));
  const auto p = Submit(SimpleJob("r1")).placement();
  Report("n1", ReportOf(p, v1::RUNNING));
  PassSeconds(20);
  EXPECT_TRUE(Transaction([&] { return state_->Cancel(p.job(), 0); }));
  EXPECT_EQ(StateOf(p.job()), v1::CANCELLED);
  auto back = SimpleNode("n1", 1);
  *back.add_attempts() = ReportOf(p, v1::RUNNING);
  sent_.clear();
  Register(back);
  EXPECT_TRUE(std::any_of(sent_.begin(), sent_.end(), [](const auto& m) { return m.second.has_stop(); }))
      << "what still runs there must end";
}

TEST_F(StateTest, HeartbeatsKeepANodeAndOurOwnPauseTakesNone) {
  Register(SimpleNode("n1"));
  for (int i = 0; i < 20; ++i) {
    PassSeconds(2);
    EXPECT_TRUE(Transaction([&] { return Heard(*state_, "n1"); }));
  }
  EXPECT_FALSE(state_->nodes().at("n1").row.lost);
  clock_.AdvanceSeconds(3600);  // the controller was paused, not the node
  Sweep();
  EXPECT_FALSE(state_->nodes().at("n1").row.lost);
  PassSeconds(16);
  EXPECT_TRUE(state_->nodes().at("n1").row.lost);
}

TEST_F(StateTest, HalfTheFleetSilentAtOnceGetsAnotherLease) {
  for (int i = 0; i < 4; ++i) Register(SimpleNode("n" + std::to_string(i)));
  auto lost = [&] {
    int n = 0;
    for (auto& [name, node] : state_->nodes()) n += node.row.lost;
    return n;
  };
  for (int i = 0; i < 20; ++i) {
    PassSeconds(1);
    (void)Heard(*state_, "n0");
  }
  EXPECT_EQ(lost(), 0);
  for (int i = 0; i < 12; ++i) {
    PassSeconds(1);
    (void)Heard(*state_, "n0");
  }
  EXPECT_EQ(lost(), 3) << "after the second lease it is believed";
}

TEST_F(StateTest, ANodeMustCallItselfWhatItsCertificateSays) {
  auto request = SimpleNode("n1");
  EXPECT_EQ(Transaction([&] { return RegisterNode(*state_, "n2", request); }).error().code(), Code::kDenied);
  request.clear_pool();
  EXPECT_EQ(Transaction([&] { return RegisterNode(*state_, "n1", request); }).error().code(), Code::kInvalid);
}

TEST_F(StateTest, AFailedTransactionLeavesMemoryAsTheStoreIs) {
  Register(SimpleNode("n1", 2));
  auto before = Submit(SimpleJob("r1")).placement();
  store_->LimitPages(1);
  ASSERT_TRUE(store_->Begin());
  auto big = SimpleJob("r2");
  big.mutable_spec()->mutable_command()->add_environment(std::string(300'000, 'e'));
  auto refused = control::Submit(*state_, kAnna, big);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kExhausted);
  store_->Rollback();
  ASSERT_TRUE(Transaction([&] { return state_->Load(); }));
  EXPECT_EQ(state_->jobs().size(), 1u);
  EXPECT_EQ(NodeOf("n1").used().milli_cpus(), 1000u);
  EXPECT_TRUE(state_->nodes().at("n1").connected);
  store_->LimitPages(0);
  EXPECT_TRUE(Submit(big).has_placement());
  EXPECT_EQ(StateOf(before.job()), v1::STARTING);
}

// --- the memory of a job that asks for none ---

constexpr int64_t kGiB = int64_t{1} << 30;

NodeSize SizeWith(int64_t cpus, int64_t memory_gib, int64_t gpus = 0, const std::string& type = "") {
  return {cpus * 1000, memory_gib * kGiB, gpus, gpus > 0 ? 80 * kGiB : 0, type};
}

Needs Cpus(int64_t cpus) { return {.milli_cpus = cpus * 1000}; }

TEST(DefaultMemory, IsThePartOfTheProcessors) {
  EXPECT_EQ(DefaultMemory({SizeWith(4, 40)}, Cpus(1)), 9 * kGiB);
  EXPECT_EQ(DefaultMemory({SizeWith(4, 40)}, Cpus(4)), 36 * kGiB);
  EXPECT_EQ(DefaultMemory({}, Cpus(1)), 0);
  EXPECT_EQ(DefaultMemory({SizeWith(4, 0)}, Cpus(1)), 0);
}

TEST(DefaultMemory, HalfGoesWithTheGpus) {
  const NodeSize node = SizeWith(8, 160, 4, "h100");
  EXPECT_EQ(DefaultMemory({node}, Cpus(1)), 9 * kGiB);
  Needs needs = Cpus(1);
  needs.gpus = 2;
  EXPECT_EQ(DefaultMemory({node}, needs), (9 + 36) * kGiB);
  needs.gpus = 0;
  needs.gpu_milli = 500;
  EXPECT_EQ(DefaultMemory({node}, needs), (9 + 9) * kGiB);
  needs.gpu_milli = 0;
  needs.gpu_memory_bytes = 40 * kGiB;
  EXPECT_EQ(DefaultMemory({node}, needs), (9 + 9) * kGiB);
}

TEST(DefaultMemory, OnlyNodesCountOnWhichTheJobFits) {
  const std::vector<NodeSize> nodes = {SizeWith(2, 20), SizeWith(8, 160), SizeWith(8, 320, 4, "h100"),
                                       SizeWith(8, 80, 4, "a100")};
  EXPECT_EQ(DefaultMemory(nodes, Cpus(8)), 36 * kGiB);
  Needs needs = Cpus(8);
  needs.gpus = 4;
  EXPECT_EQ(DefaultMemory(nodes, needs), 72 * kGiB);
  needs.gpu_type = "h100";
  EXPECT_EQ(DefaultMemory(nodes, needs), 288 * kGiB);
  EXPECT_EQ(DefaultMemory(nodes, Cpus(64)), 0);
}

TEST(DefaultLimit, IsWhatIsBookedButEnoughForAShell) {
  EXPECT_EQ(DefaultLimit(9 * kGiB, SizeWith(4, 40)), 9u * kGiB);
  EXPECT_EQ(DefaultLimit(kGiB / 8, SizeWith(64, 8)), 2u * kGiB);
  EXPECT_LT(DefaultLimit(kGiB / 8, SizeWith(4, 1)), 1u * kGiB);
}

}  // namespace
}  // namespace vrun::control
