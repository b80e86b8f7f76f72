// SPDX-License-Identifier: Apache-2.0
#include "control/dashboard/money_now.h"

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/time/calendar.h"
#include "control/gpus/gpu_needs.h"
#include "control/money/prices.h"

namespace vrun::control {
namespace {

constexpr int64_t kLookMicros = 60'000'000;
constexpr int64_t kPartOfThread = 1000;

// Prices of an hour at one time, by pool and type.
class PricesAt {
 public:
  PricesAt(const Prices& prices, int64_t at_us) : prices_(prices), at_us_(at_us) {}
  int64_t GpuHour(const std::string& pool, const std::string& type) {
    const auto [it, fresh] = known_.try_emplace({pool, type}, 0);
    if (!fresh) return it->second;
    for (const PriceStep& step : prices_.StepsOf(pool, type)) {
      if (step.from_us <= at_us_) it->second = step.gpu_hour_micros;
    }
    return it->second;
  }

 private:
  const Prices& prices_;
  const int64_t at_us_;
  std::map<std::pair<std::string, std::string>, int64_t> known_;
};

// What is known of a node more than once.
struct NodeOfPods {
  std::string mig_model;
  int64_t gpu_hour = 0;
};

}  // namespace

void AddMoney(State& state, v1::ClusterNow* now) {
  const Prices& prices = state.settings().scheduler.prices;
  if (prices.currency.empty()) return;
  PricesAt at(prices, state.clock().Wall());
  std::map<std::string, NodeOfPods> nodes;
  for (const v1::CellNode& node : now->nodes()) {
    const auto row = state.nodes().find(node.name());
    if (row == state.nodes().end()) continue;
    nodes[node.name()] = {state.FactsOf(row->second.row).mig_model(), at.GpuHour(node.pool(), node.gpu_type())};
  }
  // Thousandths of GPUs times the price; a percent of them times it.
  double allocated = 0, idle = 0;
  bool measured = false;
  for (const auto& [id, job] : state.jobs()) {
    if (!HoldsResources(job)) continue;
    for (const PodRow& pod : job.pods) {
      const auto node = nodes.find(pod.node);
      if (!HoldsRoom(pod) || pod.gpu_mask == 0 || node == nodes.end()) continue;
      const double milli = static_cast<double>(MilliOf(pod, node->second.mig_model)) * std::popcount(pod.gpu_mask);
      const double cost = milli / 1000 * static_cast<double>(node->second.gpu_hour);
      allocated += cost;
      v1::GpuUsage use;
      if (pod.usage.empty() || !use.ParseFromString(pod.usage)) continue;
      measured = true;
      idle += cost * (100 - static_cast<double>(std::min<uint32_t>(use.utilization_percent(), 100))) / 100;
    }
  }
  v1::ClusterMoney* money = now->mutable_money();
  money->set_currency(prices.currency);
  money->set_allocated_hour_micros(static_cast<int64_t>(allocated));
  money->set_idle_hour_micros(static_cast<int64_t>(idle));
  money->set_measured(measured);
}

void AddFreeRoom(v1::ClusterNow* now) {
  uint64_t free = 0, scattered = 0;
  for (const v1::CellNode& node : now->nodes()) {
    if (node.state() != "ready") continue;
    const auto count = [&](char letter) {
      return static_cast<uint64_t>(std::count(node.cells().begin(), node.cells().end(), letter));
    };
    const uint64_t here = count('f');
    free += here;
    // A node of which a GPU is bad is whole without it.
    if (here + count('b') < node.cells().size()) scattered += here;
  }
  now->set_free_gpus(free);
  now->set_scattered_gpus(scattered);
}

void LostMoney::Look(State& state) {
  const int64_t began = MonotonicMicros();
  if (began < next_us_ || state.settings().scheduler.prices.currency.empty()) return;
  v1::UsageRequest request;
  request.set_from_us(std::max<int64_t>(state.clock().Wall() - kDayMicros, 1));
  request.set_limit(1);
  v1::UsageReport report;
  if (state.SumUsage("", request, &report)) micros_ = report.total().lost_cost_micros();
  next_us_ = began + std::max(kLookMicros, (MonotonicMicros() - began) * kPartOfThread);
}

}  // namespace vrun::control
