// SPDX-License-Identifier: Apache-2.0
#include "control/whatif/collect.h"

#include <algorithm>

namespace vrun::control {
namespace {

constexpr uint32_t kStepJobs = 200;  // some milliseconds
constexpr int kProbeJobs = 50;

}  // namespace

// Jobs have ids in the order of their submissions, so halving finds the first one of the span. Elements of arrays have
// the time of their array, and tell nothing.
Result<uint64_t> Collect::FirstOf(State& state) const {
  VRUN_ASSIGN(const std::vector<JobRow> newest, state.store().EndedJobs(0, 1, true));
  if (newest.empty()) return uint64_t{0};
  uint64_t low = 0, high = newest.back().id;
  while (high - low > kProbeJobs) {
    const uint64_t middle = low + (high - low) / 2;
    VRUN_ASSIGN(const std::vector<JobRow> some, state.store().EndedJobs(middle, kProbeJobs, false));
    const auto job = std::find_if(some.begin(), some.end(), [](const JobRow& row) { return row.array == 0; });
    if (job != some.end() && job->submitted_us < span_.since_us) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

Status Collect::Begin(State& state) {
  VRUN_ASSIGN(const v1::NodesReply nodes, Nodes(state, peer_, {}));
  VRUN_ASSIGN(const v1::TeamList teams, Teams(state, peer_, {}));
  parts_ = history::PartsOf(nodes.nodes());
  teams_ = history::QuotasOf(teams);
  trace_.SetTeams(history::NamesOfTeams(teams_));
  if (parts_.empty()) return Error(Code::kAborted, "no node of the cluster has GPUs: there is nothing to replay on");
  VRUN_ASSIGN(after_, FirstOf(state));
  for (const auto& [id, job] : state.jobs()) {
    trace_.AddUnfinished(state.InfoOf(job, peer_.name, 0), state.clock().Wall());
  }
  return {};
}

Result<bool> Collect::Step(State& state) {
  v1::AccountsRequest request;
  request.set_after(after_);
  request.set_limit(kStepJobs);
  VRUN_ASSIGN(const v1::AccountList list, Accounts(state, peer_, request));
  for (const v1::Account& account : list.accounts()) {
    after_ = account.job().job();
    trace_.AddEnded(account);
  }
  return list.accounts_size() == static_cast<int>(kStepJobs);
}

}  // namespace vrun::control
