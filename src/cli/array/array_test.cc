// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/array/array_options.h"
#include "cli/array/job_ids.h"
#include "cli/request/log_path.h"
#include "cli/request/run_options.h"
#include "cli/request/script_options.h"

namespace vrun::cli {
namespace {

using Words = std::vector<std::string>;

std::string Indexes(const char* text) {
  const auto ranges = ParseIndexes(text);
  return ranges ? RangesText(*ranges) : ranges.error().message();
}

std::vector<std::string> Values(const char* text) {
  const auto sweep = ParseSweep(text);
  if (!sweep) return {"error", sweep.error().message()};
  return {sweep->values().begin(), sweep->values().end()};
}

TEST(ArrayOptionsTest, IndexesAreSlurms) {
  EXPECT_EQ(Indexes("0-15"), "0-15");
  EXPECT_EQ(Indexes("1,3,5-9:2"), "1,3,5-9:2");
  EXPECT_EQ(Indexes("7"), "7");
  // An upper end that is no index, another order, and indexes that are there twice.
  EXPECT_EQ(Indexes("0-10:4"), "0-8:4");
  EXPECT_EQ(Indexes("5,1,3"), "1,3,5");
  EXPECT_EQ(Indexes("0-4,2-6"), "0-6");
  EXPECT_EQ(Indexes("0-8:2,1-9:2"), "0-9");
  for (const char* bad : {"", "a", "-1", "1-", "1,", ",1", "3-1", "1-9:0", "1-9:", "1:2", "0-1000000000", "1 2"}) {
    EXPECT_FALSE(ParseIndexes(bad)) << bad;
  }
}

TEST(ArrayOptionsTest, ALimitMayFollow) {
  v1::Array array;
  ASSERT_TRUE(ParseArray("0-99999%64", &array));
  EXPECT_EQ(array.most_running(), 64u);
  EXPECT_EQ(ElementCount(array), 100'000u);
  ASSERT_TRUE(ParseArray("%4", &array));  // of a sweep
  EXPECT_EQ(array.most_running(), 4u);
  EXPECT_EQ(array.ranges_size(), 0);
  for (const char* bad : {"0-9%", "0-9%0", "0-9%x", "%", "0-9%4%5"}) EXPECT_FALSE(ParseArray(bad, &array)) << bad;
}

TEST(ArrayOptionsTest, ASweepListsOrCounts) {
  EXPECT_EQ(Values("lr=0.1,0.01"), (Words{"0.1", "0.01"}));
  EXPECT_EQ(Values("seed=0:5"), (Words{"0", "1", "2", "3", "4"}));
  EXPECT_EQ(Values("seed=0:10:3"), (Words{"0", "3", "6", "9"}));
  EXPECT_EQ(Values("seed=3:0:-1"), (Words{"3", "2", "1"}));
  EXPECT_EQ(Values("seed=-1:1"), (Words{"-1", "0"}));
  EXPECT_EQ(Values("model=resnet"), (Words{"resnet"}));
  EXPECT_EQ(Values("address=host:80"), (Words{"host:80"}));
  EXPECT_EQ(Values("time=10:30,11:00"), (Words{"10:30", "11:00"}));
  EXPECT_EQ(Values("betas=0.9\\,0.95,0.8\\,0.9"), (Words{"0.9,0.95", "0.8,0.9"}));
  EXPECT_EQ(Values("path=a\\b"), (Words{"a\\b"}));
  EXPECT_EQ(Values("flag=,--fast"), (Words{"", "--fast"}));
  EXPECT_EQ(Values("formula=a=b"), (Words{"a=b"}));
  for (const char* bad :
       {"", "lr", "=1", "lr=", "seed=5:5", "seed=5:0", "seed=0:5:0", "lr=0:1:0.1", "seed=0:1000000000000", "x=a\nb"}) {
    EXPECT_FALSE(ParseSweep(bad)) << bad;
  }
}

Result<RunOptions> Batch(const Words& words) {
  auto options = ParseBatch(words);
  if (!options) return options;
  auto array = CompleteArray(&*options);
  if (!array) return std::move(array).error();
  return options;
}

std::string Refused(const Words& words) {
  const auto options = Batch(words);
  return options ? "" : options.error().message();
}

TEST(ArrayOptionsTest, AnArrayIsCompleteOrRefused) {
  const auto sweep =
      Batch({"--sweep", "lr=0.1,0.01", "--sweep", "seed=0:3", "-a", "%2", "x", "{lr}", "${other}", "{}"});
  ASSERT_TRUE(sweep) << sweep.error().message();
  EXPECT_EQ(RangesText(sweep->array.ranges()), "0-5");
  EXPECT_EQ(sweep->array.most_running(), 2u);
  EXPECT_TRUE(Batch({"--sweep", "a=1,2", "--array", "0-1", "x"}));
  auto none = ParseBatch(Words{"x", "{lr}"});
  ASSERT_TRUE(none);
  EXPECT_FALSE(*CompleteArray(&*none));
  EXPECT_TRUE(Refused({"--sweep", "a=1,2", "--array", "0-2", "x"}).starts_with("array: a sweep has the indexes 0-1"));
  EXPECT_TRUE(Refused({"-a", "0-999999999", "x"}).starts_with("array: 1000000000 elements are asked for"));
  EXPECT_TRUE(Refused({"-a", "%4", "x"}).starts_with("array: it has no elements"));
  EXPECT_TRUE(Refused({"--sweep", "a=1", "--sweep", "a=2", "x"}).starts_with("sweep a: there are two"));
  EXPECT_TRUE(Refused({"--sweep", "lr=1,2", "x", "{learning_rate}"})
                  .starts_with("array: no sweep is called {learning_rate}: use {lr}"));
  EXPECT_TRUE(Refused({"-f", "-a", "0-1", "x"}).starts_with("-f: the elements of an array have an output each"));
  EXPECT_TRUE(Batch({"-d", "aftercorr:1", "-a", "0-1", "x"}));
  const auto run = ParseRun(Words{"--array", "0-1", "x"});
  ASSERT_FALSE(run);
  EXPECT_EQ(run.error().message(), "--array: not supported yet: an array runs in the background, use vbatch");
}

TEST(ArrayOptionsTest, TheCommandLineReplacesASweepOfTheScript) {
  const auto script =
      ParseScript("#!/bin/sh\n#SBATCH --array=%3\n#VRUN --sweep lr=1,2 --sweep seed=0:2\necho\n", "job.sh");
  ASSERT_TRUE(script) << script.error().message();
  RunOptions options;
  ASSERT_TRUE(ApplyOptions(script->options, &options));
  const auto line = ParseWords(BatchTable(), Words{"--sweep", "lr=3", "--sweep", "size=1,2"});
  ASSERT_TRUE(line);
  ASSERT_TRUE(ApplyOptions(line->options, &options));
  ASSERT_TRUE(CompleteArray(&options));
  EXPECT_EQ(RangesText(options.array.ranges()), "0-3");
  EXPECT_EQ(options.array.most_running(), 3u);
  EXPECT_EQ(ElementVariables(options.array, 3), (Words{"lr=3", "seed=1", "size=2"}));
}

TEST(JobIdsTest, ElementsAreNamedWithTheirArray) {
  for (const char* text : {"7", "7_3", "7_[3-9,11]"}) EXPECT_EQ(JobsText(*ParseJobs(text)), text);
  EXPECT_EQ(JobsText(*ParseJobs("7_[3]")), "7_3");
  EXPECT_EQ(JobsText(*ParseJobs("7_3-9,11")), "7_[3-9,11]");
  EXPECT_EQ(ElementOf(*ParseOneJob("7_3")), 3u);
  EXPECT_EQ(ElementOf(*ParseOneJob("7")), std::nullopt);
  for (const char* bad : {"", "_3", "7_", "7_[3", "7_3]", "7_[]", "7_x", "7_-1", "x_1", "0_1", "7_3_4"}) {
    EXPECT_FALSE(ParseJobs(bad)) << bad;
  }
  EXPECT_FALSE(ParseOneJob("7_[3-4]"));
  Words each;
  ASSERT_TRUE(ForEachJob(*ParseJobs("7_[3-7:2,9]"), [&](const v1::JobSelection& one) -> Status {
    each.push_back(JobsText(one));
    return {};
  }));
  EXPECT_EQ(each, (Words{"7_3", "7_5", "7_7", "7_9"}));
}

TEST(JobIdsTest, AnArrayIsShownWithItsIndexes) {
  v1::JobInfo array;
  array.set_job(7);
  v1::ArrayInfo* info = array.mutable_array_info();
  ASSERT_TRUE(ParseArray("0-19%4", info->mutable_array()));
  info->set_waiting(12);
  info->set_running(4);
  info->set_completed(3);
  info->set_failed(1);
  EXPECT_EQ(JobText(array), "7_[0-19%4]");
  EXPECT_EQ(JobName(array), "7");
  EXPECT_EQ(CountsText(*info), "20: 12 waiting, 4 running, 3 completed, 1 failed");
  v1::JobInfo element;
  element.set_job(12);
  element.set_array(7);
  element.set_array_index(3);
  EXPECT_EQ(JobText(element), "7_3");
  EXPECT_EQ(JobName(element), "7_3");
  std::string many = "0";
  for (int i = 2; i < 200; i += 3) many += "," + std::to_string(i);
  ASSERT_TRUE(ParseArray(many, info->mutable_array()));
  EXPECT_LT(JobText(array).size(), 60u);
}

TEST(LogPathTest, HomeFillsInTheElement) {
  EXPECT_EQ(*ExpandLogPath("%A_%4a-%j-%x", {.job_name = "n", .array = true}), "%A_%4a-%j-n");
  EXPECT_EQ(*ExpandLogPath("%A_%4a", {}), "%j_0000");
}

}  // namespace
}  // namespace vrun::cli
