// SPDX-License-Identifier: Apache-2.0
#include "node/gang/gang_environment.h"

#include <gtest/gtest.h>

#include <map>

namespace vrun::node {
namespace {

using Variables = std::map<std::string, std::string>;

Variables Parsed(const std::vector<std::string>& environment) {
  Variables out;
  for (const std::string& e : environment) {
    const size_t equals = e.find('=');
    EXPECT_TRUE(out.emplace(e.substr(0, equals), e.substr(equals + 1)).second) << "twice: " << e;
  }
  return out;
}

class GangEnvironment : public ::testing::Test {
 protected:
  void SetUp() override { Shape(4, 1, 0); }
  void Shape(uint32_t pods, uint32_t ranks, uint32_t pod) {
    order().Clear();
    order().mutable_placement()->set_job(123456);
    order().mutable_placement()->set_attempt(3);
    order().mutable_placement()->set_pod(pod);
    run().set_name("train");
    run().set_pool("local");
    run().mutable_resources()->set_milli_cpus(8000);
    run().mutable_resources()->set_gpus(8);
    run().mutable_command()->set_directory("/home/ann/project");
    run().mutable_command()->mutable_identity()->set_user_name("ann");
    run().mutable_gang()->set_pods(pods);
    run().mutable_gang()->set_ranks_per_pod(ranks);
    if (pods == 1) return;
    for (uint32_t i = 0; i < pods; ++i) {
      v1::GangPod* p = order().add_pods();
      p->set_role("worker");
      p->set_node("n" + std::to_string(i + 1));
      p->set_host("10.0.0." + std::to_string(i + 1));
      p->set_ranks(ranks);
      p->set_first_rank(i * ranks);
      p->set_gpus(8);
    }
  }
  v1::StartAttempt& order() { return *spec_.mutable_order(); }
  v1::RunSpec& run() { return *order().mutable_spec(); }
  std::vector<Variables> Environments(const std::vector<std::string>& before = {}) {
    std::vector<Variables> out;
    for (const auto& e : GangEnvironments(spec_, Gang(order(), "n1"), before)) out.push_back(Parsed(e));
    return out;
  }

  v1::TaskSpec spec_;
};

TEST_F(GangEnvironment, TorchFindsItsRanks) {
  Shape(4, 8, 2);
  const std::vector<Variables> all = Environments({"RANK=of an outer job"});
  ASSERT_EQ(8u, all.size());
  const Variables& v = all[3];
  EXPECT_EQ("19", v.at("RANK"));
  EXPECT_EQ("32", v.at("WORLD_SIZE"));
  EXPECT_EQ("3", v.at("LOCAL_RANK"));
  EXPECT_EQ("8", v.at("LOCAL_WORLD_SIZE"));
  EXPECT_EQ("2", v.at("NODE_RANK"));
  EXPECT_EQ("2", v.at("GROUP_RANK"));
  EXPECT_EQ("19", v.at("ROLE_RANK"));
  EXPECT_EQ("n1", v.at("MASTER_ADDR"));
  const int port = std::stoi(v.at("MASTER_PORT"));
  EXPECT_TRUE(port > 1024 && port < 32768) << port;
  EXPECT_FALSE(v.contains("PET_NNODES")) << "eight processes that are no torchruns";
  EXPECT_TRUE(v.at("TF_CONFIG").ends_with(R"(]}, "task": {"type": "worker", "index": 19}})")) << v.at("TF_CONFIG");
}

TEST_F(GangEnvironment, TorchrunNeedsNoFlags) {
  Shape(4, 1, 2);
  const Variables v = Environments({"PET_NPROC_PER_NODE=2"}).at(0);
  EXPECT_EQ("4", v.at("PET_NNODES"));
  EXPECT_EQ("2", v.at("PET_NODE_RANK"));
  EXPECT_EQ("n1", v.at("PET_MASTER_ADDR"));
  EXPECT_EQ(v.at("MASTER_PORT"), v.at("PET_MASTER_PORT"));
  EXPECT_EQ("2", v.at("PET_NPROC_PER_NODE")) << "the user's own";
  EXPECT_EQ("8", Environments().at(0).at("PET_NPROC_PER_NODE")) << "the GPUs";

  run().mutable_gang()->set_min_pods(2);
  const Variables elastic = Environments().at(0);
  EXPECT_EQ("2:4", elastic.at("PET_NNODES"));
  EXPECT_EQ("c10d", elastic.at("PET_RDZV_BACKEND"));
  EXPECT_EQ("n1:" + v.at("MASTER_PORT"), elastic.at("PET_RDZV_ENDPOINT"));
  EXPECT_FALSE(elastic.contains("PET_NODE_RANK"));
}

// What JAX (jax/_src/clusters/slurm_cluster.py) and Lightning (plugins/environments/slurm.py) read.
TEST_F(GangEnvironment, SlurmAwareProgramsHaveTheWholeSet) {
  Shape(4, 8, 2);
  run().mutable_scheduling()->set_limit_s(3600);
  const std::vector<Variables> all = Environments({"SLURM_JOB_ID=1", "SLURM_OLD=x", "SLURMD_NODENAME=y"});
  const Variables& v = all[5];
  const Variables expected = {
      {"SLURM_JOB_ID", "123456"},
      {"SLURM_JOBID", "123456"},
      {"SLURM_JOB_NAME", "train"},
      {"SLURM_JOB_PARTITION", "local"},
      {"SLURM_JOB_USER", "ann"},
      {"SLURM_SUBMIT_DIR", "/home/ann/project"},
      {"SLURM_NTASKS", "32"},
      {"SLURM_NPROCS", "32"},
      {"SLURM_PROCID", "21"},
      {"SLURM_LOCALID", "5"},
      {"SLURM_NODEID", "2"},
      {"SLURM_GTIDS", "16,17,18,19,20,21,22,23"},
      {"SLURM_JOB_NUM_NODES", "4"},
      {"SLURM_NNODES", "4"},
      {"SLURM_STEP_NUM_NODES", "4"},
      {"SLURM_STEP_NUM_TASKS", "32"},
      {"SLURM_JOB_NODELIST", "n1,n2,n3,n4"},
      {"SLURM_NODELIST", "n1,n2,n3,n4"},
      {"SLURM_STEP_NODELIST", "n1,n2,n3,n4"},
      {"SLURMD_NODENAME", "n3"},
      {"SLURM_TASKS_PER_NODE", "8(x4)"},
      {"SLURM_NTASKS_PER_NODE", "8"},
      {"SLURM_JOB_CPUS_PER_NODE", "8(x4)"},
      {"SLURM_CPUS_PER_TASK", "1"},
      {"SLURM_GPUS_ON_NODE", "8"},
      {"SLURM_JOB_GPUS", "0,1,2,3,4,5,6,7"},
      {"SLURM_RESTART_COUNT", "2"},
      {"SLURM_STEP_ID", "0"},
  };
  for (const auto& [name, value] : expected) EXPECT_EQ(value, v.contains(name) ? v.at(name) : "(missing)") << name;
  EXPECT_EQ(3600, std::stoll(v.at("SLURM_JOB_END_TIME")) - std::stoll(v.at("SLURM_JOB_START_TIME")));
  EXPECT_FALSE(v.contains("SLURM_OLD")) << "of an outer job";
  run().mutable_gang()->set_no_slurm_environment(true);
  for (const auto& [name, value] : Environments().at(5)) EXPECT_FALSE(name.starts_with("SLURM")) << name;
}

TEST_F(GangEnvironment, PodsOnOneNodeAreNodesOfTheirOwnForSlurm) {
  Shape(3, 2, 1);
  for (v1::GangPod& pod : *order().mutable_pods()) pod.set_node("n1");
  const Variables v = Environments().at(0);
  EXPECT_EQ("worker-0,worker-1,worker-2", v.at("SLURM_NODELIST"));
  EXPECT_EQ("3", v.at("SLURM_NNODES"));
  EXPECT_EQ("worker-1", v.at("SLURMD_NODENAME"));
  EXPECT_EQ("n1", v.at("VRUN_NODELIST"));
  EXPECT_EQ("worker-0", v.at("MASTER_ADDR"));
}

TEST_F(GangEnvironment, ALauncherNumbersItsProcessesItself) {
  Shape(4, 1, 0);
  run().mutable_gang()->set_launcher(true);
  std::vector<Variables> all = Environments();
  ASSERT_EQ(1u, all.size());
  for (const char* name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK"})
    EXPECT_FALSE(all[0].contains(name));
  EXPECT_EQ("/run/vrun/rsh", all[0].at("OMPI_MCA_plm_rsh_agent"));
  EXPECT_EQ("rsh", all[0].at("OMPI_MCA_plm"));
  EXPECT_EQ("32", all[0].at("SLURM_NTASKS"));
  EXPECT_EQ("n1 slots=8\nn2 slots=8\nn3 slots=8\nn4 slots=8\n", Hostfile(order(), Gang(order(), "n1")));
  order().mutable_placement()->set_pod(3);
  EXPECT_EQ("n1", Environments().at(0).at("MASTER_ADDR"));
}

TEST_F(GangEnvironment, SeveralRanksInOnePod) {
  Shape(1, 2, 0);
  const Variables v = Environments().at(1);
  EXPECT_EQ("1", v.at("RANK"));
  EXPECT_EQ("2", v.at("WORLD_SIZE"));
  EXPECT_EQ("n1", v.at("SLURM_NODELIST"));
  EXPECT_EQ("n1", v.at("MASTER_ADDR"));
}

TEST_F(GangEnvironment, AnElementOfAnArrayKnowsItsIndex) {
  Shape(1, 1, 0);
  order().set_parent_array(100);
  order().set_array_index(7);
  order().set_array_count(10);
  order().set_array_min(0);
  order().set_array_max(18);
  std::vector<std::string> environment = {"A=b"};
  SetArrayEnvironment(spec_, Gang(order(), "n1"), &environment);
  const Variables v = Parsed(environment);
  EXPECT_EQ("b", v.at("A"));
  EXPECT_EQ("100", v.at("SLURM_ARRAY_JOB_ID"));
  EXPECT_EQ("7", v.at("SLURM_ARRAY_TASK_ID"));
  EXPECT_EQ("18", v.at("SLURM_ARRAY_TASK_MAX"));
  EXPECT_EQ("7", v.at("VRUN_ARRAY_TASK_ID"));
  EXPECT_EQ("1", v.at("SLURM_NTASKS"));
  EXPECT_FALSE(v.contains("RANK"));
}

}  // namespace
}  // namespace vrun::node
