// SPDX-License-Identifier: Apache-2.0
// vctl jobs, vctl job ID
#include <algorithm>

#include "base/escape.h"
#include "cli/array/job_ids.h"
#include "cli/base/home_connection.h"
#include "cli/ctl/ctl.h"
#include "cli/ctl/job_view.h"
#include "cli/ctl/kept_writes.h"
#include "cli/run/job_log.h"

namespace vrun::cli {
namespace {

enum Id { kAll };
constexpr OptionSpec kJobsOptions[] = {{kAll, 'a', "all", Argument::kNone, "", "also those that are over"}};

// Newest first, as the controller lists them, but elements behind their array and in their order.
void PutElementsBehindArrays(v1::JobList* jobs) {
  const auto array = [](const v1::JobInfo& job) { return job.array() != 0 ? job.array() : job.job(); };
  std::stable_sort(jobs->mutable_jobs()->begin(), jobs->mutable_jobs()->end(),
                   [&](const v1::JobInfo& a, const v1::JobInfo& b) {
                     if (array(a) != array(b)) return array(a) > array(b);
                     if ((a.array() != 0) != (b.array() != 0)) return a.array() == 0;
                     return a.array_index() < b.array_index();
                   });
}

Result<int> RunJobs(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::Query query;
  query.mutable_list_jobs()->set_all(invocation.Has(kAll));
  VRUN_ASSIGN(v1::HomeMessage answer, Ask(home, query, true));
  if (!answer.has_jobs()) return Error(Code::kInternal, "home: unexpected answer instead of a list of jobs");
  PutElementsBehindArrays(answer.mutable_jobs());
  Print(FormatJobs(answer.jobs(), invocation.format, invocation.headers));
  return 0;
}

enum JobId { kList, kTo };
constexpr OptionSpec kJobOptions[] = {
    {kList, 0, "list", Argument::kNone, "", "pull: only say what there is"},
    {kTo, 0, "to", Argument::kRequired, "DIR", "pull: put it below this directory, not in its place",
     Completes::kDirectories},
};

Status ValidateJob(const CtlInvocation& invocation) {
  const auto& words = invocation.words.operands;
  if (words.empty()) return SomeJobs(invocation);
  if (auto one = ParseOneJob(words[0]); !one) return std::move(one).error();
  const bool pull = words.size() > 1 && words[1] == "pull";
  if (!pull && (invocation.Has(kList) || invocation.Has(kTo))) {
    return Error(Code::kInvalid, "--list and --to belong to `vctl job ID pull`");
  }
  if (pull && invocation.Has(kList) && invocation.Has(kTo)) {
    return Error(Code::kInvalid, "--list does not copy files: leave --to out");
  }
  if (words.size() < 2 || pull) return {};
  if (words[1] != "drop") return Error(Code::kInvalid, Escape(words[1]) + ": not one of pull and drop");
  if (words.size() == 2) return {};
  return Error(Code::kInvalid, Escape(words[2]) + ": unexpected: all that is kept of the job is dropped");
}

Result<int> RunJob(const CtlInvocation& invocation) {
  const auto& words = invocation.words.operands;
  if (words.size() > 1) return RunKept(invocation, words[1] == "pull", invocation.Has(kList), invocation.Value(kTo));
  VRUN_ASSIGN(const v1::JobSelection one, ParseOneJob(words[0]));
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  VRUN_ASSIGN(const v1::JobInfo job, AskForJob(home, one));
  Print(FormatJob(job, invocation.format));
  return 0;
}

}  // namespace

const CtlCommand kCtlJobs{"jobs",     "",     "the jobs that wait or run", kJobsOptions, Completes::kNothing,
                          NoOperands, RunJobs};
const CtlCommand kCtlJob{"job",
                         "ID [pull [PATH...] | drop]",
                         "everything about one job, array or element; what it left on its node",
                         kJobOptions,
                         Completes::kJobs,
                         ValidateJob,
                         RunJob};

}  // namespace vrun::cli
