// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "control/places/host_list.h"
#include "control/places/topology_file.h"

namespace vrun::control {
namespace {

using Names = std::vector<std::string>;

TEST(HostList, ExpandsAsSlurmDoes) {
  EXPECT_EQ(*ExpandHosts("n1"), (Names{"n1"}));
  EXPECT_EQ(*ExpandHosts("n1,n2,n1"), (Names{"n1", "n2"}));
  EXPECT_EQ(*ExpandHosts("n[1-3,7],m"), (Names{"n1", "n2", "n3", "n7", "m"}));
  EXPECT_EQ(*ExpandHosts("gpu[08-11]"), (Names{"gpu08", "gpu09", "gpu10", "gpu11"}));
  EXPECT_EQ(*ExpandHosts("r[1-2]n[1-2].x"), (Names{"r1n1.x", "r1n2.x", "r2n1.x", "r2n2.x"}));
}

TEST(HostList, RefusesWhatIsNone) {
  for (const char* wrong : {"", ",", "n1,", "n[", "n]", "n[]", "n[3-1]", "n[a-b]", "n[1-]", "n[[1]]", "n[1-2",
                            "n[0-999999]", "n[1-1000]m[1-1000]"}) {
    EXPECT_FALSE(ExpandHosts(wrong)) << wrong;
  }
}

TEST(Topology, SwitchesAreRacksBlocksAndZones) {
  auto places = ParseTopology(
      "# a fat tree\n"
      "SwitchName=leaf1 Nodes=n[1-2]\n"
      "SwitchName=leaf2 Nodes=n[3-4] LinkSpeed=100\n"
      "SwitchName=spine Switches=leaf[1-2]\n"
      "switchname=core switches=spine\n",
      "topology.conf");
  ASSERT_TRUE(places) << places.error().message();
  EXPECT_EQ(places->size(), 4u);
  EXPECT_EQ(places->at("n1"), (NodePlace{"", "leaf1", "spine", "core"}));
  EXPECT_EQ(places->at("n4"), (NodePlace{"", "leaf2", "spine", "core"}));
}

TEST(Topology, BlocksAreIslands) {
  auto places =
      ParseTopology("BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockName=b3 Nodes=n[5-6]\nBlockSizes=2,4\n",
                    "topology.conf");
  ASSERT_TRUE(places) << places.error().message();
  EXPECT_EQ(places->at("n1"), (NodePlace{"b1", "blocks-0", "", ""}));
  EXPECT_EQ(places->at("n4").rack, places->at("n1").rack);
  EXPECT_NE(places->at("n5").rack, places->at("n1").rack);
}

TEST(Topology, YamlIsTheDefaultOne) {
  auto places = ParseTopology(
      "---\n"
      "- topology: old\n"
      "  cluster_default: false\n"
      "  tree:\n"
      "    switches:\n"
      "      - switch: nobody\n"
      "        nodes: n1\n"
      "- topology: main  # this one\n"
      "  cluster_default: true\n"
      "  tree:\n"
      "    switches:\n"
      "      - switch: top\n"
      "        children: s[1-2]\n"
      "      - switch: s1\n"
      "        nodes: n[1-2]\n"
      "      - {switch: s2, nodes: \"n[3,4]\"}\n",
      "topology.yaml");
  ASSERT_TRUE(places) << places.error().message();
  EXPECT_EQ(places->at("n2"), (NodePlace{"", "s1", "top", ""}));
  EXPECT_EQ(places->at("n4"), (NodePlace{"", "s2", "top", ""}));
  places = ParseTopology(
      "- topology: b\n  block:\n    block_sizes:\n      - 2\n      - 4\n    blocks:\n      - block: b1\n        nodes: "
      "n[1-2]\n"
      "      - block: b2\n        nodes: n[3-4]\n",
      "topology.yaml");
  ASSERT_TRUE(places) << places.error().message();
  EXPECT_EQ(places->at("n3"), (NodePlace{"b2", "blocks-0", "", ""}));
}

TEST(Topology, NamesTheLineThatIsWrong) {
  const struct {
    const char* text;
    const char* error;
  } cases[] = {
      {"SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1\n", "t:2: node n1: it is in two places"},
      {"SwitchName=a Switches=b\n", "t:1: switch b: there is no line for it"},
      {"SwitchName=a Nodes=n[1\n", "t:1: n[1: not a list of nodes"},
      {"Speed=1\n", "t:1: Speed: unknown setting"},
      {"", "t: no switch and no block"},
      {"BlockName=b Nodes=n1\nBlockSizes=4,6\n", "t:2: 6: not a size of blocks"},
      {"- topology: x\n  trees:\n", "t:2: trees: unknown key"},
  };
  for (const auto& c : cases) {
    auto places = ParseTopology(c.text, "t");
    ASSERT_FALSE(places) << c.text;
    EXPECT_TRUE(places.error().message().starts_with(c.error)) << places.error().message();
  }
}

}  // namespace
}  // namespace vrun::control
