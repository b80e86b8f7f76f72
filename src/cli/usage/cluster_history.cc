// SPDX-License-Identifier: Apache-2.0
#include "cli/usage/cluster_history.h"

#include "base/clock.h"
#include "cli/base/home_connection.h"
#include "cli/usage/usage_time.h"

namespace vrun::cli {
namespace {

constexpr uint32_t kHistoryPage = 1000;

Status AddEndedJobs(const HomeConnection& home, history::Trace* trace) {
  for (uint64_t after = 0;;) {
    v1::Query query;
    query.mutable_list_accounts()->set_after(after);
    query.mutable_list_accounts()->set_limit(kHistoryPage);
    VRUN_ASSIGN(const v1::HomeMessage answer, Ask(home, query, true));
    if (!answer.has_accounts()) return Error(Code::kInternal, "home: unexpected answer instead of accounts");
    for (const v1::Account& account : answer.accounts().accounts()) {
      after = account.job().job();
      trace->AddEnded(account);
    }
    if (answer.accounts().accounts_size() < static_cast<int>(kHistoryPage)) return {};
  }
}

}  // namespace

Result<ClusterHistory> AskClusterHistory(const history::Span& span) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  history::Trace trace(span);
  v1::Query query;
  query.mutable_list_teams();
  VRUN_ASSIGN(const v1::HomeMessage teams, Ask(home, query, true));
  if (!teams.has_teams()) return Error(Code::kInternal, "home: unexpected answer instead of teams");
  ClusterHistory out;
  out.teams = history::QuotasOf(teams.teams());
  trace.SetTeams(history::NamesOfTeams(out.teams));
  VRUN_TRY(AddEndedJobs(home, &trace));
  query.mutable_list_jobs();
  VRUN_ASSIGN(const v1::HomeMessage jobs, Ask(home, query, true));
  if (!jobs.has_jobs()) return Error(Code::kInternal, "home: unexpected answer instead of jobs");
  for (const v1::JobInfo& job : jobs.jobs().jobs()) trace.AddUnfinished(job, WallMicros());
  query.mutable_list_nodes();
  VRUN_ASSIGN(const v1::HomeMessage nodes, Ask(home, query, true));
  if (!nodes.has_nodes()) return Error(Code::kInternal, "home: unexpected answer instead of nodes");
  out.counts = trace.counts();
  if (out.counts.hidden > 0) {
    return Error(Code::kDenied, "you do not see " + std::to_string(out.counts.hidden) +
                                    " jobs of that time, and a replay without them says nothing about the cluster: ask "
                                    "an operator (`vctl whoami` says what you see)");
  }
  if (out.counts.jobs == 0) {
    const std::string left_out = history::Describe(out.counts);
    return Error(Code::kNotFound, "no job of that time used whole GPUs" +
                                      (left_out.empty() ? "" : " (" + left_out + ")") +
                                      ": take a longer time with --since");
  }
  out.trace = trace.Text();
  out.parts = history::PartsOf(nodes.nodes().nodes());
  if (out.parts.empty())
    return Error(Code::kNotFound, "no node of the cluster has GPUs: there is nothing to replay on");
  return out;
}

Result<int64_t> ParseSince(std::string_view text, int64_t now) {
  const bool ago = !text.empty() && text[0] >= '0' && text[0] <= '9' &&
                   (text.back() == 'd' || text.back() == 'h' || text.back() == 'm');
  return ParseUsageTime(ago ? "-" + std::string(text) : std::string(text), now);
}

}  // namespace vrun::cli
