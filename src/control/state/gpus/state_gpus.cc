// SPDX-License-Identifier: Apache-2.0
// The part of State that listens to what nodes say of their GPUs: their health, and how much jobs use them.
#include <algorithm>

#include "base/escape.h"
#include "base/log.h"
#include "control/gpus/gpu_needs.h"
#include "control/gpus/gpu_use.h"
#include "control/state/state.h"

namespace vrun::control {
namespace {

constexpr size_t kMostReasonBytes = 1024;
constexpr int kMostFaults = 64;
// A node's reports beyond this wait for the next minute, and only the newest of them counts.
constexpr int kReportsPerMinute = 10;
constexpr int64_t kMinute = 60'000'000;
// What a pod uses is stored this often, and at its end.
constexpr int64_t kStoreUsageMicros = 5 * kMinute;

std::string Cut(const std::string& text) { return Escape(text.substr(0, kMostReasonBytes)); }

// Newer words of a node replace the older ones, but no fault is forgotten.
void Merge(const v1::GpuReport& report, v1::GpuReport* waiting) {
  v1::GpuReport merged = report;
  merged.clear_faults();
  *merged.mutable_faults() = waiting->faults();
  for (const v1::GpuReport::Fault& fault : report.faults()) {
    if (merged.faults_size() < kMostFaults) *merged.add_faults() = fault;
  }
  *waiting = std::move(merged);
}

HealthWord WordOf(const v1::NodeFacts& facts, const std::string& drain) {
  HealthWord word;
  word.drain = Cut(drain);
  word.bad_gpus = WithProblems(facts);
  word.gpus = facts.gpus_size();
  for (int i = 0; i < facts.gpus_size() && word.problem.empty(); ++i) {
    if (!facts.gpus(i).problem().empty()) word.problem = "GPU " + std::to_string(i) + ": " + facts.gpus(i).problem();
  }
  return word;
}

}  // namespace

v1::NodeHealth HealthOf(const NodeRow& node) {
  v1::NodeHealth health;
  (void)health.ParseFromString(node.health);
  return health;
}

bool Drains(const NodeRow& node) { return node.draining || !HealthOf(node).drain().empty(); }

void State::JudgeHealth(NodeRow* row, const std::string& drain, bool fresh) {
  v1::NodeFacts facts;
  (void)facts.ParseFromString(row->facts);
  const HealthLimits& limits = settings_.scheduler.health;
  const int64_t now = clock_->Wall();
  int64_t count = 0, taken = 0;
  for (const auto& [name, node] : nodes_) {
    if (node.row.pool != row->pool) continue;
    ++count;
    taken += TakenSince(HealthOf(node.row), now - limits.window_micros);
  }
  const v1::NodeHealth before = HealthOf(*row);
  const v1::NodeHealth after =
      Judge(before, WordOf(facts, drain), limits, RoomToDrain(limits, count, taken), now, fresh);
  row->health = after.SerializeAsString();
  if (after.drain() != before.drain()) {
    LogWarning("node {} {}: {}", Escape(row->name), after.drain().empty() ? "can get jobs again" : "drains",
               after.drain().empty() ? "it has withdrawn its reason" : after.drain());
    if (!after.drain().empty()) NoteNode("node_drained", row->name, "gets no more jobs: " + Escape(after.drain()));
  }
  if (after.bad_gpus() != before.bad_gpus()) {
    LogWarning("node {}: GPUs that no job gets: mask {:#x}, before {:#x}", Escape(row->name), after.bad_gpus(),
               before.bad_gpus());
    std::string added;
    for (uint32_t gpu = 0; gpu < 32; ++gpu) {
      const bool is_new = ((after.bad_gpus() & ~before.bad_gpus()) >> gpu & 1) != 0;
      if (is_new) added += (added.empty() ? "GPU " : ", ") + std::to_string(gpu);
    }
    if (!added.empty()) NoteNode("gpu_bad", row->name, added + " gets no more jobs");
  }
  if (!after.ignored().empty() && after.ignored() != before.ignored()) {
    LogError("node {}: {}", Escape(row->name), after.ignored());
  }
}

Status State::Heed(const std::string& name, const v1::GpuReport& report) {
  Node& node = nodes_.at(name);
  const int64_t now = clock_->Monotonic();
  if (now - node.reports_since >= kMinute || node.reports_since == 0) {
    node.reports_since = now;
    node.reports = 0;
  }
  if (node.waiting_report || node.reports >= kReportsPerMinute) {
    if (!node.waiting_report) {
      LogWarning("node {} reports about its GPUs too often: the newest report of each minute counts", Escape(name));
      node.waiting_report.emplace();
    }
    Merge(report, &*node.waiting_report);
    return {};
  }
  ++node.reports;
  return HeedNow(name, report);
}

Status State::HeedWaiting() {
  const int64_t now = clock_->Monotonic();
  for (auto& [name, node] : nodes_) {
    if (!node.waiting_report || now - node.reports_since < kMinute) continue;
    node.reports_since = now;
    node.reports = 1;
    const v1::GpuReport report = *std::exchange(node.waiting_report, std::nullopt);
    VRUN_TRY(HeedNow(name, report));
  }
  return {};
}

Status State::HeedNow(const std::string& name, const v1::GpuReport& report) {
  Node& node = nodes_.at(name);
  v1::NodeFacts facts;
  (void)facts.ParseFromString(node.row.facts);
  *facts.mutable_gpus() = report.gpus();
  CutGpus(facts.mutable_gpus());
  NodeRow row = node.row;
  row.facts = facts.SerializeAsString();
  JudgeHealth(&row, report.drain(), false);
  const bool drained = Drains(node.row);
  const bool changed = row.facts != node.row.facts || row.health != node.row.health;
  node.row = std::move(row);
  if (changed) {
    outbox_.pools.insert(node.row.pool);
    VRUN_TRY(store_->PutNode(node.row));
    if (node.connected && !(drained && Drains(node.row))) FeedNode(node);
  }
  int count = 0;
  for (const v1::GpuReport::Fault& fault : report.faults()) {
    if (++count > kMostFaults) break;
    VRUN_TRY(Fault(name, fault));
  }
  return {};
}

Status State::Fault(const std::string& node, const v1::GpuReport::Fault& fault) {
  const std::string what = "GPU " + std::to_string(fault.gpu()) + " of " + Escape(node) + ": " + Cut(fault.what());
  LogWarning("{}{}", what, fault.job() == 0 ? "" : ", while job " + std::to_string(fault.job()) + " had it");
  JobRow* const job = JobOf(node, fault.job(), fault.attempt(), fault.pod());
  if (job == nullptr) return {};
  job->gpu_fault = what + (fault.own() ? " (by the job itself)" : " (not the job's doing)");
  VRUN_TRY(Save(*job));
  PodRow& pod = job->pods[fault.pod()];
  // A fault of its own is for the program to handle. After another's it cannot go on, and would only fail later.
  if (fault.own() || !fault.fatal() || CommandEnded(pod) || job->cancelled || !HoldsResources(*job)) return {};
  EndGang(*job, Ending::kPodLost, fault.pod(), job->gpu_fault);
  return Save(*job);
}

Status State::Use(const std::string& node, const v1::GpuUsages& usages) {
  for (const v1::GpuUsage& usage : usages.usages()) {
    const auto it = jobs_.find(usage.job());
    if (it == jobs_.end()) continue;
    JobRow& job = it->second;
    const bool leaves = job.leaving.attempt == usage.attempt();
    if (!leaves && job.attempt != usage.attempt()) continue;
    std::vector<PodRow>& pods = leaves ? job.leaving.pods : job.pods;
    const auto pod =
        std::find_if(pods.begin(), pods.end(), [&](const PodRow& p) { return p.pod == usage.pod() && p.node == node; });
    if (pod == pods.end() || IsOver(pod->state)) continue;
    pod->usage = usage.SerializeAsString();
    const int64_t now = clock_->Monotonic();
    if (pod->usage_stored == 0) pod->usage_stored = now;
    // The last one comes just before the end, with which it is stored.
    if (!CommandEnded(*pod) && now - pod->usage_stored < kStoreUsageMicros) continue;
    pod->usage_stored = now;
    VRUN_TRY(store_->PutPod(job.id, usage.attempt(), *pod));
  }
  return {};
}

Status State::SumGpuUse(uint64_t id, v1::JobInfo* info) {
  VRUN_ASSIGN(const std::vector<AttemptRow> attempts, store_->Attempts(id));
  const auto job = jobs_.find(id);
  v1::GpuUsage sum;
  bool known = false;
  for (const AttemptRow& attempt : attempts) {
    const bool present = job != jobs_.end() && attempt.attempt == job->second.attempt && !job->second.pods.empty();
    known = AddUse(present ? job->second.pods : attempt.pods, &sum) || known;
  }
  if (known) *info->mutable_gpu_usage() = std::move(sum);
  return {};
}

}  // namespace vrun::control
