// SPDX-License-Identifier: Apache-2.0
// What jobs cost, what was wasted, who sees it, and what budgets keep from starting.
#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>

#include "base/time/calendar.h"
#include "control/testing/state_testing.h"

namespace vrun::control {
namespace {

constexpr int64_t kHour = 3600;               // seconds
const rpc::Peer kAmy{"home", "amy@h", ""};    // anna's team
const rpc::Peer kLea{"home", "lea@h", ""};    // leads it
const rpc::Peer kRoot{"home", "root@h", ""};  // an admin
constexpr char kTeams[] =
    "admins = [\"root\"]\n[money]\ncurrency = \"EUR\"\n[[money.price]]\ngpu_hour = { h100 = 2, \"\" = 1 }\n"
    "[team.lab]\n[team.vision]\nparent = \"lab\"\nusers = [\"anna\", \"amy\"]\nleads = [\"lea\"]\n"
    "[team.speech]\nparent = \"lab\"\nusers = [\"bob\"]\n";

class MoneyTest : public StateTest {
 protected:
  MoneyTest() { Configure(kTeams); }
  void Configure(const std::string& text) {
    auto config = ParseSchedulerConfig(text, "f");
    ASSERT_TRUE(config) << config.error().message();
    settings_.scheduler = *config;
    Transaction([&] {
      state_->Configure(*config);
      return 0;
    });
  }
  v1::UsageReport Sums(const std::string& by, const rpc::Peer& peer = kRoot) {
    v1::UsageRequest request;
    request.set_by(by);
    request.set_from_us(1);
    return *Usage(*state_, peer, request);
  }
  v1::UsageRow RowOf(const v1::UsageReport& report, const std::string& label) {
    for (const v1::UsageRow& row : report.rows()) {
      if (row.team() == label || row.user() == label || row.day() == label || row.project() == label) return row;
    }
    return {};
  }
  // A job that runs on so many GPUs.
  v1::SubmitReply Running(const std::string& request_id, uint32_t gpus, const rpc::Peer& peer = kAnna,
                          bool requeue = false) {
    v1::SubmitRequest request = SimpleJob(request_id, 1, gpus);
    request.mutable_spec()->mutable_scheduling()->set_requeue(requeue);
    const v1::SubmitReply reply = Submit(request, peer);
    EXPECT_TRUE(reply.has_placement());
    Report(reply.placement().node(), control::ReportOf(reply.placement(), v1::RUNNING));
    return reply;
  }
  void Ends(const v1::SubmitReply& job, int code, int signal = 0) {
    v1::AttemptReport report =
        ExitOf(job.placement(), v1::COMPLETED, signal == 0 ? v1::ExitRecord::EXITED : v1::ExitRecord::SIGNALED, code);
    report.mutable_exit()->set_signal(signal);
    Report(job.placement().node(), report);
  }
  // Its work until now is in a checkpoint.
  void Saves(const v1::SubmitReply& job) {
    v1::JobWord word;
    word.set_job(job.job());
    word.set_attempt(1);
    word.set_saved(true);
    word.set_at_us(clock_.Wall());
    EXPECT_TRUE(Transaction([&] { return state_->Saved(job.placement().node(), word); }));
  }
  // Time has passed.
  void Look() {
    EXPECT_TRUE(Transaction([] { return Status(); }));
  }
  static int64_t Millis(double gpu_hours) { return static_cast<int64_t>(gpu_hours * 3.6e6); }
};

TEST_F(MoneyTest, AJobCostsWhatAllOfItsAttemptsHadAndSaysWhatWasWasted) {
  Register(SimpleNode("n1", 8, 4));
  const auto job = Running("a", 2, kAnna, true);
  clock_.AdvanceSeconds(kHour);
  ASSERT_TRUE(Transaction([&] { return state_->StopToRequeue(job.job()); }));
  LeavesFor("n1", job.placement(), SIGKILL);
  EXPECT_EQ(InfoOf(job.job()).cost().attempts(), 2u);
  WritesAreHome("n1", job.placement());
  Report("n1", control::ReportOf(Event(job.job()).placement(), v1::RUNNING));
  v1::GpuUsages usages;
  v1::GpuUsage* use = usages.add_usages();
  use->set_job(job.job());
  use->set_attempt(2);
  use->set_metered_us(3600'000'000);
  use->set_busy_us(2 * 900'000'000);
  clock_.AdvanceSeconds(kHour);
  EXPECT_TRUE(Transaction([&] { return state_->Use("n1", usages); }));
  Report("n1", ExitOf(Event(job.job()).placement(), v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  const v1::JobCost cost = InfoOf(job.job()).cost();
  EXPECT_NEAR(static_cast<double>(cost.gpu_ms()), static_cast<double>(Millis(4)), 1000);
  EXPECT_NEAR(static_cast<double>(cost.lost_gpu_ms()), static_cast<double>(Millis(2)), 1000);
  EXPECT_NEAR(static_cast<double>(cost.used_gpu_ms()), static_cast<double>(Millis(0.5)), 1000);
  EXPECT_NEAR(static_cast<double>(cost.idle_gpu_ms()), static_cast<double>(Millis(1.5)), 1000);
  EXPECT_NEAR(static_cast<double>(cost.cost_micros()), 8e6, 5000);
  EXPECT_NEAR(static_cast<double>(cost.lost_cost_micros()), 4e6, 5000);
  EXPECT_EQ(cost.currency(), "EUR");
  const v1::UsageRow total = Sums("").total();
  EXPECT_EQ(total.gpu_ms(), cost.gpu_ms());
  EXPECT_EQ(total.preempted_gpu_ms(), cost.lost_gpu_ms());
  EXPECT_EQ(total.jobs(), 1u);
  EXPECT_EQ(total.attempts(), 2u);
}

TEST_F(MoneyTest, WasteHasItsCause) {
  Register(SimpleNode("n1", 8, 4));
  Register(SimpleNode("n2", 8, 4));
  const auto fine = Running("fine", 1), failed = Running("failed", 1), saved = Running("saved", 1);
  const auto cancelled = Running("cancelled", 1);
  clock_.AdvanceSeconds(kHour);
  Saves(saved);
  clock_.AdvanceSeconds(kHour);
  Ends(fine, 0);
  Ends(failed, 1);
  Ends(saved, 0, SIGKILL);
  CancelJob(cancelled.job());
  Report(cancelled.placement().node(),
         ExitOf(cancelled.placement(), v1::CANCELLED, v1::ExitRecord::CANCELLED_BY_USER, 0));
  const auto lost = Running("lost", 2);
  clock_.AdvanceSeconds(kHour);
  Lose(lost.placement().node());
  Register(SimpleNode(lost.placement().node(), 8, 4, 2));  // it was restarted
  const v1::UsageRow total = Sums("").total();
  EXPECT_NEAR(static_cast<double>(total.failed_gpu_ms()), static_cast<double>(Millis(3)), 2000)
      << "2 h, and 1 h after the save";
  EXPECT_NEAR(static_cast<double>(total.node_lost_gpu_ms()), static_cast<double>(Millis(2)), 2000);
  EXPECT_EQ(total.preempted_gpu_ms(), 0);
  EXPECT_NEAR(static_cast<double>(total.gpu_ms()), static_cast<double>(Millis(10)), 4000);
}

TEST_F(MoneyTest, TheEndIsThatOfTheCommandHoweverLateItIsTold) {
  Register(SimpleNode("n1", 8, 4));
  const auto job = Running("a", 1);
  const int64_t began = clock_.Wall();
  clock_.AdvanceSeconds(2 * kHour);  // the controller was away
  v1::AttemptReport report = ExitOf(job.placement(), v1::COMPLETED, v1::ExitRecord::EXITED, 0);
  report.mutable_exit()->set_started_us(began);
  report.mutable_exit()->set_ended_us(began + kHour * 1'000'000);
  Report("n1", report);
  EXPECT_NEAR(static_cast<double>(Sums("").total().gpu_ms()), static_cast<double>(Millis(1)), 1000);
  // A node whose clock is wrong is not believed.
  const auto other = Running("b", 1);
  clock_.AdvanceSeconds(kHour);
  report = ExitOf(other.placement(), v1::COMPLETED, v1::ExitRecord::EXITED, 0);
  report.mutable_exit()->set_started_us(began - 100 * kHour * 1'000'000);
  report.mutable_exit()->set_ended_us(began - 99 * kHour * 1'000'000);
  Report("n1", report);
  EXPECT_NEAR(static_cast<double>(Sums("").total().gpu_ms()), static_cast<double>(Millis(2)), 2000);
}

TEST_F(MoneyTest, ANewPriceHoldsFromItsDayOn) {
  // The test's clock begins on 2023-11-14T22:13:21Z.
  Configure(std::string(kTeams) +
            "[[money.price]]\nfrom = 2023-11-15\ngpu_hour = { h100 = 10 }\n"
            "[[money.price]]\npool = \"other\"\ngpu_hour = { h100 = 1000 }\n");
  Register(SimpleNode("n1", 8, 4));
  const auto job = Running("a", 1);
  clock_.AdvanceSeconds(3 * kHour);
  Ends(job, 0);
  const v1::UsageReport days = Sums("day");
  ASSERT_EQ(days.rows_size(), 2);
  const double before = static_cast<double>(days.rows(0).gpu_ms()) / 3.6e6;
  EXPECT_NEAR(static_cast<double>(days.rows(0).cost_micros()), before * 2e6, 2);
  EXPECT_NEAR(static_cast<double>(days.rows(1).cost_micros()),
              static_cast<double>(days.rows(1).gpu_ms()) / 3.6e6 * 10e6, 10);
  EXPECT_NEAR(before, 1.777, 0.01);
  const v1::PriceList prices = *ListPrices(*state_, kAnna, {});
  EXPECT_EQ(prices.currency(), "EUR");
  EXPECT_EQ(prices.prices_size(), 4);
}

TEST_F(MoneyTest, PeopleSeeThemselvesAndTheSumsOfTheirTeams) {
  Configure("visibility = \"own\"\n" + std::string(kTeams));
  Register(SimpleNode("n1", 8, 4));
  const auto annas = Running("a", 1, kAnna), amys = Running("b", 1, kAmy), bobs = Running("c", 2, kBob);
  clock_.AdvanceSeconds(kHour);
  const v1::UsageReport teams = Sums("team", kAnna), people = Sums("user", kAnna), jobs = Sums("job", kAnna);
  EXPECT_EQ(teams.rows_size(), 1);
  EXPECT_NEAR(static_cast<double>(RowOf(teams, "vision").gpu_ms()), static_cast<double>(Millis(2)), 2000);
  EXPECT_EQ(people.rows_size(), 2);
  EXPECT_NEAR(static_cast<double>(RowOf(people, "anna@h").gpu_ms()), static_cast<double>(Millis(1)), 2000);
  EXPECT_TRUE(people.rows(0).others() || people.rows(1).others());
  for (const v1::UsageRow& row : jobs.rows()) EXPECT_EQ(row.job() == annas.job(), !row.others());
  EXPECT_EQ(Sums("user", kLea).rows_size(), 2) << "a lead sees who";
  EXPECT_EQ(RowOf(Sums("user", kLea), "amy@h").jobs(), 1u);
  EXPECT_EQ(RowOf(Sums("user", kLea), "bob@h").jobs(), 0u);
  EXPECT_EQ(Sums("user", kRoot).rows_size(), 3);
  EXPECT_EQ(Sums("", kBob).total().jobs(), 1u);
  (void)amys;
  (void)bobs;
}

TEST_F(MoneyTest, BeyondTheHardEndOfItsBudgetNothingOfATeamStarts) {
  const std::string budgets = std::string(kTeams) + "";
  const size_t at = budgets.find("[team.vision]");
  std::string text = budgets;
  text.insert(at, "month = { gpu_hours = 4, warn_percent = 50, stop_percent = 100 }\n");
  Configure(text);
  Register(SimpleNode("n1", 8, 4));
  const auto first = Running("a", 2);
  EXPECT_EQ(first.warning(), "");
  clock_.AdvanceSeconds(kHour + 60);
  Look();
  const auto warned = Submit(SimpleJob("b", 1, 1));
  EXPECT_TRUE(warned.has_placement());
  EXPECT_NE(warned.warning().find("team lab has used 2.0 of 4.0 GPU-hours of November 2023 (50 %)"), std::string::npos)
      << warned.warning();
  clock_.AdvanceSeconds(kHour);
  Look();
  // Also for the other team below it, and it goes on over a restart.
  const auto annas = Submit(SimpleJob("c", 1, 1)), bobs = Submit(SimpleJob("d"), kBob);
  EXPECT_FALSE(annas.has_placement());
  EXPECT_FALSE(bobs.has_placement());
  v1::WhyRequest why;
  why.set_job(bobs.job());
  const v1::WhyAnswer answer = *Why(*state_, kBob, why);
  ASSERT_GE(answer.blockers_size(), 1);
  EXPECT_EQ(answer.blockers(0).kind(), "budget");
  EXPECT_EQ(answer.blockers(0).team(), "lab");
  EXPECT_NE(answer.blockers(0).text().find("nothing of it starts until 2023-12-01"), std::string::npos)
      << answer.blockers(0).text();
  Restart();
  Register([&] {
    v1::Register again = SimpleNode("n1", 8, 4);
    *again.add_attempts() = control::ReportOf(first.placement(), v1::RUNNING);
    *again.add_attempts() = control::ReportOf(warned.placement(), v1::RUNNING);
    return again;
  }());
  EXPECT_EQ(StateOf(bobs.job()), v1::PENDING);
  const v1::BudgetList list = *Budgets(*state_, kRoot, {});
  ASSERT_EQ(list.budgets_size(), 1);
  EXPECT_EQ(list.budgets(0).state(), "stop");
  EXPECT_GE(list.budgets(0).used_percent(), 100u);
  // The next month, and a running job that goes on into it.
  Ends(first, 0);
  Ends(warned, 0);
  clock_.AdvanceMicros(NextMonth(clock_.Wall()) - clock_.Wall());
  Register(SimpleNode("n1", 8, 4));
  Look();
  EXPECT_EQ(StateOf(annas.job()), v1::STARTING);
  EXPECT_EQ(StateOf(bobs.job()), v1::STARTING);
  EXPECT_EQ(Budgets(*state_, kRoot, {})->budgets(0).state(), "ok");
}

TEST_F(MoneyTest, AnAdministratorRaisesABudgetAndWorkGoesOn) {
  Configure(std::string(kTeams) + "month = { money = 1, stop_percent = 100 }\n");  // of speech
  Register(SimpleNode("n1", 8, 4));
  const auto job = Running("a", 1, kBob);
  clock_.AdvanceSeconds(kHour);
  Look();
  const auto waits = Submit(SimpleJob("b"), kBob);
  EXPECT_FALSE(waits.has_placement());
  EXPECT_TRUE(Submit(SimpleJob("c"), kAnna).has_placement()) << "of another team";
  Configure(std::string(kTeams) + "month = { money = 100, stop_percent = 100 }\n");
  Look();
  EXPECT_EQ(StateOf(waits.job()), v1::STARTING);
  (void)job;
}

TEST_F(MoneyTest, WaitingIsTheTimeInTheQueueAndNoOther) {
  Register(SimpleNode("n1", 8, 1));
  const auto first = Running("a", 1);
  v1::SubmitRequest held = SimpleJob("b", 1, 1);
  held.mutable_spec()->mutable_scheduling()->set_hold(true);
  const auto second = Submit(held);
  clock_.AdvanceSeconds(kHour);
  EXPECT_TRUE(Transaction([&] { return state_->SetHold(second.job(), false); }));
  clock_.AdvanceSeconds(600);
  Ends(first, 0);
  clock_.AdvanceSeconds(1);
  const v1::UsageRow total = Sums("").total();
  EXPECT_EQ(total.attempts(), 2u);
  EXPECT_NEAR(static_cast<double>(total.waited_us()), 600e6, 1e6);
  EXPECT_NEAR(static_cast<double>(total.wait_p95_us()), 600e6, 1e6);
  EXPECT_LT(total.wait_p50_us(), 1'000'000);
}

TEST_F(MoneyTest, TheAccountingGoesOnOverARestartOfTheHostWithAWrongClock) {
  Register(SimpleNode("n1", 8, 4));
  const auto job = Running("a", 1);
  clock_.AdvanceSeconds(kHour);
  Look();
  const auto other = Running("b", 1);
  settings_.boot_id = "another boot";
  clock_.StepWall(-100 * kHour * 1'000'000);
  Restart();
  clock_.AdvanceSeconds(kHour);
  Register([&] {
    v1::Register again = SimpleNode("n1", 8, 4);
    *again.add_attempts() = control::ReportOf(job.placement(), v1::RUNNING);
    *again.add_attempts() = control::ReportOf(other.placement(), v1::RUNNING);
    return again;
  }());
  Ends(job, 0);
  Ends(other, 0);
  EXPECT_NEAR(static_cast<double>(Sums("").total().gpu_ms()), static_cast<double>(Millis(3)), 2000);
}

TEST_F(MoneyTest, WhatRanBeforeTheClockWasSetIsLostToo) {
  Register(SimpleNode("n1", 8, 4));
  const auto failed = Running("failed", 1), saved = Running("saved", 1), fine = Running("fine", 1);
  clock_.AdvanceSeconds(kHour);
  Saves(saved);
  clock_.AdvanceSeconds(kHour);
  clock_.StepWall(kHour * 1'000'000);
  for (const int seconds : {6, 61}) {
    clock_.AdvanceSeconds(seconds);
    Look();
  }
  clock_.AdvanceSeconds(kHour);
  Ends(failed, 1);
  Ends(saved, 1);
  Ends(fine, 0);
  EXPECT_EQ(store_->IntervalsOf(failed.job())->size(), 2u) << "the step cuts it";
  EXPECT_EQ(InfoOf(failed.job()).cost().lost_gpu_ms(), InfoOf(failed.job()).cost().gpu_ms());
  EXPECT_NEAR(static_cast<double>(InfoOf(saved.job()).cost().lost_gpu_ms()), static_cast<double>(Millis(2)), 70'000);
  EXPECT_EQ(InfoOf(fine.job()).cost().lost_gpu_ms(), 0);
  EXPECT_NEAR(static_cast<double>(Sums("").total().failed_gpu_ms()), static_cast<double>(Millis(5)), 140'000);
}

TEST_F(MoneyTest, AHundredThousandJobsAreSummedUpAtOnce) {
  ASSERT_TRUE(store_->Begin());
  const int64_t now = clock_.Wall();
  for (uint64_t i = 0; i < 100'000; ++i) {
    const Holder holder{"user" + std::to_string(i % 200) + "@h", i % 3 == 0 ? "vision" : "speech",
                        "p" + std::to_string(i % 7), "local", i % 2 == 0 ? "h100" : ""};
    IntervalRow row;
    row.job = 1'000'000 + i;
    row.attempt = 1;
    row.start_us = now - 20 * kDayMicros + static_cast<int64_t>(i) * 15'000'000;
    row.end_us = row.start_us + 3'600'000'000;
    row.node = "n1";
    row.gpu_milli = 1000;
    row.milli_cpus = 1000;
    row.waited_us = static_cast<int64_t>(i);
    ASSERT_TRUE(store_->AddInterval(holder, row));
  }
  ASSERT_TRUE(store_->Commit());
  for (const char* by : {"", "team,user", "day", "project,pool,gpu-type", "job", "job,day"}) {
    const clock_t began = clock();
    const v1::UsageReport report = Sums(by);
    const clock_t took = (clock() - began) / (CLOCKS_PER_SEC / 1000);
    std::printf("by %-22s %4d rows: %ld ms\n", by, report.rows_size(), took);
    EXPECT_EQ(report.total().jobs(), 100'000u);
    EXPECT_EQ(report.total().gpu_ms(), 100'000 * int64_t{3'600'000});
    EXPECT_LE(report.rows_size(), 1001);
    EXPECT_LT(took, 2000) << "of processor time, also without optimization";
  }
}

TEST_F(MoneyTest, WrongQuestionsAndConfigurationsSayWhatToWrite) {
  v1::UsageRequest request;
  request.set_by("team,planet");
  EXPECT_NE(Usage(*state_, kAnna, request).error().message().find("planet: unknown"), std::string::npos);
  request.set_by("");
  request.set_from_us(10);
  request.set_to_us(9);
  EXPECT_EQ(Usage(*state_, kAnna, request).error().code(), Code::kInvalid);
  for (const char* bad : {"[money]\ncurrency = 3\n", "[[money.price]]\ngpu_hour = { h100 = 1 }\n",
                          "[money]\ncurrency = \"EUR\"\n[[money.price]]\nfrom = 2026-02-30\ngpu_hour = { h100 = 1 }\n",
                          "[money]\ncurrency = \"EUR\"\n[[money.price]]\ngpu_hour = { h100 = -1 }\n",
                          "[money]\ncurrency = \"EUR\"\n[[money.price]]\nfrom = 2026-01-01\n", "[money]\nprices = 1\n",
                          "[team.a]\nmonth = { stop_percent = 100 }\n", "[team.a]\nmonth = { gpu_hours = 0 }\n",
                          "[team.a]\nmonth = { gpu_hours = 1, soft = 2 }\n",
                          "[money]\ncurrency = \"EUR\"\n[team.a]\nmonth = { money = 1 }\n"}) {
    EXPECT_FALSE(ParseSchedulerConfig(bad, "f")) << bad;
  }
  EXPECT_TRUE(
      ParseSchedulerConfig("[money]\ncurrency = \"EUR\"\n[[money.price]]\nfrom = \"2026-01-01\"\ncpu_hour = 1\n", "f"));
}

}  // namespace
}  // namespace vrun::control
