// SPDX-License-Identifier: Apache-2.0
// vctl wait
#include <poll.h>

#include <algorithm>

#include "cli/array/job_ids.h"
#include "cli/base/exit_status.h"
#include "cli/ctl/ctl.h"
#include "cli/ctl/job_view.h"
#include "cli/run/job_log.h"

namespace vrun::cli {
namespace {

// Home is polled: a query takes a fraction of a millisecond, and a restart of home in between does no harm.
constexpr int kFirstPauseMs = 50;
constexpr int kLongestPauseMs = 1000;

Result<int> Run(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::JobList ended;
  int highest = 0;
  for (const std::string& word : invocation.words.operands) {
    VRUN_ASSIGN(const v1::JobSelection jobs, ParseJobs(word));
    VRUN_TRY(ForEachJob(jobs, [&](const v1::JobSelection& one) -> Status {
      VRUN_ASSIGN(v1::JobInfo job, WaitForJob(home, one));
      highest = std::max(highest, ExitStatus(job));
      *ended.add_jobs() = std::move(job);
      return {};
    }));
  }
  if (invocation.format != OutputFormat::kTable) {
    Print(FormatJobs(ended, invocation.format, invocation.headers));
  }
  return highest;
}

}  // namespace

Result<v1::JobInfo> AskForJob(const HomeConnection& home, const v1::JobSelection& job) {
  v1::Query query;
  query.mutable_get_job()->set_job(job.job());
  if (const auto element = ElementOf(job)) query.mutable_get_job()->set_element(*element);
  VRUN_ASSIGN(v1::HomeMessage answer, Ask(home, query, true));
  if (!answer.has_jobs() || answer.jobs().jobs_size() != 1) {
    return Error(Code::kNotFound, "job " + JobsText(job) + ": no such job: `vctl jobs --all` lists yours");
  }
  return std::move(*answer.mutable_jobs()->mutable_jobs(0));
}

Result<v1::JobInfo> WaitForJob(const HomeConnection& home, const v1::JobSelection& job) {
  for (int pause = kFirstPauseMs;; pause = std::min(pause * 2, kLongestPauseMs)) {
    VRUN_ASSIGN(v1::JobInfo info, AskForJob(home, job));
    if (IsOver(info.state())) return info;
    ::poll(nullptr, 0, pause);
  }
}

const CtlCommand kCtlWait{
    "wait",   "ID...", "wait for the end of jobs; exits as they did, with the highest status", {}, Completes::kJobs,
    SomeJobs, Run};

}  // namespace vrun::cli
