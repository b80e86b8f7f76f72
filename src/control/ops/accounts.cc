// SPDX-License-Identifier: Apache-2.0
// Accounts: ended jobs, with how long they held their room and how much of that time was useful. Of jobs that the
// caller does not see there is only the id: it is where the next page begins.
#include <algorithm>

#include "control/gpus/gpu_use.h"
#include "control/ops/ops.h"

namespace vrun::control {
namespace {

constexpr uint32_t kMost = 1000;

int64_t RunOf(const std::string& exit) {
  v1::ExitRecord record;
  if (exit.empty() || !record.ParseFromString(exit) || record.started_us() == 0) return 0;
  return std::max<int64_t>(record.ended_us() - record.started_us(), 0);
}

}  // namespace

Result<v1::AccountList> Accounts(State& state, const rpc::Peer& peer, const v1::AccountsRequest& request) {
  const uint32_t limit = request.limit() == 0 ? kMost : std::min(request.limit(), kMost);
  VRUN_ASSIGN(std::vector<JobRow> jobs, state.store().EndedJobs(request.after(), static_cast<int>(limit), false));
  v1::AccountList list;
  for (const JobRow& job : jobs) {
    v1::Account* account = list.add_accounts();
    *account->mutable_job() = state.InfoOf(job, peer.name, 0);
    if (!state.Shows(peer.name, job)) continue;
    account->set_preemptions(job.preemptions);
    VRUN_ASSIGN(std::vector<AttemptRow> attempts, state.store().Attempts(job.id));
    v1::GpuUsage use;
    bool metered = false;
    for (const AttemptRow& a : attempts) {
      metered = AddUse(a.pods, &use) || metered;
      // The resources of a job are those of one pod, so the time of a gang is the sum over its pods.
      int64_t run = 0;
      for (const PodRow& pod : a.pods) run += RunOf(pod.exit);
      account->set_held_us(account->held_us() + run);
      const bool counts = a.attempt == job.attempt || (a.state == v1::PREEMPTED && job.scheduling.saves());
      if (counts) account->set_work_us(account->work_us() + run);
    }
    if (metered) *account->mutable_job()->mutable_gpu_usage() = std::move(use);
  }
  return list;
}

}  // namespace vrun::control
