// SPDX-License-Identifier: Apache-2.0
// What the history of a cluster is written as, the simulator reads as the same jobs, nodes and teams; and what it makes
// of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "history/cluster.h"
#include "history/trace.h"
#include "sim/policies/team_terms.h"
#include "sim/replay/cluster_parts.h"
#include "sim/report/study.h"

namespace vrun::sim {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kDay = int64_t{86400} * kMicrosPerSecond;
constexpr int64_t kBegin = int64_t{1'795'000'000} * kMicrosPerSecond;
constexpr history::Span kAllTime{0, INT64_MAX};

v1::Account AccountOf(uint64_t id, int64_t at_s, int64_t wait_s, int64_t run_s, uint32_t gpus, uint32_t pods = 1) {
  v1::Account account;
  v1::JobInfo& job = *account.mutable_job();
  job.set_job(id);
  job.set_user("anna@h");
  job.set_name("resnet");
  job.set_pool("default");
  job.set_state(v1::COMPLETED);
  job.set_submitted_us(kBegin + at_s * kMicrosPerSecond);
  job.set_ended_us(job.submitted_us() + (wait_s + run_s) * kMicrosPerSecond);
  job.mutable_resources()->set_gpus(gpus);
  job.mutable_scheduling()->set_team("vision");
  job.mutable_scheduling()->set_requeue(true);
  if (pods > 1) job.mutable_gang()->set_pods(pods);
  account.set_work_us(run_s * kMicrosPerSecond * pods);
  account.set_held_us(account.work_us());
  return account;
}

JobTrace ReadBack(const history::Trace& trace) {
  auto csv = Csv::Parse(trace.Text(), "history");
  EXPECT_TRUE(csv) << csv.error().message();
  auto read = ReadJobTrace(*csv);
  EXPECT_TRUE(read) << read.error().message() << "\n" << trace.Text();
  return read ? *read : JobTrace();
}

v1::NodeInfo NodeOf(const std::string& name, const std::string& pool, const std::string& type, uint32_t gpus) {
  v1::NodeInfo node;
  node.set_name(name);
  node.set_pool(pool);
  node.set_state("ready");
  node.mutable_total()->set_gpus(gpus);
  node.mutable_total()->set_gpu_type(type);
  return node;
}

TEST(HistoryTest, WhatIsWrittenIsReadAsTheSameJobs) {
  history::Trace trace(kAllTime);
  v1::Account gang = AccountOf(2, 100, 50, 600, 8, 4);
  gang.mutable_job()->mutable_resources()->set_gpu_type("h100");
  gang.mutable_job()->mutable_scheduling()->set_class_(v1::PRODUCTION);
  gang.mutable_job()->mutable_scheduling()->set_requeue(false);
  gang.mutable_job()->mutable_scheduling()->set_limit_s(3600);
  gang.mutable_job()->mutable_scheduling()->set_deadline_us(gang.job().submitted_us() + 7200 * kMicrosPerSecond);
  v1::Account preempted = AccountOf(3, 200, 10, 30, 2);
  preempted.set_preemptions(2);
  preempted.set_held_us(45 * kMicrosPerSecond);
  preempted.mutable_job()->set_name("a,\"b\"\n");
  preempted.mutable_job()->mutable_scheduling()->set_team("x,\"y\"");
  trace.AddEnded(gang);
  trace.AddEnded(preempted);
  trace.AddEnded(AccountOf(1, 0, 0, 60, 1));  // in any order
  const JobTrace read = ReadBack(trace);
  ASSERT_EQ(read.jobs.size(), 3u);
  EXPECT_EQ(read.origin_us, kBegin);
  const TraceJob& first = read.jobs[0];
  EXPECT_EQ(first.gpus, 1);
  EXPECT_EQ(first.pods, 1);
  EXPECT_EQ(first.gpu_type, -1);
  EXPECT_EQ(first.duration_us, 60 * kMicrosPerSecond);
  EXPECT_EQ(first.happened.waited_us, 0);
  EXPECT_TRUE(first.preemptible);
  EXPECT_TRUE(first.deadlines.empty());
  const TraceJob& second = read.jobs[1];
  EXPECT_EQ(second.submit_us, 100 * kMicrosPerSecond);
  EXPECT_EQ(second.gpus, 32);
  EXPECT_EQ(second.pods, 4);
  EXPECT_EQ(second.duration_us, 600 * kMicrosPerSecond) << "of a gang each pod has run so long";
  EXPECT_EQ(second.happened.waited_us, 50 * kMicrosPerSecond);
  EXPECT_EQ(read.gpu_types[static_cast<size_t>(second.gpu_type)], "h100");
  EXPECT_EQ(read.teams[static_cast<size_t>(second.team)], "vision");
  EXPECT_EQ(read.pools[static_cast<size_t>(second.pool)], "default");
  EXPECT_EQ(second.klass, static_cast<int32_t>(sched::core::Class::kProduction));
  EXPECT_FALSE(second.preemptible);
  EXPECT_EQ(second.limit_us, 3600 * kMicrosPerSecond);
  ASSERT_EQ(second.deadlines.size(), 1u);
  EXPECT_EQ(second.deadlines[0].after_us, 7200 * kMicrosPerSecond);
  EXPECT_EQ(second.kind, first.kind) << "recurring work of one user";
  const TraceJob& third = read.jobs[2];
  EXPECT_NE(third.kind, first.kind);
  EXPECT_EQ(third.happened.held_us, 45 * kMicrosPerSecond);
  EXPECT_EQ(third.happened.preemptions, 2);
  EXPECT_EQ(trace.Text().find("anna"), std::string::npos) << "no names of people";
  EXPECT_EQ(trace.Text().find("resnet"), std::string::npos) << "nor of jobs";
}

TEST(HistoryTest, TheShareOfAPersonAloneHasANumber) {
  history::Trace trace(kAllTime);
  trace.SetTeams({"vision", "bert"});
  for (const auto& [id, user, team] : {std::tuple(1, "anna@h", "anna"), std::tuple(2, "bert@h", "bert"),
                                       std::tuple(3, "vision@h", "vision@"), std::tuple(4, "anna@h", "anna")}) {
    v1::Account account = AccountOf(static_cast<uint64_t>(id), id, 0, 60, 1);
    account.mutable_job()->set_user(user);
    account.mutable_job()->mutable_scheduling()->set_team(team);
    trace.AddEnded(account);
  }
  const JobTrace read = ReadBack(trace);
  std::vector<std::string> teams;
  for (const TraceJob& job : read.jobs) teams.push_back(read.teams[static_cast<size_t>(job.team)]);
  EXPECT_EQ(teams, (std::vector<std::string>{"alone-1", "bert", "alone-2", "alone-1"}));
}

TEST(HistoryTest, WhatIsOfNoUseIsLeftOutAndCounted) {
  history::Trace trace({kBegin, kBegin + kDay});
  v1::Account hidden = AccountOf(1, 1, 0, 60, 1), no_gpus = AccountOf(2, 2, 0, 60, 0), never = AccountOf(3, 3, 0, 0, 1),
              share = AccountOf(4, 4, 0, 60, 0);
  hidden.mutable_job()->clear_user();
  share.mutable_job()->mutable_resources()->set_gpu_milli(500);
  for (const v1::Account& account : {hidden, no_gpus, never, share}) trace.AddEnded(account);
  trace.AddEnded(AccountOf(5, -10, 0, 60, 1));     // before
  trace.AddEnded(AccountOf(6, 90'000, 0, 60, 1));  // after
  v1::JobInfo runs = AccountOf(7, 5, 0, 60, 2).job(), waits = AccountOf(8, 6, 0, 60, 2).job();
  runs.set_state(v1::RUNNING);
  runs.set_started_us(kBegin + 100 * kMicrosPerSecond);
  waits.set_state(v1::PENDING);
  trace.AddUnfinished(runs, kBegin + 400 * kMicrosPerSecond);
  trace.AddUnfinished(waits, kBegin + 400 * kMicrosPerSecond);
  const history::Counts& counts = trace.counts();
  EXPECT_EQ(counts.hidden, 1u);
  EXPECT_EQ(counts.without_gpus, 1u);
  EXPECT_EQ(counts.never_ran, 1u);
  EXPECT_EQ(counts.parts, 1u);
  EXPECT_EQ(counts.waiting, 1u);
  EXPECT_EQ(counts.running, 1u);
  EXPECT_EQ(counts.jobs, 1u);
  const JobTrace read = ReadBack(trace);
  ASSERT_EQ(read.jobs.size(), 1u);
  EXPECT_EQ(read.jobs[0].duration_us, 300 * kMicrosPerSecond) << "so far";
  EXPECT_EQ(read.jobs[0].happened.waited_us, -1) << "nobody knows yet";
  EXPECT_THAT(history::Describe(counts), HasSubstr("1 that wait"));
  EXPECT_THAT(history::Describe(counts), HasSubstr("1 still running"));
  EXPECT_EQ(history::Describe({}), "");
}

TEST(HistoryTest, NodesBecomePartsThatCanBeChanged) {
  v1::NodeList nodes;
  for (const char* name : {"n1", "n2", "n3"}) *nodes.add_nodes() = NodeOf(name, "default", "h100", 8);
  nodes.mutable_nodes(2)->mutable_facts()->set_bad_gpus(1);
  *nodes.add_nodes() = NodeOf("n4", "default", "a100", 4);
  *nodes.add_nodes() = NodeOf("n5", "other", "h100", 8);
  nodes.mutable_nodes(4)->set_state("lost");
  *nodes.add_nodes() = NodeOf("n6", "other", "", 0);
  std::vector<history::Part> parts = history::PartsOf(nodes.nodes());
  auto read = ReadClusterParts(history::TableOf(parts), "t");
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(NodesOf(*read), 4);
  EXPECT_EQ(GpusOf(*read), 16 + 7 + 4);
  ASSERT_TRUE(history::ChangeParts("default=+2,default/a100=-1,new/h200=3x8", &parts));
  read = ReadClusterParts(history::TableOf(parts), "t");
  ASSERT_TRUE(read);
  EXPECT_EQ(GpusOf(*read), 32 + 7 + 24) << "the largest part of a pool is meant, and one without nodes is none";
  for (const char* wrong : {"default", "default=", "default=x8", "default=+", "default=+1.5", "nothing=+1",
                            "new/x=-1x8", "default/a100=-9", "default=+999999999", ",", "a,b=1"}) {
    std::vector<history::Part> copy = parts;
    const Status changed = history::ChangeParts(wrong, &copy);
    EXPECT_FALSE(changed) << wrong;
    if (!changed) {
      EXPECT_EQ(changed.error().message().find("\n"), std::string::npos);
    }
  }
  std::vector<history::Part> none = {{"default", "h100", 1, 8}};
  EXPECT_FALSE(history::ChangeParts("default=-1", &none));
}

TEST(HistoryTest, TeamsAreReadAsTheSchedulerKnowsThem) {
  v1::TeamList list;
  v1::TeamInfo* child = list.add_teams();  // before its parent
  child->set_name("vision");
  child->set_parent("lab");
  child->set_configured(true);
  child->set_weight_milli(2500);
  v1::TeamQuota* quota = child->add_quotas();
  quota->set_guarantee_milli(8000);
  quota->set_limit_milli(-1);
  quota = child->add_quotas();
  quota->set_gpu_type("h100");
  quota->set_guarantee_milli(4500);
  quota->set_limit_milli(12'000);
  list.add_teams()->set_name("lab");
  list.mutable_teams(1)->set_configured(true);
  list.mutable_teams(1)->set_weight_milli(1000);
  list.add_teams()->set_name("unknown");
  std::vector<history::TeamQuota> quotas = history::QuotasOf(list);
  auto terms = ReadTeamTerms(history::TableOf(quotas), "t");
  ASSERT_TRUE(terms) << terms.error().message();
  ASSERT_EQ(terms->size(), 2u);
  EXPECT_EQ((*terms)[0].name, "lab");
  EXPECT_EQ((*terms)[1].parent, "lab");
  EXPECT_EQ((*terms)[1].weight, 2500);
  ASSERT_EQ((*terms)[1].quotas.size(), 2u);
  EXPECT_EQ((*terms)[1].quotas[1].gpu_type, "h100");
  EXPECT_EQ((*terms)[1].quotas[1].guarantee, 4500);
  EXPECT_EQ((*terms)[1].quotas[1].limit, 12'000);
  // Of what is for all types each part has its share.
  const ClusterParts parts{{"p", "h100", 1, 8}, {"p", "a100", 3, 8}};
  EXPECT_EQ(TermsIn(*terms, parts[1], parts)[1].quotas.at(0).guarantee, 6000);
  EXPECT_EQ(TermsIn(*terms, parts[0], parts)[1].quotas.at(0).guarantee, 4500);
  EXPECT_EQ(TermsIn(*terms, parts[0], parts)[1].quotas.at(0).limit, 12'000);

  ASSERT_TRUE(history::ChangeTeams("vision=16:0.5,lab=4", &quotas));
  terms = ReadTeamTerms(history::TableOf(quotas), "t");
  ASSERT_TRUE(terms);
  EXPECT_EQ((*terms)[1].weight, 500);
  EXPECT_EQ((*terms)[1].quotas[0].guarantee, 16'000);
  EXPECT_EQ((*terms)[1].quotas[1].guarantee, 4500) << "that of a type stays";
  EXPECT_EQ((*terms)[0].quotas.at(0).guarantee, 4000);
  const Status unknown = history::ChangeTeams("nlp=4", &quotas);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().message(), "team nlp: there is no such team: there are lab, vision");
  for (const char* wrong : {"vision", "vision=", "vision=a", "vision=1:", "vision=1:0", "=1", "vision=-1",
                            "vision=1:-2", "a b\n=1", "v=1..5"}) {
    std::vector<history::TeamQuota> copy = quotas;
    EXPECT_FALSE(history::ChangeTeams(wrong, &copy)) << wrong;
  }
  EXPECT_TRUE(ReadTeamTerms(history::TableOf(std::vector<history::TeamQuota>{}), "t")->empty());
}

// Two nodes of eight GPUs, and three jobs of a node each that came at once: one of them waited.
class StudyOfAHistory : public ::testing::Test {
 protected:
  StudyOfAHistory() {
    history::Trace trace(kAllTime);
    for (v1::Account account :
         {AccountOf(1, 0, 0, 1000, 8), AccountOf(2, 0, 5, 1000, 8), AccountOf(3, 0, 1010, 1000, 8)}) {
      account.mutable_job()->mutable_scheduling()->set_requeue(false);  // else the scheduler lets them take turns
      trace.AddEnded(account);
    }
    options_.trace_text = trace.Text();
    options_.trace_name = "history";
    options_.present_parts_text = options_.parts_text = "pool,gpu_type,nodes,gpus\ndefault,h100,2,8\n";
    options_.present_teams_text = options_.teams_text = "team,parent,weight,gpu_type,guarantee,limit\nvision,,1,,0,\n";
  }
  StudyOptions options_;
};

TEST_F(StudyOfAHistory, MeasuredPresentAndChangedSideBySide) {
  options_.parts_text = "pool,gpu_type,nodes,gpus\ndefault,h100,3,8\n";
  double last = 0;
  options_.progress = [&](double part) {
    EXPECT_GE(part, last);
    last = part;
  };
  const auto study = RunStudy(options_);
  ASSERT_TRUE(study) << study.error().message();
  ASSERT_TRUE(study->measured && study->present);
  EXPECT_DOUBLE_EQ(study->measured->summary.mean.p50_wait_s, 5);
  EXPECT_DOUBLE_EQ(study->measured->summary.mean.p90_wait_s, 1010);
  EXPECT_NEAR(study->measured->summary.mean.utilization, 24'000.0 / (2010 * 16), 1e-9);
  EXPECT_DOUBLE_EQ(study->present->summary.mean.p90_wait_s, 1000) << "the replay knows no overheads";
  EXPECT_DOUBLE_EQ(study->jobs.at(0).summary.mean.p90_wait_s, 0) << "with a third node";
  EXPECT_NEAR(study->jobs.at(0).summary.mean.gpu_hours, 24'000 / 3600.0, 1e-9);
  EXPECT_DOUBLE_EQ(last, 1);
  ASSERT_EQ(study->present->usage.size(), 1u);
  EXPECT_EQ(study->present->usage[0].team, "vision");
  EXPECT_DOUBLE_EQ(study->present->usage[0].p90_wait_s, 1000);
}

TEST_F(StudyOfAHistory, AJobThatNoLongerFitsIsLeftOutAndCounted) {
  options_.parts_text = "pool,gpu_type,nodes,gpus\ndefault,h100,4,4\nother,h100,9,8\n";
  EXPECT_FALSE(RunStudy(options_)) << "each is one pod of eight GPUs";
  history::Trace trace(kAllTime);
  trace.AddEnded(AccountOf(1, 0, 0, 1000, 8));
  trace.AddEnded(AccountOf(2, 0, 0, 1000, 4));
  options_.trace_text = trace.Text();
  const auto study = RunStudy(options_);
  ASSERT_TRUE(study) << study.error().message();
  EXPECT_EQ(study->jobs.at(0).left_out, 1);
  EXPECT_EQ(study->jobs.at(0).arrivals, 1);
}

TEST_F(StudyOfAHistory, EachPartHasItsOwnJobs) {
  history::Trace trace(kAllTime);
  for (uint64_t i = 0; i < 4; ++i) {
    v1::Account account = AccountOf(i + 1, 0, 0, 100, 8);
    account.mutable_job()->mutable_resources()->set_gpu_type(i < 3 ? "h100" : "a100");
    trace.AddEnded(account);
  }
  options_.trace_text = trace.Text();
  options_.parts_text = "pool,gpu_type,nodes,gpus\ndefault,h100,1,8\ndefault,a100,5,8\n";
  const auto study = RunStudy(options_);
  ASSERT_TRUE(study) << study.error().message();
  EXPECT_DOUBLE_EQ(study->jobs.at(0).summary.mean.max_wait_s, 200) << "three h100 jobs on one node, one after another";
  EXPECT_EQ(study->gpus, 48);
  EXPECT_EQ(study->jobs.at(0).left_out, 0);
}

TEST_F(StudyOfAHistory, AGuaranteeMakesATeamWaitLess) {
  history::Trace trace(kAllTime);
  // One team fills the cluster, then another comes.
  for (uint64_t i = 0; i < 6; ++i) {
    v1::Account account = AccountOf(i + 1, 0, 0, 5000, 8);
    account.mutable_job()->mutable_scheduling()->set_team("nlp");
    trace.AddEnded(account);
  }
  trace.AddEnded(AccountOf(9, 600, 0, 100, 8));
  options_.trace_text = trace.Text();
  const auto wait = [&](const std::string& guarantee) {
    options_.teams_text = "team,parent,weight,gpu_type,guarantee,limit\nnlp,,1,,0,\nvision,,1,," + guarantee + ",\n";
    const auto study = RunStudy(options_);
    EXPECT_TRUE(study) << study.error().message();
    for (const TeamUsage& usage : study->jobs.at(0).usage) {
      if (usage.team == "vision") return usage.p50_wait_s;
    }
    return -1.0;
  };
  const double with = wait("8"), without = wait("0");
  EXPECT_LE(with, without);
  EXPECT_LT(with, 1000);
}

}  // namespace
}  // namespace vrun::sim
