// SPDX-License-Identifier: Apache-2.0
#include "control/state/state.h"

#include <signal.h>

#include <algorithm>

#include "base/escape.h"
#include "base/log.h"
#include "sched/engine/inspect.h"

namespace vrun::control {
namespace {

namespace core = sched::core;

constexpr uint32_t kDefaultGraceMillis = 30'000;
// Run time to repeat: all of it.
constexpr core::Micros kEverything = 100 * 365 * 24 * core::kHour;

uint32_t GraceMillis(const JobRow& job) {
  const uint32_t seconds = std::min<uint32_t>(job.scheduling.grace_s(), 24 * 3600);
  return seconds == 0 ? kDefaultGraceMillis : seconds * 1000;
}

// Whether its run time predicts that of similar jobs.
bool Teaches(const std::string& exit) {
  v1::ExitRecord record;
  return !exit.empty() && record.ParseFromString(exit) && record.kind() == v1::ExitRecord::EXITED &&
         record.exit_code() == 0;
}

// The exit record decides; a report of success without a record proves nothing.
v1::JobState EndOf(const v1::AttemptReport& report, std::string* reason) {
  switch (report.exit().kind()) {
    case v1::ExitRecord::EXITED: return report.exit().exit_code() == 0 ? v1::COMPLETED : v1::FAILED;
    case v1::ExitRecord::SIGNALED:
    case v1::ExitRecord::NOT_FOUND:
    case v1::ExitRecord::NOT_EXECUTABLE:
    case v1::ExitRecord::START_FAILED: return v1::FAILED;
    case v1::ExitRecord::TIME_LIMIT: return v1::TIMEOUT;
    case v1::ExitRecord::OUT_OF_MEMORY_KILL: return v1::OUT_OF_MEMORY;
    case v1::ExitRecord::PREEMPTED_BY_JOB:  // a preempted job that was cancelled while it left
    case v1::ExitRecord::CANCELLED_BY_USER: return v1::CANCELLED;
    default: break;
  }
  *reason = "the node reported the end without an exit record";
  return report.state() == v1::CANCELLED ? v1::CANCELLED : v1::FAILED;
}

bool HasRecord(const v1::AttemptReport& report) {
  return report.has_exit() && report.exit().kind() != v1::ExitRecord::KIND_UNSPECIFIED;
}

}  // namespace

Needs ToNeeds(const v1::Resources& r) {
  // Keeps sums over all jobs of a node far from overflow.
  constexpr uint64_t kMost = uint64_t{1} << 50;
  return {static_cast<int64_t>(r.milli_cpus()), static_cast<int64_t>(std::min(r.memory_bytes(), kMost)),
          static_cast<int64_t>(r.gpus()), r.gpu_type()};
}

v1::Resources ToProto(const Needs& r) {
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
  epoch_ = epoch;
  for (NodeRow& row : nodes) {
    Node node{std::move(row), false, clock_->Monotonic()};
    if (auto it = before.find(node.row.name); it != before.end()) {
      node.connected = it->second.connected;
      node.last_heard = it->second.last_heard;
    }
    nodes_[node.row.name] = std::move(node);
  }
  dependents_.clear();
  admissions_.clear();
  for (JobRow& job : jobs) Know(std::move(job));
  return LoadScheduler(false);
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
  const uint64_t id = job.id;
  outbox_.pools.insert(job.pool);
  scheduler_.Feed(core::JobSubmitted{SpecOf(job)});
  Know(std::move(job));
  fresh_.push_back(id);
  return id;
}

Status State::Save(const JobRow& job) {
  outbox_.jobs.insert(job.id);
  return store_->UpdateJob(job);
}

Status State::SaveAttempt(const JobRow& job, v1::JobState state, int64_t placed_us, int64_t ended_us,
                          const std::string& reason) {
  return store_->PutAttempt({job.id, job.attempt, job.epoch, job.node, state, placed_us, ended_us, job.exit, reason});
}

Status State::Cancel(uint64_t id, int32_t signal) {
  JobRow& job = jobs_.at(id);
  if (job.state == v1::PENDING || StartHeldBack(job)) return End(id, v1::CANCELLED, "", "cancelled while it waited");
  if (!job.cancelled || job.cancel_signal != signal) {
    job.cancelled = true;
    job.cancel_signal = signal;
    VRUN_TRY(Save(job));
  }
  SendStop(job.node, job.id, job.attempt, signal);
  return {};
}

Status State::End(uint64_t id, v1::JobState state, const std::string& exit, const std::string& reason) {
  auto node = jobs_.extract(id);
  JobRow& job = node.mapped();
  job.state = state;
  job.ended_us = clock_->Wall();
  if (!exit.empty()) job.exit = exit;
  job.reason = reason;
  VRUN_TRY(Save(job));
  if (job.attempt > 0 && !job.node.empty()) VRUN_TRY(SaveAttempt(job, state, 0, job.ended_us, reason));
  outbox_.pools.insert(job.pool);
  LogInfo("job {} of {} ended: {}{}{}", job.id, Escape(job.user), v1::JobState_Name(state), reason.empty() ? "" : ": ",
          Escape(reason));
  const bool good = Teaches(job.exit);
  scheduler_.Feed(core::JobEnded{id, good, good});
  admissions_.erase(id);
  broken_promises_.erase(id);
  return Release(job);
}

void State::Know(JobRow job) {
  const v1::Scheduling& s = job.scheduling;
  for (const auto* list : {&s.after(), &s.after_ok()}) {
    for (const uint64_t other : *list) dependents_.emplace(other, job.id);
  }
  jobs_[job.id] = std::move(job);
}

uint64_t State::AwaitedBy(const JobRow& job) const {
  // The scheduler places a job only after the commands of these have ended.
  for (const auto* list : {&job.scheduling.after(), &job.scheduling.after_ok()}) {
    for (const uint64_t other : *list) {
      if (jobs_.contains(other)) return other;
    }
  }
  return 0;
}

bool State::StartHeldBack(const JobRow& job) const {
  return job.state == v1::STARTING && (job.leaving.attempt != 0 || AwaitedBy(job) != 0);
}

Status State::Release(const JobRow& ended) {
  std::vector<uint64_t> ids;
  for (auto [it, end] = dependents_.equal_range(ended.id); it != end; ++it) ids.push_back(it->second);
  dependents_.erase(ended.id);
  for (const uint64_t id : ids) {
    const auto it = jobs_.find(id);
    if (it == jobs_.end() || it->second.state != v1::STARTING) continue;
    const auto& must = it->second.scheduling.after_ok();
    if (ended.state != v1::COMPLETED && std::find(must.begin(), must.end(), ended.id) != must.end()) {
      VRUN_TRY(Carry(core::Doomed{id, ended.id}));  // its command had succeeded, but some of its writes were lost
    } else if (!StartHeldBack(it->second)) {
      outbox_.jobs.insert(id);  // its home may connect now
      VRUN_TRY(SendStart(it->second));
    }
  }
  return {};
}

Status State::Apply(const std::string& node, const v1::AttemptReport& report) {
  v1::ControllerMessage ack;
  ack.mutable_report_ack()->set_job(report.job());
  ack.mutable_report_ack()->set_attempt(report.attempt());
  ack.mutable_report_ack()->set_state(report.state());
  outbox_.to_nodes.emplace_back(node, std::move(ack));

  auto it = jobs_.find(report.job());
  const bool over = IsEnd(report.state()) || report.state() == v1::PREEMPTED;
  if (it != jobs_.end() && it->second.leaving.attempt == report.attempt() &&
      it->second.leaving.epoch == report.epoch() && it->second.leaving.node == node) {
    return over ? Left(report.job()) : Status();
  }
  if (it == jobs_.end() || it->second.node != node || it->second.attempt != report.attempt() ||
      it->second.epoch != report.epoch()) {
    // The controller's records have this attempt as over or on another node, so whatever still runs there must stop.
    if (!over) SendStop(node, report.job(), report.attempt(), 0);
    return {};
  }
  JobRow& job = it->second;
  if (report.exit().kind() == v1::ExitRecord::PREEMPTED_BY_JOB && !job.cancelled) return Preempted(job, report);
  const std::string exit = HasRecord(report) ? report.exit().SerializeAsString() : "";
  if (report.exit().started_us() > 0) job.started_us = report.exit().started_us();
  if (over) {
    std::string reason = report.exit().reason();
    v1::JobState end = EndOf(report, &reason);
    return End(job.id, end, exit, reason);
  }
  // For a lost job the node's report counts once the node is back. Any other job only moves forward.
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
  VRUN_TRY(SaveAttempt(job, job.state, 0, 0));
  const bool good = Teaches(job.exit);
  if (!HoldsResources(job)) scheduler_.Feed(core::JobEnded{job.id, good, good});
  return {};
}

// The command has ended, so its room is free, even if its writes are still on the way.
Status State::Preempted(JobRow& job, const v1::AttemptReport& report) {
  const v1::ExitRecord& exit = report.exit();
  const bool saved = job.scheduling.saves() && exit.started_us() > 0 && exit.signal() != SIGKILL;
  core::Micros lost = exit.started_us() == 0 ? 0 : kEverything;
  if (saved) {
    const int64_t took = clock_->Wall() - job.stopping_us;
    scheduler_.Feed(core::JobSaved{job.id, scheduler_.Now(), job.stopping_us > 0 ? std::max<int64_t>(took, 1) : 0});
    lost = 0;
  } else if (const auto view = core::InspectJob(scheduler_.state(), job.id);
             view && job.scheduling.saves() && lost > 0) {
    lost = scheduler_.Now() - view->started;  // earlier attempts' saved work is still there
  }
  job.exit = exit.SerializeAsString();
  const JobRow::Leaving leaving{job.attempt, job.epoch, job.node, job.token};
  ++job.preemptions;
  VRUN_TRY(BackToQueue(job, lost, v1::PREEMPTED, exit.reason()));
  if (report.state() == v1::PREEMPTED) return {};
  job.leaving = leaving;
  return Save(job);
}

Status State::BackToQueue(JobRow& job, core::Micros lost, v1::JobState attempt_state, const std::string& reason) {
  LogInfo("job {} of {} waits again: {}", job.id, Escape(job.user), Escape(reason));
  VRUN_TRY(SaveAttempt(job, attempt_state, 0, clock_->Wall(), reason));
  job.state = v1::PENDING;
  job.reason = reason;
  for (std::string* gone : {&job.node, &job.token, &job.exit, &job.stopping}) gone->clear();
  job.stopping_us = job.started_us = 0;
  job.gpu_mask = 0;
  outbox_.pools.insert(job.pool);
  scheduler_.Feed(core::JobStopped{job.id, lost});
  return Save(job);
}

Result<bool> State::Requeue(uint64_t id, const std::string& reason) {
  JobRow& job = jobs_.at(id);
  if (!job.scheduling.requeue() || job.cancelled) return false;
  VRUN_TRY(BackToQueue(job, kEverything, v1::FAILED, reason));
  return true;
}

Status State::Left(uint64_t id) {
  JobRow& job = jobs_.at(id);
  job.leaving = {};
  VRUN_TRY(Save(job));
  return job.state == v1::STARTING && !StartHeldBack(job) ? SendStart(job) : Status();
}

Status State::SendOrders(const JobRow& job) {
  if (StartHeldBack(job)) return {};
  if (job.cancelled) {
    SendStop(job.node, job.id, job.attempt, job.cancel_signal);
  } else if (!job.stopping.empty()) {
    SendPreempt(job);
  }
  return {};
}

Status State::PutNode(const NodeRow& row) {
  Node& node = nodes_[row.name];
  node.row = row;
  VRUN_TRY(store_->PutNode(row));
  outbox_.pools.insert(row.pool);
  scheduler_.Feed(core::NodeUp{SpecOf(row)});
  if (row.draining) scheduler_.Feed(core::NodeDrained{row.name});
  return {};
}

Status State::LoseNode(const std::string& name, const std::string& reason) {
  Node& node = nodes_.at(name);
  node.row.lost = true;
  node.connected = false;
  outbox_.pools.insert(node.row.pool);
  VRUN_TRY(store_->PutNode(node.row));
  scheduler_.Feed(core::NodeLost{name});
  for (uint64_t id : JobsOn(name)) {
    JobRow& job = jobs_.at(id);
    if (job.state == v1::LOST) continue;
    if (StartHeldBack(job)) {
      VRUN_TRY(BackToQueue(job, 0, v1::FAILED, reason));
      continue;
    }
    job.state = v1::LOST;
    job.reason = reason;
    VRUN_TRY(Save(job));
    VRUN_TRY(SaveAttempt(job, job.state, 0, 0, reason));
  }
  // Writes that are not home by now may never come, and the next attempt must not begin without them.
  for (uint64_t id : JobsLeaving(name)) {
    if (!jobs_.contains(id)) continue;  // it depended on another of these
    VRUN_TRY(
        End(id, v1::FAILED, "",
            reason + ": not all writes of attempt " + std::to_string(jobs_.at(id).leaving.attempt) + " reached home"));
  }
  return {};
}

void State::Disconnected(const std::string& name) {
  auto it = nodes_.find(name);
  if (it == nodes_.end()) return;
  it->second.connected = false;
  outbox_.pools.insert(it->second.row.pool);
  scheduler_.Feed(core::NodeLost{name});
}

std::vector<uint64_t> State::JobsOn(const std::string& node) const {
  std::vector<uint64_t> ids;
  for (const auto& [id, job] : jobs_) {
    if (job.state != v1::PENDING && job.node == node) ids.push_back(id);
  }
  return ids;
}

std::vector<uint64_t> State::JobsLeaving(const std::string& node) const {
  std::vector<uint64_t> ids;
  for (const auto& [id, job] : jobs_) {
    if (job.leaving.attempt != 0 && job.leaving.node == node) ids.push_back(id);
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
  v1::RunSpec* run = start->mutable_spec();
  *run = std::move(*request.mutable_spec());
  // The job gets what is accounted, even if it asked for nothing.
  run->mutable_resources()->set_milli_cpus(ToProto(job.needs).milli_cpus());
  *run->mutable_scheduling() = job.scheduling;
  run->set_pool(job.pool);
  start->set_home_id(job.home_id);
  start->set_user(job.user);
  start->set_content_home_id(request.snapshot().content_home_id());
  outbox_.to_nodes.emplace_back(job.node, std::move(message));
  return {};
}

void State::SendStop(const std::string& node, uint64_t job, uint32_t attempt, int32_t signal) {
  v1::ControllerMessage message;
  v1::StopAttempt* stop = message.mutable_stop();
  stop->set_job(job);
  stop->set_attempt(attempt);
  stop->set_signal(signal);
  stop->set_grace_ms(kDefaultGraceMillis);
  outbox_.to_nodes.emplace_back(node, std::move(message));
}

void State::SendPreempt(const JobRow& job) {
  v1::ControllerMessage message;
  v1::StopAttempt* stop = message.mutable_stop();
  stop->set_job(job.id);
  stop->set_attempt(job.attempt);
  stop->set_signal(job.scheduling.signal() != 0 ? job.scheduling.signal() : SIGTERM);
  stop->set_grace_ms(GraceMillis(job));
  stop->set_preempted(job.stopping);
  outbox_.to_nodes.emplace_back(job.node, std::move(message));
}

bool State::IsPlaced(const JobRow& job) const {
  if (job.leaving.attempt != 0) return true;
  return job.state >= v1::STARTING && job.state <= v1::COMPLETING && !StartHeldBack(job);
}

// While an earlier attempt's writes are on the way, home works with that attempt and with no later one.
v1::Placement State::PlacementOf(const JobRow& job) const {
  const bool leaving = job.leaving.attempt != 0;
  v1::Placement placement;
  placement.set_job(job.id);
  placement.set_attempt(leaving ? job.leaving.attempt : job.attempt);
  placement.set_epoch(leaving ? job.leaving.epoch : job.epoch);
  placement.set_node(leaving ? job.leaving.node : job.node);
  placement.set_token(leaving ? job.leaving.token : job.token);
  if (!leaving) placement.set_gpu_mask(job.gpu_mask);
  if (auto it = nodes_.find(placement.node()); it != nodes_.end()) {
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
  if (IsPlaced(job) && job.user == viewer) *event.mutable_placement() = PlacementOf(job);
  if (!job.exit.empty()) (void)event.mutable_exit()->ParseFromString(job.exit);
  if (job.state == v1::PENDING) {
    event.set_reason(Waiting(job));
    event.set_queue_position(QueuePosition(id));
  } else if (StartHeldBack(job)) {
    const std::string whose = job.leaving.attempt != 0 ? "attempt " + std::to_string(job.leaving.attempt)
                                                       : "job " + std::to_string(AwaitedBy(job));
    event.set_reason("the writes of " + whose + " are still on their way home");
  }
  return event;
}

v1::JobInfo State::InfoOf(const JobRow& job, const std::string& viewer, size_t max_argv_bytes) {
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
  *info.mutable_scheduling() = job.scheduling;
  if (job.state == v1::PENDING) {
    info.set_queue_position(QueuePosition(job.id));
    info.set_reason((job.reason.empty() ? "" : job.reason + "; ") + Waiting(job));
  }
  // Other users must not learn what runs where.
  v1::SubmitRequest request;
  if (job.user == viewer && request.ParseFromString(job.spec)) {
    info.set_directory(request.spec().command().directory());
    info.set_snapshot(request.snapshot().name());
    info.set_live_view(request.spec().live_view());
    info.set_keep_writes(request.spec().keep_writes());
    size_t room = max_argv_bytes;
    for (const std::string& word : request.spec().command().argv()) {
      if (word.size() > room) break;
      room -= word.size();
      info.add_argv(word);
    }
  }
  return info;
}

}  // namespace vrun::control
