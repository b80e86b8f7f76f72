// SPDX-License-Identifier: Apache-2.0
// vctl jobs, vctl job
#include "cli/ctl.h"
#include "cli/home_connection.h"
#include "cli/job_view.h"
#include "cli/values.h"

namespace vrun::cli {
namespace {

enum Id { kAll };
constexpr OptionSpec kJobsOptions[] = {{kAll, 'a', "all", Argument::kNone, "", "also those that are over"}};

Result<int> RunJobs(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::Query query;
  query.mutable_list_jobs()->set_all(invocation.Has(kAll));
  VRUN_ASSIGN(v1::HomeMessage answer, Ask(home, query, true));
  if (!answer.has_jobs()) return Error(Code::kInternal, "home: answered something else than a list of jobs");
  Print(FormatJobs(answer.jobs(), invocation.format, invocation.headers));
  return 0;
}

Result<int> RunJob(const CtlInvocation& invocation) {
  VRUN_ASSIGN(uint64_t id, ParseJobId(invocation.words.operands[0]));
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::Query query;
  query.mutable_get_job()->set_job(id);
  VRUN_ASSIGN(v1::HomeMessage answer, Ask(home, query, true));
  if (!answer.has_jobs() || answer.jobs().jobs_size() != 1) {
    return Error(Code::kNotFound, "job " + std::to_string(id) + ": there is none: `vctl jobs --all` lists yours");
  }
  Print(FormatJob(answer.jobs().jobs(0), invocation.format));
  return 0;
}

}  // namespace

const CtlCommand kCtlJobs{"jobs",     "",     "the jobs that wait or run", kJobsOptions, Completes::kNothing,
                          NoOperands, RunJobs};
const CtlCommand kCtlJob{"job", "ID", "everything about one job", {}, Completes::kJobs, OneJob, RunJob};

}  // namespace vrun::cli
