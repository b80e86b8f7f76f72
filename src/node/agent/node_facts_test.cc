// SPDX-License-Identifier: Apache-2.0
#include "node/agent/node_facts.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/files.h"

namespace vrun::node {
namespace {

class NodeFactsTest : public ::testing::Test {
 protected:
  NodeFactsTest() {
    directory_ = "/var/tmp/vrun-facts-XXXXXX";
    VRUN_CHECK(::mkdtemp(directory_.data()) != nullptr);
  }
  ~NodeFactsTest() override { (void)RemoveTree(directory_); }

  void AddGpu(const std::string& bus, int minor, const std::string& numa) {
    const std::string driver = directory_ + "/driver/nvidia/gpus/" + bus,
                      device = directory_ + "/bus/pci/devices/" + bus;
    VRUN_CHECK(MakeDirs(driver, 0755) && MakeDirs(device, 0755));
    VRUN_CHECK(WriteFileAtomic(driver + "/information",
                               "Model: \t NVIDIA H100\nDevice Minor: \t " + std::to_string(minor) + "\n", 0644)
                   .has_value());
    VRUN_CHECK(WriteFileAtomic(device + "/numa_node", numa + "\n", 0644).has_value());
  }
  Result<v1::NodeFacts> Describe(const NodeFactsOptions& options, uint32_t gpus) {
    return DescribeNode(options, gpus, directory_, directory_);
  }

  std::string directory_;
};

TEST_F(NodeFactsTest, OptionsAreChecked) {
  NodeFactsOptions o;
  o.labels = {"ssd", "net=ib"};
  o.rack = "r1";
  o.gpu_groups = {"0-1", "2,3"};
  o.bad_gpus = "3";
  o.price = 2.5;
  auto facts = Describe(o, 4);
  ASSERT_TRUE(facts) << facts.error().message();
  EXPECT_EQ(facts->labels(1), "net=ib");
  EXPECT_EQ(facts->rack(), "r1");
  EXPECT_EQ(facts->gpu_groups(1), 12u);
  EXPECT_EQ(facts->bad_gpus(), 8u);
  EXPECT_EQ(facts->price_milli(), 2500u);
  o.gpu_groups = {"0-1", "1-2"};
  EXPECT_EQ(Describe(o, 4).error().message(), "--gpu-group 1-2: one of its GPUs is in another group too");
  o.gpu_groups = {};
  EXPECT_EQ(Describe(o, 2).error().message(), "--bad-gpus 3: there is no GPU 3: the node has 2");
  o.bad_gpus = "";
  o.labels = {"a b"};
  EXPECT_EQ(Describe(o, 2).error().message(), "--label a b: write NAME or NAME=VALUE, without blanks and commas");
}

TEST_F(NodeFactsTest, GpusOfOneNumaNodeAreClose) {
  EXPECT_EQ(Describe({}, 4)->gpu_groups_size(), 0);
  AddGpu("0000:07:00.0", 0, "0");
  AddGpu("0000:0f:00.0", 1, "0");
  AddGpu("0000:87:00.0", 2, "1");
  EXPECT_EQ(Describe({}, 4)->gpu_groups_size(), 0) << "nothing is known about the fourth";
  AddGpu("0000:90:00.0", 3, "1");
  auto facts = Describe({}, 4);
  ASSERT_EQ(facts->gpu_groups_size(), 2);
  EXPECT_EQ(facts->gpu_groups(0), 3u);
  EXPECT_EQ(facts->gpu_groups(1), 12u);
  AddGpu("0000:90:00.0", 3, "-1");
  EXPECT_EQ(Describe({}, 4)->gpu_groups_size(), 0) << "the kernel does not know";
}

}  // namespace
}  // namespace vrun::node
