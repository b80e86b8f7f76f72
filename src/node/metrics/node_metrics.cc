// SPDX-License-Identifier: Apache-2.0
#include "node/metrics/node_metrics.h"

#include "http/metrics_page.h"
#include "telemetry/figures.h"

namespace vrun::node {
namespace {

using Page = http::MetricsPage;

void Cache(const CacheFigures& cache, Page* page) {
  const auto gauge = [page](std::string_view name, std::string_view help, uint64_t value) {
    page->Only(name, "gauge", help, static_cast<double>(value));
  };
  const auto counter = [page](std::string_view name, std::string_view help, uint64_t value) {
    page->Only(name, "counter", help, static_cast<double>(value));
  };
  gauge("vrun_node_cache_bytes", "Content of roots that the node keeps on its disk.", cache.bytes);
  gauge("vrun_node_cache_limit_bytes", "The most that it keeps.", cache.limit_bytes);
  counter("vrun_node_cache_hits_total", "Units of content that were there when a job asked.", cache.hits);
  counter("vrun_node_cache_misses_total", "Units of content that were fetched.", cache.misses);
  counter("vrun_node_cache_corrupt_total", "Units that were damaged on the disk, and fetched again.",
          cache.corrupt_units);
  counter("vrun_node_cache_evictions_total", "Files that made room for others.", cache.evictions);
  counter("vrun_node_cache_failed_writes_total", "Units that the disk did not take.", cache.failed_writes);
  counter("vrun_node_fetched_bytes_total", "Bytes that came from homes, as sent.", cache.fetched_bytes);
}

void Gpus(const NodeFigures& figures, Page* page) {
  page->Only("vrun_node_gpus", "gauge", "GPUs that the node offers.", figures.total.gpus());
  if (!figures.gpu_faults.empty()) {
    page->Head("vrun_node_gpu_healthy", "gauge", "1 if jobs get this GPU.");
    for (size_t i = 0; i < figures.gpu_faults.size(); ++i) {
      page->Value({{"gpu", std::to_string(i)}}, figures.gpu_faults[i].empty() ? 1 : 0);
    }
  }
  page->Only("vrun_node_gpu_drain", "gauge", "1 while the health of its GPUs keeps new jobs away.",
             figures.drain.empty() ? 0 : 1);
  if (figures.usages.empty()) return;
  const auto each = [&](std::string_view name, std::string_view type, std::string_view help, auto value) {
    page->Head(name, type, help);
    for (const v1::GpuUsage& usage : figures.usages) {
      page->Value({{"job", std::to_string(usage.job())}, {"pod", std::to_string(usage.pod())}}, value(usage));
    }
  };
  each("vrun_pod_gpu_utilization_ratio", "gauge", "How busy the pod's GPUs are now, 0 to 1.",
       [](const v1::GpuUsage& u) { return u.utilization_percent() / 100.0; });
  each("vrun_pod_gpu_memory_bytes", "gauge", "Memory that the pod uses on its GPUs now.",
       [](const v1::GpuUsage& u) { return static_cast<double>(u.memory_bytes()); });
  each("vrun_pod_gpu_busy_seconds_total", "counter", "Utilization of the pod's GPUs, summed over its time.",
       [](const v1::GpuUsage& u) { return static_cast<double>(u.busy_us()) / 1e6; });
  each("vrun_pod_gpu_energy_joules_total", "counter", "Energy that the pod's GPUs took.",
       [](const v1::GpuUsage& u) { return static_cast<double>(u.energy_mj()) / 1e3; });
}

}  // namespace

std::string MetricsText(const NodeFigures& figures) {
  Page page;
  page.Head("vrun_node_info", "gauge", "What the node is.");
  page.Value({{"node", figures.node},
              {"pool", figures.pool},
              {"gpu_type", figures.total.gpu_type()},
              {"version", VRUN_VERSION}},
             1);
  page.Only("vrun_node_controller_connected", "gauge", "1 while the controller knows the node.", figures.connected);
  page.Head("vrun_node_pods", "gauge", "Pods on the node.");
  for (const char* state : {"waiting", "starting", "running", "ended"}) {
    const auto count = figures.pods.find(state);
    page.Value({{"state", state}}, count == figures.pods.end() ? 0 : static_cast<double>(count->second));
  }
  page.Only("vrun_node_cpus", "gauge", "Cores that the node offers.", figures.total.milli_cpus() / 1000.0);
  page.Only("vrun_node_cpus_allocated", "gauge", "Cores that pods have.",
            static_cast<double>(figures.milli_cpus_given) / 1000);
  page.Only("vrun_node_memory_bytes", "gauge", "Memory that the node offers.",
            static_cast<double>(figures.total.memory_bytes()));
  page.Only("vrun_node_memory_allocated_bytes", "gauge", "Memory that pods may use.",
            static_cast<double>(figures.memory_given_bytes));
  page.Only("vrun_node_file_system_servers", "gauge", "Users whose roots the node serves.",
            static_cast<double>(figures.file_system_servers));
  page.Only("vrun_node_unreported_ends", "gauge", "Ends of pods that the controller has not acknowledged yet.",
            static_cast<double>(figures.unsent_ends));
  Cache(figures.cache, &page);
  Gpus(figures, &page);
  telemetry::AddFigures(&page);
  return page.Take();
}

}  // namespace vrun::node
