// SPDX-License-Identifier: Apache-2.0
// The life of a pod's GPUs on a node with the fake driver, and what is left when the agent or the host is killed.
#include "node/gpus/node_gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <fstream>

#include "base/clock.h"
#include "gpu/programs.h"
#include "gpu/testing/fake_machine.h"

namespace vrun::node {
namespace {

using ::testing::HasSubstr;

class NodeGpusTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "the driver's files must belong to root";
  }
  void TearDown() override {
    if (gpus_) gpus_->Stop();
    gpus_.reset();
  }

  // As an agent that starts, also after one that was killed: what that one had in memory is gone.
  void Start(const std::vector<v1::StartAttempt>& alive = {}) {
    gpus_.reset();
    NodeGpusOptions options;
    options.driver_root = options.device_root = driver_.root();
    options.state_directory = driver_.root() + "/state";
    options.job_file_directory = driver_.root() + "/state";
    options.interval_us = 100'000;
    auto started = NodeGpus::Start(&loop_, options,
                                   {.on_report = [this](const v1::GpuReport& r) { reports_.push_back(r); },
                                    .on_usages = [this](const v1::GpuUsages& u) { usages_.push_back(u); }});
    VRUN_CHECK(started.has_value());
    gpus_ = std::move(*started);
    gpus_->Recover(alive);
  }

  static v1::StartAttempt Order(uint64_t job, uint32_t mask, const std::string& user = "ann") {
    v1::StartAttempt order;
    order.mutable_placement()->set_job(job);
    order.mutable_placement()->set_attempt(1);
    order.mutable_placement()->set_gpu_mask(mask);
    order.set_user(user);
    order.set_home_id("home-" + user);
    return order;
  }
  static v1::StartAttempt Share(uint64_t job, uint32_t milli, const std::string& user = "ann") {
    v1::StartAttempt order = Order(job, 1, user);
    order.mutable_spec()->mutable_resources()->set_gpu_milli(milli);
    return order;
  }
  static v1::StartAttempt Instance(uint64_t job, const std::string& profile, uint32_t start) {
    v1::StartAttempt order = Order(job, 1);
    order.mutable_spec()->mutable_resources()->set_mig_profile(profile);
    order.mutable_placement()->set_mig_start(start);
    return order;
  }

  template <typename Condition>
  void Until(Condition condition) {
    const int64_t end = MonotonicMicros() + 30'000'000;
    while (!condition()) {
      ASSERT_LT(MonotonicMicros(), end);
      loop_.RunOnce(20);
    }
  }
  Result<v1::GpuInjection> Prepare(const v1::StartAttempt& order) {
    std::optional<Result<v1::GpuInjection>> got;
    gpus_->Prepare(order, [&](Result<v1::GpuInjection> made) { got = std::move(made); });
    Until([&] { return got.has_value(); });
    return std::move(*got);
  }
  void Release(const v1::StartAttempt& order) { gpus_->Release(AttemptKey::Of(order.placement())); }
  std::string PipeOf(const v1::GpuInjection& list) {
    for (const auto& mount : list.mounts()) {
      if (mount.target() == gpu::kMpsPipesInside) return mount.source();
    }
    return "";
  }
  static size_t Daemons(const std::string& pipe) {
    return gpu::ProcessesWith("CUDA_MPS_PIPE_DIRECTORY=" + pipe).size();
  }
  bool SaysOf(uint32_t gpu, const std::string& problem) const {
    return !reports_.empty() && reports_.back().gpus_size() > static_cast<int>(gpu) &&
           reports_.back().gpus(static_cast<int>(gpu)).problem().find(problem) != std::string::npos;
  }
  const v1::GpuReport::Fault* FaultOfJob(uint64_t job) const {
    for (const v1::GpuReport& report : reports_) {
      for (const auto& fault : report.faults()) {
        if (fault.job() == job) return &fault;
      }
    }
    return nullptr;
  }

  gpu::FakeMachine driver_{2};
  EventLoop loop_;
  std::unique_ptr<NodeGpus> gpus_;
  std::vector<v1::GpuReport> reports_;
  std::vector<v1::GpuUsages> usages_;
};

TEST_F(NodeGpusTest, WholeGpus) {
  Start();
  v1::Resources resources;
  v1::NodeFacts facts;
  gpus_->Describe(&resources, &facts);
  EXPECT_EQ(resources.gpus(), 2u);
  EXPECT_EQ(resources.gpu_type(), "h100");
  EXPECT_EQ(facts.gpus_size(), 2);
  EXPECT_EQ(facts.gpu_driver(), "580.159.04");
  const v1::StartAttempt order = Order(7, 3);
  const auto list = Prepare(order);
  ASSERT_TRUE(list) << list.error().message();
  std::set<std::string> devices;
  for (const auto& device : list->devices()) devices.insert(device.path());
  EXPECT_TRUE(devices.contains("nvidia0") && devices.contains("nvidia1") && devices.contains("nvidia-uvm"))
      << list->DebugString();
  EXPECT_EQ(*ReadFile(driver_.root() + "/state/1"), "7\n") << "for DCGM's exporter";
  Until([&] { return !usages_.empty(); });
  EXPECT_EQ(usages_[0].usages(0).job(), 7u);
  Release(order);
  Until([&] { return !PathExists(driver_.root() + "/state/1"); });
  EXPECT_FALSE(Prepare(Order(8, 4))) << "there is no GPU 2";
}

TEST_F(NodeGpusTest, ThePodBeforeMustBeGone) {
  Start();
  Release(Order(1, 1));
  driver_.Set(0, "used", std::to_string(4ull << 30));
  std::optional<Result<v1::GpuInjection>> got;
  gpus_->Prepare(Order(2, 1), [&](Result<v1::GpuInjection> made) { got = std::move(made); });
  for (int i = 0; i < 20; ++i) loop_.RunOnce(10);
  EXPECT_FALSE(got) << "memory is still used";
  driver_.Set(0, "used", "0");
  Until([&] { return got.has_value(); });
  EXPECT_TRUE(*got) << got->error().message();
}

TEST_F(NodeGpusTest, AJobThatEndsWhileItWaits) {
  Start();
  driver_.Set(0, "used", std::to_string(4ull << 30));
  std::optional<Result<v1::GpuInjection>> got;
  gpus_->Prepare(Order(2, 1), [&](Result<v1::GpuInjection> made) { got = std::move(made); });
  for (int i = 0; i < 5; ++i) loop_.RunOnce(10);
  Release(Order(2, 1));
  Until([&] { return got.has_value(); });
  EXPECT_EQ(got->error().code(), Code::kAborted);
}

TEST_F(NodeGpusTest, AForeignProcessKeepsJobsAway) {
  Start();
  driver_.Set(1, "processes", std::to_string(::getpid()) + ":1048576:10");
  const auto refused = Prepare(Order(2, 2));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("of no job"));
  Until([&] { return SaysOf(1, "of no job"); });
  EXPECT_TRUE(Prepare(Order(3, 1))) << "the other GPU is fine";
  driver_.Set(1, "processes", "");
  Until([&] { return !SaysOf(1, "of no job"); });
  EXPECT_TRUE(Prepare(Order(2, 2)));
}

TEST_F(NodeGpusTest, SharesOfOneUserHaveOneDaemon) {
  Start();
  const auto first = Prepare(Share(1, 250)), second = Prepare(Share(2, 500)), other = Prepare(Share(3, 250, "bob"));
  ASSERT_TRUE(first && second && other);
  EXPECT_NE(PipeOf(*first), "");
  EXPECT_EQ(PipeOf(*first), PipeOf(*second));
  EXPECT_NE(PipeOf(*first), PipeOf(*other));
  EXPECT_EQ(Daemons(PipeOf(*first)), 1u);
  Release(Share(1, 250));
  Release(Share(2, 500));
  Until([&] { return Daemons(PipeOf(*first)) == 0; });
  EXPECT_EQ(Daemons(PipeOf(*other)), 1u);
  gpus_->Stop();
  EXPECT_EQ(Daemons(PipeOf(*other)), 0u) << "an agent that stops leaves nothing";
}

TEST_F(NodeGpusTest, DaemonsOutliveAKilledAgentAsLongAsTheirPods) {
  Start();
  const auto goes_on = Prepare(Share(1, 250)), dies = Prepare(Share(2, 250, "bob"));
  ASSERT_TRUE(goes_on && dies);
  Start({Share(1, 250)});
  Until([&] { return Daemons(PipeOf(*dies)) == 0; });
  EXPECT_GE(Daemons(PipeOf(*goes_on)), 1u) << "and who asks it now";
  Release(Share(1, 250));
  Until([&] { return Daemons(PipeOf(*goes_on)) == 0; });
}

TEST_F(NodeGpusTest, AnInstanceLivesAsLongAsItsPod) {
  driver_.Set(0, "mig", "1");
  Start();
  v1::Resources resources;
  v1::NodeFacts facts;
  gpus_->Describe(&resources, &facts);
  EXPECT_EQ(facts.mig_model(), "h100-80gb");
  EXPECT_TRUE(facts.gpus(0).mig());
  const auto list = Prepare(Instance(1, "1g.10gb", 2));
  ASSERT_TRUE(list) << list.error().message();
  std::set<std::string> devices;
  for (const auto& device : list->devices()) devices.insert(device.path());
  EXPECT_TRUE(devices.contains("nvidia-caps/nvidia-cap12") && devices.contains("nvidia-caps/nvidia-cap13"))
      << list->DebugString();
  EXPECT_EQ(driver_.Instances(), "0 1 19 2 1 1\n");
  EXPECT_EQ(*ReadFile(driver_.root() + "/state/0.1"), "1\n");
  EXPECT_FALSE(Prepare(Order(2, 1))) << "a GPU in MIG mode is not given as a whole";
  Release(Instance(1, "1g.10gb", 2));
  Until([&] { return driver_.Instances().empty(); });
}

TEST_F(NodeGpusTest, InstancesOfDeadPodsAreDestroyedAfterAKill) {
  driver_.Set(0, "mig", "1");
  Start();
  ASSERT_TRUE(Prepare(Instance(1, "1g.10gb", 0)));
  ASSERT_TRUE(Prepare(Instance(2, "3g.40gb", 4)));
  Start({Instance(2, "3g.40gb", 4)});
  Until([&] { return driver_.Instances() == "0 2 9 4 4 1\n"; });
  Release(Instance(2, "3g.40gb", 4));
  Until([&] { return driver_.Instances().empty(); });
}

TEST_F(NodeGpusTest, AnInstanceInUseIsDestroyedWhenItsProcessIsGone) {
  driver_.Set(0, "mig", "1");
  Start();
  ASSERT_TRUE(Prepare(Instance(1, "1g.10gb", 0)));
  driver_.Set(0, "processes", "999999:1024:5:1");
  Release(Instance(1, "1g.10gb", 0));
  for (int i = 0; i < 20; ++i) loop_.RunOnce(10);
  EXPECT_NE(driver_.Instances(), "");
  driver_.Set(0, "processes", "");
  Until([&] { return driver_.Instances().empty(); });
}

TEST_F(NodeGpusTest, AFaultOfItsOwnTakesNoGpuAway) {
  Start();
  ASSERT_TRUE(Prepare(Order(5, 1)));
  driver_.Xid(0, 31, 999999);
  Until([&] { return FaultOfJob(5) != nullptr; });
  EXPECT_TRUE(FaultOfJob(5)->own());
  EXPECT_TRUE(FaultOfJob(5)->fatal());
  EXPECT_THAT(FaultOfJob(5)->what(), HasSubstr("XID 31"));
  EXPECT_FALSE(SaysOf(0, "XID"));
}

TEST_F(NodeGpusTest, NeighboursOfAFaultAreToldThatItWasNotTheirs) {
  Start();
  ASSERT_TRUE(Prepare(Share(1, 250)) && Prepare(Share(2, 250)));
  driver_.Xid(0, 31, 999999);
  Until([&] { return FaultOfJob(1) != nullptr && FaultOfJob(2) != nullptr; });
  EXPECT_FALSE(FaultOfJob(1)->own()) << "whose it was is not known: its process is gone";
  EXPECT_TRUE(FaultOfJob(2)->fatal());
}

TEST_F(NodeGpusTest, ABrokenGpuIsGivenToNobody) {
  Start();
  ASSERT_TRUE(Prepare(Order(5, 2)));
  driver_.Xid(1, 79);
  Until([&] { return SaysOf(1, "XID 79"); });
  EXPECT_FALSE(FaultOfJob(5)->own());
  v1::Resources resources;
  v1::NodeFacts facts;
  gpus_->Describe(&resources, &facts);
  EXPECT_EQ(facts.bad_gpus(), 2u);
  Release(Order(5, 2));
  EXPECT_THAT(Prepare(Order(6, 2)).error().message(), HasSubstr("XID 79"));
  EXPECT_TRUE(Prepare(Order(7, 1)));
}

TEST_F(NodeGpusTest, AGpuThatFellOffTheBusAndAHotOne) {
  Start();
  ASSERT_TRUE(Prepare(Order(5, 1)));
  driver_.Set(0, "lost", "1");
  Until([&] { return SaysOf(0, "fallen off the bus") && FaultOfJob(5) != nullptr; });
  EXPECT_TRUE(FaultOfJob(5)->fatal());
  driver_.Set(1, "temperature", "95");
  Until([&] { return SaysOf(1, "too hot"); });
  driver_.Set(1, "temperature", "60");
  Until([&] { return !SaysOf(1, "too hot"); });
}

}  // namespace
}  // namespace vrun::node
