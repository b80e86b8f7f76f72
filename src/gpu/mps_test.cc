// SPDX-License-Identifier: Apache-2.0
#include "gpu/mps.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "gpu/programs.h"
#include "gpu/testing/fake_machine.h"

namespace vrun::gpu {
namespace {

class MpsTest : public ::testing::Test {
 protected:
  ~MpsTest() override { Make().Recover({}); }
  MpsDaemons Make() { return MpsDaemons({driver_.root() + "/state", driver_.root()}); }
  static std::vector<pid_t> Running(const MpsShare& share) {
    return ProcessesWith("CUDA_MPS_PIPE_DIRECTORY=" + share.pipe_directory);
  }
  std::string Log(const MpsShare& share) { return ReadFile(share.pipe_directory + "/../log/control.log").value_or(""); }
  std::string Ask(const MpsShare& share, const std::string& command) {
    return *RunProgram({driver_.root() + "/usr/bin/nvidia-cuda-mps-control"},
                       {"CUDA_MPS_PIPE_DIRECTORY=" + share.pipe_directory}, command + "\n", 5000);
  }

  FakeMachine driver_;
};

TEST_F(MpsTest, OneDaemonForAnOwnerAndAGpuUntilTheLastHasLeft) {
  MpsDaemons mps = Make();
  const auto first = mps.Join({"1.1", "ann.0", 0, "GPU-0", 25, 20ull << 30});
  ASSERT_TRUE(first) << first.error().message();
  EXPECT_EQ(first->percentage, 25u);
  EXPECT_EQ(Ask(*first, "get_default_active_thread_percentage"), "25.0\n") << "before its first client";
  EXPECT_EQ(Ask(*first, "get_default_device_pinned_mem_limit 0"), "20480M\n");
  ASSERT_EQ(Running(*first).size(), 1u);

  const auto second = mps.Join({"2.1", "ann.0", 0, "GPU-0", 50, 40ull << 30});
  ASSERT_TRUE(second);
  EXPECT_EQ(second->pipe_directory, first->pipe_directory);
  EXPECT_EQ(Ask(*first, "get_default_active_thread_percentage"), "50.0\n") << "the larger of the two";
  const auto other = mps.Join({"3.1", "bob.0", 0, "GPU-0", 25, 20ull << 30});
  ASSERT_TRUE(other);
  EXPECT_NE(other->pipe_directory, first->pipe_directory) << "another user";
  EXPECT_EQ(mps.daemons(), 2u);

  mps.Leave("2.1");
  EXPECT_EQ(Ask(*first, "get_default_active_thread_percentage"), "25.0\n");
  mps.Leave("1.1");
  mps.Leave("1.1");
  EXPECT_TRUE(Running(*first).empty());
  EXPECT_FALSE(PathExists(first->pipe_directory));
  EXPECT_EQ(Running(*other).size(), 1u);
}

TEST_F(MpsTest, ARunningServerIsToldToo) {
  MpsDaemons mps = Make();
  const auto share = mps.Join({"1.1", "ann.0", 0, "GPU-0", 25, 20ull << 30});
  ASSERT_TRUE(share);
  Ask(*share, "start_server -uid 0");
  std::string pid = Ask(*share, "get_server_list");
  pid.pop_back();
  ASSERT_TRUE(mps.Join({"2.1", "ann.0", 0, "GPU-0", 70, 60ull << 30}));
  EXPECT_NE(Log(*share).find("set_active_thread_percentage " + pid + " 70\n"), std::string::npos) << Log(*share);
  EXPECT_NE(Log(*share).find("set_device_pinned_mem_limit " + pid + " 0 61440M\n"), std::string::npos) << Log(*share);
  mps.Leave("1.1");
  mps.Leave("2.1");
  EXPECT_TRUE(Running(*share).empty()) << "its servers end with it";
}

TEST_F(MpsTest, AnAgentThatWasKilledLeavesDaemonsToTheNextOne) {
  const auto kept = Make().Join({"1.1", "ann.0", 0, "GPU-0", 25, 20ull << 30});
  const auto left = Make().Join({"2.1", "bob.0", 0, "GPU-0", 25, 20ull << 30});
  ASSERT_TRUE(kept && left);
  const auto before = Running(*kept);
  MpsDaemons next = Make();
  next.Recover({{"1.1", "ann.0", 0, "GPU-0", 25, 20ull << 30}});
  EXPECT_EQ(Running(*kept), before);
  EXPECT_TRUE(Running(*left).empty());
  EXPECT_FALSE(PathExists(left->pipe_directory));
  next.Leave("1.1");
  EXPECT_TRUE(Running(*kept).empty());
}

TEST_F(MpsTest, ADeadDaemonIsStartedAgainForTheNextPod) {
  MpsDaemons mps = Make();
  const auto share = mps.Join({"1.1", "ann.0", 0, "GPU-0", 25, 0});
  ASSERT_TRUE(share);
  for (const pid_t pid : Running(*share)) ::kill(pid, SIGKILL);
  const auto again = mps.Join({"2.1", "ann.0", 0, "GPU-0", 25, 0});
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(Ask(*again, "get_default_active_thread_percentage"), "25.0\n");
  mps.Leave("1.1");
  mps.Leave("2.1");
}

TEST_F(MpsTest, ADaemonThatDoesNotStartSaysWhy) {
  MpsDaemons mps = Make();
  const auto share = mps.Join({"1.1", "ann.0", 0, "GPU-0", 25, 0});
  ASSERT_TRUE(share);
  mps.Leave("1.1");
  ASSERT_TRUE(MakeDirs(share->pipe_directory, 0755));
  std::ofstream(share->pipe_directory + "/fail");
  const auto refused = mps.Join({"1.1", "ann.0", 0, "GPU-0", 25, 0});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("An instance of this daemon is already running"), std::string::npos)
      << refused.error().message();
  EXPECT_EQ(mps.daemons(), 0u);
  EXPECT_FALSE(PathExists(share->pipe_directory));
}

TEST_F(MpsTest, ADriverWithoutMps) {
  ASSERT_EQ(::unlink((driver_.root() + "/usr/bin/nvidia-cuda-mps-control").c_str()), 0);
  MpsDaemons mps = Make();
  EXPECT_EQ(mps.Join({"1.1", "ann.0", 0, "GPU-0", 25, 0}).error().code(), Code::kNotFound);
}

TEST(ProgramsTest, OutputFailureAndTime) {
  EXPECT_EQ(*RunProgram({"/bin/cat"}, {}, "hello\n", 5000), "hello\n");
  EXPECT_EQ(RunProgram({"/bin/false"}, {}, "", 5000).error().code(), Code::kUnavailable);
  EXPECT_EQ(RunProgram({"/bin/sleep", "60"}, {}, "", 100).error().code(), Code::kTimeout);
  EXPECT_FALSE(RunProgram({"/no/such"}, {}, "", 100));
}

}  // namespace
}  // namespace vrun::gpu
