// SPDX-License-Identifier: Apache-2.0
// What people ask of jobs and nodes: wishes about places, holds, requeues, drains, maintenance, forecasts.
#include <gtest/gtest.h>

#include "control/testing/state_testing.h"

namespace vrun::control {
namespace {

class AdminTest : public StateTest {
 protected:
  static v1::Register NodeWith(const std::string& name, const std::string& rack, std::vector<std::string> labels = {}) {
    v1::Register r = SimpleNode(name, 4, 4);
    r.mutable_facts()->set_rack(rack);
    r.mutable_facts()->mutable_labels()->Assign(labels.begin(), labels.end());
    return r;
  }
  v1::ChangeReply ChangeJob(uint64_t id, v1::ChangeJobs::What what, const rpc::Peer& peer = kAnna) {
    v1::ChangeJobs request;
    request.add_jobs()->set_job(id);
    request.set_what(what);
    auto reply = Transaction([&] { return control::Change(*state_, peer, request); });
    EXPECT_TRUE(reply);
    return reply ? *reply : v1::ChangeReply();
  }
  Result<v1::NodesReply> DrainNode(const std::string& list, bool resume, const std::string& reason = "",
                                   const rpc::Peer& peer = kAnna) {
    v1::DrainNodes request;
    request.add_nodes(list);
    request.set_resume(resume);
    request.set_reason(reason);
    if (Status may = MayCall("/vrun.v1.Control/Drain", state_->RoleOf(peer.name)); !may) return std::move(may).error();
    return Transaction([&] { return control::Drain(*state_, peer, request); });
  }
  Result<v1::MaintenanceList> Window(const v1::SetMaintenance& request) {
    return Transaction([&] { return control::Maintain(*state_, kAnna, request); });
  }
  static v1::SubmitRequest Repeatable(const std::string& id, uint32_t cores = 1) {
    v1::SubmitRequest r = SimpleJob(id, cores);
    r.mutable_spec()->mutable_scheduling()->set_requeue(true);
    return r;
  }
};

TEST_F(AdminTest, AJobRunsOnlyWhereItWishes) {
  Register(NodeWith("n1", "r1", {"ssd"}));
  Register(NodeWith("n2", "r2", {"ssd", "ib"}));
  v1::Register tainted = NodeWith("n3", "r2", {"ssd", "ib", "new"});
  tainted.mutable_facts()->add_taints("test");
  Register(tainted);
  const auto node_of = [&](const std::string& id, auto wish) {
    v1::SubmitRequest request = SimpleJob(id);
    wish(request.mutable_spec()->mutable_scheduling());
    return Submit(request).placement().node();
  };
  EXPECT_EQ(node_of("a", [](v1::Scheduling* s) { s->add_labels("ib"); }), "n2");
  EXPECT_EQ(node_of("b", [](v1::Scheduling* s) { s->add_nodes("n1"); }), "n1");
  EXPECT_EQ(node_of("c", [](v1::Scheduling* s) { s->add_excluded_nodes("n[1-1]"); }), "n2");
  EXPECT_EQ(node_of("d", [](v1::Scheduling* s) { s->add_labels("new"), s->add_tolerations("test"); }), "n3");
  EXPECT_EQ(node_of("e", [](v1::Scheduling* s) { s->add_nodes("n[2-3]"); }), "n2");
}

TEST_F(AdminTest, AWishThatNobodyCanFulfilIsRefusedByName) {
  Register(NodeWith("n1", "", {"ssd"}));
  const auto error_of = [&](auto wish) {
    static int n = 0;
    v1::SubmitRequest request = SimpleJob("r" + std::to_string(++n));
    wish(request.mutable_spec()->mutable_scheduling());
    return std::string(SubmitError(request).message());
  };
  EXPECT_EQ(error_of([](v1::Scheduling* s) { s->add_labels("nvme"); }),
            "constraint nvme: no node of pool local has this label: there are ssd");
  EXPECT_EQ(error_of([](v1::Scheduling* s) { s->add_nodes("n1,n[8-9]"); }),
            "node n8: no such node: `vctl nodes` lists them");
  EXPECT_EQ(error_of([](v1::Scheduling* s) { s->add_excluded_nodes("nobody"); }),
            "node nobody: no such node: `vctl nodes` lists them");
  EXPECT_EQ(error_of([](v1::Scheduling* s) { s->add_nodes("n["); }),
            "n[: not a list of nodes: write names as in n1,n2 or n[1-4,7]");
  EXPECT_TRUE(error_of([](v1::Scheduling* s) {
                s->set_required_level(v1::LEVEL_RACK);
              }).starts_with("topology: no node of pool local says its rack"));
  EXPECT_EQ(error_of([](v1::Scheduling* s) { s->add_gpu_types("b200"); }),
            "GPU type b200: no node of pool local has it: there are h100");
  const std::string taken = error_of([](v1::Scheduling* s) { s->add_excluded_nodes("n1"); });
  EXPECT_TRUE(taken.starts_with("the request can never be met: no node of pool local is one that it may use")) << taken;
}

TEST_F(AdminTest, AHeldJobWaitsUntilItIsReleasedAndSoDoThoseAfterIt) {
  Register(SimpleNode("n1"));
  v1::SubmitRequest request = SimpleJob("a");
  request.mutable_spec()->mutable_scheduling()->set_hold(true);
  const uint64_t held = Submit(request).job();
  v1::SubmitRequest later = SimpleJob("b");
  later.mutable_spec()->mutable_scheduling()->add_after_ok(held);
  const uint64_t after = Submit(later).job();
  EXPECT_EQ(StateOf(held), v1::PENDING);
  EXPECT_EQ(Event(held).reason(), "it is held: `vctl release " + std::to_string(held) + "` lets it start");
  EXPECT_EQ(StateOf(after), v1::PENDING);
  Restart();
  Register(SimpleNode("n1"));
  EXPECT_EQ(StateOf(held), v1::PENDING);
  EXPECT_EQ(ChangeJob(held, v1::ChangeJobs::RELEASE, kBob).problems_size(), 0);  // there is no list of admins
  EXPECT_EQ(StateOf(held), v1::STARTING);
  EXPECT_EQ(StateOf(after), v1::PENDING);
  EXPECT_EQ(ChangeJob(held, v1::ChangeJobs::RELEASE).problems(0), "job " + std::to_string(held) + ": it is not held");
  EXPECT_EQ(ChangeJob(held, v1::ChangeJobs::HOLD).problems(0),
            "job " + std::to_string(held) + ": it has started: only a waiting job can be held");
}

TEST_F(AdminTest, AWaitingJobCanBeHeldAndOthersPassIt) {
  Register(SimpleNode("n1", 4));
  const auto running = Submit(SimpleJob("a", 4));
  const uint64_t first = Submit(SimpleJob("b", 4)).job(), second = Submit(SimpleJob("c", 4)).job();
  EXPECT_EQ(ChangeJob(first, v1::ChangeJobs::HOLD).problems_size(), 0);
  Report("n1", ExitOf(running.placement(), v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  EXPECT_EQ(StateOf(first), v1::PENDING);
  EXPECT_EQ(StateOf(second), v1::STARTING);
  EXPECT_EQ(CancelJob(first), v1::CANCELLED);
}

TEST_F(AdminTest, ARequeuedJobStopsAndStartsAgain) {
  Register(SimpleNode("n1"));
  const auto job = Submit(Repeatable("a"));
  Report("n1", ReportOf(job.placement(), v1::RUNNING));
  EXPECT_EQ(ChangeJob(job.job(), v1::ChangeJobs::REQUEUE).problems_size(), 0);
  const auto stops = Stops();
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_EQ(stops[0].stop().preempted(), "preempted: it was requeued");
  LeavesFor("n1", job.placement());
  WritesAreHome("n1", job.placement());
  EXPECT_EQ(StateOf(job.job()), v1::STARTING);
  EXPECT_EQ(Event(job.job()).placement().attempt(), 2u);
  const auto once = Submit(SimpleJob("b"));
  EXPECT_EQ(ChangeJob(once.job(), v1::ChangeJobs::REQUEUE).problems(0),
            "job " + std::to_string(once.job()) + ": it cannot be started again: submit it with --requeue");
  EXPECT_EQ(ChangeJob(99, v1::ChangeJobs::REQUEUE).problems(0), "job 99: no such job");
}

TEST_F(AdminTest, ADrainedNodeGetsNothingAndSurvivesARestart) {
  Register(SimpleNode("n1"));
  Register(SimpleNode("n2"));
  EXPECT_TRUE(DrainNode("n[1-2]", false, "disk"));
  EXPECT_EQ(NodeOf("n1").state(), "drained");
  EXPECT_EQ(NodeOf("n1").reason(), "disk");
  EXPECT_TRUE(DrainNode("n2", true));
  const auto a = Submit(SimpleJob("a", 4));
  EXPECT_EQ(a.placement().node(), "n2");
  const uint64_t b = Submit(SimpleJob("b", 4)).job();
  Restart();
  Register(SimpleNode("n1"));
  v1::Register again = SimpleNode("n2");
  *again.add_attempts() = ReportOf(a.placement(), v1::RUNNING);
  Register(again);
  EXPECT_EQ(NodeOf("n1").state(), "drained");
  EXPECT_EQ(NodeOf("n1").reason(), "disk");
  EXPECT_EQ(StateOf(b), v1::PENDING);
  EXPECT_TRUE(DrainNode("n1", true));
  EXPECT_EQ(NodeOf("n1").state(), "ready");
  EXPECT_EQ(NodeOf("n1").reason(), "");
  EXPECT_EQ(Event(b).placement().node(), "n1");
  EXPECT_TRUE(DrainNode("n1", false));
  EXPECT_EQ(NodeOf("n1").state(), "draining");
  auto unknown = DrainNode("n1,n7", false);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().message(), "node n7: no such node: `vctl nodes` lists them");
}

TEST_F(AdminTest, NothingStartsThatWouldRunIntoMaintenance) {
  Register(SimpleNode("n1", 8));
  const int64_t hour = 3'600'000'000;
  v1::SetMaintenance window;
  window.set_name("firmware");
  window.add_nodes("n1");
  window.set_from_us(clock_.Wall() + hour);
  window.set_until_us(clock_.Wall() + 2 * hour);
  ASSERT_TRUE(Window(window));
  EXPECT_TRUE(NodeOf("n1").reason().starts_with("maintenance firmware from "));
  const auto job_of = [](const std::string& id, uint64_t limit) {
    v1::SubmitRequest r = SimpleJob(id);
    r.mutable_spec()->mutable_scheduling()->set_limit_s(limit);
    return r;
  };
  EXPECT_TRUE(Submit(job_of("short", 600)).has_placement());
  const uint64_t waits = Submit(job_of("long", 7200)).job();
  EXPECT_EQ(StateOf(waits), v1::PENDING);
  Restart();
  Register(SimpleNode("n1", 8));
  EXPECT_EQ(StateOf(waits), v1::PENDING);
  auto list = Window({});
  ASSERT_TRUE(list);
  ASSERT_EQ(list->windows_size(), 1);
  EXPECT_EQ(list->windows(0).from_us(), window.from_us());
  window.Clear();
  window.set_name("firmware");
  window.set_over(true);
  ASSERT_TRUE(Window(window));
  EXPECT_EQ(StateOf(waits), v1::STARTING);
  EXPECT_FALSE(Window(window));
}

TEST_F(AdminTest, OnlyAdminsMayWhereTheyAreNamed) {
  Register(SimpleNode("n1"));
  const uint64_t job = Submit(SimpleJob("a")).job();
  Transaction([&] {
    state_->Configure(*ParseSchedulerConfig("admins = [\"bob\"]\n", "f"));
    return 0;
  });
  auto refused = DrainNode("n1", false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kDenied);
  EXPECT_TRUE(DrainNode("n1", false, "", kBob));
  const rpc::Peer carl{"home", "carl@h", ""};
  EXPECT_EQ(ChangeJob(job, v1::ChangeJobs::HOLD, carl).problems(0),
            "job " + std::to_string(job) + ": it is not yours: only its owner, an operator or an admin may do this");
}

TEST_F(AdminTest, TheConfigurationCompletesWhatNodesSay) {
  SchedulerConfig config = *ParseSchedulerConfig("[price]\nh100 = 2.5\n", "f");
  config.places = *ParseTopology("SwitchName=leaf Nodes=n[1-2]\nSwitchName=spine Switches=leaf\n", "t");
  Transaction([&] {
    state_->Configure(config);
    return 0;
  });
  Register(SimpleNode("n1", 4, 4));
  Register(NodeWith("n2", "own"));
  EXPECT_EQ(NodeOf("n1").facts().rack(), "leaf");
  EXPECT_EQ(NodeOf("n1").facts().block(), "spine");
  EXPECT_EQ(NodeOf("n1").facts().price_milli(), 2500u);
  EXPECT_EQ(NodeOf("n2").facts().rack(), "own");
}

TEST_F(AdminTest, ATestSaysWhenAndWhereAndSubmitsNothing) {
  Transaction([&] {
    state_->Configure(*ParseSchedulerConfig("[price]\nh100 = 2\n", "f"));
    return 0;
  });
  Register(SimpleNode("n1", 4, 4));
  v1::SubmitRequest request = SimpleJob("a", 1, 2);
  request.mutable_spec()->mutable_scheduling()->set_limit_s(3600);
  request.mutable_spec()->mutable_scheduling()->set_estimate_s(3600);
  request.set_test_only(true);
  v1::SubmitReply reply = Submit(request);
  EXPECT_EQ(reply.job(), 0u);
  EXPECT_EQ(
      reply.forecast().summary(),
      "it would start now on n1; if it runs for all of its time limit, it costs its team 4.00 GPU-hours at the price "
      "of its nodes");
  v1::SubmitRequest real = request;
  real.set_test_only(false);
  real.mutable_spec()->mutable_resources()->set_gpus(4);
  const auto running = Submit(real);
  ASSERT_TRUE(running.has_placement());
  Report("n1", ReportOf(running.placement(), v1::RUNNING));
  request.set_request_id("b");
  reply = Submit(request);
  EXPECT_TRUE(reply.forecast().summary().starts_with("it would start about ")) << reply.forecast().summary();
  EXPECT_NE(reply.forecast().summary().find(" on n1, when job " + std::to_string(running.job()) + " has ended"),
            std::string::npos)
      << reply.forecast().summary();
  EXPECT_FALSE(state_->Find(running.job() + 1));
}

TEST_F(AdminTest, WhatAProgramSavedIsNotLost) {
  Register(SimpleNode("n1"));
  v1::SubmitRequest request = Repeatable("a");
  request.mutable_spec()->mutable_scheduling()->set_save_period_seconds(600);
  const auto job = Submit(request);
  Report("n1", ReportOf(job.placement(), v1::RUNNING));
  clock_.AdvanceSeconds(1000);
  v1::JobWord word;
  word.set_job(job.job());
  word.set_attempt(1);
  word.set_saved(true);
  word.set_at_us(clock_.Wall());
  EXPECT_TRUE(Transaction([&] { return state_->Saved("n1", word); }));
  const int64_t saved = clock_.Wall();
  EXPECT_NEAR(static_cast<double>(InfoOf(job.job()).saved_us()), static_cast<double>(saved), 1e6);
  clock_.AdvanceSeconds(100);
  EXPECT_EQ(ChangeJob(job.job(), v1::ChangeJobs::REQUEUE).problems_size(), 0);
  v1::AttemptReport left = ReportOf(job.placement(), v1::COMPLETING);
  left.mutable_exit()->set_kind(v1::ExitRecord::PREEMPTED_BY_JOB);
  left.mutable_exit()->set_signal(SIGKILL);
  left.mutable_exit()->set_started_us(saved - 1'000'000'000);
  Report("n1", left);
  EXPECT_NEAR(static_cast<double>(InfoOf(job.job()).lost_us()), 100e6, 1e6);
  // Another attempt's word, or another node's, says nothing.
  word.set_attempt(7);
  EXPECT_TRUE(Transaction([&] { return state_->Saved("n1", word); }));
}

TEST_F(AdminTest, HowAProgramEndsTellsWhetherItHasSaved) {
  struct Case {
    int signal;
    bool word;  // said that it is safe 90 s after its start, as the record of its end says
    double lost_seconds;
  };
  for (const Case& c :
       {Case{0, false, 0}, Case{SIGSEGV, false, 100}, Case{SIGUSR1, false, 100}, Case{SIGKILL, true, 10}}) {
    Forget();
    Register(SimpleNode("n1"));
    v1::SubmitRequest request = Repeatable("a");
    request.mutable_spec()->mutable_scheduling()->set_saves(true);
    const auto job = Submit(request);
    Report("n1", ReportOf(job.placement(), v1::RUNNING));
    const int64_t began = clock_.Wall();
    clock_.AdvanceSeconds(100);
    EXPECT_EQ(ChangeJob(job.job(), v1::ChangeJobs::REQUEUE).problems_size(), 0);
    v1::AttemptReport left = ReportOf(job.placement(), v1::COMPLETING);
    left.mutable_exit()->set_kind(v1::ExitRecord::PREEMPTED_BY_JOB);
    left.mutable_exit()->set_signal(c.signal);
    left.mutable_exit()->set_started_us(began);
    if (c.word) left.mutable_exit()->set_saved_us(began + 90'000'000);
    Report("n1", left);
    EXPECT_NEAR(static_cast<double>(InfoOf(job.job()).lost_us()), c.lost_seconds * 1e6, 1e6) << c.signal;
  }
}

// Who takes the room of `victim`, which has run for this long.
class StopModeTest : public AdminTest {
 protected:
  v1::SubmitReply RunVictim(v1::SubmitRequest request, int seconds) {
    Register(SimpleNode("n1", 4, 4));
    request.mutable_spec()->mutable_resources()->set_gpus(4);
    request.mutable_spec()->mutable_scheduling()->set_class_(v1::SCAVENGER);
    const v1::SubmitReply reply = Submit(request);
    Report("n1", ReportOf(reply.placement(), v1::RUNNING));
    for (int i = 0; i < seconds; i += 5) {
      clock_.AdvanceSeconds(5);
      Transaction([&] { return Heard(*state_, "n1"); });
    }
    return reply;
  }
  void TakeItsRoom() {
    v1::SubmitRequest urgent = SimpleJob("urgent", 1, 4);
    urgent.mutable_spec()->mutable_scheduling()->set_class_(v1::PRODUCTION);
    Submit(urgent);
    for (int i = 0; i < 3; ++i) Transaction([&] { return clock_.AdvanceSeconds(5), Heard(*state_, "n1"); });
  }
  void Says(uint64_t job) {
    v1::JobWord word;
    word.set_job(job);
    word.set_attempt(1);
    word.set_saved(true);
    word.set_at_us(clock_.Wall());
    EXPECT_TRUE(Transaction([&] { return state_->Saved("n1", word); }));
  }
};

TEST_F(StopModeTest, AJobWhoseWorkIsLostIsToldShortly) {
  RunVictim(Repeatable("a"), 60);
  TakeItsRoom();
  const auto stops = Stops();
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_EQ(stops[0].stop().grace_ms(), 10'000u);
}

TEST_F(StopModeTest, AJobKeepsTheTimeThatItAskedFor) {
  v1::SubmitRequest request = Repeatable("a");
  request.mutable_spec()->mutable_scheduling()->set_grace_s(77);
  RunVictim(request, 60);
  TakeItsRoom();
  const auto stops = Stops();
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_EQ(stops[0].stop().grace_ms(), 77'000u);
}

TEST_F(StopModeTest, AJobWhoseOwnSaveIsNearIsToldAfterIt) {
  v1::SubmitRequest request = Repeatable("a");
  request.mutable_spec()->mutable_scheduling()->set_save_period_seconds(600);
  request.mutable_spec()->mutable_scheduling()->set_restore_seconds(5);
  request.mutable_spec()->mutable_scheduling()->set_save_seconds(5);
  const v1::SubmitReply victim = RunVictim(request, 560);
  TakeItsRoom();
  EXPECT_EQ(Stops().size(), 0u);
  ASSERT_TRUE(state_->NextWake());
  Says(victim.job());
  EXPECT_EQ(Stops().size(), 1u);
  LeavesFor("n1", victim.placement(), SIGKILL);
  EXPECT_LT(InfoOf(victim.job()).lost_us(), 5'000'000);
}

TEST_F(StopModeTest, AJobThatDoesNotSaveIsToldAllTheSame) {
  v1::SubmitRequest request = Repeatable("a");
  request.mutable_spec()->mutable_scheduling()->set_save_period_seconds(600);
  request.mutable_spec()->mutable_scheduling()->set_restore_seconds(5);
  request.mutable_spec()->mutable_scheduling()->set_save_seconds(5);
  RunVictim(request, 560);
  TakeItsRoom();
  EXPECT_EQ(Stops().size(), 0u);
  clock_.AdvanceSeconds(60);
  Transaction([&] { return Heard(*state_, "n1"); });
  EXPECT_EQ(Stops().size(), 1u);
}

TEST_F(AdminTest, ARetryCountsItsTriesAndWaitsLongerEachTime) {
  Register(SimpleNode("n1"));
  v1::SubmitRequest request = SimpleJob("a");
  v1::RetryRule* rule = request.mutable_spec()->mutable_scheduling()->add_retries();
  rule->set_times(2);
  rule->set_delay_s(30);
  rule->add_causes("3");
  v1::SubmitReply job = Submit(request);
  const auto ends = [&](const v1::Placement& p) {
    v1::AttemptReport report = ReportOf(p, v1::COMPLETING);
    report.mutable_exit()->set_kind(v1::ExitRecord::PREEMPTED_BY_JOB);
    report.mutable_exit()->set_started_us(clock_.Wall() - 1'000'000);
    report.mutable_exit()->set_reason("retry (rule 1): exit status 3");
    Report("n1", report);
    WritesAreHome("n1", p);
  };
  ends(job.placement());
  EXPECT_EQ(StateOf(job.job()), v1::PENDING);
  clock_.AdvanceSeconds(20);
  Transaction([&] { return Heard(*state_, "n1"); });
  EXPECT_EQ(StateOf(job.job()), v1::PENDING);
  clock_.AdvanceSeconds(11);
  Transaction([&] { return Heard(*state_, "n1"); });
  EXPECT_EQ(StateOf(job.job()), v1::STARTING);
  EXPECT_EQ(InfoOf(job.job()).scheduling().retries(0).times(), 1u);
  ends(Event(job.job()).placement());
  clock_.AdvanceSeconds(31);
  Transaction([&] { return Heard(*state_, "n1"); });
  EXPECT_EQ(StateOf(job.job()), v1::PENDING);
  clock_.AdvanceSeconds(30);
  Transaction([&] { return Heard(*state_, "n1"); });
  EXPECT_EQ(StateOf(job.job()), v1::STARTING);
  EXPECT_EQ(InfoOf(job.job()).scheduling().retries(0).times(), 0u);
  EXPECT_EQ(InfoOf(job.job()).attempts(0).state(), v1::FAILED);
}

TEST_F(AdminTest, ARetryMayBeForANodeThatWasRestarted) {
  Register(SimpleNode("n1"));
  v1::SubmitRequest request = SimpleJob("a");
  v1::RetryRule* rule = request.mutable_spec()->mutable_scheduling()->add_retries();
  rule->set_times(1);
  rule->set_delay_s(30);
  rule->add_causes("node");
  const v1::SubmitReply job = Submit(request);
  Report("n1", ReportOf(job.placement(), v1::RUNNING));
  Register(SimpleNode("n1", 4, 0, 2));
  EXPECT_EQ(StateOf(job.job()), v1::PENDING);
  clock_.AdvanceSeconds(31);
  Transaction([&] { return Heard(*state_, "n1"); });
  EXPECT_EQ(StateOf(job.job()), v1::STARTING);
  Register(SimpleNode("n1", 4, 0, 3));
  EXPECT_EQ(StateOf(job.job()), v1::FAILED);
}

TEST_F(AdminTest, TheNodesThatAreHeldForAJobAreNamed) {
  Register(SimpleNode("n1", 1, 1));
  const auto timed = [&](const std::string& id) {
    v1::SubmitRequest request = SimpleJob(id, 1, 1);
    request.mutable_spec()->mutable_scheduling()->set_limit_s(3600);
    request.mutable_spec()->mutable_scheduling()->set_hard_deadline(true);
    request.mutable_spec()->mutable_scheduling()->set_deadline_us(clock_.Wall() + 4 * 3'600'000'000);
    return request;
  };
  Report("n1", ReportOf(Submit(timed("a")).placement(), v1::RUNNING));
  const v1::SubmitReply promised = Submit(timed("b"));
  EXPECT_NE(promised.deadline().find("will be met"), std::string::npos) << promised.deadline();
  v1::WhyRequest why;
  why.set_job(promised.job());
  EXPECT_EQ(Why(*state_, kAnna, why)->expected_why(), "node n1 is held for it until then");
}

}  // namespace
}  // namespace vrun::control
