// SPDX-License-Identifier: Apache-2.0
#include "control/journal/journal.h"

#include <optional>

#include "base/hash/digest.h"

namespace vrun::control {
namespace {

namespace core = sched::core;
using Body = v1::JournalEvent;

static_assert(std::variant_size_v<core::Event> == 14, "a new event belongs into proto/journal.proto");
static_assert(std::variant_size_v<core::Action> == 6, "a new action belongs into DigestOf");

void Encode(const core::NodeUp& e, Body* out) {
  Body::NodeUp* n = out->mutable_node_up();
  n->set_name(e.node.name);
  n->set_pool(e.node.pool);
  n->set_gpu_type(e.node.gpu_type);
  n->set_gpus(e.node.gpus);
  n->set_milli_cpus(e.node.milli_cpus);
  n->set_memory_bytes(e.node.memory_bytes);
  n->set_nics(e.node.nics);
  n->set_price_milli(e.node.price_milli);
  n->set_island(e.node.island);
  n->set_rack(e.node.rack);
  n->set_block(e.node.block);
  n->set_zone(e.node.zone);
  for (const uint32_t group : e.node.gpu_groups) n->add_gpu_groups(group);
  n->set_mig_model(e.node.mig_model);
  for (const std::string& label : e.node.labels) n->add_labels(label);
  for (const std::string& taint : e.node.taints) n->add_taints(taint);
  n->set_bad_gpus(e.node.bad_gpus);
  n->set_suspect(e.node.suspect);
  n->set_mig_gpus(e.node.mig_gpus);
  n->set_no_mps(e.node.no_mps);
  n->set_gpu_memory(e.node.gpu_memory);
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
  t->set_budget_gpu_s(e.team.budget.gpu_seconds);
  t->set_budget_period_us(e.team.budget.period);
  t->set_budget_burst(e.team.budget.burst);
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
    role->set_nics(r.request.nics);
    role->set_distinct(r.request.distinct);
    role->set_gpu_milli(r.request.gpu_milli);
    role->set_sharing(static_cast<int32_t>(r.request.sharing));
    role->set_mig(r.request.mig);
    role->set_sharers(r.request.sharers);
    role->set_gpu_memory(r.request.gpu_memory);
    role->set_min_pods(r.min_pods);
    role->set_segment(r.segment);
    role->set_segment_level(static_cast<int32_t>(r.segment_level));
    role->set_spread(r.spread);
  }
  for (const std::string& type : job.gpu_types) j->add_gpu_types(type);
  j->set_submitted_us(job.submitted);
  j->set_estimate_us(job.estimate);
  j->set_on_demand(job.checkpoint.on_demand);
  j->set_save_us(job.checkpoint.save);
  j->set_restore_us(job.checkpoint.restore);
  j->set_save_period_us(job.checkpoint.period);
  j->set_resize_us(job.checkpoint.resize);
  for (const std::string& label : job.labels) j->add_labels(label);
  for (const std::string& taint : job.tolerations) j->add_tolerations(taint);
  for (const std::string& node : job.nodes) j->add_nodes(node);
  for (const std::string& node : job.excluded) j->add_excluded(node);
  j->set_required(static_cast<int32_t>(job.required));
  j->set_preferred(static_cast<int32_t>(job.preferred));
  j->set_begin_after_us(job.begin_after);
  j->set_deadline_us(job.deadline);
  j->set_hard_deadline(job.hard_deadline);
  for (const core::DeadlineStep& s : job.deadline_steps) {
    auto* step = j->add_deadline_steps();
    step->set_at_us(s.at);
    step->set_value(s.value);
  }
  j->set_limit_us(job.limit);
  j->set_notice_us(job.notice);
  j->set_may_meet_maintenance(job.may_meet_maintenance);
  for (const core::JobId id : job.after) j->add_after(id);
  for (const core::JobId id : job.after_ok) j->add_after_ok(id);
}
void Encode(const core::PodPlace& p, Body::JobStarted::Pod* pod) {
  pod->set_role(p.role);
  pod->set_node(p.node);
  pod->set_gpus(p.gpu_mask);
  pod->set_mig_start(p.mig_start);
  pod->set_gpu_milli(p.gpu_milli);
  pod->set_mig(p.mig);
}
void Encode(const core::JobStarted& e, Body* out) {
  Body::JobStarted* j = out->mutable_started();
  j->set_job(e.job);
  j->set_since_us(e.since);
  for (const core::PodPlace& p : e.pods) Encode(p, j->add_pods());
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
  out->mutable_ended()->set_succeeded(e.succeeded);
}
void Encode(const core::Tick&, Body* out) { out->set_tick(true); }
void Encode(const core::JobResized& e, Body* out) { out->set_resized(e.job); }
void Encode(const core::PodsGone& e, Body* out) {
  out->mutable_pods_gone()->set_job(e.job);
  for (const core::PodPlace& p : e.pods) Encode(p, out->mutable_pods_gone()->add_pods());
}
void Encode(const core::MaintenanceSet& e, Body* out) {
  Body::Maintenance* m = out->mutable_maintenance_set();
  m->set_name(e.window.name);
  for (const std::string& node : e.window.nodes) m->add_nodes(node);
  m->set_from_us(e.window.from);
  m->set_until_us(e.window.until);
}
void Encode(const core::MaintenanceOver& e, Body* out) { out->set_maintenance_over(e.name); }

core::NodeUp Decode(const Body::NodeUp& n) {
  core::NodeUp e;
  e.node.name = n.name();
  e.node.pool = n.pool();
  e.node.gpu_type = n.gpu_type();
  e.node.gpus = n.gpus();
  e.node.milli_cpus = n.milli_cpus();
  e.node.memory_bytes = n.memory_bytes();
  e.node.nics = n.nics();
  e.node.price_milli = n.price_milli();
  e.node.island = n.island();
  e.node.rack = n.rack();
  e.node.block = n.block();
  e.node.zone = n.zone();
  e.node.gpu_groups.assign(n.gpu_groups().begin(), n.gpu_groups().end());
  e.node.mig_model = n.mig_model();
  e.node.labels.assign(n.labels().begin(), n.labels().end());
  e.node.taints.assign(n.taints().begin(), n.taints().end());
  e.node.bad_gpus = n.bad_gpus();
  e.node.suspect = n.suspect();
  e.node.mig_gpus = n.mig_gpus();
  e.node.no_mps = n.no_mps();
  e.node.gpu_memory = n.gpu_memory();
  return e;
}
core::TeamSet Decode(const Body::TeamSet& t) {
  core::TeamSet e{{t.name(), t.parent(), t.weight(), {}, {}}};
  e.team.budget = {t.budget_gpu_s(), t.budget_period_us(), t.budget_burst()};
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
    core::Role role;
    role.name = r.name();
    role.pods = r.pods();
    role.request = {.gpus = r.gpus(),
                    .gpu_milli = r.gpu_milli(),
                    .milli_cpus = r.milli_cpus(),
                    .memory_bytes = r.memory_bytes(),
                    .sharing = static_cast<core::Sharing>(r.sharing()),
                    .mig = static_cast<core::mig::Profile>(r.mig()),
                    .nics = r.nics(),
                    .distinct = r.distinct(),
                    .sharers = r.sharers(),
                    .gpu_memory = r.gpu_memory()};
    role.min_pods = r.min_pods();
    role.segment = r.segment();
    role.segment_level = static_cast<core::Level>(r.segment_level());
    role.spread = r.spread();
    job.roles.push_back(std::move(role));
  }
  job.gpu_types.assign(j.gpu_types().begin(), j.gpu_types().end());
  job.submitted = j.submitted_us();
  job.estimate = j.estimate_us();
  job.checkpoint.on_demand = j.on_demand();
  job.checkpoint.save = j.save_us();
  job.checkpoint.restore = j.restore_us();
  job.checkpoint.period = j.save_period_us();
  job.checkpoint.resize = j.resize_us();
  job.labels.assign(j.labels().begin(), j.labels().end());
  job.tolerations.assign(j.tolerations().begin(), j.tolerations().end());
  job.nodes.assign(j.nodes().begin(), j.nodes().end());
  job.excluded.assign(j.excluded().begin(), j.excluded().end());
  job.required = static_cast<core::Level>(j.required());
  job.preferred = static_cast<core::Level>(j.preferred());
  job.begin_after = j.begin_after_us();
  job.deadline = j.deadline_us();
  job.hard_deadline = j.hard_deadline();
  for (const auto& step : j.deadline_steps()) job.deadline_steps.push_back({step.at_us(), step.value()});
  job.limit = j.limit_us();
  job.notice = j.notice_us();
  job.may_meet_maintenance = j.may_meet_maintenance();
  job.after.assign(j.after().begin(), j.after().end());
  job.after_ok.assign(j.after_ok().begin(), j.after_ok().end());
  return e;
}
core::PodPlace Decode(const Body::JobStarted::Pod& p) {
  return {p.role(),      p.node(),
          p.gpus(),      static_cast<int8_t>(p.mig_start()),
          p.gpu_milli(), static_cast<core::mig::Profile>(p.mig())};
}
core::JobStarted Decode(const Body::JobStarted& j) {
  core::JobStarted e{j.job(), {}, j.since_us()};
  for (const auto& p : j.pods()) e.pods.push_back(Decode(p));
  return e;
}
core::PodsGone Decode(const Body::PodsGone& j) {
  core::PodsGone e{j.job(), {}};
  for (const auto& p : j.pods()) e.pods.push_back(Decode(p));
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
    case Body::kEnded: return core::JobEnded{in.ended().job(), in.ended().completed(), in.ended().succeeded()};
    case Body::kTick: return core::Tick{};
    case Body::kResized: return core::JobResized{in.resized()};
    case Body::kPodsGone: return Decode(in.pods_gone());
    case Body::kMaintenanceSet: {
      const auto& m = in.maintenance_set();
      return core::MaintenanceSet{{m.name(), {m.nodes().begin(), m.nodes().end()}, m.from_us(), m.until_us()}};
    }
    case Body::kMaintenanceOver: return core::MaintenanceOver{in.maintenance_over()};
    case Body::BODY_NOT_SET: break;
  }
  return std::nullopt;
}

// Writes every field of every action as text. Different actions give different texts.
void Write(std::initializer_list<int64_t> numbers, std::string* out) {
  for (const int64_t n : numbers) *out += " " + std::to_string(n);
}
void Write(const std::vector<core::PodPlace>& pods, std::string* out) {
  for (const core::PodPlace& p : pods) {
    *out += "|" + std::to_string(p.role) + ":" + std::to_string(p.gpu_mask) + ":" + std::to_string(p.mig_start) + ":" +
            p.node;
    // Only where there is one: older journals have no parts.
    if (p.gpu_milli != 0 || p.mig != 0) *out += ":" + std::to_string(p.gpu_milli) + ":" + std::to_string(p.mig);
  }
}
void Write(const core::Terms& t, std::string* out) {
  Write({t.gain, t.price, t.wait_without, t.remaining, t.lost}, out);
}
void Write(const core::Place& a, std::string* out) {
  *out += "place " + std::to_string(a.job) + " " + a.gpu_type;
  Write(a.pods, out);
}
void Write(const core::Preempt& a, std::string* out) {
  *out += "preempt";
  Write({static_cast<int64_t>(a.job), static_cast<int64_t>(a.beneficiary), static_cast<int64_t>(a.mode),
         static_cast<int64_t>(a.reason)},
        out);
  Write(a.terms, out);
}
void Write(const core::Resize& a, std::string* out) {
  *out += "resize";
  Write({static_cast<int64_t>(a.job), a.grow, static_cast<int64_t>(a.beneficiary)}, out);
  Write(a.terms, out);
  Write(a.pods, out);
}
void Write(const core::Admission& a, std::string* out) {
  *out += "admission";
  Write({static_cast<int64_t>(a.job), a.met, a.start, a.end}, out);
}
void Write(const core::Doomed& a, std::string* out) {
  *out += "doomed";
  Write({static_cast<int64_t>(a.job), static_cast<int64_t>(a.dependency)}, out);
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
    if (!event) return Error(Code::kCorrupt, "scheduler's journal: unknown event: another version wrote it");
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
