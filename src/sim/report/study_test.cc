// SPDX-License-Identifier: Apache-2.0
#include "sim/report/study.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sched/share/weights.h"
#include "sim/report/html_report.h"

namespace vrun::sim {
namespace {

using ::testing::HasSubstr;

StudyOptions Jobs() {
  StudyOptions options;
  options.trace_name = "t.csv";
  options.trace_text = "job_id,submission_time,duration,num_gpu\na,0,100,8\nb,10,20,8\nc,1000,50,16\n";
  options.cluster.nodes = 2;
  return options;
}

TEST(Study, JobsAgainstSeveralPolicies) {
  StudyOptions options = Jobs();
  options.policies = {"fifo", "srtf"};
  options.curves = true;
  auto study = RunStudy(options);
  ASSERT_TRUE(study) << study.error().message();
  EXPECT_EQ(study->gpus, 16);
  EXPECT_EQ(study->arrivals, 3);
  EXPECT_DOUBLE_EQ(study->offered_load, (800 + 160 + 800) / 16000.0);
  ASSERT_EQ(study->jobs.size(), 2u);
  EXPECT_FALSE(study->jobs[0].free_moves);
  EXPECT_TRUE(study->jobs[1].free_moves);
  EXPECT_DOUBLE_EQ(study->jobs[0].summary.mean.avg_completion_s, (100 + 20 + 50) / 3.0);
  EXPECT_EQ(study->jobs[0].sizes.size(), 2u);
  // 8 GPUs for 100 s, 8 for 20 s, 16 for 50 s, until 1050.
  const Series& held = study->jobs[0].curves.held;
  double area = 0;
  for (size_t i = 0; i < held.x.size(); ++i) {
    const double end = i + 1 < held.x.size() ? held.x[i + 1] * 86400 : 1050;
    area += held.y[i] * (end - held.x[i] * 86400);
  }
  EXPECT_NEAR(area, 0.5 * 100 + 0.5 * 20 + 50, 1e-6);
}

TEST(Study, ShiftsGiveAnInterval) {
  StudyOptions options = Jobs();
  options.cluster.nodes = 2;
  options.shifts = 4;
  auto study = RunStudy(options);
  ASSERT_TRUE(study) << study.error().message();
  EXPECT_EQ(study->jobs[0].policy, "vrun");
  EXPECT_EQ(study->jobs[0].runs.size(), 4u);
}

TEST(Study, CostsAddUpToTheWholeCluster) {
  StudyOptions options = Jobs();
  options.trace_text =
      "timestamp,duration,num_gpus,cluster,gpu_type\n2026-01-01 00:00:00,3600,8,a,H100\n"
      "2026-01-01 00:00:00,3600,4,b,T4\n";
  options.cluster.nodes = 2;
  options.cluster.start_latency_us = 360 * kMicrosPerSecond;
  options.prices = *ReadPrices("gpu_type,price\nH100,10\n*,1\n", "p");
  options.policies = {"fifo"};
  auto study = RunStudy(options);
  ASSERT_TRUE(study) << study.error().message();
  const Metrics& mean = study->jobs[0].summary.mean;
  EXPECT_NEAR(mean.cost_of_work, 8 * 10 + 4, 1e-6);
  EXPECT_NEAR(mean.cost_of_lost_work, 8.4, 1e-6);
  EXPECT_NEAR(mean.cost_of_idle, 4 * 1.1 * 84 / 12, 1e-6) << "four GPUs at the average price of the twelve";
  ASSERT_EQ(study->jobs[0].usage.size(), 2u);
  EXPECT_EQ(study->jobs[0].usage[0].team, "a");
  EXPECT_NEAR(study->jobs[0].usage[0].gpu_hours, 8.8, 1e-6);
  EXPECT_NEAR(study->jobs[0].usage[0].cost, 88, 1e-6);
}

TEST(Study, CurvesOfTeamsAndFragments) {
  StudyOptions options = Jobs();
  // Team a holds 4 of 8 GPUs of one of the two nodes all the time; b holds a whole node half of the time.
  options.trace_text =
      "timestamp,duration,num_gpus,cluster\n2026-01-01 00:00:00,1000,4,a\n"
      "2026-01-01 00:00:00,500,8,b\n";
  options.policies = {"fifo"};
  options.curves = true;
  auto study = RunStudy(options);
  ASSERT_TRUE(study) << study.error().message();
  const Curves& curves = study->jobs[0].curves;
  ASSERT_EQ(curves.teams.size(), 2u);
  EXPECT_EQ(curves.teams[0].first, "a");
  const size_t last = curves.held.y.size() - 1;
  EXPECT_NEAR(curves.held.y[0], 0.75, 1e-9);
  EXPECT_NEAR(curves.held.y[last], 0.25, 1e-9);
  EXPECT_NEAR(curves.fragmented.y[0], 0.25, 1e-9);
  EXPECT_NEAR(curves.teams[0].second.y[last], 0.25, 1e-9);
  EXPECT_NEAR(curves.teams[1].second.y[0], 0.5, 1e-9);
  EXPECT_NEAR(curves.teams[1].second.y[last], 0, 1e-9);
}

TEST(Study, Windows) {
  StudyOptions options = Jobs();
  options.from = "500";
  auto study = RunStudy(options);
  ASSERT_TRUE(study) << study.error().message();
  EXPECT_EQ(study->arrivals, 1);
  options.from = "2000";
  EXPECT_THAT(RunStudy(options).error().message(), HasSubstr("widen it"));
  options.from = "2017-10-01";
  EXPECT_THAT(RunStudy(options).error().message(), HasSubstr("no dates"));
}

TEST(Study, Pods) {
  StudyOptions options;
  options.trace_name = "p.csv";
  options.trace_text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1000,1,1,1000\nq,1000,1,1,500\n";
  EXPECT_THAT(RunStudy(options).error().message(), HasSubstr("--nodes-file"));
  options.nodes_name = "n.csv";
  options.nodes_text = "sn,cpu_milli,memory_mib,gpu,model\nn,96000,1000,8,T4\n";
  options.policies = {"bestfit", "fgd"};
  options.shifts = 3;
  auto study = RunStudy(options);
  ASSERT_TRUE(study) << study.error().message();
  ASSERT_EQ(study->pods.size(), 2u);
  for (const PodOutcome& outcome : study->pods) {
    EXPECT_GT(outcome.allocation_percent, 90) << outcome.policy;
    EXPECT_FALSE(outcome.allocation.x.empty());
  }
}

TEST(HtmlReport, IsOnePageWithoutForeignBytes) {
  StudyOptions options = Jobs();
  options.trace_name = "<script>\x1b.csv";
  options.policies = {"fifo", "srtf"};
  const std::string page = HtmlReport(*RunStudy(options));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;?.csv"));
  EXPECT_THAT(page, HasSubstr("3 jobs"));
  EXPECT_THAT(page, HasSubstr("<polyline"));
  EXPECT_THAT(page, HasSubstr("srtf*"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_EQ(page.find("nan"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos);
}

TEST(Weights, FromAFile) {
  auto weights = sched::core::ParseWeights(
      "# tried on Monday\nbeta = 700\n\nlevel_base=450.5  # s\npreemption = false\n"
      "class_weight = [1, 2,3, 4 ,5]\n",
      "w");
  ASSERT_TRUE(weights) << weights.error().message();
  EXPECT_EQ(weights->beta, 700);
  EXPECT_EQ(weights->level_base, 450'500'000);
  EXPECT_FALSE(weights->preemption);
  EXPECT_EQ(weights->class_weight[4], 5);
  EXPECT_EQ(weights->theta, sched::core::Policy{}.theta);
  for (const char* bad :
       {"beta", "beta = x", "beta = -1", "beta = 1.5", "level_base = nan", "level_base = 1e99", "preemption = 1",
        "class_weight = [1,2,3,4]", "class_weight = [1,2,3,4,5,6]", "class_weight = [", "throughput = ]", "gamma = 1",
        "beta = 1\nbeta = 2", "= 1", "holds = 99999999999"}) {
    auto refused = sched::core::ParseWeights(bad, "w");
    ASSERT_FALSE(refused) << bad;
    EXPECT_TRUE(refused.error().message().starts_with("w:")) << refused.error().message();
  }
}

TEST(Study, WeightsAreAPolicy) {
  StudyOptions options = Jobs();
  options.policies = {"mine.conf", "vrun"};
  options.weight_files["mine.conf"] = "beta = 1000\n";
  auto study = RunStudy(options);
  ASSERT_TRUE(study) << study.error().message();
  EXPECT_EQ(study->jobs[0].policy, "mine.conf");
  options.weight_files["mine.conf"] = "beta = much\n";
  EXPECT_EQ(RunStudy(options).error().message(), "mine.conf:1: beta: expected a whole number");
}

TEST(Study, NodesAreNxG) {
  EngineConfig cluster;
  EXPECT_TRUE(ParseNodes("640x4", &cluster));
  EXPECT_EQ(cluster.nodes, 640);
  EXPECT_EQ(cluster.gpus_per_node, 4);
  for (const char* bad : {"", "x", "64", "64x", "x8", "0x8", "64x0", "64x8x", "-1x8", "64 x8", "99999999999x8"}) {
    EXPECT_FALSE(ParseNodes(bad, &cluster)) << bad;
  }
}

}  // namespace
}  // namespace vrun::sim
