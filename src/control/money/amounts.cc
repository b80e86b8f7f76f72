// SPDX-License-Identifier: Apache-2.0
#include "control/money/amounts.h"

#include <algorithm>

namespace vrun::control {
namespace {

constexpr Wide kHour = Wide{3600} * 1'000'000;

Wide Rounded(Wide value, Wide by) { return (value + by / 2) / by; }

Loss LossOf(IntervalEnd end) {
  switch (end) {
    case IntervalEnd::kPreempted: return kLossPreempted;
    case IntervalEnd::kNodeLost: return kLossNode;
    case IntervalEnd::kNotStarted: return kLossNotStarted;
    default: return kLossFailed;
  }
}

// Of a total that is spread evenly over [begin, end): what lies before `at`. Differences of it add up to the total,
// wherever the cuts are.
Wide Before(Wide total, int64_t begin, int64_t end, int64_t at) {
  if (at <= begin || end <= begin) return 0;
  return at >= end ? total : total * (at - begin) / (end - begin);
}

}  // namespace

void Amounts::Add(const Amounts& other) {
  gpu += other.gpu;
  metered += other.metered;
  used += other.used;
  idle += other.idle;
  for (size_t i = 0; i < kLosses; ++i) lost[i] += other.lost[i];
  cpu += other.cpu;
  memory += other.memory;
  cost += other.cost;
  lost_cost += other.lost_cost;
  idle_cost += other.idle_cost;
}

Wide Amounts::all_lost() const {
  Wide sum = 0;
  for (const Wide part : lost) sum += part;
  return sum;
}

int64_t GpuMillis(Wide gpu) { return static_cast<int64_t>(Rounded(gpu, 1'000'000)); }

int64_t MoneyMicros(Wide cost) { return static_cast<int64_t>(Rounded(cost, kHour * 1000)); }

void Put(const Amounts& a, v1::UsageRow* row) {
  row->set_gpu_ms(GpuMillis(a.gpu));
  row->set_metered_gpu_ms(GpuMillis(a.metered));
  row->set_used_gpu_ms(GpuMillis(a.used));
  row->set_idle_gpu_ms(GpuMillis(a.idle));
  row->set_lost_gpu_ms(GpuMillis(a.all_lost()));
  row->set_failed_gpu_ms(GpuMillis(a.lost[kLossFailed]));
  row->set_preempted_gpu_ms(GpuMillis(a.lost[kLossPreempted]));
  row->set_node_lost_gpu_ms(GpuMillis(a.lost[kLossNode]));
  row->set_not_started_gpu_ms(GpuMillis(a.lost[kLossNotStarted]));
  row->set_cpu_ms(GpuMillis(a.cpu));
  row->set_memory_mib_s(static_cast<int64_t>(Rounded(a.memory, Wide{1'000'000} << 20)));
  row->set_cost_micros(MoneyMicros(a.cost));
  row->set_lost_cost_micros(MoneyMicros(a.lost_cost));
  row->set_idle_cost_micros(MoneyMicros(a.idle_cost));
}

void AddPart(const IntervalRow& row, std::span<const PriceStep> prices, int64_t from, int64_t to, Amounts* sum) {
  const int64_t begin = std::max(from, row.start_us), end = std::min(to, row.end_us);
  if (begin >= end) return;
  const int64_t length = row.end_us - row.start_us;
  // The end of the interval is what was lost.
  const int64_t lost_from = row.end_us - std::clamp<int64_t>(row.lost_us, 0, length);
  const Wide metered = Wide{std::clamp<int64_t>(row.metered_us, 0, length)} * row.gpu_milli;
  const Wide used = std::min(Wide{std::max<int64_t>(row.busy_us, 0)} * 1000, metered);
  const Wide idle = length == 0 ? 0 : (metered - used) * (lost_from - row.start_us) / length;
  // Idle time is counted in what was not lost, or it would be wasted twice.
  const auto idle_before = [&](int64_t at) { return Before(idle, row.start_us, lost_from, at); };

  const auto spread = [&](Wide total) {
    return Before(total, row.start_us, row.end_us, end) - Before(total, row.start_us, row.end_us, begin);
  };
  const Wide micros = end - begin;
  const int64_t lost = std::max<int64_t>(end - std::max(begin, lost_from), 0);
  sum->gpu += micros * row.gpu_milli;
  sum->metered += spread(metered);
  sum->used += spread(used);
  sum->idle += idle_before(end) - idle_before(begin);
  sum->lost[LossOf(row.ended)] += Wide{lost} * row.gpu_milli;
  sum->cpu += micros * row.milli_cpus;
  sum->memory += micros * row.memory_bytes;
  for (size_t i = 0; i < prices.size(); ++i) {
    const int64_t first = std::max(begin, prices[i].from_us);
    const int64_t last = i + 1 < prices.size() ? std::min(end, prices[i + 1].from_us) : end;
    if (first >= last) continue;
    const Wide rate =
        Wide{row.gpu_milli} * prices[i].gpu_hour_micros + Wide{row.milli_cpus} * prices[i].cpu_hour_micros;
    sum->cost += Wide{last - first} * rate;
    sum->lost_cost += Wide{std::max<int64_t>(last - std::max(first, lost_from), 0)} * rate;
    sum->idle_cost += (idle_before(last) - idle_before(first)) * prices[i].gpu_hour_micros;
  }
}

}  // namespace vrun::control
