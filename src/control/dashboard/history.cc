// SPDX-License-Identifier: Apache-2.0
#include "control/dashboard/history.h"

#include <algorithm>
#include <bit>

#include "control/gpus/gpu_needs.h"
#include "control/gpus/gpu_use.h"

namespace vrun::control {
namespace {

constexpr int64_t kClusterStepMicros = 30'000'000;
constexpr size_t kClusterPoints = 720;        // six hours
constexpr int64_t kFastMicros = 600'000'000;  // a controller that has just begun shows its first minutes in detail
constexpr size_t kJobPoints = 240;
constexpr size_t kEndedJobs = 1000;

uint64_t GpusThatWork(State& state) {
  uint64_t gpus = 0;
  for (const auto& [name, node] : state.nodes()) {
    if (node.row.lost) continue;
    v1::Resources total;
    if (!total.ParseFromString(node.row.total)) continue;
    const uint32_t bad = state.FactsOf(node.row).bad_gpus() | HealthOf(node.row).bad_gpus();
    const auto count = static_cast<uint64_t>(std::popcount(bad));
    gpus += total.gpus() - std::min<uint64_t>(total.gpus(), count);
  }
  return gpus;
}

}  // namespace

void History::Sample(State& state) {
  const int64_t now = state.clock().Wall();
  lost_.Look(state);
  v1::ClusterSample sample;
  sample.set_at_us(now);
  uint64_t allocated = 0, busy = 0;
  for (const auto& [id, job] : state.jobs()) {
    if (job.state == v1::PENDING) {
      if (job.array == 0) sample.set_waiting(sample.waiting() + 1);
      continue;
    }
    if (!HoldsResources(job)) continue;
    for (const PodRow& pod : job.pods) {
      if (!HoldsRoom(pod)) continue;
      std::string model;
      if (!pod.mig_profile.empty()) {
        const auto node = state.nodes().find(pod.node);
        if (node != state.nodes().end()) model = state.FactsOf(node->second.row).mig_model();
      }
      const uint64_t milli = uint64_t{MilliOf(pod, model)} * static_cast<uint64_t>(std::popcount(pod.gpu_mask));
      allocated += milli;
      v1::GpuUsage use;
      if (milli == 0 || pod.usage.empty() || !use.ParseFromString(pod.usage)) continue;
      busy += static_cast<uint64_t>(std::popcount(pod.gpu_mask)) * 10 * use.utilization_percent();
    }
    v1::GpuUsage use;
    if (!AddUse(job.pods, &use)) continue;
    Series& series = jobs_[id];
    if (!series.points.empty() && now - series.points.back().at_us < series.step_us) continue;
    series.points.push_back({now, use.utilization_percent(), use.memory_bytes()});
    if (series.points.size() < kJobPoints) continue;
    for (size_t i = 0; i < series.points.size() / 2; ++i) series.points[i] = series.points[2 * i];
    series.points.resize(series.points.size() / 2);
    series.step_us = std::max(series.step_us, kSampleMicros) * 2 - kSampleMicros / 2;
  }
  sample.set_allocated_milli(allocated);
  sample.set_busy_milli(busy);
  sample.set_gpu_milli(GpusThatWork(state) * 1000);
  const bool young = cluster_.empty() || now - cluster_.front().at_us() < kFastMicros;
  if (young || now - cluster_.back().at_us() >= kClusterStepMicros - kSampleMicros / 2) {
    cluster_.push_back(std::move(sample));
    if (cluster_.size() > kClusterPoints) cluster_.pop_front();
  }
  for (auto& [id, series] : jobs_) {
    if (state.jobs().contains(id) || std::find(ended_.begin(), ended_.end(), id) != ended_.end()) continue;
    ended_.push_back(id);
  }
  for (; ended_.size() > kEndedJobs; ended_.pop_front()) jobs_.erase(ended_.front());
}

void History::AddCluster(v1::ClusterNow* to) const {
  for (const v1::ClusterSample& sample : cluster_) *to->add_history() = sample;
}

void History::AddLost(v1::ClusterNow* to) const {
  if (to->has_money()) to->mutable_money()->set_lost_day_micros(lost_.micros());
}

v1::JobUsageHistory History::Of(uint64_t job) const {
  v1::JobUsageHistory history;
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return history;
  for (const JobPoint& point : found->second.points) {
    v1::JobSample* sample = history.add_samples();
    sample->set_at_us(point.at_us);
    sample->set_utilization_percent(point.percent);
    sample->set_memory_bytes(point.memory);
  }
  return history;
}

}  // namespace vrun::control
