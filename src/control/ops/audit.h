// SPDX-License-Identifier: Apache-2.0
// What the audit log says of a request that changes something. Requests that only read have no overload.
#pragma once

#include <string>

#include "base/result.h"
#include "proto/control.pb.h"

namespace vrun::control {

struct AuditedAct {
  std::string what;  // "": it changed nothing
  std::string of;
  std::string result = {};  // "": as the answer is
  int named = 0;            // in `of`
};

// A line of the log has no more than so many names: a request may have 100,000.
constexpr int kMostNamed = 100;
inline void AddNamed(const std::string& name, int all, AuditedAct* act) {
  if (++act->named > kMostNamed) return;
  act->of += (act->of.empty() ? "" : ",") + name;
  if (act->named == kMostNamed && all > kMostNamed) act->of += " and " + std::to_string(all - kMostNamed) + " more";
}

inline std::string JobText(uint64_t job) { return "job " + std::to_string(job); }

inline AuditedAct Audited(const v1::SubmitRequest& request, const Result<v1::SubmitReply>& reply) {
  if (reply && reply->job() == 0) return {};  // a test of a submission
  (void)request;
  return {"submit", reply ? JobText(reply->job()) : ""};
}
inline AuditedAct Audited(const v1::CancelRequest& request, const Result<v1::CancelReply>&) {
  return {request.signal() == 0 ? "cancel" : "signal " + std::to_string(request.signal()), JobText(request.job())};
}
inline AuditedAct Audited(const v1::ChangeJobs& request, const Result<v1::ChangeReply>& reply) {
  AuditedAct act;
  switch (request.what()) {
    case v1::ChangeJobs::HOLD: act.what = "hold"; break;
    case v1::ChangeJobs::RELEASE: act.what = "release"; break;
    case v1::ChangeJobs::REQUEUE: act.what = "requeue"; break;
    default: act.what = "change";
  }
  for (const v1::JobSelection& selection : request.jobs())
    AddNamed(JobText(selection.job()), request.jobs_size(), &act);
  // An answer may say of each job that it was refused.
  if (reply && reply->problems_size() > 0) {
    const int refused = reply->problems_size(), all = request.jobs_size();
    if (refused < all) act.result = "ok, but " + std::to_string(refused) + " of " + std::to_string(all) + " ";
    act.result += "refused: " + reply->problems(0);
    if (refused > 1) act.result += ", and " + std::to_string(refused - 1) + " more";
  }
  return act;
}
inline AuditedAct Audited(const v1::DrainNodes& request, const Result<v1::NodesReply>&) {
  AuditedAct act{request.resume() ? "resume" : "drain", ""};
  for (const std::string& node : request.nodes()) {
    AddNamed(act.named == 0 ? "node " + node : node, request.nodes_size(), &act);
  }
  return act;
}
inline AuditedAct Audited(const v1::SetMaintenance& request, const Result<v1::MaintenanceList>&) {
  if (request.name().empty()) return {};
  return {request.over() ? "maintenance remove" : "maintenance add", request.name()};
}

}  // namespace vrun::control
