// SPDX-License-Identifier: Apache-2.0
#include "gpu/meter.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/files.h"

namespace vrun::gpu {
namespace {

uint64_t Times(int64_t elapsed_us, double percent) {
  return static_cast<uint64_t>(std::llround(static_cast<double>(elapsed_us) * percent / 100));
}

}  // namespace

void Meter::Add(const std::string& name, const Pod& pod) {
  State& state = pods_[name];
  state.pod = pod;
  state.usage.set_job(pod.job);
  state.usage.set_attempt(pod.attempt);
  state.usage.set_pod(pod.pod);
  state.read_us = MonotonicMicros();
  // What the GPU did before was another's.
  ReadFor(pod.gpus, name);
  double sm = 0;
  uint64_t bytes = 0;
  if (pod.gpu_instance) ReadInstance(&state, &sm, &bytes);
}

std::optional<v1::GpuUsage> Meter::Remove(const std::string& name) {
  const auto it = pods_.find(name);
  if (it == pods_.end()) return std::nullopt;
  ReadFor(it->second.pod.gpus, name);
  AddTo(name, &it->second);
  v1::GpuUsage usage = it->second.usage;
  pods_.erase(it);
  return usage;
}

// The other pods on these GPUs get their part of this reading, because the next one begins here.
void Meter::ReadFor(const std::vector<uint32_t>& gpus, const std::string& name) {
  for (const uint32_t gpu : gpus) ReadGpu(gpu, pod_of_);
  for (auto& [other, state] : pods_) {
    const bool together = std::any_of(state.pod.gpus.begin(), state.pod.gpus.end(), [&](uint32_t gpu) {
      return std::find(gpus.begin(), gpus.end(), gpu) != gpus.end();
    });
    if (other != name && together) AddTo(other, &state);
  }
}

std::vector<v1::GpuUsage> Meter::Tick(const PodOf& pod_of) {
  pod_of_ = pod_of;
  std::vector<uint32_t> numbers;
  for (const auto& [name, state] : pods_) numbers.insert(numbers.end(), state.pod.gpus.begin(), state.pod.gpus.end());
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  for (const uint32_t number : numbers) ReadGpu(number, pod_of);
  std::vector<v1::GpuUsage> usages;
  for (auto& [name, state] : pods_) {
    AddTo(name, &state);
    usages.push_back(state.usage);
  }
  return usages;
}

void Meter::ReadGpu(uint32_t number, const PodOf& pod_of) {
  Gpu& gpu = gpus_[number];
  gpu.energy_delta = 0;
  const Result<Nvml::Device> device = nvml_->At(number);
  if (!device) return;
  gpu.read_us = MonotonicMicros();
  gpu.utilization = std::min<uint32_t>(100, nvml_->UtilizationPercent(*device).value_or(0));
  gpu.used = nvml_->MemoryOf(*device).value_or(Nvml::Memory{}).used;
  if (const Result<uint64_t> energy = nvml_->EnergyMillijoules(*device)) {
    // It begins again when the driver is loaded again.
    gpu.energy_delta = gpu.energy && *energy >= *gpu.energy ? *energy - *gpu.energy : 0;
    gpu.energy = *energy;
  }
  gpu.sm.reset();
  if (Result<std::unique_ptr<Nvml::Sample>> next = nvml_->TakeSample(*device)) {
    if (gpu.sample != nullptr) {
      if (const Result<double> sm = nvml_->SmPercent(*gpu.sample, **next)) gpu.sm = std::clamp(*sm, 0.0, 100.0);
    }
    gpu.sample = std::move(*next);
  }
  gpu.process_bytes.clear();
  gpu.process_percent.clear();
  for (const Nvml::Process& process : nvml_->Processes(*device).value_or(std::vector<Nvml::Process>{})) {
    gpu.process_bytes[pod_of(number, process.pid)] += process.bytes;
  }
  // The driver keeps several samples of each process; the latest counts.
  std::map<uint32_t, Nvml::ProcessUse> latest;
  const uint64_t since = gpu.newest_us;
  for (const Nvml::ProcessUse& use : nvml_->ProcessUses(*device, since).value_or(std::vector<Nvml::ProcessUse>{})) {
    gpu.newest_us = std::max(gpu.newest_us, use.time_us);
    if (Nvml::ProcessUse& last = latest[use.pid]; use.time_us >= last.time_us) last = use;
  }
  for (const auto& [pid, use] : latest) {
    uint32_t& percent = gpu.process_percent[pod_of(number, pid)];
    percent = std::min<uint32_t>(100, percent + std::min<uint32_t>(100, use.sm_percent));
  }
}

void Meter::ReadInstance(State* state, double* sm, uint64_t* bytes) {
  const Result<Nvml::Device> device = nvml_->At(state->pod.gpus[0]);
  if (!device) return;
  if (Result<std::unique_ptr<Nvml::Sample>> next = nvml_->TakeSample(*device, *state->pod.gpu_instance)) {
    if (state->sample != nullptr) *sm = std::clamp(nvml_->SmPercent(*state->sample, **next).value_or(0), 0.0, 100.0);
    state->sample = std::move(*next);
  }
  for (const Nvml::Instance& i : nvml_->Instances(*device).value_or(std::vector<Nvml::Instance>{})) {
    if (i.gpu_instance != *state->pod.gpu_instance || i.device == nullptr) continue;
    *bytes = nvml_->MemoryOf(i.device).value_or(Nvml::Memory{}).used;
  }
}

void Meter::AddTo(const std::string& name, State* state) {
  const int64_t now = MonotonicMicros(), elapsed = now - state->read_us;
  v1::GpuUsage& usage = state->usage;
  state->read_us = now;
  if (elapsed <= 0 || state->pod.gpus.empty()) return;
  double busy = 0, sm = 0, energy = 0;
  bool has_sm = true;
  uint64_t bytes = 0;
  if (state->pod.gpu_instance) {
    ReadInstance(state, &sm, &bytes);
    busy = sm;
  }
  for (const uint32_t number : state->pod.gpus) {
    const Gpu& gpu = gpus_[number];
    energy += static_cast<double>(gpu.energy_delta) * state->pod.milli / 1000;
    if (state->pod.gpu_instance) continue;
    const auto own_bytes = gpu.process_bytes.find(name);
    const auto own_percent = gpu.process_percent.find(name);
    if (state->pod.shared) {
      bytes += own_bytes == gpu.process_bytes.end() ? 0 : own_bytes->second;
      busy += own_percent == gpu.process_percent.end() ? 0 : own_percent->second;
      has_sm = false;
    } else {
      bytes += gpu.used;
      busy += gpu.utilization;
      has_sm = has_sm && gpu.sm.has_value();
      sm += gpu.sm.value_or(0);
    }
  }
  usage.set_metered_us(usage.metered_us() + static_cast<uint64_t>(elapsed));
  usage.set_busy_us(usage.busy_us() + Times(elapsed, busy));
  if (has_sm) usage.set_sm_us(usage.sm_us() + Times(elapsed, sm));
  usage.set_memory_bytes(bytes);
  usage.set_memory_peak_bytes(std::max(usage.memory_peak_bytes(), bytes));
  usage.set_energy_mj(usage.energy_mj() + static_cast<uint64_t>(energy));
  usage.set_utilization_percent(static_cast<uint32_t>(busy / static_cast<double>(state->pod.gpus.size())));
}

Status WriteJobFile(const std::string& directory, const std::string& name, const std::vector<uint64_t>& jobs) {
  const std::string path = directory + "/" + name;
  if (jobs.empty()) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoError(path);
    return {};
  }
  std::string lines;
  for (const uint64_t job : jobs) lines += std::to_string(job) + "\n";
  return WriteFileAtomic(path, lines, 0644);
}

}  // namespace vrun::gpu
