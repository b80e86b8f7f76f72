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
  for (const std::string& cell : {Seconds(account.work_us()),
                                  std::to_string(r.gpus()),
                                  Cell(job.scheduling().team()),
                                  std::to_string(job.job()),
                                  Cell(job.name()),
                                  Cell(job.user()),
                                  JobClassName(job.scheduling().class_()),
                                  Cell(job.pool()),
                                  Cell(r.gpu_type()),
                                  std::to_string(r.milli_cpus()),
                                  std::to_string(r.memory_bytes()),
                                  std::string(StateName(job.state())),
                                  std::to_string(job.attempt()),
                                  std::to_string(account.preemptions()),
                                  Seconds(account.held_us()),
                                  Date(job.ended_us()),
                                  std::to_string(job.exit().conflicts()),
                                  std::to_string(r.gpu_milli()),
                                  r.mig_profile(),
                                  Seconds(static_cast<int64_t>(job.gpu_usage().busy_us())),
                                  std::to_string(job.gpu_usage().memory_peak_bytes()),
                                  std::to_string(job.gpu_usage().energy_mj() / 1000)}) {
    out += "," + cell;
  }
  return out + "\n";
}

void Write(const v1::Account& account, JsonWriter* json) {
  json->BeginObject().Key("job");
  WriteJob(account.job(), json);
  json->Key("work_s").Seconds(account.work_us()).Key("held_s").Seconds(account.held_us());
  json->Key("preemptions").Uint(account.preemptions()).EndObject();
}

Result<int> Run(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  JsonWriter json;
  json.BeginObject().Key("schema").Int(kJsonSchema).Key("accounts").BeginArray();
  if (invocation.headers && !invocation.json()) {
    Print(
        "timestamp,duration,num_gpus,cluster,job,name,user,class,pool,gpu_type,milli_cpus,memory_bytes,state,"
        "attempts,preemptions,held_s,ended,conflicts,gpu_milli,mig_profile,gpu_busy_s,gpu_memory_peak_bytes,"
        "gpu_energy_j\n");
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
      if (account.held_us() == 0) continue;
      invocation.json() ? Write(account, &json) : static_cast<void>(text += Line(account));
    }
    Print(text);
    if (answer.accounts().accounts_size() == static_cast<int>(kPage)) continue;
    if (invocation.json()) Print(json.EndArray().EndObject().Take());
    return 0;
  }
}

}  // namespace

const CtlCommand kCtlAccounting{
    "accounting", "", "the jobs that are over as CSV, which `vctl sim` replays", {}, Completes::kNothing,
    NoOperands,   Run};

}  // namespace vrun::cli
