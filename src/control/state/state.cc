// SPDX-License-Identifier: Apache-2.0
#include "control/state/state.h"

#include <algorithm>

#include "base/escape.h"
#include "base/log.h"
#include "control/gpus/gpu_use.h"

namespace vrun::control {
namespace {

namespace core = sched::core;

}  // namespace

Needs ToNeeds(const v1::Resources& r) {
  // Keeps sums over all jobs of a node far from overflow.
  constexpr uint64_t kMost = uint64_t{1} << 50;
  Needs needs{static_cast<int64_t>(r.milli_cpus()), static_cast<int64_t>(std::min(r.memory_bytes(), kMost)),
              static_cast<int64_t>(r.gpus()), r.gpu_type()};
  needs.gpu_milli = r.gpu_milli();
  needs.gpu_burst_milli = r.gpu_burst_milli();
  needs.gpu_sharing = r.gpu_sharing();
  needs.mig_profile = r.mig_profile();
  needs.gpu_memory_bytes = static_cast<int64_t>(std::min(r.gpu_memory_bytes(), kMost));
  return needs;
}

v1::Resources ToProto(const Needs& r) {
  v1::Resources out;
  out.set_milli_cpus(static_cast<uint32_t>(std::clamp<int64_t>(r.milli_cpus, 0, UINT32_MAX)));
  out.set_memory_bytes(static_cast<uint64_t>(std::max<int64_t>(r.memory_bytes, 0)));
  out.set_gpus(static_cast<uint32_t>(std::clamp<int64_t>(r.gpus, 0, UINT32_MAX)));
  out.set_gpu_type(r.gpu_type);
  out.set_gpu_milli(r.gpu_milli);
  out.set_gpu_burst_milli(r.gpu_burst_milli);
  out.set_gpu_sharing(r.gpu_sharing);
  out.set_mig_profile(r.mig_profile);
  out.set_gpu_memory_bytes(static_cast<uint64_t>(r.gpu_memory_bytes));
  return out;
}

Status State::Load() {
  VRUN_ASSIGN(std::vector<JobRow> jobs, store_->UnfinishedJobs());
  VRUN_ASSIGN(std::vector<NodeRow> nodes, store_->Nodes());
  VRUN_ASSIGN(uint64_t epoch, store_->LastEpoch());
  VRUN_ASSIGN(std::vector<MaintenanceRow> windows, store_->Maintenance());
  maintenance_.clear();
  for (MaintenanceRow& window : windows) maintenance_[window.name] = std::move(window);
  stops_.clear();
  std::map<std::string, Node> before = std::exchange(nodes_, {});
  sizes_.clear();
  jobs_.clear();
  taken_.clear();
  outbox_ = {};
  VRUN_TRY(LoadMessages());
  epoch_ = epoch;
  for (NodeRow& row : nodes) {
    Node node{std::move(row), false, clock_->Monotonic()};
    if (auto it = before.find(node.row.name); it != before.end()) {
      node.connected = it->second.connected;
      node.last_heard = it->second.last_heard;
      node.suspect = it->second.suspect;
      node.reports_since = it->second.reports_since;
      node.reports = it->second.reports;
      node.waiting_report = it->second.waiting_report;
    }
    nodes_[node.row.name] = std::move(node);
  }
  dependents_.clear();
  blocks_.clear();
  names_.clear();
  started_.clear();
  consequences_.clear();
  admissions_.clear();
  stragglers_.clear();
  start_limits_.clear();
  request_ = {};
  VRUN_TRY(LoadArrays());
  for (JobRow& job : jobs) {
    AwaitStragglers(job);
    LimitStart(job);
    VRUN_TRY(Know(std::move(job)));
  }
  VRUN_TRY(LoadAccounting());
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
  // An element waits since its array was submitted.
  job.waits_since_us = AccountingNow();
  if (job.array != 0) job.waits_since_us = std::min(job.waits_since_us, OnAccountingClock(job.submitted_us));
  VRUN_ASSIGN(job.id, store_->InsertJob(job));
  const uint64_t id = job.id;
  outbox_.pools.insert(job.pool);
  outbox_.jobs.insert(id);
  VRUN_TRY(Know(std::move(job)));
  scheduler_.Feed(core::JobSubmitted{SpecForScheduler(jobs_.at(id))});
  fresh_.push_back(id);
  return id;
}

Status State::Save(const JobRow& job) {
  outbox_.jobs.insert(job.id);
  if (job.started_us != 0 && dependents_.contains(job.id)) started_.push_back(job.id);
  VRUN_TRY(NoteElement(job));
  VRUN_TRY(TellTransition(job));
  return store_->UpdateJob(job);
}

Status State::SaveAttempt(const JobRow& job, v1::JobState state, int64_t placed_us, int64_t ended_us,
                          const std::string& reason) {
  return store_->PutAttempt({job.id, job.attempt, job.epoch, state, placed_us, ended_us, reason});
}

Status State::SavePod(const JobRow& job, const PodRow& pod) {
  outbox_.pods.emplace(job.id, pod.pod);
  return store_->PutPod(job.id, job.attempt, pod);
}

Status State::Cancel(uint64_t id, int32_t signal) {
  JobRow& job = jobs_.at(id);
  if (job.elements != 0) return CancelArray(job, signal);
  if (job.state == v1::PENDING || StartHeldBack(job)) return End(id, v1::CANCELLED, "cancelled while it waited");
  // Nobody is left who could end it. Should its node come back, it is told to.
  const bool gone = job.state == v1::LOST && std::all_of(job.pods.begin(), job.pods.end(), [this](const PodRow& pod) {
                      const auto node = nodes_.find(pod.node);
                      return IsOver(pod.state) || node == nodes_.end() || node->second.row.lost;
                    });
  if (gone) return End(id, v1::CANCELLED, "cancelled after its node was lost: nobody knows what it had come to");
  if (!job.cancelled || job.cancel_signal != signal) {
    job.cancelled = true;
    job.cancel_signal = signal;
    VRUN_TRY(Save(job));
  }
  for (const PodRow& pod : job.pods) {
    if (!IsOver(pod.state)) SendStop(pod.node, job.id, job.attempt, pod.pod, signal);
  }
  return {};
}

Status State::End(uint64_t id, v1::JobState state, const std::string& reason) {
  auto node = jobs_.extract(id);
  JobRow& job = node.mapped();
  Count(job, false);
  job.state = state;
  job.ended_us = clock_->Wall();
  job.reason = reason;
  if (state != v1::COMPLETED && !job.gpu_fault.empty() && reason.find(job.gpu_fault) == std::string::npos) {
    job.reason += (reason.empty() ? "" : "; ") + job.gpu_fault;
  }
  stragglers_.erase(id);
  VRUN_TRY(AccountEnd(job, state));
  VRUN_TRY(Save(job));
  if (!job.pods.empty()) VRUN_TRY(SaveAttempt(job, state, 0, job.ended_us, reason));
  outbox_.pools.insert(job.pool);
  LogInfo("job {} of {} ended: {}{}{}", job.id, Escape(job.user), v1::JobState_Name(state), reason.empty() ? "" : ": ",
          Escape(reason));
  const bool good = Succeeded(job);
  if (job.elements == 0) scheduler_.Feed(core::JobEnded{id, good, good});
  admissions_.erase(id);
  broken_promises_.erase(id);
  stops_.erase(id);
  blocks_.erase(id);
  if (job.elements != 0) {
    VRUN_TRY(SaveArrays());
    arrays_.erase(id);
    touched_.erase(id);
  }
  if (job.array == 0) VRUN_TRY(PassTurn(job));
  VRUN_TRY(Release(job));
  return job.array != 0 ? ElementEnded(job) : Status();
}

Status State::Know(JobRow job) {
  const uint64_t id = job.id;
  Remember(job);
  Count(job, true);
  FollowTold(job);
  return NoteElement(jobs_[id] = std::move(job));
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
  std::vector<Dependent> dependents;
  for (auto [it, end] = dependents_.equal_range(ended.id); it != end; ++it) dependents.push_back(it->second);
  dependents_.erase(ended.id);
  for (const Dependent& dependent : dependents) {
    const auto it = jobs_.find(dependent.job);
    if (it == jobs_.end()) continue;
    if (!LeftToScheduler(it->second, ended, dependent.how)) {
      VRUN_TRY(Fulfil(dependent, ended));
      continue;
    }
    if (it->second.state == v1::PENDING && dependent.how == Depends::kSuccess && ended.state != v1::COMPLETED) {
      VRUN_TRY(Fulfil(dependent, ended));
      continue;
    }
    if (it->second.state != v1::STARTING) continue;
    if (ended.state != v1::COMPLETED && dependent.how == Depends::kSuccess) {
      // Its command had succeeded, but some of its writes were lost.
      VRUN_TRY(Carry(core::Doomed{dependent.job, ended.id}));
    } else if (!StartHeldBack(it->second)) {
      outbox_.jobs.insert(dependent.job);  // its home may connect now
      VRUN_TRY(SendStart(it->second));
    }
  }
  return {};
}

Status State::PutNode(const NodeRow& row) {
  Node& node = nodes_[row.name];
  node.row = row;
  sizes_.clear();
  VRUN_TRY(store_->PutNode(row));
  outbox_.pools.insert(row.pool);
  FeedNode(node);
  return {};
}

const std::vector<NodeSize>& State::SizesOf(const std::string& pool) {
  if (sizes_.empty()) {
    for (const auto& [name, node] : nodes_) {
      if (node.row.lost) continue;
      std::vector<NodeSize>& of_pool = sizes_[node.row.pool];
      NodeSize size = SizeOf(node.row);
      if (std::find(of_pool.begin(), of_pool.end(), size) == of_pool.end()) of_pool.push_back(std::move(size));
    }
  }
  return sizes_[pool];
}

void State::FeedNode(const Node& node) {
  core::NodeSpec spec = SpecOfNode(node.row);
  spec.suspect = node.suspect;
  scheduler_.Feed(core::NodeUp{std::move(spec)});
  if (Drains(node.row)) scheduler_.Feed(core::NodeDrained{node.row.name});
}

void State::Suspect(const std::string& name, bool suspect) {
  const auto it = nodes_.find(name);
  if (it == nodes_.end() || it->second.suspect == suspect) return;
  it->second.suspect = suspect;
  if (it->second.connected && !it->second.row.lost) FeedNode(it->second);
}

Status State::LoseNode(const std::string& name, const std::string& reason) {
  Node& node = nodes_.at(name);
  node.row.lost = true;
  NoteNode("node_lost", name, reason);
  sizes_.clear();
  node.connected = false;
  outbox_.pools.insert(node.row.pool);
  VRUN_TRY(store_->PutNode(node.row));
  scheduler_.Feed(core::NodeLost{name});
  std::set<uint64_t> there;
  for (const auto& [id, pod] : PodsOn(name)) there.insert(id);
  for (const uint64_t id : there) {
    if (const auto it = jobs_.find(id); it != jobs_.end()) VRUN_TRY(LosePods(it->second, name, reason));
  }
  // Writes that are not home by now may never come, and the next attempt must not begin without them.
  for (const auto& [id, pod] : PodsLeaving(name)) {
    if (!jobs_.contains(id)) continue;  // ended for another of these
    VRUN_TRY(End(id, v1::FAILED, NotAllHome(reason, jobs_.at(id).leaving.attempt)));
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

std::vector<std::pair<uint64_t, uint32_t>> State::PodsOn(const std::string& node) const {
  std::vector<std::pair<uint64_t, uint32_t>> found;
  for (const auto& [id, job] : jobs_) {
    for (const PodRow& pod : job.pods) {
      if (pod.node == node && !IsOver(pod.state)) found.emplace_back(id, pod.pod);
    }
  }
  return found;
}

std::vector<std::pair<uint64_t, uint32_t>> State::PodsLeaving(const std::string& node) const {
  std::vector<std::pair<uint64_t, uint32_t>> found;
  for (const auto& [id, job] : jobs_) {
    for (const PodRow& pod : job.leaving.pods) {
      if (pod.node == node) found.emplace_back(id, pod.pod);
    }
  }
  return found;
}

bool State::IsPlaced(const JobRow& job) const {
  if (job.elements != 0) return false;
  if (job.leaving.attempt != 0) return true;
  return job.state >= v1::STARTING && job.state <= v1::COMPLETING && !StartHeldBack(job);
}

// While an earlier attempt's writes are on the way, home works with that attempt and with no later one.
std::optional<v1::Placement> State::PlacementOf(const JobRow& job, uint32_t pod) const {
  const bool leaving = job.leaving.attempt != 0;
  const std::vector<PodRow>& pods = leaving ? job.leaving.pods : job.pods;
  const auto row = std::find_if(pods.begin(), pods.end(), [pod](const PodRow& p) { return p.pod == pod; });
  if (row == pods.end()) return std::nullopt;
  v1::Placement placement;
  placement.set_job(job.id);
  placement.set_attempt(leaving ? job.leaving.attempt : job.attempt);
  placement.set_epoch(leaving ? job.leaving.epoch : job.epoch);
  placement.set_pod(pod);
  placement.set_node(row->node);
  placement.set_token(row->token);
  if (!leaving) placement.set_gpu_mask(row->gpu_mask);
  if (!leaving && row->mig_start >= 0) placement.set_mig_start(static_cast<uint32_t>(row->mig_start));
  if (auto it = nodes_.find(row->node); it != nodes_.end()) {
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

Result<v1::JobEvent> State::EventOf(uint64_t id, const std::string& viewer, uint32_t pod) {
  std::optional<JobRow> ended;
  const auto known = jobs_.find(id);
  if (known == jobs_.end()) {
    VRUN_ASSIGN(ended, Find(id));
  }
  const JobRow& job = ended ? *ended : known->second;
  v1::JobEvent event;
  event.set_state(job.state);
  event.set_reason(job.reason);
  if (IsGang(job)) event.set_pods(static_cast<uint32_t>(job.pods.size()));
  if (IsPlaced(job) && job.user == viewer) {
    if (auto placement = PlacementOf(job, pod)) *event.mutable_placement() = *std::move(placement);
  }
  if (pod < job.pods.size() && !job.pods[pod].exit.empty()) {
    (void)event.mutable_exit()->ParseFromString(job.pods[pod].exit);
  }
  if (job.elements != 0) {
    const Array* array = FindArray(id);
    if (array != nullptr) {
      *event.mutable_array() = CountsOf(*array);
    } else {
      VRUN_ASSIGN(*event.mutable_array(), InfoOfArray(job, false));
      event.mutable_array()->clear_array();
    }
  }
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
  if (!job.pods.empty()) info.set_node(job.pods[0].node);
  info.set_attempt(job.attempt);
  info.set_submitted_us(job.submitted_us);
  info.set_started_us(job.started_us);
  info.set_ended_us(job.ended_us);
  *info.mutable_resources() = ToProto(job.needs);
  info.set_reason(job.reason.empty() && !IsEnd(job.state) ? job.gpu_fault : job.reason);
  if (const std::string exit = ExitOf(job); !exit.empty()) (void)info.mutable_exit()->ParseFromString(exit);
  if (PodsAsked(job) > 1 || RanksPerPod(job) > 1) *info.mutable_gang() = job.gang;
  // The store is behind with this.
  const auto known = jobs_.find(job.id);
  const std::vector<PodRow>& live = known == jobs_.end() ? job.pods : known->second.pods;
  if (v1::GpuUsage use; AddUse(live, &use)) *info.mutable_gpu_usage() = std::move(use);
  for (const PodRow& pod : job.pods) {
    if (!IsGang(job)) break;
    v1::PodInfo* out = info.add_pods();
    out->set_pod(pod.pod);
    out->set_node(pod.node);
    out->set_gpu_mask(pod.gpu_mask);
    if (pod.mig_start >= 0) out->set_mig_start(static_cast<uint32_t>(pod.mig_start));
    const std::string& usage = pod.pod < live.size() ? live[pod.pod].usage : pod.usage;
    if (!usage.empty()) (void)out->mutable_gpu_usage()->ParseFromString(usage);
    out->set_state(pod.state);
    if (!pod.exit.empty()) (void)out->mutable_exit()->ParseFromString(pod.exit);
  }
  *info.mutable_scheduling() = job.scheduling;
  info.set_saved_us(job.saved_us);
  info.set_lost_us(job.lost_us);
  if (job.state == v1::PENDING) {
    info.set_queue_position(QueuePosition(job.id));
    info.set_reason((job.reason.empty() ? "" : job.reason + "; ") + Waiting(job));
  }
  AddElements(job, max_argv_bytes == SIZE_MAX, &info);
  Show(viewer, job, &info);
  if (max_argv_bytes == 0 || !ShowsCommand(viewer, job)) return info;
  if (const Result<v1::SubmitRequest> request = RequestOf(job)) {
    if (request->spec().away()) info.mutable_away();
    info.set_directory(request->spec().command().directory());
    info.set_snapshot(request->snapshot().name());
    info.set_live_view(request->spec().live_view());
    *info.mutable_live_paths() = request->spec().live_paths();
    info.set_keep_writes(request->spec().keep_writes());
    info.set_network(request->spec().network());
    *info.mutable_ports() = request->spec().ports();
    *info.mutable_secrets() = request->spec().secrets();
    if (job.notify.has_who()) *info.mutable_notify() = job.notify.who();
    size_t room = max_argv_bytes;
    for (const std::string& word : request->spec().command().argv()) {
      if (word.size() > room) break;
      room -= word.size();
      info.add_argv(word);
    }
  }
  return info;
}

}  // namespace vrun::control
