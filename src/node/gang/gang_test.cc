// SPDX-License-Identifier: Apache-2.0
#include "node/gang/gang.h"

#include <gtest/gtest.h>

namespace vrun::node {
namespace {

v1::StartAttempt Order(const std::vector<std::string>& nodes, uint32_t ranks = 1) {
  v1::StartAttempt order;
  order.mutable_placement()->set_job(7);
  order.mutable_placement()->set_attempt(2);
  order.mutable_spec()->mutable_gang()->set_pods(static_cast<uint32_t>(nodes.size()));
  order.mutable_spec()->mutable_gang()->set_ranks_per_pod(ranks);
  for (size_t i = 0; i < nodes.size(); ++i) {
    v1::GangPod* pod = order.add_pods();
    pod->set_role("worker");
    pod->set_node(nodes[i]);
    pod->set_host("10.0.0." + std::to_string(i + 1));
    pod->set_ranks(ranks);
    pod->set_first_rank(static_cast<uint32_t>(i) * ranks);
  }
  return order;
}

TEST(Gang, HostNamesAreThoseOfTheNodesUnlessPodsShareOne) {
  const Gang apart(Order({"n1", "n2"}, 4), "n1");
  EXPECT_EQ("n2", apart.pods()[1].host_name);
  EXPECT_EQ("worker-1", apart.pods()[1].name);
  EXPECT_EQ(8u, apart.world_size());
  const Gang together(Order({"n1", "n2", "n1"}), "n1");
  EXPECT_EQ("worker-0", together.pods()[0].host_name);
  EXPECT_EQ("worker-2", together.pods()[2].host_name);
  const Gang strange(Order({"node one", "n2"}), "n2");
  EXPECT_EQ("worker-0", strange.pods()[0].host_name);
}

TEST(Gang, PodsAreNumberedWithinTheirRole) {
  v1::StartAttempt order = Order({"n1", "n2", "n3"});
  order.mutable_pods(0)->set_role("launcher");
  const Gang gang(order, "n1");
  EXPECT_EQ("launcher-0", gang.pods()[0].name);
  EXPECT_EQ("worker-0", gang.pods()[1].name);
  EXPECT_EQ("worker-1", gang.pods()[2].name);
}

TEST(Gang, PodsKeepTheirNumbersWhenOthersLeave) {
  v1::StartAttempt order = Order({"n1", "n2", "n3", "n4"}, 2);
  order.mutable_placement()->set_pod(3);
  order.mutable_pods()->DeleteSubrange(1, 2);
  const Gang gang(order, "n4");
  EXPECT_EQ(3u, gang.pod());
  EXPECT_EQ(1u, gang.index());
  EXPECT_EQ("worker-3", gang.here().name);
  EXPECT_EQ(6u, gang.here().first_rank);
  EXPECT_EQ(3u, gang.Find("worker-3").value_or(99));
  EXPECT_EQ(3u, gang.Find("3").value_or(99));
  EXPECT_FALSE(gang.Find("1"));
  EXPECT_NE(std::string::npos, gang.MembersJson().find("\"pods\": [{\"pod\": 0, ")) << gang.MembersJson();
  EXPECT_NE(std::string::npos, gang.MembersJson().find("}, {\"pod\": 3, \"name\": \"worker-3\""));
  // One that has to leave is not among them, and still knows who it is.
  order.mutable_placement()->set_pod(1);
  const Gang leaves(order, "n2");
  EXPECT_EQ("worker-1", leaves.here().name);
  EXPECT_EQ(2u, leaves.here().first_rank);
  EXPECT_NE(std::string::npos, leaves.MembersJson().find("\"pod\": 1, \"pods\": [{\"pod\": 0, "));
  EXPECT_EQ(std::string::npos, leaves.MembersJson().find("worker-1"));
}

TEST(Gang, FindsAPodByAnyOfItsNames) {
  const Gang gang(Order({"n1.example.org", "n2.example.org"}), "n1.example.org");
  for (const char* name : {"1", "worker-1", "n2.example.org", "n2", "10.0.0.2", "worker-1.example.org"}) {
    EXPECT_EQ(1u, gang.Find(name).value_or(99)) << name;
  }
  for (const char* name : {"2", "worker-2", "", "n", "-1"}) EXPECT_FALSE(gang.Find(name)) << name;
}

TEST(Gang, HostsLinesNameOnlyPodsWithAnAddress) {
  v1::StartAttempt order = Order({"n1", "no name", "n3"});
  order.mutable_pods(2)->clear_host();
  EXPECT_EQ("10.0.0.1\tworker-0 n1\n10.0.0.2\tworker-1\n", Gang(order, "n1").HostsLines());
}

TEST(Gang, AJobOfOnePodKnowsItself) {
  v1::StartAttempt order;
  order.mutable_placement()->set_job(7);
  EXPECT_FALSE(Gang::Is(order));
  const Gang gang(order, "n1");
  ASSERT_EQ(1u, gang.pods().size());
  EXPECT_EQ("n1", gang.here().node);
  EXPECT_EQ(1u, gang.world_size());
  order.mutable_spec()->mutable_gang()->set_ranks_per_pod(4);
  EXPECT_TRUE(Gang::Is(order));
  EXPECT_EQ(4u, Gang(order, "n1").world_size());
}

TEST(Gang, ALauncherHasOneProcessInTheFirstPod) {
  v1::StartAttempt order = Order({"n1", "n2"}, 8);
  EXPECT_EQ(8u, Gang::ProcessesHere(order));
  order.mutable_spec()->mutable_gang()->set_launcher(true);
  EXPECT_EQ(1u, Gang::ProcessesHere(order));
  order.mutable_placement()->set_pod(1);
  EXPECT_EQ(0u, Gang::ProcessesHere(order));
}

}  // namespace
}  // namespace vrun::node
