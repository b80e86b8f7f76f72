// SPDX-License-Identifier: Apache-2.0
// Jobs that ask for parts of GPUs, and nodes that say how their GPUs are.
#include <gtest/gtest.h>

#include "control/gpus/gpu_needs.h"
#include "control/gpus/health.h"
#include "control/testing/gang_testing.h"
#include "sched/engine/inspect.h"

namespace vrun::control {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

v1::Register GpuNode(const std::string& name, uint32_t gpus, uint32_t cut = 0, const std::string& type = "h100",
                     uint64_t gib = 80) {
  v1::Register r = SimpleNode(name, 64, gpus);
  r.mutable_total()->set_gpu_type(type);
  if (cut > 0) r.mutable_facts()->set_mig_model("h100-80gb");
  for (uint32_t i = 0; i < gpus; ++i) {
    v1::Gpu* gpu = r.mutable_facts()->add_gpus();
    gpu->set_uuid("GPU-" + std::to_string(i));
    gpu->set_type(type);
    gpu->set_memory_bytes(gib * kGiB - kGiB / 3);
    gpu->set_mig(i < cut);
    gpu->set_mps(i >= cut);
  }
  return r;
}

v1::SubmitRequest ShareJob(const std::string& id, uint32_t milli) {
  v1::SubmitRequest request = SimpleJob(id);
  request.mutable_spec()->mutable_resources()->set_gpu_milli(milli);
  return request;
}

v1::SubmitRequest InstanceJob(const std::string& id, const std::string& profile) {
  v1::SubmitRequest request = SimpleJob(id);
  request.mutable_spec()->mutable_resources()->set_mig_profile(profile);
  return request;
}

v1::SubmitRequest MemoryJob(const std::string& id, uint64_t gib) {
  v1::SubmitRequest request = SimpleJob(id);
  request.mutable_spec()->mutable_resources()->set_gpu_memory_bytes(gib * kGiB);
  return request;
}

class GpusTest : public StateTest {
 protected:
  // The last order to start a job on the node.
  v1::StartAttempt Start(const std::string& node = "n1") {
    const auto all = Take(v1::ControllerMessage::kStart, node);
    EXPECT_FALSE(all.empty());
    return all.empty() ? v1::StartAttempt() : all.back().start();
  }
  std::string Summary(uint64_t id) { return state_->Explain(state_->jobs().at(id)).summary(); }
  void Heed(const std::string& node, const v1::GpuReport& report) {
    EXPECT_TRUE(Transaction([&] { return state_->Heed(node, report); }));
  }
  v1::GpuReport ReportOf(const std::string& node) {
    v1::GpuReport report;
    *report.mutable_gpus() = state_->FactsOf(state_->nodes().at(node).row).gpus();
    return report;
  }
};

TEST_F(GpusTest, AShareGoesToItsNodeAndIsThereAfterARestart) {
  Register(GpuNode("n1", 2));
  v1::SubmitRequest request = ShareJob("a", 250);
  request.mutable_spec()->mutable_resources()->set_gpu_burst_milli(1000);
  const auto job = Submit(request);
  EXPECT_EQ(job.placement().gpu_mask(), 1u);
  const v1::StartAttempt start = Start();
  EXPECT_EQ(start.spec().resources().gpus(), 0u);
  EXPECT_EQ(start.spec().resources().gpu_milli(), 250u);
  EXPECT_EQ(start.spec().resources().gpu_burst_milli(), 1000u);
  EXPECT_EQ(start.spec().resources().gpu_sharing(), v1::GPU_MPS);
  EXPECT_EQ(Submit(ShareJob("b", 500)).placement().gpu_mask(), 1u) << "beside it";
  EXPECT_EQ(Submit(ShareJob("c", 500)).placement().gpu_mask(), 2u) << "no room there";
  const v1::NodeInfo node = NodeOf("n1");
  ASSERT_EQ(node.gpu_users_size(), 3);
  EXPECT_EQ(node.gpu_users(1).milli(), 500u);
  EXPECT_EQ(node.gpu_users(1).sharing(), v1::GPU_MPS);
  EXPECT_EQ(node.used().gpu_milli(), 1250u);
  Restart();
  Register([&] {
    v1::Register again = GpuNode("n1", 2);
    for (const auto& [id, row] : state_->jobs()) {
      v1::AttemptReport* report = again.add_attempts();
      *report = control::ReportOf(*state_->PlacementOf(row, 0), v1::STARTING);
    }
    return again;
  }());
  EXPECT_EQ(Submit(ShareJob("d", 500)).placement().gpu_mask(), 2u);
  EXPECT_FALSE(Submit(ShareJob("e", 300)).has_placement()) << "0.25 is left on the one, nothing on the other";
}

TEST_F(GpusTest, StrangersGetOneAnothersGpuOnlyInInstances) {
  Register(GpuNode("n1", 1));
  EXPECT_TRUE(Submit(ShareJob("a", 250)).has_placement());
  const auto ben = Submit(ShareJob("b", 250), kBob);
  EXPECT_FALSE(ben.has_placement());
  EXPECT_NE(Summary(ben.job()).find("1 GPU is shared by others"), std::string::npos) << Summary(ben.job());
  Register(GpuNode("n2", 1, 1));
  const auto anna = Submit(InstanceJob("c", "1g.10gb"));
  EXPECT_EQ(anna.placement().mig_start(), Start("n2").placement().mig_start());
  const auto instance = Submit(InstanceJob("d", "1g.10gb"), kBob);
  EXPECT_EQ(instance.placement().node(), "n2");
  EXPECT_NE(instance.placement().mig_start(), anna.placement().mig_start());
  EXPECT_EQ(Start("n2").spec().resources().mig_profile(), "1g.10gb");
  EXPECT_EQ(NodeOf("n2").gpu_users(0).milli(), 125u);
}

TEST_F(GpusTest, MembersOfATeamShareIfTheFileSaysSo) {
  Transaction([&] {
    state_->Configure(*ParseSchedulerConfig("[gpus]\nshare_with = \"team\"\n[team.lab]\n[team.other]\n", "f"));
    return 0;
  });
  Register(GpuNode("n1", 1));
  const auto of = [](const char* id, const char* team) {
    v1::SubmitRequest request = ShareJob(id, 250);
    request.mutable_spec()->mutable_scheduling()->set_team(team);
    return request;
  };
  EXPECT_TRUE(Submit(of("a", "lab")).has_placement());
  EXPECT_TRUE(Submit(of("b", "lab"), kBob).has_placement());
  EXPECT_FALSE(Submit(of("c", "other"), kBob).has_placement());
  EXPECT_FALSE(ParseSchedulerConfig("[gpus]\nshare_with = \"all\"\n", "f"));
  EXPECT_FALSE(ParseSchedulerConfig("[gpus]\ndrain_percent = 101\n", "f"));
}

TEST_F(GpusTest, ByMemoryEachNodeGivesWhatItHas) {
  Register(GpuNode("n1", 1, 1));
  Submit(MemoryJob("a", 20));
  const v1::StartAttempt cut = Start();
  EXPECT_EQ(cut.spec().resources().mig_profile(), "1g.20gb");
  EXPECT_TRUE(cut.placement().has_mig_start());
  EXPECT_TRUE(Transaction([&] { return state_->Drain("n1", true, ""); }));
  Register(GpuNode("n2", 1));
  const auto share = Submit(MemoryJob("b", 20));
  EXPECT_EQ(Start("n2").spec().resources().gpu_milli(), 250u);
  EXPECT_EQ(NodeOf("n2").used().gpu_milli(), 250u);
  Register(GpuNode("n3", 1, 0, "a100", 40));
  EXPECT_EQ(Submit(MemoryJob("c", 40)).placement().node(), "n3");
  EXPECT_EQ(Start("n3").spec().resources().gpus(), 1u);
  // Rebuilt from the jobs, not from the journal.
  EXPECT_TRUE(Transaction([&] { return store_->ClearJournal(); }));
  Restart();
  EXPECT_EQ(state_->jobs().at(share.job()).pods[0].gpu_milli, 250u);
  for (const auto& room : sched::core::Nodes(state_->scheduler())) {
    if (room.spec->name == "n2") EXPECT_EQ(room.room->free_milli[0], 750);
    if (room.spec->name == "n3") EXPECT_EQ(room.room->free_milli[0], 0);
    if (room.spec->name == "n1") EXPECT_EQ(room.room->free_milli[0], 750);
  }
}

TEST_F(GpusTest, WhatCanNeverBeIsRefusedInOneLine) {
  Register(GpuNode("n1", 4, 2));
  EXPECT_EQ(SubmitError(InstanceJob("a", "1g.11gb")).message().substr(0, 54),
            "submit: no GPU has the MIG profile 1g.11gb: known are ");
  const std::string never = "the request can never be met: ",
                    less = " (pool local): ask for less or choose another pool";
  EXPECT_EQ(SubmitError(MemoryJob("b", 81)).message(),
            never + "needs 81 GiB of a gpu: 4 GPUs have too little memory, or nobody knows how much" + less);
  EXPECT_EQ(SubmitError(InstanceJob("c", "1g.5gb")).message(),
            never + "needs a 1g.5gb: 2 GPUs are not in MIG mode, 2 cannot be cut like that" + less);
  EXPECT_NE(SubmitError(SimpleJob("d", 1, 3)).message().find("others are in MIG mode"), std::string::npos);
  v1::SubmitRequest both = ShareJob("e", 250);
  both.mutable_spec()->mutable_resources()->set_gpus(1);
  EXPECT_NE(SubmitError(both).message().find("exclude each other"), std::string::npos);
  EXPECT_FALSE(SubmitError(ShareJob("f", 1000)).message().empty());
}

TEST_F(GpusTest, WhyAnInstanceWaits) {
  Register(GpuNode("n1", 2, 1));
  EXPECT_TRUE(Submit(InstanceJob("a", "7g.80gb")).has_placement());
  const auto waits = Submit(InstanceJob("b", "1g.10gb"));
  EXPECT_EQ(Summary(waits.job()), "needs a 1g.10gb: 1 GPU is not in MIG mode, 1 has too little left (pool local)");
}

TEST_F(GpusTest, AnElementOfAnArrayAndAGangGetTheirParts) {
  Register(GpuNode("n1", 1, 1));
  Register(GpuNode("n2", 1, 1));
  v1::SubmitRequest gang = GangJob("a", 2);
  gang.mutable_spec()->mutable_resources()->set_mig_profile("3g.40gb");
  const auto job = Submit(gang);
  EXPECT_EQ(state_->jobs().at(job.job()).pods.size(), 2u);
  for (const PodRow& pod : state_->jobs().at(job.job()).pods) EXPECT_EQ(pod.mig_profile, "3g.40gb");
  EXPECT_EQ(InfoOf(job.job()).pods(1).mig_start(),
            static_cast<uint32_t>(state_->jobs().at(job.job()).pods[1].mig_start));
  v1::SubmitRequest array = InstanceJob("b", "3g.40gb");
  array.mutable_array()->add_ranges()->set_last(1);
  array.mutable_array()->mutable_ranges(0)->set_step(1);
  Submit(array);
  EXPECT_EQ(NodeOf("n1").gpu_users_size(), 2);
  EXPECT_EQ(NodeOf("n2").gpu_users_size(), 2);
}

// --- health ---

TEST_F(GpusTest, ABrokenGpuGetsNoJobUntilItIsFine) {
  Register(GpuNode("n1", 1));
  v1::GpuReport report = ReportOf("n1");
  report.mutable_gpus(0)->set_problem("XID 79: GPU has fallen off the bus");
  Heed("n1", report);
  EXPECT_EQ(NodeOf("n1").facts().bad_gpus(), 1u);
  const auto job = Submit(MemoryJob("other", 0));
  (void)job;
  const auto error = SubmitError(SimpleJob("a", 1, 1));
  EXPECT_FALSE(error.message().empty());
  Restart();
  EXPECT_EQ(NodeOf("n1").facts().bad_gpus(), 1u) << "remembered";
  Register(GpuNode("n1", 1));
  EXPECT_EQ(NodeOf("n1").facts().bad_gpus(), 0u) << "the node says that it is fine";
  EXPECT_TRUE(Submit(SimpleJob("b", 1, 1)).has_placement());
}

TEST_F(GpusTest, ANodeDrainsByItsOwnWordUntilItWithdrawsIt) {
  Register(GpuNode("n1", 1));
  v1::GpuReport report = ReportOf("n1");
  report.set_drain("3 GPUs have lost their NVLink");
  Heed("n1", report);
  EXPECT_EQ(NodeOf("n1").state(), "drained");
  EXPECT_EQ(NodeOf("n1").reason(), "3 GPUs have lost their NVLink");
  const auto job = Submit(SimpleJob("a", 1, 1));
  EXPECT_FALSE(job.has_placement());
  report.clear_drain();
  Heed("n1", report);
  EXPECT_EQ(NodeOf("n1").state(), "ready");
  EXPECT_EQ(StateOf(job.job()), v1::STARTING);
  // An administrator knows better, until the node says something else.
  report.set_drain("the fan is loud");
  Heed("n1", report);
  EXPECT_TRUE(Transaction([&] { return state_->Drain("n1", false, ""); }));
  Heed("n1", report);
  EXPECT_EQ(NodeOf("n1").state(), "ready");
  Register(GpuNode("n1", 1));
  Heed("n1", report);
  EXPECT_EQ(NodeOf("n1").state(), "ready") << "after its registration, too";
  report.set_drain("the fan is silent");
  Heed("n1", report);
  EXPECT_EQ(NodeOf("n1").state(), "draining");
}

TEST_F(GpusTest, AStormOfReportsTakesOutOnePartOfThePool) {
  for (int i = 0; i < 20; ++i) Register(GpuNode("n" + std::to_string(100 + i), 4));
  const auto drained = [&] {
    int n = 0;
    for (const auto& [name, node] : state_->nodes()) n += Drains(node.row);
    return n;
  };
  const auto storm = [&] {
    for (int i = 0; i < 20; ++i) {
      v1::GpuReport report = ReportOf("n" + std::to_string(100 + i));
      report.set_drain("no GPU answers");
      Heed("n" + std::to_string(100 + i), report);
    }
  };
  storm();
  EXPECT_EQ(drained(), 2) << "10 % of 20";
  EXPECT_NE(NodeOf("n119").reason().find("not acted on, because 10 % of the pool's nodes"), std::string::npos)
      << NodeOf("n119").reason();
  Restart();
  storm();
  EXPECT_EQ(drained(), 2) << "the controller's restart opens nothing";
  clock_.AdvanceSeconds(601);
  storm();
  EXPECT_EQ(drained(), 4);
  // A GPU counts as a part of its node.
  clock_.AdvanceSeconds(601);
  int gpus = 0;
  for (int i = 10; i < 20; ++i) {
    v1::GpuReport report = ReportOf("n" + std::to_string(100 + i));
    report.mutable_gpus(0)->set_problem("ECC");
    Heed("n" + std::to_string(100 + i), report);
    gpus += HealthOf(state_->nodes().at("n" + std::to_string(100 + i)).row).bad_gpus() != 0;
  }
  EXPECT_EQ(gpus, 8);
}

TEST_F(GpusTest, ANodeThatReportsTooOftenIsHeardOnceAMinute) {
  Register(GpuNode("n1", 1));
  v1::GpuReport report = ReportOf("n1");
  for (int i = 0; i < 50; ++i) {
    report.set_drain(i % 2 == 0 ? "flaps" : "");
    Heed("n1", report);
  }
  report.set_drain("the last word");
  Heed("n1", report);
  EXPECT_EQ(NodeOf("n1").state(), "ready") << "the tenth report took it back";
  clock_.AdvanceSeconds(61);
  EXPECT_TRUE(Transaction([&] { return state_->HeedWaiting(); }));
  EXPECT_EQ(NodeOf("n1").reason().substr(0, 13), "the last word");
}

TEST_F(GpusTest, AJobIsToldWhoseFaultItWasAndStartsAgainIfItWasNotItsOwn) {
  Register(GpuNode("n1", 2));
  v1::SubmitRequest request = SimpleJob("a", 1, 1);
  request.mutable_spec()->mutable_scheduling()->set_requeue(true);
  const auto job = Submit(request);
  Report("n1", control::ReportOf(job.placement(), v1::RUNNING));
  v1::GpuReport report = ReportOf("n1");
  report.mutable_gpus(0)->set_problem("XID 79: GPU has fallen off the bus");
  v1::GpuReport::Fault* fault = report.add_faults();
  fault->set_what("XID 79: GPU has fallen off the bus");
  fault->set_job(job.job());
  fault->set_attempt(1);
  fault->set_fatal(true);
  Heed("n1", report);
  const auto stops = Stops();
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_NE(stops[0].stop().preempted(), "") << "by its record home knows that it starts again";
  v1::AttemptReport ended = ExitOf(job.placement(), v1::PREEMPTED, v1::ExitRecord::PREEMPTED_BY_JOB, 143);
  Report("n1", ended);
  EXPECT_EQ(StateOf(job.job()), v1::STARTING);
  EXPECT_EQ(Event(job.job()).placement().gpu_mask(), 2u) << "on the other GPU";
  const auto again = Event(job.job()).placement();
  EXPECT_NE(InfoOf(job.job()).attempts(0).reason().find("not the job's doing"), std::string::npos);
  // One of its own: it goes on, and its end says it.
  Report("n1", control::ReportOf(again, v1::RUNNING));
  v1::GpuReport own = ReportOf("n1");
  fault = own.add_faults();
  fault->set_gpu(1);
  fault->set_what("XID 31: illegal access");
  fault->set_job(job.job());
  fault->set_attempt(2);
  fault->set_own(true);
  fault->set_fatal(true);
  Heed("n1", own);
  EXPECT_TRUE(Stops().empty());
  EXPECT_EQ(InfoOf(job.job()).reason(), "GPU 1 of n1: XID 31: illegal access (by the job itself)") << "while it runs";
  Report("n1", ExitOf(again, v1::FAILED, v1::ExitRecord::EXITED, 1));
  EXPECT_EQ(StateOf(job.job()), v1::FAILED);
  EXPECT_EQ(InfoOf(job.job()).reason(), "GPU 1 of n1: XID 31: illegal access (by the job itself)");
}

// Home takes any other record for the end of the job, and would not follow another attempt.
TEST_F(GpusTest, AJobThatEndedBeforeItWasToldToDoesNotStartAgain) {
  Register(GpuNode("n1", 2));
  v1::SubmitRequest request = SimpleJob("a", 1, 1);
  request.mutable_spec()->mutable_scheduling()->set_requeue(true);
  const auto job = Submit(request);
  Report("n1", control::ReportOf(job.placement(), v1::RUNNING));
  v1::GpuReport report = ReportOf("n1");
  v1::GpuReport::Fault* fault = report.add_faults();
  fault->set_what("XID 79: GPU has fallen off the bus");
  fault->set_job(job.job());
  fault->set_attempt(1);
  fault->set_fatal(true);
  Heed("n1", report);
  Report("n1", ExitOf(job.placement(), v1::FAILED, v1::ExitRecord::EXITED, 1));
  EXPECT_EQ(StateOf(job.job()), v1::FAILED);
  EXPECT_NE(InfoOf(job.job()).reason().find("not the job's doing"), std::string::npos);
}

// --- use ---

TEST_F(GpusTest, WhatAJobUsedIsKeptWithItsAttempts) {
  Register(GpuNode("n1", 2));
  const auto job = Submit(SimpleJob("a", 1, 2));
  Report("n1", control::ReportOf(job.placement(), v1::RUNNING));
  v1::GpuUsages usages;
  v1::GpuUsage* use = usages.add_usages();
  use->set_job(job.job());
  use->set_attempt(1);
  use->set_metered_us(100'000'000);
  use->set_busy_us(166'000'000);
  use->set_memory_peak_bytes(71 * kGiB);
  use->set_energy_mj(1'500'000'000);
  use->set_utilization_percent(83);
  EXPECT_TRUE(Transaction([&] { return state_->Use("n1", usages); }));
  EXPECT_EQ(InfoOf(job.job()).gpu_usage().busy_us(), 166'000'000u);
  EXPECT_EQ(NodeOf("n1").gpu_users(1).usage().utilization_percent(), 83u);
  EXPECT_TRUE(Transaction([&] { return state_->Use("n2", usages); })) << "of a node that does not have the pod";
  clock_.AdvanceSeconds(301);
  use->set_busy_us(200'000'000);
  EXPECT_TRUE(Transaction([&] { return state_->Use("n1", usages); }));
  Restart();
  EXPECT_EQ(InfoOf(job.job()).gpu_usage().busy_us(), 200'000'000u) << "stored now and then";
  Register([&] {
    v1::Register again = GpuNode("n1", 2);
    *again.add_attempts() = control::ReportOf(job.placement(), v1::RUNNING);
    return again;
  }());
  use->set_busy_us(300'000'000);
  EXPECT_TRUE(Transaction([&] { return state_->Use("n1", usages); }));
  Report("n1", ExitOf(job.placement(), v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  Restart();
  EXPECT_EQ(InfoOf(job.job()).gpu_usage().busy_us(), 300'000'000u) << "and at the end";
  v1::AccountsRequest all;
  const auto accounts = Accounts(*state_, kAnna, all);
  ASSERT_TRUE(accounts);
  EXPECT_EQ(accounts->accounts(0).job().gpu_usage().energy_mj(), 1'500'000'000u);
}

TEST(GpuNeedsTest, NamesOfOthersHaveOtherNumbers) {
  EXPECT_NE(SharersOf("user anna@h"), SharersOf("user ben@h"));
  EXPECT_EQ(SharersOf("user anna@h"), SharersOf("user anna@h"));
}

}  // namespace
}  // namespace vrun::control
