// SPDX-License-Identifier: Apache-2.0
#include "cli/usage/ctl_usage.h"

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/time/calendar.h"
#include "cli/base/home_connection.h"
#include "cli/base/values.h"
#include "cli/usage/usage_report.h"
#include "cli/usage/usage_time.h"
#include "cli/usage/usage_view.h"

namespace vrun::cli {
namespace {

enum Id { kBy, kFrom, kTo, kMonth, kTeam, kUser, kProject, kPool, kGpuType, kLimit, kReport };

constexpr OptionSpec kOptions[] = {
    {kBy, 'b', "by", Argument::kRequired, "WHAT,...",
     "a row for each: team (default), user, project, pool, gpu-type, job, day"},
    {kFrom, 0, "from", Argument::kRequired, "TIME",
     "from when (month): 2026-11-28, 2026-11-28T18:30, today, yesterday, month or -7d; UTC"},
    {kTo, 0, "to", Argument::kRequired, "TIME", "until when (now)"},
    {kMonth, 0, "month", Argument::kRequired, "MONTH", "a whole month: 2026-11, month or last-month"},
    {kTeam, 'A', "account", Argument::kRequired, "TEAM", "only of this team"},
    {kTeam, 0, "team", Argument::kRequired, "TEAM"},
    {kUser, 'u', "user", Argument::kRequired, "USER", "only of this user"},
    {kProject, 0, "project", Argument::kRequired, "PROJECT", "only of this project"},
    {kPool, 'P', "pool", Argument::kRequired, "POOL", "only of this pool", Completes::kPools},
    {kGpuType, 0, "gpu-type", Argument::kRequired, "TYPE", "only of this type of GPU"},
    {kLimit, 'n', "limit", Argument::kRequired, "N", "at most so many rows (1000), the largest"},
    {kReport, 0, "report", Argument::kRequired, "FILE", "write the report of the month as HTML, with plots",
     Completes::kFiles},
};

// Of each table of the report; what is left is one row more, so that a table adds up to its total.
constexpr uint32_t kReportRows = 100;

// 0 in a request is this month, and now.
int64_t AsAsked(int64_t at) { return std::max<int64_t>(at, 1); }

Result<v1::UsageRequest> RequestOf(const CtlInvocation& invocation) {
  v1::UsageRequest request;
  const int64_t now = WallMicros();
  if (const auto month = invocation.Value(kMonth)) {
    if (invocation.Has(kFrom) || invocation.Has(kTo)) {
      return Error(Code::kInvalid, "--month is a whole month: leave --from and --to out");
    }
    VRUN_ASSIGN(const UsageSpan span, ParseMonth(*month, now));
    request.set_from_us(AsAsked(span.from));
    request.set_to_us(span.to);
  }
  if (const auto from = invocation.Value(kFrom)) {
    VRUN_ASSIGN(const int64_t at, ParseUsageTime(*from, now));
    request.set_from_us(AsAsked(at));
  }
  if (const auto to = invocation.Value(kTo)) {
    VRUN_ASSIGN(const int64_t at, ParseUsageTime(*to, now));
    request.set_to_us(AsAsked(at));
  }
  const int64_t begin = invocation.Has(kFrom) || invocation.Has(kMonth) ? request.from_us() : MonthOf(now);
  if (begin >= (request.to_us() == 0 ? now : request.to_us())) {
    return Error(Code::kInvalid, "it ends before it begins: correct --from or --to");
  }
  request.set_by(invocation.Value(kBy).value_or("team"));
  request.set_team(invocation.Value(kTeam).value_or(""));
  request.set_user(invocation.Value(kUser).value_or(""));
  request.set_project(invocation.Value(kProject).value_or(""));
  request.set_pool(invocation.Value(kPool).value_or(""));
  request.set_gpu_type(invocation.Value(kGpuType).value_or(""));
  if (const auto limit = invocation.Value(kLimit)) {
    const auto number = ParseNumber(*limit, 1000);
    if (!number || *number == 0) return Error(Code::kInvalid, "--limit: write a number from 1 to 1000");
    request.set_limit(static_cast<uint32_t>(*number));
  }
  return request;
}

Status Validate(const CtlInvocation& invocation) {
  if (!invocation.words.operands.empty()) {
    return Error(Code::kInvalid,
                 Escape(invocation.words.operands[0]) + ": unexpected: this command takes options only");
  }
  if (invocation.Has(kReport) && (invocation.Has(kBy) || invocation.Has(kFrom) || invocation.Has(kTo))) {
    return Error(Code::kInvalid, "--report is of a whole month: leave --by, --from and --to out, name it with --month");
  }
  auto request = RequestOf(invocation);
  return request ? Status() : std::move(request).error();
}

Result<v1::UsageReport> AskFor(const HomeConnection& home, const v1::UsageRequest& request) {
  v1::Query query;
  *query.mutable_usage() = request;
  VRUN_ASSIGN(v1::HomeMessage answer, Ask(home, query, true));
  if (!answer.has_usage()) return Error(Code::kInternal, "home: unexpected answer instead of the usage");
  return std::move(*answer.mutable_usage());
}

Result<int> WriteReport(const HomeConnection& home, const std::string& file, v1::UsageRequest request) {
  MonthFigures figures;
  figures.now_us = WallMicros();
  if (request.from_us() == 0) request.set_from_us(MonthOf(figures.now_us));
  if (request.to_us() == 0) request.set_to_us(NextMonth(request.from_us()));
  const uint32_t most = request.limit() == 0 ? kReportRows : std::min(request.limit(), kReportRows);
  const auto ask = [&](const char* by, v1::UsageReport* to, uint32_t limit) -> Status {
    request.set_by(by);
    request.set_limit(limit);
    VRUN_ASSIGN(*to, AskFor(home, request));
    return {};
  };
  VRUN_TRY(ask("team", &figures.by_team, most));
  VRUN_TRY(ask("day", &figures.by_day, 0));
  VRUN_TRY(ask("user", &figures.by_user, most));
  VRUN_TRY(ask("gpu-type,pool", &figures.by_type, most));
  // Budgets are of the present month.
  if (!figures.by_team.budgets().empty() && figures.by_team.budgets(0).from_us() != request.from_us()) {
    figures.by_team.clear_budgets();
  }
  request.set_to_us(request.from_us());
  request.set_from_us(MonthOf(request.from_us() - 1));
  VRUN_TRY(ask("", &figures.before, 0));
  VRUN_TRY(WriteFileAtomic(file, MonthlyReport(figures), 0644));
  return 0;
}

Result<int> Run(const CtlInvocation& invocation) {
  VRUN_ASSIGN(const v1::UsageRequest request, RequestOf(invocation));
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  if (const auto file = invocation.Value(kReport)) return WriteReport(home, *file, request);
  VRUN_ASSIGN(const v1::UsageReport report, AskFor(home, request));
  switch (invocation.format) {
    case OutputFormat::kJson: Print(UsageJson(report)); return 0;
    case OutputFormat::kCsv: Print(UsageCsv(report, invocation.headers)); return 0;
    case OutputFormat::kName: {
      for (const v1::UsageRow& row : report.rows()) {
        std::string line;
        for (const std::string& word : UsageWords(report))
          line += (line.empty() ? "" : " ") + Escape(UsageLabel(row, word));
        Print(line + "\n");
      }
      return 0;
    }
    default: break;
  }
  Print(UsageTable(report, invocation.format == OutputFormat::kWide, invocation.headers));
  for (const v1::Budget& budget : report.budgets()) {
    if (!budget.text().empty()) std::fprintf(stderr, "vctl: %s\n", budget.text().c_str());
  }
  return 0;
}

}  // namespace

const CtlCommand kCtlUsage{"usage",
                           "",
                           "who has used what, what it cost and what was wasted; the report of a month",
                           kOptions,
                           Completes::kNothing,
                           Validate,
                           Run,
                           false,
                           true};

}  // namespace vrun::cli
