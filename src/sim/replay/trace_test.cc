// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/job_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/pods/pods.h"
#include "sim/report/prices.h"

namespace vrun::sim {
namespace {

using ::testing::HasSubstr;

Result<JobTrace> Read(std::string text) {
  VRUN_ASSIGN(Csv csv, Csv::Parse(std::move(text), "t.csv"));
  return ReadJobTrace(csv);
}

std::string ErrorOf(std::string text) {
  auto trace = Read(std::move(text));
  return trace ? "no error" : trace.error().message();
}

TEST(Csv, SplitsFieldsAndKeepsLineNumbers) {
  auto csv = Csv::Parse("a,b\r\n1,\n,2.5\n\n\n", "x");
  ASSERT_TRUE(csv) << csv.error().message();
  ASSERT_EQ(csv->rows(), 2u);
  EXPECT_EQ(csv->Field(0, 0), "1");
  EXPECT_EQ(csv->Field(0, 1), "");
  EXPECT_EQ(csv->Field(1, 1), "2.5");
  EXPECT_EQ(csv->Seconds(1, 1).value(), 2'500'000);
  EXPECT_THAT(csv->Integer(1, 1, 0, 9).error().message(), "x:3: b '2.5': expected a whole number from 0 to 9");
}

TEST(Csv, RefusesWhatIsNoTable) {
  EXPECT_THAT(Csv::Parse("", "x").error().message(), "x:1: empty: expected a header line");
  EXPECT_THAT(Csv::Parse("a,a\n", "x").error().message(), "x:1: column 'a' is there twice");
  EXPECT_THAT(Csv::Parse("a,,b\n", "x").error().message(), HasSubstr("x:1: a column without a name"));
  EXPECT_THAT(Csv::Parse("a,b\n1,2\n1\n", "x").error().message(), "x:3: 1 fields where the header has 2");
  EXPECT_THAT(Csv::Parse("a,b\n\n1,2\n", "x").error().message(), "x:2: 1 fields where the header has 2");
  EXPECT_THAT(Csv::Parse("a\n\"1\"\n", "x").error().message(), HasSubstr("x:2: a quote: quoted fields"));
}

TEST(JobTraceReader, Itp) {
  auto trace = Read("job_id,submission_time,duration,num_gpu,deadline\nb,30,5,8,37\na,10,0,1,12\n");
  ASSERT_TRUE(trace) << trace.error().message();
  ASSERT_EQ(trace->jobs.size(), 2u);
  EXPECT_EQ(trace->jobs[0].submit_us, 0);
  EXPECT_EQ(trace->jobs[0].duration_us, 1);  // never 0
  EXPECT_EQ(trace->jobs[1].submit_us, 20'000'000);
  EXPECT_EQ(trace->jobs[1].gpus, 8);
  ASSERT_EQ(trace->jobs[1].deadlines.size(), 1u);
  EXPECT_EQ(trace->jobs[1].deadlines[0].after_us, 7'000'000);
}

TEST(JobTraceReader, Philly) {
  auto trace = Read(
      "timestamp,duration,num_gpus,gpu_time,cluster\n"
      "2017-10-09 07:01:55,66.5,1,66.5,11cb48\n2017-10-08 07:01:55,2951.0,2,5902.0,6214e9\n\n");
  ASSERT_TRUE(trace) << trace.error().message();
  EXPECT_EQ(trace->origin_us, int64_t{1507446115} * 1'000'000);
  EXPECT_EQ(trace->jobs[1].submit_us, int64_t{86400} * 1'000'000);
  EXPECT_EQ(trace->jobs[1].duration_us, 66'500'000);
  EXPECT_EQ(trace->teams[trace->jobs[1].team], "11cb48");
}

TEST(JobTraceReader, Chronus) {
  auto trace = Read(
      "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,expect_value_list,"
      "best_effort,job_type\n"
      "0,vc,4,100,1,m,211,8,282-400,10-8,0,soft\n2,vc,0,100,1,m,1,8,2,10,0,strict\n1,vc,1,101,1,m,31,6,88,10,1,best\n");
  ASSERT_TRUE(trace) << trace.error().message();
  ASSERT_EQ(trace->jobs.size(), 2u);
  EXPECT_EQ(trace->without_gpus, 1);
  EXPECT_EQ(trace->jobs[0].duration_us, int64_t{211} * 60 * 1'000'000);
  ASSERT_EQ(trace->jobs[0].deadlines.size(), 2u);
  EXPECT_EQ(trace->jobs[0].deadlines[1].after_us, int64_t{400} * 60 * 1'000'000);
  EXPECT_EQ(trace->jobs[0].deadlines[1].value, 8);
  EXPECT_TRUE(trace->jobs[1].deadlines.empty());
}

TEST(JobTraceReader, ErrorsNameFileLineAndField) {
  const std::string itp = "job_id,submission_time,duration,num_gpu\n";
  EXPECT_THAT(ErrorOf(itp), HasSubstr("t.csv:1: a trace without jobs"));
  EXPECT_EQ(ErrorOf(itp + "a,0,1,0\n"), "t.csv:2: num_gpu '0': expected a whole number from 1 to 1000000");
  EXPECT_THAT(ErrorOf(itp + "a,0,1,1\nb,-1,1,1\n"), HasSubstr("t.csv:3: submission_time '-1'"));
  EXPECT_THAT(ErrorOf(itp + "a,0,1e9,1\n"), HasSubstr("t.csv:2: duration '1e9'"));
  EXPECT_THAT(ErrorOf(itp + "a,0,.,1\n"), HasSubstr("t.csv:2: duration '.'"));
  EXPECT_THAT(ErrorOf(itp + "a,0,99999999999999999999,1\n"), HasSubstr("t.csv:2: duration"));
  EXPECT_THAT(ErrorOf("x,y\n1,2\n"), HasSubstr("not a trace of jobs"));
  EXPECT_THAT(ErrorOf("timestamp,duration,num_gpus,cluster\n2017-13-01 00:00:00,1,1,c\n"),
              HasSubstr("t.csv:2: timestamp '2017-13-01 00:00:00'"));
}

TEST(Csv, WhatOtherProgramsWriteAround) {
  auto plain = Read("job_id,submission_time,duration,num_gpu\na,0,1,1\nb,10,1,2\n");
  auto marked = Read("\xef\xbb\xbfjob_id,submission_time,duration,num_gpu\r\na,0,1,1\r\nb,10,1,2\r\n\r\n");
  ASSERT_TRUE(marked) << marked.error().message();
  EXPECT_EQ(marked->jobs.size(), plain->jobs.size());
  for (std::string_view packed : {"\x1f\x8b\x08\x01", "\x28\xb5\x2f\xfd\x04"}) {
    EXPECT_EQ(Csv::Parse(std::string(packed), "t.gz").error().message(), "t.gz:1: compressed: unpack it first");
  }
}

TEST(JobTrace, MoreWorkThanTimeCanCountIsRefused) {
  auto trace = Read("job_id,submission_time,duration,num_gpu\na,0,3000000000,1000000\n");
  ASSERT_FALSE(trace);
  EXPECT_THAT(trace.error().message(), HasSubstr("are the durations seconds?"));
}

TEST(JobTrace, GpuTypesOfAnAccount) {
  auto trace = Read(
      "timestamp,duration,num_gpus,cluster,gpu_type\n2026-01-01 00:00:00,1,1,a,H100\n"
      "2026-01-01 00:00:01,1,1,a,\n2026-01-01 00:00:02,1,1,a,T4\n");
  ASSERT_TRUE(trace) << trace.error().message();
  EXPECT_EQ(trace->gpu_types, (std::vector<std::string>{"H100", "T4"}));
  EXPECT_EQ(trace->jobs[0].gpu_type, 0);
  EXPECT_EQ(trace->jobs[1].gpu_type, -1);
  EXPECT_EQ(trace->jobs[2].gpu_type, 1);
}

TEST(Prices, ByTypeAndForOthers) {
  auto prices = ReadPrices("gpu_type,price\nH100,2.5\n*,0.75\n", "p");
  ASSERT_TRUE(prices) << prices.error().message();
  EXPECT_EQ(prices->Of("H100"), 2.5);
  EXPECT_EQ(prices->Of("T4"), 0.75);
  EXPECT_EQ(ParsePrice("3")->Of("T4"), 3);
  for (const char* bad : {"-1", "nan", "inf", "x", "", "1e9", "-0"}) {
    EXPECT_FALSE(ParsePrice(bad)) << bad;
    auto table = ReadPrices("gpu_type,price\nT4," + std::string(bad) + "\n", "p");
    ASSERT_FALSE(table) << bad;
    EXPECT_THAT(table.error().message(), HasSubstr("p:2: price"));
  }
}

TEST(Window, KeepsWhatWasSubmittedInside) {
  auto trace = Read("job_id,submission_time,duration,num_gpu\na,0,1,1\nb,10,1,2\nc,20,1,3\n");
  JobTrace window = Window(*trace, 10'000'000, 20'000'000);
  ASSERT_EQ(window.jobs.size(), 1u);
  EXPECT_EQ(window.jobs[0].gpus, 2);
  EXPECT_EQ(window.jobs[0].submit_us, 0);
}

TEST(ShiftArrivals, RotatesTheTrace) {
  auto trace = Read("job_id,submission_time,duration,num_gpu\na,0,1,1\nb,10,1,2\nc,20,1,3\n");
  JobTrace shifted = ShiftArrivals(*trace, 10'000'000);
  ASSERT_EQ(shifted.jobs.size(), 3u);
  EXPECT_EQ(shifted.jobs[0].gpus, 2);
  EXPECT_EQ(shifted.jobs[2].gpus, 1);
  EXPECT_EQ(shifted.jobs[2].submit_us, 10'000'001);
}

TEST(PodTables, PodsAndNodes) {
  ModelNames models;
  auto nodes = Csv::Parse("sn,cpu_milli,memory_mib,gpu,model\nn0,64000,1000,2,P100\nn1,1000,10,0,\n", "n.csv");
  auto read_nodes = ReadPodNodes(*nodes, &models);
  ASSERT_TRUE(read_nodes) << read_nodes.error().message();
  EXPECT_EQ((*read_nodes)[0].gpus, 2);
  EXPECT_EQ((*read_nodes)[1].model, -1);
  auto pods =
      Csv::Parse("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np,1,2,1,460,T4|P100\nq,1,2,8,1000,\n", "p");
  auto read_pods = ReadPods(*pods, &models);
  ASSERT_TRUE(read_pods) << read_pods.error().message();
  EXPECT_EQ((*read_pods)[0].models, 0b11u);
  EXPECT_EQ((*read_pods)[1].total_milli(), 8000);
  EXPECT_EQ((*read_pods)[1].models, 0u);
}

TEST(PodTables, RefusesHalfRequests) {
  ModelNames models;
  for (const char* row : {"p,1,1,1,0\n", "p,1,1,0,10\n", "p,1,1,2,500\n", "p,1,1,9,1000\n"}) {
    auto csv = Csv::Parse(std::string("name,cpu_milli,memory_mib,num_gpu,gpu_milli\n") + row, "p.csv");
    auto pods = ReadPods(*csv, &models);
    ASSERT_FALSE(pods) << row;
    EXPECT_THAT(pods.error().message(), HasSubstr("p.csv:2:"));
  }
}

}  // namespace
}  // namespace vrun::sim
