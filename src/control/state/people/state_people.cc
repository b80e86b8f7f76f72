// SPDX-License-Identifier: Apache-2.0
// The part of State that knows who asks: roles, whose a job is, what is shown of it, and how much each user takes.
#include <algorithm>

#include "base/escape.h"
#include "control/state/state.h"

namespace vrun::control {
namespace {

// What tells nothing of the work: that a job is there, how it stands and what it takes. The rest goes.
void Redact(v1::JobInfo* info) {
  v1::JobInfo kept;
  kept.set_job(info->job());
  kept.set_pool(info->pool());
  kept.set_state(info->state());
  kept.set_attempt(info->attempt());
  kept.set_submitted_us(info->submitted_us());
  kept.set_started_us(info->started_us());
  kept.set_ended_us(info->ended_us());
  *kept.mutable_resources() = info->resources();
  kept.set_queue_position(info->queue_position());
  kept.set_array(info->array());
  kept.set_array_index(info->array_index());
  kept.mutable_scheduling()->set_class_(info->scheduling().class_());
  if (info->has_gang()) kept.mutable_gang()->set_pods(info->gang().pods());
  *info = std::move(kept);
}

}  // namespace

Role State::RoleOf(const std::string& user) const {
  const SchedulerConfig& config = settings_.scheduler;
  const bool lists = config.admins || config.operators;
  return config.RoleOf(user, !lists && (!settings_.joined || !settings_.joined(user)));
}

Whose State::WhoseIs(const std::string& user, const std::string& owner, const std::string& team) const {
  if (user == owner) return Whose::kOwn;
  // Certificates that were made by hand may have the same name for different people: root@ws1, root@ws2.
  if (Person(user) == Person(owner) && settings_.joined && settings_.joined(user) && settings_.joined(owner)) {
    return Whose::kOwn;
  }
  return settings_.scheduler.InTeam(user, team) ? Whose::kTeam : Whose::kOther;
}

bool State::Shows(const std::string& viewer, const std::string& owner, const std::string& team) const {
  const Visibility policy = settings_.scheduler.visibility;
  if (policy == Visibility::kAll || viewer == owner || viewer.empty()) return true;
  const Whose whose = WhoseIs(viewer, owner, team);
  return whose == Whose::kOwn || (whose == Whose::kTeam && policy == Visibility::kTeam) ||
         RoleOf(viewer) >= Role::kOperator || settings_.scheduler.Leads(viewer, team);
}

bool State::ShowsTeam(const std::string& viewer, const std::string& team) const {
  const SchedulerConfig& config = settings_.scheduler;
  return config.visibility == Visibility::kAll || viewer.empty() || RoleOf(viewer) >= Role::kOperator ||
         config.InTeam(viewer, team);
}

bool State::ShowsCommand(const std::string& viewer, const JobRow& job) const {
  if (viewer == job.user) return true;
  const Visibility policy = settings_.scheduler.commands;
  if (policy == Visibility::kAll && Shows(viewer, job)) return true;
  const Whose whose = WhoseIs(viewer, job.user, job.scheduling.team());
  return whose == Whose::kOwn || (whose == Whose::kTeam && policy == Visibility::kTeam && Shows(viewer, job)) ||
         RoleOf(viewer) == Role::kAdmin;
}

Status State::MayTouch(std::string_view call, const std::string& user, const JobRow& job) const {
  const Whose whose = WhoseIs(user, job.user, job.scheduling.team());
  const std::string name = (job.elements != 0 ? "array " : "job ") + std::to_string(job.id);
  const CallRule* rule = FindCallRule(call);
  if (rule != nullptr && rule->shown && !Shows(user, job)) {
    return Error(Code::kDenied, name + ": it is not yours, and this cluster does not show others' jobs");
  }
  Role role = whose == Whose::kOwn ? Role::kUser : RoleOf(user);
  // Who leads some team leads nothing of the others.
  if (role == Role::kLead && !settings_.scheduler.Leads(user, job.scheduling.team())) role = Role::kUser;
  return control::MayTouch(call, role, whose, name);
}

void State::Show(const std::string& viewer, const JobRow& job, v1::JobInfo* info) const {
  if (!Shows(viewer, job)) Redact(info);
}

v1::WhoAmIReply State::Describe(const std::string& user) const {
  const SchedulerConfig& config = settings_.scheduler;
  v1::WhoAmIReply reply;
  reply.set_name(user);
  reply.set_role(std::string(RoleName(RoleOf(user))));
  for (const std::string& team : config.TeamsOf(user)) reply.add_teams(team);
  for (const std::string& team : config.LedBy(user)) reply.add_leads(team);
  reply.set_visibility(std::string(VisibilityName(config.visibility)));
  reply.set_commands(std::string(VisibilityName(config.commands)));
  reply.set_max_class(std::string(JobClassName(config.MaxClass(""))));
  const auto taken = taken_.find(Person(user));
  if (taken != taken_.end()) reply.set_jobs(taken->second.jobs);
  reply.set_most_jobs(config.bounds.jobs);
  return reply;
}

Status State::CheckBounds(const std::string& user, uint64_t more_bytes) const {
  const Bounds& bounds = settings_.scheduler.bounds;
  const auto found = taken_.find(Person(user));
  const Taken taken = found == taken_.end() ? Taken() : found->second;
  const std::string who = "user " + Escape(Person(user)) + ": ";
  if (bounds.jobs != 0 && taken.jobs >= bounds.jobs) {
    return Error(Code::kExhausted, who + std::to_string(taken.jobs) +
                                       " jobs wait or run, which is the limit of each user: wait until some end, or "
                                       "submit an array");
  }
  if (bounds.request_bytes != 0 && taken.bytes + more_bytes > bounds.request_bytes) {
    return Error(Code::kExhausted, who + "commands and environments of all jobs that have not ended may have " +
                                       std::to_string(bounds.request_bytes >> 20) +
                                       " MiB together: wait until some end, or pass large values in files");
  }
  return {};
}

void State::Count(const JobRow& job, bool there) {
  const auto it = taken_.try_emplace(Person(job.user)).first;
  Taken& taken = it->second;
  if (there) {
    ++taken.jobs;
    taken.bytes += job.spec_bytes;
    return;
  }
  taken.jobs -= std::min<uint64_t>(taken.jobs, 1);
  taken.bytes -= std::min(taken.bytes, job.spec_bytes);
  if (taken.jobs == 0) taken_.erase(it);
}

}  // namespace vrun::control
