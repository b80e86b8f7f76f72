// SPDX-License-Identifier: Apache-2.0
// Who is told what about jobs, budgets and nodes, and that a message survives.
#include <gtest/gtest.h>

#include "control/testing/state_testing.h"

namespace vrun::control {
namespace {

constexpr char kMail[] = "[notify]\nsmtp = \"smtp://127.0.0.1:25\"\nfrom = \"v@x.org\"\ndomain = \"x.org\"\n";

class NotifyTest : public StateTest {
 protected:
  NotifyTest() { Configure(kMail); }
  void Configure(const std::string& text) {
    auto config = ParseSchedulerConfig(text, "f");
    ASSERT_TRUE(config) << config.error().message();
    settings_.scheduler = *config;
    Transaction([&] {
      state_->Configure(*config);
      return 0;
    });
  }
  v1::SubmitRequest Told(const std::string& id, const std::vector<std::string>& events, const std::string& mail = "") {
    v1::SubmitRequest request = SimpleJob(id);
    for (const std::string& event : events) request.mutable_spec()->mutable_notify()->add_events(event);
    request.mutable_spec()->mutable_notify()->set_mail(mail);
    return request;
  }
  std::vector<std::pair<uint64_t, v1::Notification>> Stored() {
    std::vector<std::pair<uint64_t, v1::Notification>> all;
    const auto rows = store_->Messages();
    EXPECT_TRUE(rows);
    if (!rows) return all;
    for (const auto& [row, bytes] : *rows)
      EXPECT_TRUE(all.emplace_back(row, v1::Notification()).second.ParseFromString(bytes));
    return all;
  }
  // Subjects, or types of webhooks, of what was stored since the last call; it counts as delivered.
  std::vector<std::string> Take() {
    std::vector<std::string> subjects;
    for (const auto& [row, m] : Stored()) {
      subjects.push_back(m.mail().empty() ? m.body().substr(9, m.body().find('"', 9) - 9) : m.subject());
      EXPECT_TRUE(Transaction([&, row = row] { return state_->Delivered(row); }));
    }
    return subjects;
  }
  void Runs(const v1::SubmitReply& job) { Report("n1", control::ReportOf(job.placement(), v1::RUNNING)); }
  void Ends(const v1::SubmitReply& job, int code) {
    Report("n1", ExitOf(job.placement(), v1::COMPLETED, v1::ExitRecord::EXITED, code));
  }
  using Texts = std::vector<std::string>;
};

TEST_F(NotifyTest, AJobTellsWhatWasAskedForAndNoMore) {
  Register(SimpleNode("n1"));
  const auto job = Submit(Told("a", {"begin", "end"}));
  EXPECT_EQ(Take(), Texts{});
  Runs(job);
  ASSERT_EQ(Stored().size(), 1u);
  EXPECT_EQ(Stored()[0].second.mail(), "anna@x.org");
  EXPECT_EQ(Take(), Texts{"vrun: job 1 (true) has begun"});
  Restart();
  Ends(job, 0);
  EXPECT_EQ(Take(), Texts{"vrun: job 1 (true) has ended: completed"});
}

TEST_F(NotifyTest, AFailureAndAShortJob) {
  Register(SimpleNode("n1"));
  const auto fine = Submit(Told("a", {"fail"}));
  Ends(fine, 0);
  EXPECT_EQ(Take(), Texts{});
  const auto fails = Submit(Told("b", {"fail"}, "ben@y.org,carl@y.org"));
  Ends(fails, 3);
  ASSERT_EQ(Stored().size(), 2u);
  EXPECT_EQ(Stored()[1].second.mail(), "carl@y.org");
  EXPECT_NE(Take()[0].find("has ended: failed, exit 3"), std::string::npos);
  const auto cancelled = Submit(Told("c", {"fail"}));
  Runs(cancelled);
  CancelJob(cancelled.job());
  EXPECT_EQ(Take(), Texts{});
}

TEST_F(NotifyTest, AMessageSurvivesARestartWithItsId) {
  Register(SimpleNode("n1"));
  Ends(Submit(Told("a", {"end"})), 0);
  const auto before = Stored();
  ASSERT_EQ(before.size(), 1u);
  EXPECT_FALSE(before[0].second.id().empty());
  Restart();
  ASSERT_EQ(Stored().size(), 1u);
  EXPECT_EQ(Stored()[0].second.id(), before[0].second.id());
  EXPECT_EQ(state_->messages(), 1u);
  Take();
  EXPECT_EQ(state_->messages(), 0u);
}

TEST_F(NotifyTest, WhoMayNotBeToldIsSaidAtTheSubmission) {
  Register(SimpleNode("n1"));
  EXPECT_NE(SubmitError(Told("a", {"end"}, "no address")).message().find("--mail-user"), std::string::npos);
  EXPECT_NE(SubmitError(Told("a", {"soon"})).message().find("soon"), std::string::npos);
  auto hook = Told("a", {"end"});
  hook.mutable_spec()->mutable_notify()->set_webhook("https://h/x");
  EXPECT_NE(SubmitError(hook).message().find("job_webhooks"), std::string::npos);
  Configure("[notify]\nsmtp = \"smtp://127.0.0.1:25\"\nfrom = \"v@x.org\"\n");
  EXPECT_NE(SubmitError(Told("a", {"end"})).message().find("--mail-user"), std::string::npos);
  Configure("");
  const auto accepted = Submit(Told("a", {"end"}));
  EXPECT_NE(accepted.warning().find("no mail"), std::string::npos) << "scripts for Slurm go on";
  Ends(accepted, 0);
  EXPECT_EQ(Take(), Texts{});
}

TEST_F(NotifyTest, AnArrayIsToldAboutAsAWholeUnlessItAsksForItsElements) {
  Register(SimpleNode("n1", 8));
  for (const bool each : {false, true}) {
    auto request = Told(each ? "b" : "a", each ? Texts{"end", "array_tasks"} : Texts{"end"});
    auto* range = request.mutable_array()->add_ranges();
    range->set_first(0);
    range->set_last(2);
    range->set_step(1);
    const uint64_t array = Submit(request).job();
    for (const auto& element : state_->ElementsOf(array)) {
      Report("n1", ExitOf(Event(element.job()).placement(), v1::COMPLETED, v1::ExitRecord::EXITED, 0));
    }
    EXPECT_EQ(Take().size(), each ? 3u : 1u);
  }
}

TEST_F(NotifyTest, PartsOfTheTimeLimitAreToldOnce) {
  Register(SimpleNode("n1"));
  auto request = Told("a", {"time_limit_50", "time_limit_90"});
  request.mutable_spec()->mutable_scheduling()->set_limit_s(1000);
  Runs(Submit(request));
  const auto pass = [&](int seconds) {
    clock_.AdvanceSeconds(seconds);
    EXPECT_TRUE(Transaction([] { return Status(); }));
    return Take().size();
  };
  EXPECT_EQ(pass(400), 0u);
  EXPECT_EQ(pass(200), 1u);
  EXPECT_EQ(pass(100), 0u);
  Restart();
  EXPECT_EQ(pass(10), 0u);
  EXPECT_EQ(pass(220), 1u);
}

TEST_F(NotifyTest, ALostNodeAndABudgetAreToldOnce) {
  Configure(
      std::string(kMail) +
      "operators = [\"ops@x.org\"]\n[[notify.webhook]]\nurl = \"http://127.0.0.1:1/\"\nevents = [\"node_lost\", "
      "\"budget_warn\", \"budget_full\"]\n[team.lab]\nusers = [\"*\"]\nleads = [\"lea\"]\nmonth = { gpu_hours = 10 "
      "}\n");
  Register(SimpleNode("n1", 4, 1));
  Register(SimpleNode("n2", 4));
  Lose("n2");
  EXPECT_EQ(Take(), (Texts{"node.lost", "vrun: node lost: n2"}));
  auto request = SimpleJob("a", 1, 1);
  Runs(Submit(request));
  const auto pass = [&](int hours) {
    clock_.AdvanceSeconds(hours * 3600);
    EXPECT_TRUE(Transaction([] { return Status(); }));
    return Take();
  };
  EXPECT_EQ(pass(7), Texts{});
  EXPECT_EQ(pass(1), (Texts{"budget.warn", "vrun: team lab has used 80 % of its budget"}));
  EXPECT_EQ(pass(1), Texts{});
  Restart();
  EXPECT_EQ(Take(), Texts{}) << "told once, whatever is restarted";
  const Texts full = pass(1);
  ASSERT_EQ(full.size(), 2u);
  EXPECT_EQ(full[0], "budget.full");
}

}  // namespace
}  // namespace vrun::control
