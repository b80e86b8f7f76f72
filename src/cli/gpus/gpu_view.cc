// SPDX-License-Identifier: Apache-2.0
#include "cli/gpus/gpu_view.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "base/clock.h"
#include "base/escape.h"
#include "cli/base/table.h"
#include "cli/request/gpu_options.h"
#include "jobs/ending.h"

namespace vrun::cli {
namespace {

constexpr double kMillijoulesPerKwh = 3.6e9;

std::string Fixed(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

uint32_t GpusOfPod(const v1::Resources& r) { return std::max(r.gpus(), 1u); }

// The part of its GPUs that the job kept busy, on average. nullopt: not metered yet.
std::optional<double> Percent(const v1::JobInfo& job) {
  const v1::GpuUsage& use = job.gpu_usage();
  if (use.metered_us() == 0) return std::nullopt;
  return std::min(100.0, 100.0 * static_cast<double>(use.busy_us()) / static_cast<double>(use.metered_us()) /
                             GpusOfPod(job.resources()));
}

std::string Decimal(uint32_t milli) {
  v1::Resources share;
  share.set_gpu_milli(milli);
  return AmountText(share);
}

// One GPU of a node as far as it is known.
struct GpuLine {
  const v1::NodeInfo* node = nullptr;
  const v1::Gpu* gpu = nullptr;  // null: the node describes none
  uint32_t index = 0;
  std::vector<const v1::GpuUser*> users;

  std::string type() const { return gpu != nullptr && !gpu->type().empty() ? gpu->type() : node->total().gpu_type(); }
  bool mig() const { return gpu != nullptr ? gpu->mig() : !node->facts().mig_model().empty(); }

  std::string mode() const {
    if (mig()) return "mig";
    if (users.empty()) return "free";
    switch (users[0]->sharing()) {
      case v1::GPU_MPS: return "mps";
      case v1::GPU_TIME_SLICE: return "time";
      default: return "whole";
    }
  }
  // nullopt: nobody meters it.
  std::optional<uint32_t> utilization() const {
    std::optional<uint32_t> sum;
    for (const v1::GpuUser* user : users) {
      if (user->has_usage()) sum = std::min(100u, sum.value_or(0) + user->usage().utilization_percent());
    }
    return sum;
  }
  std::string health() const {
    if (gpu != nullptr && !gpu->problem().empty()) return gpu->problem();
    if ((node->facts().bad_gpus() >> index & 1) != 0) return "out of service";
    return node->state() == "ready" ? "ok" : node->state();
  }
};

std::vector<GpuLine> LinesOf(const v1::NodeList& nodes, const GpuFilter& filter) {
  std::vector<GpuLine> lines;
  for (const v1::NodeInfo& node : nodes.nodes()) {
    if (!filter.pool.empty() && node.pool() != filter.pool) continue;
    if (!filter.nodes.empty() &&
        std::find(filter.nodes.begin(), filter.nodes.end(), node.name()) == filter.nodes.end()) {
      continue;
    }
    const auto described = static_cast<uint32_t>(node.facts().gpus_size());
    for (uint32_t i = 0; i < std::max(described, node.total().gpus()); ++i) {
      GpuLine& line = lines.emplace_back();
      line.node = &node;
      line.index = i;
      if (i < described) line.gpu = &node.facts().gpus(static_cast<int>(i));
      for (const v1::GpuUser& user : node.gpu_users()) {
        if (user.gpu() == i) line.users.push_back(&user);
      }
    }
  }
  std::stable_sort(lines.begin(), lines.end(), [](const GpuLine& a, const GpuLine& b) {
    return std::pair(a.node->name(), a.index) < std::pair(b.node->name(), b.index);
  });
  return lines;
}

// "12 anna", "13:0.25 anna", "14:1g.10gb@4 ben".
std::string UserText(const v1::GpuUser& user) {
  std::string text = std::to_string(user.job());
  if (!user.mig_profile().empty()) {
    text += ":" + user.mig_profile() + "@" + std::to_string(user.mig_start());
  } else if (user.sharing() != v1::GPU_SHARING_UNSPECIFIED) {
    text += ":" + Decimal(user.milli());
  }
  return text + " " + user.user();
}

void WriteUser(const v1::GpuUser& user, JsonWriter* json) {
  json->BeginObject().Key("job").Uint(user.job()).Key("pod").Uint(user.pod()).Key("name").String(user.name());
  json->Key("user").String(user.user()).Key("team").String(user.team());
  json->Key("part").Number(user.milli() / 1000.0, 3).Key("sharing");
  if (!user.mig_profile().empty()) {
    json->String("mig").Key("mig_profile").String(user.mig_profile()).Key("mig_start").Uint(user.mig_start());
  } else {
    json->String(user.sharing() == v1::GPU_MPS ? "mps" : user.sharing() == v1::GPU_TIME_SLICE ? "time" : "whole");
  }
  json->Key("utilization_percent");
  user.has_usage() ? json->Uint(user.usage().utilization_percent()) : json->Null();
  json->Key("memory_bytes");
  user.has_usage() ? json->Uint(user.usage().memory_bytes()) : json->Null();
  json->EndObject();
}

void WriteGpu(const GpuLine& line, JsonWriter* json) {
  json->BeginObject().Key("node").String(line.node->name()).Key("pool").String(line.node->pool());
  json->Key("gpu").Uint(line.index).Key("type").String(line.type()).Key("mode").String(line.mode());
  json->Key("memory_bytes");
  line.gpu != nullptr ? json->Uint(line.gpu->memory_bytes()) : json->Null();
  const auto text = [&](const char* key, const std::string& value) {
    json->Key(key);
    value.empty() ? json->Null() : json->String(value);
  };
  text("uuid", line.gpu != nullptr ? line.gpu->uuid() : "");
  text("product", line.gpu != nullptr ? line.gpu->product() : "");
  text("bus_id", line.gpu != nullptr ? line.gpu->pci_bus_id() : "");
  text("driver", line.node->facts().gpu_driver());
  json->Key("health").String(line.health()).Key("utilization_percent");
  const auto utilization = line.utilization();
  utilization ? json->Uint(*utilization) : json->Null();
  json->Key("users").BeginArray();
  for (const v1::GpuUser* user : line.users) WriteUser(*user, json);
  json->EndArray().EndObject();
}

}  // namespace

std::string FormatGpus(const v1::NodeList& nodes, const GpuFilter& filter, OutputFormat format, bool headers) {
  const std::vector<GpuLine> lines = LinesOf(nodes, filter);
  if (format == OutputFormat::kJson) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("gpus").BeginArray();
    for (const GpuLine& line : lines) WriteGpu(line, &json);
    json.EndArray().EndObject();
    return json.Take();
  }
  std::string out;
  if (format == OutputFormat::kName) {
    for (const GpuLine& line : lines) out += Escape(line.node->name()) + ":" + std::to_string(line.index) + "\n";
    return out;
  }
  const bool wide = format == OutputFormat::kWide;
  std::vector<std::string> columns{"NODE", "GPU", "TYPE", "MEMORY", "MODE", "USED BY", "UTIL", "HEALTH"};
  if (wide) columns.insert(columns.end(), {"POOL", "UUID", "BUS", "PRODUCT", "DRIVER"});
  Table table(std::move(columns));
  for (const GpuLine& line : lines) {
    std::string users;
    for (const v1::GpuUser* user : line.users) users += (users.empty() ? "" : ", ") + UserText(*user);
    const auto utilization = line.utilization();
    std::vector<std::string> cells{line.node->name(),
                                   std::to_string(line.index),
                                   line.type(),
                                   line.gpu == nullptr ? "" : FormatBytes(line.gpu->memory_bytes()),
                                   line.mode(),
                                   users,
                                   utilization ? std::to_string(*utilization) + " %" : "",
                                   line.health()};
    if (wide) {
      const v1::Gpu none;
      const v1::Gpu& gpu = line.gpu == nullptr ? none : *line.gpu;
      cells.insert(cells.end(),
                   {line.node->pool(), gpu.uuid(), gpu.pci_bus_id(), gpu.product(), line.node->facts().gpu_driver()});
    }
    table.Add(std::move(cells));
  }
  return table.Format(headers);
}

std::string UseText(const v1::JobInfo& job) {
  const auto percent = job.has_gpu_usage() ? Percent(job) : std::nullopt;
  if (!percent) return "";
  const v1::GpuUsage& use = job.gpu_usage();
  const v1::Resources& r = job.resources();
  const std::string type = r.gpu_type().empty() ? "gpu" : r.gpu_type();
  std::string text = Fixed(*percent, 0) + " % of " + AmountText(r) + " x " + Escape(type);
  if (use.memory_peak_bytes() > 0) text += ", " + FormatBytes(use.memory_peak_bytes()) + " peak";
  if (use.energy_mj() > 0) text += ", " + Fixed(static_cast<double>(use.energy_mj()) / kMillijoulesPerKwh, 2) + " kWh";
  return text;
}

void WriteUse(const v1::JobInfo& job, JsonWriter* json) {
  if (!job.has_gpu_usage()) {
    json->Null();
    return;
  }
  const v1::GpuUsage& use = job.gpu_usage();
  json->BeginObject().Key("metered_s").Seconds(static_cast<int64_t>(use.metered_us())).Key("busy_gpu_s");
  json->Seconds(static_cast<int64_t>(use.busy_us())).Key("busy_percent");
  const auto percent = Percent(job);
  percent ? json->Number(*percent, 1) : json->Null();
  json->Key("sm_gpu_s");
  use.has_sm_us() ? json->Seconds(static_cast<int64_t>(use.sm_us())) : json->Null();
  json->Key("memory_peak_bytes").Uint(use.memory_peak_bytes()).Key("energy_kwh");
  json->Number(static_cast<double>(use.energy_mj()) / kMillijoulesPerKwh, 6);
  json->Key("utilization_percent").Uint(use.utilization_percent()).Key("memory_bytes").Uint(use.memory_bytes());
  json->EndObject();
}

std::string FormatTop(const v1::JobList& jobs, OutputFormat format, bool headers) {
  std::vector<const v1::JobInfo*> running;
  for (const v1::JobInfo& job : jobs.jobs()) {
    if (job.state() == v1::RUNNING && KindOf(job.resources()) != GpuKind::kNone) running.push_back(&job);
  }
  std::stable_sort(running.begin(), running.end(), [](const v1::JobInfo* a, const v1::JobInfo* b) {
    const auto key = [](const v1::JobInfo* j) {
      return j->has_gpu_usage() ? static_cast<int>(j->gpu_usage().utilization_percent()) : -1;
    };
    return key(a) != key(b) ? key(a) > key(b) : a->job() < b->job();
  });
  if (format == OutputFormat::kJson) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("jobs").BeginArray();
    for (const v1::JobInfo* job : running) {
      json.BeginObject().Key("job").Uint(job->job()).Key("name").String(job->name()).Key("user").String(job->user());
      json.Key("node").String(job->node()).Key("gpus").String(GpusText(job->resources())).Key("gpu_usage");
      WriteUse(*job, &json);
      json.EndObject();
    }
    json.EndArray().EndObject();
    return json.Take();
  }
  if (format == OutputFormat::kName) {
    std::string out;
    for (const v1::JobInfo* job : running) out += std::to_string(job->job()) + "\n";
    return out;
  }
  Table table({"JOB", "NAME", "USER", "NODE", "GPUS", "UTIL", "MEMORY", "PEAK", "AVERAGE", "RAN"});
  for (const v1::JobInfo* job : running) {
    const v1::GpuUsage& use = job->gpu_usage();
    const bool known = job->has_gpu_usage();
    const auto percent = known ? Percent(*job) : std::nullopt;
    table.Add({std::to_string(job->job()), job->name(), job->user(), job->node(), GpusText(job->resources()),
               known ? std::to_string(use.utilization_percent()) + " %" : "",
               known ? FormatBytes(use.memory_bytes()) : "", known ? FormatBytes(use.memory_peak_bytes()) : "",
               percent ? Fixed(*percent, 0) + " %" : "",
               FormatDuration(std::max<int64_t>(WallMicros() - job->started_us(), 0))});
  }
  return table.Format(headers);
}

}  // namespace vrun::cli
