// SPDX-License-Identifier: Apache-2.0
#include "gpu/amd.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

#include "base/files.h"

namespace vrun::gpu {
namespace {

// The shape of a machine with two processors and four MI300X, of which two and two are linked.
class AmdTest : public ::testing::Test {
 protected:
  AmdTest() {
    root_ = "/var/tmp/vrun-amd-XXXXXX";
    VRUN_CHECK(::mkdtemp(root_.data()) != nullptr);
    for (int i = 0; i < 2; ++i) Put(Node(i) + "/properties", "cpu_cores_count 96\nsimd_count 0\nvendor_id 0\n");
    for (int i = 0; i < 4; ++i) {
      const std::string node = Node(2 + i);
      Put(node + "/properties", "cpu_cores_count 0\nsimd_count 1216\nvendor_id 4098\ndevice_id 29857\nlocation_id " +
                                    std::to_string((0x20 - i * 4) << 8) + "\ndomain 0\ndrm_render_minor " +
                                    std::to_string(128 + i * 8) + "\nunique_id 1234567890\n");
      Put(node + "/mem_banks/0/properties", "heap_type 1\nsize_in_bytes 206141652992\n");
      Put(node + "/io_links/0/properties", "type 2\nnode_to 0\n");
      Put(node + "/io_links/1/properties", "type 11\nnode_to " + std::to_string(2 + (i ^ 1)) + "\n");
      Put("/class/drm/renderD" + std::to_string(128 + i * 8) + "/device/numa_node", std::to_string(i / 2) + "\n");
    }
  }
  ~AmdTest() override { (void)RemoveTree(root_); }
  static std::string Node(int i) { return "/class/kfd/kfd/topology/nodes/" + std::to_string(i); }
  void Put(const std::string& path, const std::string& text) {
    VRUN_CHECK(MakeDirs((root_ + path).substr(0, (root_ + path).rfind('/')), 0755).has_value());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(AmdTest, WhatIsThere) {
  const auto inventory = TakeAmdInventory(root_);
  ASSERT_TRUE(inventory) << inventory.error().message();
  ASSERT_EQ(inventory->gpus.size(), 4u);
  EXPECT_EQ(inventory->Type(), "mi300x");
  EXPECT_EQ(inventory->MemoryBytes(), 206141652992u);
  EXPECT_EQ(inventory->gpus[0].pci_bus_id(), "00000000:14:00.0") << "by bus, not by the kernel's numbers";
  EXPECT_EQ(inventory->gpus[0].minor(), 152u);
  EXPECT_EQ(inventory->gpus[0].numa_node(), 1u);
  EXPECT_EQ(inventory->groups, (std::vector<uint32_t>{3, 12}));
  EXPECT_EQ(TakeAmdInventory(root_ + "/none").error().code(), Code::kNotFound);
}

TEST_F(AmdTest, DevicesOfAPod) {
  const auto inventory = TakeAmdInventory(root_);
  ASSERT_TRUE(inventory);
  const auto list =
      MakeAmdInjection(*inventory, {1, 3}, "Character devices:\n226 drm\n234 kfd\n\nBlock devices:\n9 kfd\n");
  ASSERT_TRUE(list) << list.error().message();
  ASSERT_EQ(list->devices_size(), 3);
  EXPECT_EQ(list->devices(0).path(), "kfd");
  EXPECT_EQ(list->devices(0).major(), 234u);
  EXPECT_EQ(list->devices(1).path(), "dri/renderD144");
  EXPECT_EQ(list->environment(0), "ROCR_VISIBLE_DEVICES=0,1");
  EXPECT_EQ(MakeAmdInjection(*inventory, {4}, "234 kfd\n").error().code(), Code::kInvalid);
  EXPECT_EQ(MakeAmdInjection(*inventory, {0}, "Character devices:\n1 mem\n").error().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace vrun::gpu
