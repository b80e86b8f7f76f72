// SPDX-License-Identifier: Apache-2.0
#include "control/state.h"

#include <sys/random.h>

#include <algorithm>

#include "base/escape.h"
#include "base/log.h"

namespace vrun::control {
namespace {

constexpr uint32_t kGraceMillis = 10'000;

Result<std::string> NewToken() {
  std::string token(16, '\0');
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) return ErrnoError("random token");
  return token;
}

// The exit record decides; a word without a record is no proof of success.
v1::JobState EndOf(const v1::AttemptReport& report, std::string* reason) {
  switch (report.exit().kind()) {
    case v1::ExitRecord::EXITED: return report.exit().exit_code() == 0 ? v1::COMPLETED : v1::FAILED;
    case v1::ExitRecord::SIGNALED:
    case v1::ExitRecord::NOT_FOUND:
    case v1::ExitRecord::NOT_EXECUTABLE:
    case v1::ExitRecord::START_FAILED: return v1::FAILED;
    case v1::ExitRecord::TIME_LIMIT: return v1::TIMEOUT;
    case v1::ExitRecord::OUT_OF_MEMORY_KILL: return v1::OUT_OF_MEMORY;
    case v1::ExitRecord::CANCELLED_BY_USER: return v1::CANCELLED;
    default: break;
  }
  *reason = "the node reported the end without an exit record";
  return report.state() == v1::CANCELLED ? v1::CANCELLED : v1::FAILED;
}

// From its placement until its command is over: its writes may go home long after that.
bool HoldsResources(const JobRow& job) {
  return job.state != v1::PENDING && job.state != v1::COMPLETING && job.exit.empty() && !IsEnd(job.state);
}

bool HasRecord(const v1::AttemptReport& report) {
  return report.has_exit() && report.exit().kind() != v1::ExitRecord::KIND_UNSPECIFIED;
}

}  // namespace

sched::Resources ToSched(const v1::Resources& r) {
  // Sums over all jobs of a node stay far from overflow.
  constexpr uint64_t kMost = uint64_t{1} << 50;
  return {static_cast<int64_t>(r.milli_cpus()), static_cast<int64_t>(std::min(r.memory_bytes(), kMost)),
          static_cast<int64_t>(r.gpus()), r.gpu_type()};
}

v1::Resources ToProto(const sched::Resources& r) {
  v1::Resources out;
  out.set_milli_cpus(static_cast<uint32_t>(std::clamp<int64_t>(r.milli_cpus, 0, UINT32_MAX)));
  out.set_memory_bytes(static_cast<uint64_t>(std::max<int64_t>(r.memory_bytes, 0)));
  out.set_gpus(static_cast<uint32_t>(std::clamp<int64_t>(r.gpus, 0, UINT32_MAX)));
  out.set_gpu_type(r.gpu_type);
  return out;
}

Status State::Load() {
  VRUN_ASSIGN(std::vector<JobRow> jobs, store_->UnfinishedJobs());
  VRUN_ASSIGN(std::vector<NodeRow> nodes, store_->Nodes());
  VRUN_ASSIGN(uint64_t epoch, store_->LastEpoch());
  std::map<std::string, Node> before = std::exchange(nodes_, {});
  jobs_.clear();
  outbox_ = {};
  scheduler_ = {};
  epoch_ = epoch;
  std::vector<sched::Event> events;
  for (NodeRow& row : nodes) {
    Node node{std::move(row), false, clock_->Monotonic()};
    if (auto it = before.find(node.row.name); it != before.end()) {
      node.connected = it->second.connected;
      node.last_heard = it->second.last_heard;
    }
    v1::Resources total;
    if (!total.ParseFromString(node.row.total)) LogError("node {}: its resources do not parse", Escape(node.row.name));
    events.push_back(sched::NodeUp{node.row.name, node.row.pool, ToSched(total)});
    if (!node.connected) events.push_back(sched::NodeLost{node.row.name});
    if (node.row.draining) events.push_back(sched::NodeDrained{node.row.name});
    nodes_[node.row.name] = std::move(node);
  }
  for (JobRow& job : jobs) {
    if (job.state == v1::PENDING) {
      events.push_back(sched::JobSubmitted{job.id, job.pool, job.needs});
    } else if (HoldsResources(job)) {
      events.push_back(sched::JobStarted{job.id, job.node, job.needs});
    }
    jobs_[job.id] = std::move(job);
  }
  // What was running comes first, so that nothing is placed on its room.
  std::stable_partition(events.begin(), events.end(),
                        [](const sched::Event& e) { return std::holds_alternative<sched::JobStarted>(e); });
  return Schedule(std::move(events));
}

bool State::KnowsPool(const std::string& pool) const {
  std::vector<std::string> pools = Pools();
  return std::find(pools.begin(), pools.end(), pool) != pools.end();
}

std::vector<std::string> State::Pools() const {
  std::set<std::string> pools(settings_.pools.begin(), settings_.pools.end());
  for (const auto& [name, node] : nodes_) pools.insert(node.row.pool);
  return {pools.begin(), pools.end()};
}

Result<uint64_t> State::Add(JobRow job) {
  VRUN_ASSIGN(job.id, store_->InsertJob(job));
  uint64_t id = job.id;
  sched::JobSubmitted event{id, job.pool, job.needs};
  jobs_[id] = std::move(job);
  VRUN_TRY(Schedule({event}));
  jobs_[id].spec.clear();  // it was only needed to start it at once; jobs that wait may be many
  return id;
}

Status State::Schedule(std::vector<sched::Event> events) {
  for (const sched::Event& e : events) {
    if (const auto* submitted = std::get_if<sched::JobSubmitted>(&e)) outbox_.pools.insert(submitted->pool);
    if (const auto* up = std::get_if<sched::NodeUp>(&e)) outbox_.pools.insert(up->pool);
  }
  for (const sched::Action& action : sched::Step(scheduler_, events, clock_->Monotonic())) {
    VRUN_TRY(Place(std::get<sched::Place>(action)));
  }
  return {};
}

Status State::Place(const sched::Place& place) {
  JobRow& job = jobs_.at(place.job);
  VRUN_ASSIGN(job.token, NewToken());
  job.state = v1::STARTING;
  job.attempt += 1;
  job.epoch = ++epoch_;
  job.node = place.node;
  job.reason.clear();
  VRUN_TRY(Save(job));
  VRUN_TRY(store_->PutAttempt({job.id, job.attempt, job.epoch, job.node, v1::STARTING, clock_->Wall(), 0, ""}));
  outbox_.pools.insert(job.pool);
  return SendStart(job);
}

Status State::Save(const JobRow& job) {
  outbox_.jobs.insert(job.id);
  return store_->UpdateJob(job);
}

Status State::Cancel(uint64_t id, int32_t signal) {
  JobRow& job = jobs_.at(id);
  if (job.state == v1::PENDING) return End(id, v1::CANCELLED, "", "cancelled while it waited");
  if (!job.cancelled || job.cancel_signal != signal) {
    job.cancelled = true;
    job.cancel_signal = signal;
    VRUN_TRY(Save(job));
  }
  SendStop(job.node, job.id, job.attempt, signal, true);
  return {};
}

Status State::End(uint64_t id, v1::JobState state, const std::string& exit, const std::string& reason) {
  auto node = jobs_.extract(id);
  JobRow& job = node.mapped();
  const bool was_pending = job.state == v1::PENDING;
  job.state = state;
  job.ended_us = clock_->Wall();
  if (!exit.empty()) job.exit = exit;
  job.reason = reason;
  VRUN_TRY(Save(job));
  if (job.attempt > 0) {
    VRUN_TRY(store_->PutAttempt({job.id, job.attempt, job.epoch, job.node, state, 0, job.ended_us, job.exit}));
  }
  outbox_.pools.insert(job.pool);
  LogInfo("job {} of {} ended: {}{}{}", job.id, Escape(job.user), v1::JobState_Name(state), reason.empty() ? "" : ": ",
          Escape(reason));
  if (was_pending) return Schedule({sched::JobCancelled{id}});
  return Schedule({sched::JobEnded{id}});
}

Status State::Apply(const std::string& node, const v1::AttemptReport& report) {
  v1::ControllerMessage ack;
  ack.mutable_report_ack()->set_job(report.job());
  ack.mutable_report_ack()->set_attempt(report.attempt());
  ack.mutable_report_ack()->set_state(report.state());
  outbox_.to_nodes.emplace_back(node, std::move(ack));

  auto it = jobs_.find(report.job());
  if (it == jobs_.end() || it->second.node != node || it->second.attempt != report.attempt() ||
      it->second.epoch != report.epoch()) {
    // Over, or somebody else's, in our books: whatever still runs there must not.
    if (!IsEnd(report.state())) SendStop(node, report.job(), report.attempt(), 0, false);
    return {};
  }
  JobRow& job = it->second;
  const std::string exit = HasRecord(report) ? report.exit().SerializeAsString() : "";
  if (report.exit().started_us() > 0) job.started_us = report.exit().started_us();
  if (IsEnd(report.state())) {
    std::string reason = report.exit().reason();
    v1::JobState end = EndOf(report, &reason);
    return End(job.id, end, exit, reason);
  }
  // A lost job is whatever its node says once it is back; otherwise a job only moves forward.
  if (job.state != v1::LOST && report.state() <= job.state) return {};
  switch (report.state()) {
    case v1::STARTING: break;
    case v1::RUNNING:
      if (job.started_us == 0) job.started_us = clock_->Wall();
      break;
    case v1::COMPLETING:
      if (!exit.empty()) job.exit = exit;
      break;
    default: return {};
  }
  job.state = report.state();
  job.reason.clear();
  VRUN_TRY(Save(job));
  VRUN_TRY(store_->PutAttempt({job.id, job.attempt, job.epoch, job.node, job.state, 0, 0, job.exit}));
  if (HoldsResources(job)) return {};
  return Schedule({sched::JobEnded{job.id}});
}

Status State::PutNode(const NodeRow& row) {
  Node& node = nodes_[row.name];
  node.row = row;
  VRUN_TRY(store_->PutNode(row));
  v1::Resources total;
  (void)total.ParseFromString(row.total);
  std::vector<sched::Event> events{sched::NodeUp{row.name, row.pool, ToSched(total)}};
  if (row.draining) events.push_back(sched::NodeDrained{row.name});
  return Schedule(std::move(events));
}

Status State::LoseNode(const std::string& name, const std::string& reason) {
  Node& node = nodes_.at(name);
  node.row.lost = true;
  node.connected = false;
  outbox_.pools.insert(node.row.pool);
  VRUN_TRY(store_->PutNode(node.row));
  for (uint64_t id : JobsOn(name)) {
    JobRow& job = jobs_.at(id);
    if (job.state == v1::LOST) continue;
    job.state = v1::LOST;
    job.reason = reason;
    VRUN_TRY(Save(job));
    VRUN_TRY(store_->PutAttempt({job.id, job.attempt, job.epoch, job.node, job.state, 0, 0, job.exit}));
  }
  return Schedule({sched::NodeLost{name}});
}

void State::Disconnected(const std::string& name) {
  auto it = nodes_.find(name);
  if (it == nodes_.end()) return;
  it->second.connected = false;
  outbox_.pools.insert(it->second.row.pool);
  const sched::Event event = sched::NodeLost{name};
  (void)sched::Step(scheduler_, {&event, 1}, clock_->Monotonic());  // takes room away, so it places nothing
}

std::vector<uint64_t> State::JobsOn(const std::string& node) const {
  std::vector<uint64_t> ids;
  for (const auto& [id, job] : jobs_) {
    if (job.state != v1::PENDING && job.node == node) ids.push_back(id);
  }
  return ids;
}

Status State::SendStart(const JobRow& job) {
  std::string spec = job.spec;
  if (spec.empty()) {
    VRUN_ASSIGN(std::optional<JobRow> row, store_->GetJob(job.id));
    if (row) spec = std::move(row->spec);
  }
  v1::SubmitRequest request;
  if (spec.empty() || !request.ParseFromString(spec)) {
    return Error(Code::kCorrupt, "job " + std::to_string(job.id) + ": its record does not parse");
  }
  v1::ControllerMessage message;
  v1::StartAttempt* start = message.mutable_start();
  *start->mutable_placement() = PlacementOf(job);
  *start->mutable_command() = std::move(*request.mutable_command());
  *start->mutable_resources() = request.resources();
  start->set_time_limit_s(request.time_limit_s());
  start->set_home_id(job.home_id);
  start->set_user(job.user);
  start->set_discard_writes(request.discard_writes());
  start->set_content_home_id(request.snapshot().content_home_id());
  outbox_.to_nodes.emplace_back(job.node, std::move(message));
  return {};
}

void State::SendStop(const std::string& node, uint64_t job, uint32_t attempt, int32_t signal, bool by_user) {
  v1::ControllerMessage message;
  v1::StopAttempt* stop = message.mutable_stop();
  stop->set_job(job);
  stop->set_attempt(attempt);
  stop->set_signal(signal);
  stop->set_grace_ms(kGraceMillis);
  stop->set_by_user(by_user);
  outbox_.to_nodes.emplace_back(node, std::move(message));
}

v1::Placement State::PlacementOf(const JobRow& job) const {
  v1::Placement placement;
  placement.set_job(job.id);
  placement.set_attempt(job.attempt);
  placement.set_epoch(job.epoch);
  placement.set_node(job.node);
  placement.set_token(job.token);
  if (auto it = nodes_.find(job.node); it != nodes_.end()) {
    for (const std::string& a : it->second.row.addresses) placement.add_addresses(a);
  }
  return placement;
}

Result<JobRow> State::Find(uint64_t id) {
  if (auto it = jobs_.find(id); it != jobs_.end()) return it->second;
  VRUN_ASSIGN(std::optional<JobRow> row, store_->GetJob(id));
  if (!row) return Error(Code::kNotFound, "job " + std::to_string(id) + ": no such job");
  return *std::move(row);
}

Result<v1::JobEvent> State::EventOf(uint64_t id, const std::string& viewer) {
  VRUN_ASSIGN(JobRow job, Find(id));
  v1::JobEvent event;
  event.set_state(job.state);
  event.set_reason(job.reason);
  if (job.state == v1::STARTING || job.state == v1::RUNNING || job.state == v1::COMPLETING) {
    if (job.user == viewer) *event.mutable_placement() = PlacementOf(job);
  }
  if (!job.exit.empty()) (void)event.mutable_exit()->ParseFromString(job.exit);
  if (auto waiting = sched::Explain(scheduler_, id)) {
    event.set_reason(waiting->reason);
    event.set_queue_position(waiting->position);
  }
  return event;
}

v1::JobInfo State::InfoOf(const JobRow& job, const std::string& viewer, size_t max_argv_bytes) const {
  v1::JobInfo info;
  info.set_job(job.id);
  info.set_name(job.name);
  info.set_pool(job.pool);
  info.set_user(job.user);
  info.set_state(job.state);
  info.set_node(job.node);
  info.set_attempt(job.attempt);
  info.set_submitted_us(job.submitted_us);
  info.set_started_us(job.started_us);
  info.set_ended_us(job.ended_us);
  *info.mutable_resources() = ToProto(job.needs);
  info.set_reason(job.reason);
  if (!job.exit.empty()) (void)info.mutable_exit()->ParseFromString(job.exit);
  if (auto waiting = sched::Explain(scheduler_, job.id)) info.set_reason(waiting->reason);
  // What somebody runs, and where, is nobody else's business.
  v1::SubmitRequest request;
  if (job.user == viewer && request.ParseFromString(job.spec)) {
    info.set_directory(request.command().directory());
    info.set_snapshot(request.snapshot().name());
    size_t room = max_argv_bytes;
    for (const std::string& word : request.command().argv()) {
      if (word.size() > room) break;
      room -= word.size();
      info.add_argv(word);
    }
  }
  return info;
}

}  // namespace vrun::control
