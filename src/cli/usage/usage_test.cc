// SPDX-License-Identifier: Apache-2.0
// `vctl usage`: times, tables, CSV and the report.
#include <gtest/gtest.h>

#include "base/time/calendar.h"
#include "cli/usage/usage_report.h"
#include "cli/usage/usage_time.h"
#include "cli/usage/usage_view.h"

namespace vrun::cli {
namespace {

constexpr int64_t kSecond = 1'000'000;
// 2026-11-28T10:20:30Z
const int64_t kNow = *ParseDay("2026-11-28") + (10 * 3600 + 20 * 60 + 30) * kSecond;

int64_t At(const char* text) {
  const auto at = ParseUsageTime(text, kNow);
  EXPECT_TRUE(at) << text;
  return at.value_or(-1);
}

TEST(UsageTimeTest, TimesAreOfUtc) {
  EXPECT_EQ(At("now"), kNow);
  EXPECT_EQ(DayText(At("today")), "2026-11-28");
  EXPECT_EQ(DayText(At("yesterday")), "2026-11-27");
  EXPECT_EQ(At("month"), *ParseDay("2026-11-01"));
  EXPECT_EQ(At("2026-11"), *ParseDay("2026-11-01"));
  EXPECT_EQ(At("-7d"), kNow - 7 * kDayMicros);
  EXPECT_EQ(At("-90m"), kNow - 90 * 60 * kSecond);
  EXPECT_EQ(At("2026-03-29T02:30"), *ParseDay("2026-03-29") + 9000 * kSecond) << "no summer time";
  EXPECT_EQ(At("2026-03-29T02:30:05Z"), *ParseDay("2026-03-29") + 9005 * kSecond);
  for (const char* bad :
       {"", "-", "-d", "7d", "2026", "2026-13", "2026-02-30", "2026-11-28T", "2026-11-28T25:00", "2026-11-28 10:00",
        "2026-11-28T1:00", "2026-11-28T10:00:00:00", "tomorrow", "-7y", "Z", "2026-11-28Z"}) {
    EXPECT_FALSE(ParseUsageTime(bad, kNow)) << bad;
  }
}

TEST(UsageTimeTest, AMonthEndsWhereTheNextBegins) {
  EXPECT_EQ(ParseMonth("2026-12", kNow)->to, *ParseDay("2027-01-01"));
  EXPECT_EQ(ParseMonth("2024-02", kNow)->to, *ParseDay("2024-03-01"));
  EXPECT_EQ(ParseMonth("last-month", kNow)->from, *ParseDay("2026-10-01"));
  EXPECT_EQ(ParseMonth("month", kNow)->from, *ParseDay("2026-11-01"));
  EXPECT_FALSE(ParseMonth("2026-11-01", kNow));
}

v1::UsageReport Figures() {
  v1::UsageReport report;
  report.set_by("team");
  report.set_currency("EUR");
  report.set_from_us(*ParseDay("2026-11-01"));
  report.set_to_us(*ParseDay("2026-12-01"));
  v1::UsageRow* row = report.add_rows();
  row->set_team("a,\"b\"<script>");
  row->set_jobs(2);
  row->set_attempts(3);
  row->set_gpu_ms(3'600'000 * 100);
  row->set_metered_gpu_ms(3'600'000 * 80);
  row->set_used_gpu_ms(3'600'000 * 60);
  row->set_idle_gpu_ms(3'600'000 * 20);
  row->set_lost_gpu_ms(3'600'000 * 10);
  row->set_failed_gpu_ms(3'600'000 * 10);
  row->set_wait_p50_us(61 * kSecond);
  row->set_cost_micros(250'000'000);
  *report.add_rows() = v1::UsageRow();
  report.mutable_rows(1)->set_others(true);
  *report.mutable_total() = report.rows(0);
  report.mutable_total()->clear_team();
  v1::Budget* budget = report.add_budgets();
  budget->set_team("lab");
  budget->set_from_us(report.from_us());
  budget->set_money_micros(300'000'000);
  budget->set_used_money_micros(250'000'000);
  budget->set_used_percent(83);
  budget->set_state("warn");
  return report;
}

TEST(UsageViewTest, TheTableSaysWhoWhatAndHowMuchOfItWasUsed) {
  const std::string table = UsageTable(Figures(), false, true);
  EXPECT_NE(table.find("COST-EUR"), table.npos) << table;
  EXPECT_NE(table.find("250.00"), table.npos);
  EXPECT_NE(table.find("75%"), table.npos) << "60 of the 80 hours that were measured";
  EXPECT_NE(table.find("(others)"), table.npos);
  EXPECT_NE(table.find("total"), table.npos);
  EXPECT_NE(table.find("1:01"), table.npos);
}

TEST(UsageViewTest, CsvQuotesWhatOthersHaveNamed) {
  const std::string csv = UsageCsv(Figures(), true);
  EXPECT_EQ(csv.substr(0, csv.find(',')), "team");
  EXPECT_NE(csv.find("\n\"a,\"\"b\"\"<script>\",2,3,360000.000,"), csv.npos) << csv;
  EXPECT_NE(csv.find("\n(total),"), csv.npos);
}

TEST(UsageReportTest, IsOneFileWithoutScriptsWhateverTeamsAreCalled) {
  MonthFigures figures;
  figures.by_team = figures.by_user = figures.by_type = Figures();
  figures.by_day = Figures();
  figures.by_day.set_by("day");
  figures.by_day.mutable_rows(0)->set_day("2026-11-28");
  figures.now_us = kNow;
  const std::string html = MonthlyReport(figures);
  for (const char* bad : {"<script", "http", "src=", "url(", "nan", "inf\""}) {
    EXPECT_EQ(html.find(bad), html.npos) << bad << ": " << html.substr(html.find(bad), 100);
  }
  for (const char* there : {"November 2026", "&lt;script&gt;", "<svg", "prefers-color-scheme:dark", "Waste by cause",
                            "250.00 of 300.00 EUR", "2026-11-28: 60.0 GPU-hours used"}) {
    EXPECT_NE(html.find(there), html.npos) << there;
  }
  // Also of a month in which nothing happened.
  EXPECT_NE(MonthlyReport({.by_team = {}, .by_day = {}, .by_user = {}, .by_type = {}, .before = {}, .now_us = kNow})
                .find("No GPU was allocated"),
            std::string::npos);
}

TEST(UsageReportTest, EachTableAddsUpToItsTotal) {
  MonthFigures figures;
  figures.now_us = kNow;
  v1::UsageReport& users = figures.by_user;
  users.set_by("user");
  for (int i = 0; i < 100; ++i) {
    users.add_rows()->set_user("user" + std::to_string(i));
    users.mutable_rows(i)->set_gpu_ms(3'600'000);
  }
  users.add_rows()->set_others(true);
  users.mutable_rows(100)->set_gpu_ms(3'600'000ll * 900);
  users.mutable_total()->set_gpu_ms(3'600'000ll * 1000);
  const std::string html = MonthlyReport(figures);
  EXPECT_NE(html.find("<td>user99</td>"), html.npos);
  EXPECT_NE(html.find("<td>(others)</td><td>0</td><td>900.0</td>"), html.npos);
  EXPECT_NE(html.find("<p>and others</p>"), html.npos);
}

}  // namespace
}  // namespace vrun::cli
