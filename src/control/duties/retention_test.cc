// SPDX-License-Identifier: Apache-2.0
// Old jobs are removed, and nothing of their usage.
#include "control/duties/retention.h"

#include <gtest/gtest.h>

#include <random>

#include "base/time/calendar.h"
#include "control/money/day_sums.h"
#include "control/testing/state_testing.h"

namespace vrun::control {
namespace {

constexpr char kConfig[] =
    "[retention]\njobs = \"10d\"\n[money]\ncurrency = \"EUR\"\n[[money.price]]\ngpu_hour = { h100 = 2.5, \"\" = 1 }\n"
    "cpu_hour = 0.01\n[[money.price]]\nfrom = 2023-11-20\ngpu_hour = { h100 = 3 }\n[team.lab]\nusers = [\"*\"]\n";

class RetentionTest : public StateTest {
 protected:
  RetentionTest() {
    settings_.scheduler = *ParseSchedulerConfig(kConfig, "f");
    Forget();
    Register(SimpleNode("n1", 16, 4));
  }
  void Clean() {
    RetentionDuty duty;
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(Transaction([&] { return duty.Run(*state_, nullptr); }));
  }
  std::string Sums(int64_t from, int64_t to, const std::string& by) {
    v1::UsageRequest request;
    request.set_from_us(from);
    request.set_to_us(to);
    request.set_by(by);
    auto report = Usage(*state_, kAnna, request);
    EXPECT_TRUE(report) << report.error().message();
    return report ? report->SerializeAsString() : "";
  }
  bool Exists(uint64_t job) { return store_->GetJob(job)->has_value(); }
  void Back() { Register(SimpleNode("n1", 16, 4)); }
};

TEST_F(RetentionTest, TheSumsOfWholeDaysAreTheSameAfterwards) {
  std::mt19937 random(7);
  const auto roll = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  const int64_t first = DayOf(clock_.Wall());
  std::vector<uint64_t> jobs;
  for (int i = 0; i < 60; ++i) {
    auto request = SimpleJob("r" + std::to_string(i), 1, static_cast<uint32_t>(roll(3)));
    request.mutable_spec()->mutable_scheduling()->set_project(roll(2) == 0 ? "p" : "");
    const auto job = Submit(request, roll(2) == 0 ? kAnna : kBob);
    jobs.push_back(job.job());
    clock_.AdvanceMicros(int64_t{1 + roll(90'000)} * 1'000'000 + roll(1'000'000));
    v1::GpuUsages usages;
    v1::GpuUsage* use = usages.add_usages();
    use->set_job(job.job());
    use->set_attempt(1);
    use->set_metered_us(static_cast<uint64_t>(roll(100'000)) * 1'000'000);
    use->set_busy_us(use->metered_us() / 3);
    EXPECT_TRUE(Transaction([&] { return state_->Use("n1", usages); }));
    Report("n1", ExitOf(job.placement(), v1::COMPLETED, v1::ExitRecord::EXITED, roll(2)));
  }
  clock_.AdvanceSeconds(5 * 86400);
  const int64_t last = DayOf(clock_.Wall());
  std::map<std::tuple<int64_t, int64_t, std::string>, std::string> before;
  for (int i = 0; i < 40; ++i) {
    const int64_t from = first + roll(30) * kDayMicros, to = from + (1 + roll(60)) * kDayMicros;
    if (to > last) continue;
    constexpr const char* kBy[] = {"", "team", "user,project", "gpu-type,pool", "day", "day,user"};
    const std::string by = kBy[roll(6)];
    before[{from, to, by}] = Sums(from, to, by);
  }
  ASSERT_GT(before.size(), 10u);
  Clean();
  EXPECT_FALSE(Exists(jobs[0]));
  EXPECT_TRUE(Exists(jobs.back()));
  Restart();
  for (const auto& [cut, sums] : before) {
    EXPECT_EQ(Sums(std::get<0>(cut), std::get<1>(cut), std::get<2>(cut)), sums) << std::get<2>(cut);
  }
}

TEST_F(RetentionTest, WhatWasRemovedTodayCountsUntilNow) {
  settings_.scheduler.retention.jobs = 60'000'000;
  Forget();
  Back();
  const auto done = Submit(SimpleJob("a", 1, 2));
  clock_.AdvanceSeconds(600);
  Report("n1", ExitOf(done.placement(), v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  clock_.AdvanceSeconds(120);
  const int64_t soon = clock_.Wall() + 60'000'000;
  const std::string before = Sums(0, soon, "team");
  Clean();
  EXPECT_FALSE(Exists(done.job()));
  EXPECT_EQ(Sums(0, soon, "team"), before) << "the day that is not over has ended for what has ended";
}

TEST_F(RetentionTest, WhatIsStillNeededStays) {
  const auto done = Submit(SimpleJob("a"));
  Report("n1", ExitOf(done.placement(), v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  auto array = SimpleJob("b");
  auto* range = array.mutable_array()->add_ranges();
  range->set_last(1);
  range->set_step(1);
  const uint64_t whole = Submit(array).job();
  const auto elements = state_->ElementsOf(whole);
  ASSERT_EQ(elements.size(), 2u);
  Report("n1", ExitOf(Event(elements[0].job()).placement(), v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  const uint64_t epoch = *store_->LastEpoch();
  clock_.AdvanceSeconds(20 * 86400);
  Clean();
  EXPECT_FALSE(Exists(done.job()));
  EXPECT_TRUE(Exists(elements[0].job())) << "its array runs";
  Report("n1", ExitOf(Event(elements[1].job()).placement(), v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  clock_.AdvanceSeconds(20 * 86400);
  Clean();
  Clean();
  EXPECT_FALSE(Exists(elements[0].job()));
  EXPECT_FALSE(Exists(whole));
  EXPECT_EQ(*store_->LastEpoch(), epoch) << "an epoch is never used again";
  EXPECT_NE(*store_->FirstInterval(), 0);
}

TEST_F(RetentionTest, AClockThatIsWrongForAMomentRemovesNothing) {
  const auto done = Submit(SimpleJob("a"));
  Report("n1", ExitOf(done.placement(), v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  clock_.StepWall(400 * kDayMicros);
  Clean();
  EXPECT_TRUE(Exists(done.job()));
  clock_.StepWall(-400 * kDayMicros);
  Clean();
  EXPECT_TRUE(Exists(done.job()));
  clock_.AdvanceSeconds(20 * 86400);
  Clean();
  EXPECT_FALSE(Exists(done.job()));
}

TEST_F(RetentionTest, WithoutTheSectionAllIsKept) {
  settings_.scheduler.retention = {};
  Restart();
  Back();
  const auto done = Submit(SimpleJob("a"));
  Report("n1", ExitOf(done.placement(), v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  clock_.AdvanceSeconds(int64_t{4000} * 86400);
  Clean();
  EXPECT_TRUE(Exists(done.job()));
}

TEST(DaySumsTest, AreStoredAsTheyAre) {
  DaySums sums;
  sums.amounts.memory = (Wide{1} << 90) + 5;
  sums.lost_cpu = 7;
  sums.amounts.lost[kLossNode] = 9;
  sums.jobs = {3, 1, 3};
  sums.waits = {0, 5};
  DaySums read;
  ASSERT_TRUE(Merge(Encode(sums), &read));
  ASSERT_TRUE(Merge(Encode(sums), &read));
  EXPECT_TRUE(read.amounts.memory == 2 * sums.amounts.memory && read.lost_cpu == 14);
  EXPECT_TRUE(read.amounts.lost[kLossNode] == 18);
  EXPECT_EQ(read.waits, (std::vector<int64_t>{0, 5, 0, 5}));
  EXPECT_FALSE(Merge("\xff\xff", &read));
}

}  // namespace
}  // namespace vrun::control
