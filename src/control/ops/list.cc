// SPDX-License-Identifier: Apache-2.0
// List: unfinished jobs, or also ended ones, newest first. An array is one job; of its elements only those that have
// been placed are listed. A home gets all of its own unfinished jobs, because it gives up what it holds for others.
// The snapshot store gets the away jobs that have a place. Pages go over all jobs; one page looks at a bounded number.
#include <algorithm>

#include "control/ops/ops.h"

namespace vrun::control {
namespace {

constexpr int kMaxJobs = 1000;
// Limit of the command line of a job in a list; Get returns all of it.
constexpr size_t kMaxArgvBytes = 4096;

constexpr uint32_t kMaxPage = 1000;
constexpr size_t kMostLookedAt = 2000;  // jobs that are read for one page

bool IsOn(const JobRow& job, const std::string& node) {
  return std::any_of(job.pods.begin(), job.pods.end(), [&](const PodRow& pod) { return pod.node == node; });
}

// What the viewer may not see cannot be found by it either: whoever tried names would learn them. (The pool and the
// state are shown.)
bool Fits(State& state, const std::string& viewer, const JobRow& job, const v1::ListRequest& wanted) {
  const auto is = [](const std::string& want, const std::string& has) { return want.empty() || want == has; };
  const bool hidden =
      !wanted.user().empty() || !wanted.team().empty() || !wanted.name().empty() || !wanted.node().empty();
  return (wanted.state() == v1::JOB_STATE_UNSPECIFIED || wanted.state() == job.state) && is(wanted.user(), job.user) &&
         is(wanted.team(), job.scheduling.team()) && is(wanted.pool(), job.pool) && is(wanted.name(), job.name) &&
         (wanted.node().empty() || IsOn(job, wanted.node())) && (!hidden || state.Shows(viewer, job));
}

Result<v1::ListReply> PageOfAll(State& state, const std::string& viewer, const v1::ListRequest& request, int limit) {
  v1::ListReply reply;
  JobFilter filter{request.before(), request.state(), request.user(), request.pool(), request.name()};
  for (size_t looked_at = 0;;) {
    VRUN_ASSIGN(const JobPage page, state.store().FindJobs(filter, limit));
    for (const JobRow& job : page.jobs) {
      if (!Fits(state, viewer, job, request)) continue;
      *reply.add_jobs() = state.InfoOf(job, viewer, kMaxArgvBytes);
      if (reply.jobs_size() < limit) continue;
      if (page.next != 0 || job.id != page.jobs.back().id) reply.set_next(job.id);
      return reply;
    }
    if (page.next == 0) return reply;
    filter.before = page.next;
    looked_at += page.jobs.size();
    // The store has looked at as many as it does at once.
    if (page.jobs.size() < static_cast<size_t>(limit) || looked_at >= kMostLookedAt) {
      reply.set_next(filter.before);
      return reply;
    }
  }
}

Result<v1::ListReply> PageOfUnfinished(State& state, const std::string& viewer, const v1::ListRequest& request,
                                       int limit) {
  v1::ListReply reply;
  const auto& jobs = state.jobs();
  auto end = request.before() == 0 ? jobs.end() : jobs.lower_bound(request.before());
  while (end != jobs.begin()) {
    const JobRow& job = (--end)->second;
    // Elements that wait are part of their array.
    if ((job.array != 0 && job.state == v1::PENDING) || !Fits(state, viewer, job, request)) continue;
    if (reply.jobs_size() == limit) {
      reply.set_next(reply.jobs(limit - 1).job());
      break;
    }
    *reply.add_jobs() = state.InfoOf(job, viewer, kMaxArgvBytes);
  }
  return reply;
}

}  // namespace

Result<v1::ListReply> List(State& state, const rpc::Peer& peer, const v1::ListRequest& request) {
  if (peer.role == "snapshots") {
    v1::ListReply placed;
    for (const auto& [id, job] : state.jobs()) {
      if (!state.IsPlaced(job)) continue;
      const Result<v1::SubmitRequest> submitted = state.RequestOf(job);
      if (!submitted || !submitted->spec().away()) continue;
      v1::JobInfo* info = placed.add_jobs();
      *info = state.InfoOf(job, "", 0);
      info->mutable_away();
    }
    return placed;
  }
  v1::ListReply reply;
  if (!request.home_id().empty()) {
    for (const auto& [id, job] : state.jobs()) {
      if (job.home_id == request.home_id()) *reply.add_jobs() = state.InfoOf(job, peer.name, 0);
    }
    std::reverse(reply.mutable_jobs()->begin(), reply.mutable_jobs()->end());
    return reply;
  }
  if (request.limit() != 0) {
    const int limit = static_cast<int>(std::min(request.limit(), kMaxPage));
    return request.all() ? PageOfAll(state, peer.name, request, limit)
                         : PageOfUnfinished(state, peer.name, request, limit);
  }
  VRUN_ASSIGN(std::vector<JobRow> jobs, state.store().ListJobs(request.all(), kMaxJobs));
  for (const JobRow& job : jobs) *reply.add_jobs() = state.InfoOf(job, peer.name, kMaxArgvBytes);
  return reply;
}

}  // namespace vrun::control
