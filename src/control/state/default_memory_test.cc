// SPDX-License-Identifier: Apache-2.0
#include "control/state/default_memory.h"

#include <gtest/gtest.h>

namespace vrun::control {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

NodeSize Node(int64_t cpus, int64_t memory_gib, int64_t gpus = 0, const std::string& type = "") {
  return {cpus * 1000, memory_gib * kGiB, gpus, gpus > 0 ? 80 * kGiB : 0, type};
}

Needs Cpus(int64_t cpus) { return {.milli_cpus = cpus * 1000}; }

TEST(DefaultMemory, IsThePartOfTheProcessors) {
  EXPECT_EQ(DefaultMemory({Node(4, 40)}, Cpus(1)), 9 * kGiB);
  EXPECT_EQ(DefaultMemory({Node(4, 40)}, Cpus(4)), 36 * kGiB);
  EXPECT_EQ(DefaultMemory({}, Cpus(1)), 0);
  EXPECT_EQ(DefaultMemory({Node(4, 0)}, Cpus(1)), 0);
}

TEST(DefaultMemory, HalfGoesWithTheGpus) {
  const NodeSize node = Node(8, 160, 4, "h100");
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
  const std::vector<NodeSize> nodes = {Node(2, 20), Node(8, 160), Node(8, 320, 4, "h100"), Node(8, 80, 4, "a100")};
  EXPECT_EQ(DefaultMemory(nodes, Cpus(8)), 36 * kGiB);
  Needs needs = Cpus(8);
  needs.gpus = 4;
  EXPECT_EQ(DefaultMemory(nodes, needs), 72 * kGiB);
  needs.gpu_type = "h100";
  EXPECT_EQ(DefaultMemory(nodes, needs), 288 * kGiB);
  EXPECT_EQ(DefaultMemory(nodes, Cpus(64)), 0);
}

TEST(DefaultLimit, IsWhatIsBookedButEnoughForAShell) {
  EXPECT_EQ(DefaultLimit(9 * kGiB, Node(4, 40)), 9u * kGiB);
  EXPECT_EQ(DefaultLimit(kGiB / 8, Node(64, 8)), 2u * kGiB);
  EXPECT_LT(DefaultLimit(kGiB / 8, Node(4, 1)), 1u * kGiB);
}

}  // namespace
}  // namespace vrun::control
