// SPDX-License-Identifier: Apache-2.0
#include "cli/request/gang_options.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/request/run_options.h"

namespace vrun::cli {
namespace {

using Words = std::vector<std::string>;

// The request for these words; its error, if they are wrong.
Result<v1::RunSpec> SpecOf(const Words& words) {
  VRUN_ASSIGN(RunOptions options, ParseRun(words));
  v1::RunSpec spec = options.spec;
  VRUN_TRY(ApplyShape(options.gang, options.command[0], &spec));
  return spec;
}

std::string ErrorOf(const Words& words) {
  auto spec = SpecOf(words);
  return spec ? "accepted" : spec.error().message();
}

TEST(GangOptionsTest, OneProcessIsNoGang) {
  for (const Words& w : {Words{"x"}, Words{"-N", "1", "x"}, Words{"-N1", "-n", "1", "x"}, Words{"-l", "x"}}) {
    EXPECT_FALSE(SpecOf(w)->has_gang());
  }
}

TEST(GangOptionsTest, ShapesAsSlurmHasThem) {
  struct Case {
    Words words;
    uint32_t pods, least, ranks;
  };
  for (const Case& c : {Case{{"-N", "4", "x"}, 4, 0, 1}, Case{{"-N", "4", "--ntasks-per-node", "2", "x"}, 4, 0, 2},
                        Case{{"-n", "8", "x"}, 1, 0, 8}, Case{{"-n8", "-N2", "x"}, 2, 0, 4},
                        Case{{"-n", "8", "--ntasks-per-node=4", "x"}, 2, 0, 4}, Case{{"-N", "2:8", "x"}, 8, 2, 1},
                        Case{{"-N", "2-8", "--ntasks-per-node=2", "x"}, 8, 2, 2}, Case{{"-N", "3-3", "x"}, 3, 0, 1}}) {
    const auto spec = SpecOf(c.words);
    ASSERT_TRUE(spec) << spec.error().message();
    EXPECT_EQ(spec->gang().pods(), c.pods);
    EXPECT_EQ(spec->gang().min_pods(), c.least);
    EXPECT_EQ(spec->gang().ranks_per_pod(), c.ranks);
  }
}

TEST(GangOptionsTest, ContradictionsAreSaidInOneLine) {
  EXPECT_EQ(ErrorOf({"-N", "0", "x"}), "--nodes: 0: not a number of nodes from 1 to 100000");
  EXPECT_EQ(ErrorOf({"-N", "8:2", "x"}), "--nodes: 8:2: the second number is the larger one: write 2:8");
  EXPECT_EQ(ErrorOf({"-n", "5", "--ntasks-per-node", "2", "-N", "2", "x"}),
            "-n 5: -N 2 with --ntasks-per-node 2 are 4 tasks: leave one of them out");
  EXPECT_EQ(ErrorOf({"-n", "5", "-N", "2", "x"}),
            "-n 5: not the same number of tasks on every node: write a multiple of 2");
  EXPECT_EQ(ErrorOf({"-n", "1", "-N", "2", "x"}),
            "-n 1: not the same number of tasks on every node: write a multiple of 2");
  EXPECT_NE(ErrorOf({"-n", "4", "-N", "2:4", "x"}).find("--ntasks-per-node"), std::string::npos);
  EXPECT_NE(ErrorOf({"-N", "2", "-T", "x"}).find("no terminal"), std::string::npos);
  EXPECT_NE(ErrorOf({"-N", "2", "--input=2", "x"}).find("only 2 ranks"), std::string::npos);
  EXPECT_NE(ErrorOf({"-N", "2", "--input=file", "x"}).find("write all, none"), std::string::npos);
  EXPECT_NE(ErrorOf({"-N", "4294967297", "x"}).find("not a number of nodes"), std::string::npos);
  EXPECT_NE(ErrorOf({"-N", "", "x"}).find("not a number of nodes"), std::string::npos);
  EXPECT_NE(ErrorOf({"-N", "2:", "x"}).find("not a number of nodes"), std::string::npos);
}

TEST(GangOptionsTest, ResourcesAreThoseOfOnePod) {
  const auto spec = SpecOf({"-N", "2", "--ntasks-per-node", "4", "-c", "3", "--gpus-per-task=h100:1", "x"});
  EXPECT_EQ(spec->resources().milli_cpus(), 12'000u);
  EXPECT_EQ(spec->resources().gpus(), 4u);
  EXPECT_EQ(spec->resources().gpu_type(), "h100");
  EXPECT_EQ(SpecOf({"-N", "2", "-G", "8", "x"})->resources().gpus(), 4u);
  EXPECT_EQ(SpecOf({"-N", "2", "--gpus-per-node", "8", "x"})->resources().gpus(), 8u);
  EXPECT_EQ(SpecOf({"-N", "2", "--gres=gpu:8", "x"})->resources().gpus(), 8u);
  EXPECT_EQ(SpecOf({"-N", "2", "x"})->resources().milli_cpus(), 1000u);
  EXPECT_NE(ErrorOf({"-N", "2", "-G", "3", "x"}).find("--gpus-per-node"), std::string::npos);
  EXPECT_NE(ErrorOf({"-N", "2:4", "-G", "4", "x"}).find("--gpus-per-node"), std::string::npos);
  // Without a gang nothing changes.
  EXPECT_EQ(SpecOf({"-c", "3", "-G", "2", "x"})->resources().gpus(), 2u);
}

TEST(GangOptionsTest, LaunchersAreKnownByName) {
  EXPECT_TRUE(SpecOf({"-N", "2", "mpirun", "a.out"})->gang().launcher());
  EXPECT_TRUE(SpecOf({"-N", "2", "/opt/mpi/bin/mpiexec"})->gang().launcher());
  EXPECT_FALSE(SpecOf({"-N", "2", "torchrun"})->gang().launcher());
  EXPECT_FALSE(SpecOf({"-N", "2", "--no-launcher", "mpirun"})->gang().launcher());
  EXPECT_TRUE(SpecOf({"-N", "2", "--launcher", "./start"})->gang().launcher());
}

TEST(GangOptionsTest, WhatHappensAtTheEnd) {
  const auto spec = SpecOf({"-N", "2", "--no-kill", "--wait", "30", "--no-slurm-env", "x"});
  EXPECT_TRUE(spec->gang().no_kill());
  EXPECT_EQ(spec->gang().wait_s(), 30u);
  EXPECT_TRUE(spec->gang().no_slurm_environment());
  EXPECT_TRUE(SpecOf({"-N", "2", "--kill-on-bad-exit=0", "x"})->gang().no_kill());
  EXPECT_FALSE(SpecOf({"-N", "2", "-K", "x"})->gang().no_kill());
}

TEST(GangOptionsTest, StdinIsForTheFirstUnlessSaidOtherwise) {
  EXPECT_EQ(ParseRun(Words{"x"})->gang.input_rank, 0);
  EXPECT_EQ(ParseRun(Words{"--input=all", "x"})->gang.input_rank, -1);
  EXPECT_EQ(ParseRun(Words{"-i", "none", "x"})->gang.input_rank, -2);
  EXPECT_EQ(ParseRun(Words{"-N2", "--input=1", "x"})->gang.input_rank, 1);
}

}  // namespace
}  // namespace vrun::cli
