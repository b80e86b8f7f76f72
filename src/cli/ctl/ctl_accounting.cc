// SPDX-License-Identifier: Apache-2.0
// vctl accounting: ended jobs as CSV, which `vctl sim` can replay.
#include <ctime>

#include "base/escape.h"
#include "cli/base/exit_status.h"
#include "cli/base/home_connection.h"
#include "cli/ctl/ctl.h"
#include "cli/ctl/job_view.h"
#include "cli/request/scheduling.h"

namespace vrun::cli {
namespace {

constexpr uint32_t kPage = 1000;

// The format that src/sim/replay/job_trace.h reads: UTC, to the second.
std::string Date(int64_t wall_micros) {
  const time_t seconds = static_cast<time_t>(wall_micros / 1'000'000);
  tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

std::string Seconds(int64_t micros) {
  char text[48];
  std::snprintf(text, sizeof text, "%lld.%06lld", static_cast<long long>(micros / 1'000'000),
                static_cast<long long>(micros % 1'000'000));
  return text;
}

// Names are external text: a comma, quote or line end in them must not look like the table's own.
std::string Cell(const std::string& name) {
  std::string out;
  for (char c : Escape(name)) out.push_back(c == ',' || c == '"' ? '_' : c);
  return out;
}

std::string Line(const v1::Account& account) {
  const v1::JobInfo& job = account.job();
  const v1::Resources& r = job.resources();
  std::string out = Date(job.submitted_us());
  for (const std::string& cell :
       {Seconds(account.work_us()), std::to_string(r.gpus()), Cell(job.scheduling().team()), std::to_string(job.job()),
        Cell(job.name()), Cell(job.user()), JobClassName(job.scheduling().class_()), Cell(job.pool()),
        Cell(r.gpu_type()), std::to_string(r.milli_cpus()), std::to_string(r.memory_bytes()),
        std::string(StateName(job.state())), std::to_string(job.attempt()), std::to_string(account.preemptions()),
        Seconds(account.held_us()), Date(job.ended_us()), std::to_string(job.exit().conflicts())}) {
    out += "," + cell;
  }
  return out + "\n";
}

Result<int> Run(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  if (invocation.headers) {
    Print(
        "timestamp,duration,num_gpus,cluster,job,name,user,class,pool,gpu_type,milli_cpus,memory_bytes,state,"
        "attempts,preemptions,held_s,ended,conflicts\n");
  }
  uint64_t after = 0;
  for (;;) {
    v1::Query query;
    query.mutable_list_accounts()->set_after(after);
    query.mutable_list_accounts()->set_limit(kPage);
    VRUN_ASSIGN(v1::HomeMessage answer, Ask(home, query, true));
    if (!answer.has_accounts()) return Error(Code::kInternal, "home: unexpected answer instead of accounts");
    std::string text;
    for (const v1::Account& account : answer.accounts().accounts()) {
      after = account.job().job();
      // A job that never ran has no work to replay.
      if (account.held_us() > 0) text += Line(account);
    }
    Print(text);
    if (answer.accounts().accounts_size() < static_cast<int>(kPage)) return 0;
  }
}

}  // namespace

const CtlCommand kCtlAccounting{
    "accounting", "", "the jobs that are over as CSV, which `vctl sim` replays", {}, Completes::kNothing,
    NoOperands,   Run};

}  // namespace vrun::cli
