// SPDX-License-Identifier: Apache-2.0
#include "control/journal.h"

#include <optional>

#include "base/digest.h"

namespace vrun::control {
namespace {

namespace core = sched::core;
using Body = v1::JournalEvent;

static_assert(std::variant_size_v<core::Event> == 10, "a new event belongs into proto/journal.proto");
static_assert(std::variant_size_v<core::Action> == 3, "a new action belongs into DigestOf");

void Encode(const core::NodeUp& e, Body* out) {
  Body::NodeUp* n = out->mutable_node_up();
  n->set_name(e.node.name);
  n->set_pool(e.node.pool);
  n->set_gpu_type(e.node.gpu_type);
  n->set_gpus(e.node.gpus);
  n->set_milli_cpus(e.node.milli_cpus);
  n->set_memory_bytes(e.node.memory_bytes);
  n->set_price_milli(e.node.price_milli);
}
void Encode(const core::NodeLost& e, Body* out) { out->set_node_lost(e.name); }
void Encode(const core::NodeDrained& e, Body* out) { out->set_node_drained(e.name); }
void Encode(const core::TeamSet& e, Body* out) {
  Body::TeamSet* t = out->mutable_team_set();
  t->set_name(e.team.name);
  t->set_parent(e.team.parent);
  t->set_weight(e.team.weight);
  for (const core::Quota& q : e.team.quotas) {
    auto* quota = t->add_quotas();
    quota->set_gpu_type(q.gpu_type);
    quota->set_guarantee(q.guarantee);
    quota->set_limit(q.limit);
  }
}
void Encode(const core::JobSubmitted& e, Body* out) {
  const core::JobSpec& job = e.job;
  Body::JobSubmitted* j = out->mutable_submitted();
  j->set_job(job.id);
  j->set_pool(job.pool);
  j->set_team(job.team);
  j->set_user(job.user);
  j->set_name(job.name);
  j->set_klass(static_cast<int32_t>(job.klass));
  j->set_preemptible(job.preemptible);
  for (const core::Role& r : job.roles) {
    auto* role = j->add_roles();
    role->set_name(r.name);
    role->set_pods(r.pods);
    role->set_gpus(r.request.gpus);
    role->set_milli_cpus(r.request.milli_cpus);
    role->set_memory_bytes(r.request.memory_bytes);
  }
  for (const std::string& type : job.gpu_types) j->add_gpu_types(type);
  j->set_submitted_us(job.submitted);
  j->set_estimate_us(job.estimate);
  j->set_on_demand(job.checkpoint.on_demand);
  j->set_save_us(job.checkpoint.save);
  j->set_restore_us(job.checkpoint.restore);
}
void Encode(const core::JobStarted& e, Body* out) {
  Body::JobStarted* j = out->mutable_started();
  j->set_job(e.job);
  j->set_since_us(e.since);
  for (const core::PodPlace& p : e.pods) {
    auto* pod = j->add_pods();
    pod->set_role(p.role);
    pod->set_node(p.node);
    pod->set_gpus(p.gpus);
  }
}
void Encode(const core::JobSaved& e, Body* out) {
  out->mutable_saved()->set_job(e.job);
  out->mutable_saved()->set_at_us(e.at);
  out->mutable_saved()->set_took_us(e.took);
}
void Encode(const core::JobStopped& e, Body* out) {
  out->mutable_stopped()->set_job(e.job);
  out->mutable_stopped()->set_lost_us(e.lost);
}
void Encode(const core::JobEnded& e, Body* out) {
  out->mutable_ended()->set_job(e.job);
  out->mutable_ended()->set_completed(e.completed);
}
void Encode(const core::Tick&, Body* out) { out->set_tick(true); }

core::NodeUp Decode(const Body::NodeUp& n) {
  core::NodeUp e;
  e.node.name = n.name();
  e.node.pool = n.pool();
  e.node.gpu_type = n.gpu_type();
  e.node.gpus = n.gpus();
  e.node.milli_cpus = n.milli_cpus();
  e.node.memory_bytes = n.memory_bytes();
  e.node.price_milli = n.price_milli();
  return e;
}
core::TeamSet Decode(const Body::TeamSet& t) {
  core::TeamSet e{{t.name(), t.parent(), t.weight(), {}}};
  for (const auto& q : t.quotas()) e.team.quotas.push_back({q.gpu_type(), q.guarantee(), q.limit()});
  return e;
}
core::JobSubmitted Decode(const Body::JobSubmitted& j) {
  core::JobSubmitted e;
  core::JobSpec& job = e.job;
  job.id = j.job();
  job.pool = j.pool();
  job.team = j.team();
  job.user = j.user();
  job.name = j.name();
  job.klass = static_cast<core::Class>(j.klass());
  job.preemptible = j.preemptible();
  for (const auto& r : j.roles()) {
    core::Request request{
        .gpus = r.gpus(), .gpu_milli = 0, .milli_cpus = r.milli_cpus(), .memory_bytes = r.memory_bytes()};
    job.roles.push_back({r.name(), r.pods(), request});
  }
  job.gpu_types.assign(j.gpu_types().begin(), j.gpu_types().end());
  job.submitted = j.submitted_us();
  job.estimate = j.estimate_us();
  job.checkpoint.on_demand = j.on_demand();
  job.checkpoint.save = j.save_us();
  job.checkpoint.restore = j.restore_us();
  return e;
}
core::JobStarted Decode(const Body::JobStarted& j) {
  core::JobStarted e{j.job(), {}, j.since_us()};
  for (const auto& p : j.pods()) e.pods.push_back({p.role(), p.node(), p.gpus()});
  return e;
}

std::optional<core::Event> Decode(const Body& in) {
  switch (in.body_case()) {
    case Body::kNodeUp: return Decode(in.node_up());
    case Body::kNodeLost: return core::NodeLost{in.node_lost()};
    case Body::kNodeDrained: return core::NodeDrained{in.node_drained()};
    case Body::kTeamSet: return Decode(in.team_set());
    case Body::kSubmitted: return Decode(in.submitted());
    case Body::kStarted: return Decode(in.started());
    case Body::kSaved: return core::JobSaved{in.saved().job(), in.saved().at_us(), in.saved().took_us()};
    case Body::kStopped: return core::JobStopped{in.stopped().job(), in.stopped().lost_us()};
    case Body::kEnded: return core::JobEnded{in.ended().job(), in.ended().completed()};
    case Body::kTick: return core::Tick{};
    case Body::BODY_NOT_SET: break;
  }
  return std::nullopt;
}

// Every field of every action, as text in which no two of them look the same.
void Write(const core::Place& a, std::string* out) {
  *out += "place " + std::to_string(a.job) + " " + a.gpu_type;
  for (const core::PodPlace& p : a.pods) {
    *out += "|" + std::to_string(p.role) + ":" + std::to_string(p.gpus) + ":" + p.node;
  }
}
void Write(const core::Preempt& a, std::string* out) {
  *out += "preempt";
  for (int64_t n : {static_cast<int64_t>(a.job), static_cast<int64_t>(a.beneficiary), static_cast<int64_t>(a.mode),
                    static_cast<int64_t>(a.reason), a.terms.gain, a.terms.price, a.terms.wait_without,
                    a.terms.remaining, a.terms.lost}) {
    *out += " " + std::to_string(n);
  }
}
void Write(const core::Hold& a, std::string* out) {
  *out += "hold " + std::to_string(a.job) + " " + std::to_string(a.start);
  for (const std::string& n : a.nodes) *out += "|" + n;
}

}  // namespace

std::string DigestOf(std::span<const core::Action> actions) {
  if (actions.empty()) return "";
  std::string text;
  for (const core::Action& action : actions) {
    std::visit([&](const auto& a) { Write(a, &text); }, action);
    text += '\n';
  }
  return std::string(Sha256(text).view());
}

v1::JournalStep EncodeStep(core::Micros now, std::span<const core::Event> events,
                           std::span<const core::Action> actions) {
  v1::JournalStep step;
  step.set_now_us(now);
  for (const core::Event& event : events) {
    std::visit([&](const auto& e) { Encode(e, step.add_events()); }, event);
  }
  step.set_actions(DigestOf(actions));
  return step;
}

Result<std::vector<core::Event>> DecodeEvents(const v1::JournalStep& step) {
  std::vector<core::Event> events;
  for (const v1::JournalEvent& e : step.events()) {
    std::optional<core::Event> event = Decode(e);
    if (!event) return Error(Code::kCorrupt, "scheduler's journal: an event that this version does not know");
    events.push_back(*std::move(event));
  }
  return events;
}

Status Replay(const v1::JournalSteps& steps, core::State* state) {
  for (const v1::JournalStep& step : steps.steps()) {
    VRUN_ASSIGN(std::vector<core::Event> events, DecodeEvents(step));
    if (DigestOf(core::Step(*state, events, step.now_us())) != step.actions()) {
      return Error(Code::kAborted, "scheduler's journal: this version decides otherwise than the one that wrote it");
    }
  }
  return {};
}

}  // namespace vrun::control
