// SPDX-License-Identifier: Apache-2.0
#include "cli/request/wishes.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "cli/request/run_options.h"
#include "cli/request/script_options.h"

namespace vrun::cli {
namespace {

using Words = std::vector<std::string>;

v1::Scheduling Parsed(const Words& words) {
  auto options = ParseRun(words);
  EXPECT_TRUE(options) << options.error().message();
  return options ? options->spec.scheduling() : v1::Scheduling();
}

std::string ErrorOf(const Words& words) {
  auto parsed = ParseRun(words);
  return parsed ? "" : parsed.error().message();
}

TEST(WishesTest, PlacesAreParsed) {
  const v1::Scheduling s =
      Parsed({"-C", "ssd&net=ib,x", "-w", "n[1-4],m", "-x", "n2", "--tolerate=a,b=c", "--topology=block",
              "--topology=rack:prefer", "--segment", "8@island", "-H", "true"});
  EXPECT_EQ(Words(s.labels().begin(), s.labels().end()), (Words{"ssd", "net=ib", "x"}));
  EXPECT_EQ(Words(s.nodes().begin(), s.nodes().end()), (Words{"n[1-4],m"}));
  EXPECT_EQ(Words(s.excluded_nodes().begin(), s.excluded_nodes().end()), (Words{"n2"}));
  EXPECT_EQ(Words(s.tolerations().begin(), s.tolerations().end()), (Words{"a", "b=c"}));
  EXPECT_EQ(s.required_level(), v1::LEVEL_BLOCK);
  EXPECT_EQ(s.preferred_level(), v1::LEVEL_RACK);
  EXPECT_EQ(s.segment(), 8u);
  EXPECT_EQ(s.segment_level(), v1::LEVEL_ISLAND);
  EXPECT_TRUE(s.hold());
  EXPECT_EQ(Parsed({"--spread=rack", "true"}).segment_level(), v1::LEVEL_RACK);
  EXPECT_TRUE(Parsed({"--spread-job", "true"}).spread());
  EXPECT_EQ(Parsed({"--switches=1@5:00", "true"}).preferred_level(), v1::LEVEL_RACK);
  EXPECT_EQ(Parsed({"--switches=4", "true"}).preferred_level(), v1::TOPOLOGY_LEVEL_UNSPECIFIED);
  EXPECT_TRUE(ParseRun(Words{"--test-only", "true"})->test_only);
}

TEST(WishesTest, TheSameInAScript) {
  auto script = ParseScript("#!/bin/sh\n#SBATCH --constraint=ssd -w n[1-2]\n#SBATCH --switches=1\n", "job.sh");
  ASSERT_TRUE(script) << script.error().message();
  RunOptions options;
  ASSERT_TRUE(ApplyOptions(script->options, &options));
  EXPECT_EQ(options.spec.scheduling().labels(0), "ssd");
  EXPECT_EQ(options.spec.scheduling().nodes(0), "n[1-2]");
}

TEST(WishesTest, GpusOfSeveralTypes) {
  auto options = ParseRun(Words{"-G", "h100:2|a100:2", "true"});
  ASSERT_TRUE(options);
  EXPECT_EQ(options->spec.resources().gpus(), 2u);
  EXPECT_EQ(options->spec.resources().gpu_type(), "");
  EXPECT_EQ(options->spec.scheduling().gpu_types(1), "a100");
  options = ParseRun(Words{"-G", "h100:2|a100:2", "-G", "h100:1", "true"});
  EXPECT_EQ(options->spec.resources().gpu_type(), "h100");
  EXPECT_EQ(options->spec.scheduling().gpu_types_size(), 0);
  EXPECT_EQ(
      ErrorOf({"-G", "h100:2|a100:4", "true"}),
      "--gpus: h100:2|a100:4: alternatives of different numbers: write the same number for each, as in h100:2|a100:2");
  EXPECT_NE(ErrorOf({"-G", "2|a100:2", "true"}), "");
}

TEST(WishesTest, Checkpoints) {
  const v1::Scheduling s =
      Parsed({"--checkpoint=signal:USR1,grace:120s,save:45s,restore:1.5m,every:10m,resize:5", "true"});
  EXPECT_EQ(s.signal(), SIGUSR1);
  EXPECT_TRUE(s.saves());
  EXPECT_EQ(s.grace_s(), 120u);
  EXPECT_EQ(s.save_seconds(), 45);
  EXPECT_EQ(s.restore_seconds(), 90);
  EXPECT_EQ(s.save_period_seconds(), 600);
  EXPECT_EQ(s.resize_seconds(), 5);
  EXPECT_FALSE(Parsed({"--checkpoint=every:1h", "true"}).saves());
  for (const char* wrong : {"", "signal", "signal:KILL", "grace:0", "save:-1", "save:x", "often:1s", "save:1s,,"}) {
    EXPECT_NE(ErrorOf({"--checkpoint", wrong, "true"}), "") << wrong;
  }
}

TEST(WishesTest, Retries) {
  const v1::Scheduling s = Parsed({"--retry", "3@30s:oom,node,1", "--retry=1", "true"});
  ASSERT_EQ(s.retries_size(), 2);
  EXPECT_EQ(s.retries(0).times(), 3u);
  EXPECT_EQ(s.retries(0).delay_s(), 30u);
  EXPECT_EQ(Words(s.retries(0).causes().begin(), s.retries(0).causes().end()), (Words{"oom", "node", "1"}));
  EXPECT_EQ(s.retries(1).causes(0), "any");
  for (const char* wrong : {"", "0", "x", "3@", "3@x", "3:", "3:never", "3:256", "3:0"}) {
    EXPECT_NE(ErrorOf({"--retry", wrong, "true"}), "") << wrong;
  }
}

TEST(WishesTest, DeadlinesInSteps) {
  const v1::Scheduling s = Parsed({"--deadline", "now+1hour=1,now+2hours=0.5,now+3hours=0.25", "true"});
  EXPECT_EQ(s.deadline_us(), 0);
  ASSERT_EQ(s.deadline_steps_size(), 3);
  EXPECT_EQ(s.deadline_steps(0).value_milli(), 1000u);
  EXPECT_EQ(s.deadline_steps(2).value_milli(), 250u);
  EXPECT_EQ(Parsed({"--deadline", "now+1hour=1,now+2hours=0.5", "--deadline", "hard:now+1hour", "true"})
                .deadline_steps_size(),
            0);
  for (const char* wrong :
       {"now+2hours=1,now+1hour=0.5", "now+1hour=0.5,now+2hours=1", "hard:now+1hour=1", "now+1hour=2"}) {
    EXPECT_NE(ErrorOf({"--deadline", wrong, "true"}), "") << wrong;
  }
}

TEST(WishesTest, WhatIsWrongIsNamed) {
  EXPECT_EQ(ErrorOf({"--topology", "shelf", "true"}),
            "--topology: shelf: no such level: write node, island, rack, block, zone or cluster");
  EXPECT_NE(ErrorOf({"-C", "a|b", "true"}).find("alternatives"), std::string::npos);
  EXPECT_NE(ErrorOf({"-C", "", "true"}), "");
  EXPECT_NE(ErrorOf({"--segment", "0", "true"}), "");
  EXPECT_NE(ErrorOf({"--segment", "8@desk", "true"}), "");
  EXPECT_NE(ErrorOf({"--switches", "none", "true"}), "");
  EXPECT_NE(ErrorOf({"--topology", "rack:maybe", "true"}), "");
}

}  // namespace
}  // namespace vrun::cli
