// SPDX-License-Identifier: Apache-2.0
#include "cli/request/wishes.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "cli/base/table.h"
#include "cli/request/gpu_options.h"
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

// As -G writes it, and how it is shared.
std::string GpusOf(const Words& words) {
  Words all = words;
  all.push_back("true");
  const auto options = ParseRun(all);
  if (!options) return options.error().message();
  const v1::Resources& r = options->spec.resources();
  std::string text = GpusText(r);
  for (const std::string& type : options->spec.scheduling().gpu_types()) text += " " + type;
  if (r.gpu_sharing() != v1::GPU_SHARING_UNSPECIFIED) text += r.gpu_sharing() == v1::GPU_MPS ? " mps" : " time";
  if (r.gpu_memory_bytes() > 0 && KindOf(r) != GpuKind::kByMemory) text += " with " + FormatBytes(r.gpu_memory_bytes());
  return text;
}

TEST(WishesTest, PartsOfGpus) {
  const std::vector<std::pair<Words, std::string>> table = {{{"-G", "2"}, "2"},
                                                            {{"-G", "h100:4"}, "h100:4"},
                                                            {{"-G", "0"}, "0"},
                                                            {{"-G", "1.0"}, "1"},
                                                            {{"-G", "0.25"}, "0.25"},
                                                            {{"-G", ".5"}, "0.5"},
                                                            {{"-G", "0.125"}, "0.125"},
                                                            {{"-G", "h100:0.25"}, "h100:0.25"},
                                                            {{"-G", "h100:0.25..1"}, "h100:0.25..1"},
                                                            {{"-G", "0.25..0.5"}, "0.25..0.5"},
                                                            {{"-G", "1g.10gb"}, "1g.10gb"},
                                                            {{"-G", "1g.10gb:1"}, "1g.10gb"},
                                                            {{"-G", "h100:1g.10gb"}, "h100:1g.10gb"},
                                                            {{"-G", "h100:3g.40gb:1"}, "h100:3g.40gb"},
                                                            {{"-G", "h100:0.5|a100:0.5"}, "0.5 h100 a100"},
                                                            {{"-G", "h100:1g.10gb|a100:1g.10gb"}, "1g.10gb h100 a100"},
                                                            {{"--gres=gpu:1g.10gb:1"}, "1g.10gb"},
                                                            {{"--gres=gpu:1g.10gb"}, "1g.10gb"},
                                                            {{"--gres=gpu:h100:1g.10gb"}, "h100:1g.10gb"},
                                                            {{"--gres=gpu:0.5"}, "0.5"},
                                                            {{"--gres=gpu:a100:1"}, "a100:1"},
                                                            {{"--gres=mps:25"}, "0.25 mps"},
                                                            {{"--gres=mps:a100:50"}, "a100:0.5 mps"},
                                                            {{"--gres=mps:100"}, "1"},
                                                            {{"-G", "0.25", "--share=time"}, "0.25 time"},
                                                            {{"--share=mps", "-G", "0.25"}, "0.25 mps"},
                                                            {{"--gpu-mem", "20G"}, "20G"},
                                                            {{"--gpu-mem", "20G", "--share=time"}, "20G time"},
                                                            {{"-G", "h100:2", "--gpu-mem=80G"}, "h100:2 with 80G"},
                                                            {{"-G", "0.25", "-G", "0.5"}, "0.5"},
                                                            {{"-N", "2", "--gpus-per-node", "0.5"}, "0.5"},
                                                            {{"-N", "2", "--gpus-per-task", "1g.10gb"}, "1g.10gb"}};
  for (const auto& [words, text] : table) EXPECT_EQ(GpusOf(words), text) << words[0];
}

TEST(WishesTest, PartsOfGpusThatContradictThemselves) {
  const std::vector<std::pair<Words, std::string>> table = {
      {{"-G", "1.5"}, "--gpus: 1.5: a share is less than one GPU: write a whole number, or a share as in 0.5"},
      {{"-G", "0.001"}, "--gpus: 0.001: too small: the smallest share is 0.01"},
      {{"-G", "0.0"}, "--gpus: 0.0: too small: the smallest share is 0.01"},
      {{"-G", "0.25.5"}, "--gpus: 0.25.5: not a share of a GPU: write it as in 0.25, or 0.25..1"},
      {{"-G", "0.5..0.25"},
       "--gpus: 0.5..0.25: the second number is what it may use at most: larger than the first, and 1 at most"},
      {{"-G", "0.5..2"},
       "--gpus: 0.5..2: the second number is what it may use at most: larger than the first, and 1 at most"},
      {{"-G", "h100:1g.10gb:2"},
       "--gpus: h100:1g.10gb:2: a process gets one instance: write :1, and run several with -N or an array"},
      {{"-G", "1g.10gb+me"},
       "--gpus: 1g.10gb+me: instances with media extensions are not given to jobs: write the name without +me"},
      {{"-G", "h100:0.5|a100:1"},
       "--gpus: h100:0.5|a100:1: alternatives of different numbers: write the same number for each, as in "
       "h100:2|a100:2"},
      {{"-G", "0.25", "--gpus-per-task", "2"},
       "--gpus-per-task: the job also asks for -G 0.25, and a pod gets whole GPUs, a share of one or an instance: "
       "leave one out"},
      {{"--gres=gpu:1g.10gb", "-G", "0.5"},
       "--gpus: the job also asks for --gres=gpu:1g.10gb, and a pod gets whole GPUs, a share of one or an instance: "
       "leave one out"},
      {{"--share=mps"}, "--share: no share of a GPU is asked for: write a share, as in -G 0.25, or leave it out"},
      {{"-G", "2", "--share=mps"},
       "--share: whole GPUs are nobody else's: write a share, as in -G 0.25, or leave it out"},
      {{"-G", "1g.10gb", "--share=time"},
       "--share: a MIG instance is nobody else's: write a share, as in -G 0.25, or leave it out"},
      {{"-G", "0.25..1", "--share=time"},
       "-G 0.25..1: with --share=time each uses what the others leave anyway: leave ..1 out"},
      {{"--share=often", "-G", "0.5"}, "--share: often: no such way of sharing a GPU: write mps or time"},
      {{"--gpu-mem=0"}, "--gpu-mem: 0: no memory at all: write how much, as in 20G, or leave the option out"},
      {{"-N", "2", "-G", "0.5"},
       "-G 0.5: a share of a GPU is on one node, and the job has 2: write --gpus-per-node 0.5"},
      {{"--ntasks-per-node", "2", "--gpus-per-task", "0.5"},
       "--gpus-per-task=0.5: the 2 tasks of a node get a share of a GPU together: write --gpus-per-node 0.5"},
      {{"--gres=shard:1"}, "--gres: shard:1: shards have no size here: write a share, as in -G 0.25 --share=time"},
      {{"--gres=mps:200"}, "--gres: mps:200: write the hundredths of a GPU, as in mps:25"},
      {{"--gres=license:1"}, "--gres: license:1: not supported yet: GPUs are all that there is, write gpu[:TYPE][:N]"}};
  for (const auto& [words, text] : table) EXPECT_EQ(GpusOf(words), text);
  EXPECT_NE(GpusOf({"-G", "h100:many"}).find("write [TYPE:]N as in 2 or h100:2, a share"), std::string::npos);
}

TEST(WishesTest, PartsOfGpusInAScript) {
  auto script = ParseScript("#!/bin/sh\n#SBATCH --gres=gpu:h100:1g.10gb\n#SBATCH --gpu-mem=10G\n", "job.sh");
  ASSERT_TRUE(script) << script.error().message();
  RunOptions options;
  ASSERT_TRUE(ApplyOptions(script->options, &options));
  EXPECT_EQ(GpusText(options.spec.resources()), "h100:1g.10gb");
  EXPECT_EQ(options.spec.resources().gpu_memory_bytes(), uint64_t{10} << 30);
  // The command line replaces what the script asks for.
  auto line = ParseWords(RunTable(), Words{"-G", "2"});
  ASSERT_TRUE(line);
  ASSERT_TRUE(ApplyOptions(line->options, &options));
  EXPECT_EQ(GpusText(options.spec.resources()), "2");
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
