// SPDX-License-Identifier: Apache-2.0
#include "sim/pods/fill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vrun::sim {
namespace {

Pod MakePod(int64_t cpu, int32_t gpus, int32_t milli = kMilliPerGpu, uint64_t models = 0) {
  return {.cpu_milli = cpu, .memory_mib = 1, .gpus = gpus, .gpu_milli = gpus == 0 ? 0 : milli, .models = models};
}

PodNode MakeNode(int64_t cpu, int32_t gpus, int32_t model = 0) {
  return {.name = "n", .cpu_milli = cpu, .memory_mib = 1000, .gpus = gpus, .model = model};
}

TEST(PodNodes, SharesAndWholeGpus) {
  PodNodeState node = MakeNodeState(MakeNode(10000, 2));
  Take(&node, MakePod(1000, 1, 400), 0b10);
  EXPECT_EQ(node.gpu_left[1], 600);
  EXPECT_EQ(TightestGpu(node, MakePod(1, 1, 600)), 1);
  EXPECT_EQ(TightestGpu(node, MakePod(1, 1, 601)), 0);
  EXPECT_TRUE(Fits(node, MakePod(9000, 1)));
  EXPECT_FALSE(Fits(node, MakePod(9001, 1)));
  EXPECT_FALSE(Fits(node, MakePod(1, 2)));
  EXPECT_FALSE(Fits(node, MakePod(1, 1, 1000, 0b10)));  // another model
  Take(&node, MakePod(1000, 1), FirstWholeGpus(node, 1));
  EXPECT_EQ(node.milli_left(), 600);
  EXPECT_EQ(node.whole_gpus_left(), 0);
}

// Half of the pods want a whole GPU and 4 cores, half 500 milli of one and 1 core.
TEST(FragmentationModel, ByHand) {
  const std::vector<Pod> workload = {MakePod(4000, 1), MakePod(1000, 1, 500)};
  const FragmentationModel model(workload, 1.0);
  PodNodeState node = MakeNodeState(MakeNode(8000, 2));
  EXPECT_DOUBLE_EQ(model.Of(node), 0);
  Take(&node, MakePod(1000, 1, 700), 0b1);  // 300 + 1000 left: neither can use the 300
  EXPECT_DOUBLE_EQ(model.Of(node), 300);
  node.cpu_left = 3999;  // the first cannot run at all now
  EXPECT_DOUBLE_EQ(model.Of(node), 0.5 * 1300 + 0.5 * 300);
  node.cpu_left = 999;  // neither
  EXPECT_DOUBLE_EQ(model.Of(node), 1300);
}

TEST(FragmentationModel, PodsWithoutGpuUseNone) {
  const std::vector<Pod> workload = {MakePod(1000, 0), MakePod(1000, 1)};
  EXPECT_DOUBLE_EQ(FragmentationModel(workload, 1.0).Of(MakeNodeState(MakeNode(8000, 2))), 0.5 * 2000);
}

TEST(FragmentationModel, RarePodsAreNotTypical) {
  std::vector<Pod> workload(99, MakePod(1000, 1));
  workload.push_back(MakePod(1000, 8));
  EXPECT_DOUBLE_EQ(FragmentationModel(workload, 0.95).Of(MakeNodeState(MakeNode(8000, 2))), 0);
}

struct Case {
  const char* policy;
  Pod pod;
  PodNodeState better;
  PodNodeState worse;
};

TEST(PodPolicies, PreferTheirNode) {
  PodNodeState empty = MakeNodeState(MakeNode(64000, 4));
  PodNodeState shared = empty;
  Take(&shared, MakePod(4000, 1, 300), 0b1);
  PodNodeState full = empty;
  Take(&full, MakePod(16000, 2), 0b11);
  const Pod share = MakePod(2000, 1, 500);
  const Pod two = MakePod(8000, 2);
  // One share and one whole GPU are equally likely, so breaking a second GPU causes fragmentation.
  const std::vector<Pod> workload = {MakePod(1000, 1), MakePod(1000, 1, 500)};
  const FragmentationModel model(workload, 1.0);
  for (const Case& c : {Case{"bestfit", share, full, empty}, Case{"dotprod", two, full, empty},
                        Case{"gpupacking", share, shared, full}, Case{"gpupacking", two, full, empty},
                        Case{"gpuclustering", share, shared, full}, Case{"gpuclustering", two, full, shared},
                        Case{"fgd", share, shared, empty}, Case{"spread", two, empty, full}}) {
    auto policy = MakePodPolicy(c.policy, model);
    ASSERT_TRUE(policy);
    EXPECT_GT(policy->Rate(c.better, c.pod).score, policy->Rate(c.worse, c.pod).score) << c.policy;
  }
  EXPECT_EQ(MakePodPolicy("las", model), nullptr);
}

TEST(PodSchedulers, AnUnknownNameIsToldAllThatAreKnown) {
  const std::vector<Pod> pods = {MakePod(1000, 1)};
  const FragmentationModel model(pods, 1.0);
  const auto made = MakePodScheduler("las", pods, {}, model);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kInvalid);
  for (const char* name : {"'las'", "vrun, vrun-moves", "fgd"}) {
    EXPECT_NE(made.error().message().find(name), std::string::npos) << name;
  }
}

std::vector<std::string> AllPolicies() {
  std::vector<std::string> names = {std::string(kCorePods.name), std::string(kCorePodsMoved.name)};
  for (const BaselineInfo& info : PodPolicies()) names.emplace_back(info.name);
  return names;
}

const ModelNames kModels{{"A"}};

Result<FillResult> Fill(std::string_view policy, std::span<const PodNode> nodes, std::span<const Pod> pods,
                        const FillConfig& config) {
  const FragmentationModel model(pods);
  VRUN_ASSIGN(std::unique_ptr<PodScheduler> scheduler, MakePodScheduler(policy, pods, kModels, model));
  return FillCluster(nodes, pods, scheduler.get(), model, config);
}

TEST(FillCluster, StopsAtTheWantedLoad) {
  const std::vector<PodNode> nodes(4, MakeNode(96000, 8));
  const std::vector<Pod> pods = {MakePod(1000, 1), MakePod(1000, 1, 500), MakePod(1000, 2)};
  for (const std::string& name : AllPolicies()) {
    auto half = Fill(name, nodes, pods, {.fill = 0.5});
    ASSERT_TRUE(half) << name;
    EXPECT_EQ(half->placed, half->arrived) << name;
    EXPECT_NEAR(half->allocation_percent, 50, 7) << name;  // by at most two GPUs of 32
    auto over = Fill(name, nodes, pods, {.fill = 1.5});
    EXPECT_GT(over->allocation_percent, 90) << name;
    EXPECT_LE(over->allocation_percent, 100) << name;
    EXPECT_LE(over->allocation_percent + over->fragmentation_percent, 100 + 1e-9) << name;
    auto again = Fill(name, nodes, pods, {.fill = 1.5});
    EXPECT_EQ(again->allocation_percent, over->allocation_percent) << name;
  }
  EXPECT_FALSE(Fill("las", nodes, pods, {}));
}

TEST(FillCluster, LeavesPodsOutWhenTheTableIsTooLarge) {
  const std::vector<PodNode> nodes(1, MakeNode(96000, 8));
  const std::vector<Pod> pods(100, MakePod(1, 1));
  auto result = Fill("bestfit", nodes, pods, {.fill = 0.5});
  EXPECT_EQ(result->arrived, 4);
  EXPECT_DOUBLE_EQ(result->allocation_percent, 50);
  EXPECT_FALSE(Fill("bestfit", {}, pods, {}));
}

// Two kinds of nodes: one has few cpus per GPU, the other many. Pods that need few cpus belong on the first.
TEST(FillCluster, OurSchedulerKeepsCpusForTheGpusBesideThem) {
  std::vector<PodNode> nodes(10, MakeNode(8000, 8));
  nodes.resize(20, MakeNode(96000, 8));
  const std::vector<Pod> pods = {MakePod(1000, 1), MakePod(12000, 1)};
  auto ours = Fill("vrun", nodes, pods, {.fill = 1});
  auto fgd = Fill("fgd", nodes, pods, {.fill = 1});
  EXPECT_GT(ours->allocation_percent, 97);
  EXPECT_GE(ours->allocation_percent, fgd->allocation_percent);
  EXPECT_EQ(ours->moved, 0);
}

// A GPU with only a small share on it is cleared for a pod that needs a whole GPU.
TEST(FillCluster, OurSchedulerMovesFewPods) {
  const std::vector<PodNode> nodes(50, MakeNode(96000, 4));
  std::vector<Pod> pods(60, MakePod(1000, 1, 700));
  pods.resize(120, MakePod(1000, 1, 300));
  pods.resize(250, MakePod(1000, 1));
  auto still = Fill("vrun", nodes, pods, {.fill = 1.3});
  auto moved = Fill("vrun-moves", nodes, pods, {.fill = 1.3});
  EXPECT_GE(moved->allocation_percent, still->allocation_percent);
  EXPECT_LE(moved->moved_percent, 2);
}

}  // namespace
}  // namespace vrun::sim
