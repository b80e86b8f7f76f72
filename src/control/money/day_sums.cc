// SPDX-License-Identifier: Apache-2.0
#include "control/money/day_sums.h"

#include <algorithm>

#include "base/time/calendar.h"
#include "proto/notify.pb.h"

namespace vrun::control {
namespace {

// In the order in which they are stored; a new one is appended.
std::vector<Wide*> AmountsOf(DaySums* sums) {
  Amounts& a = sums->amounts;
  std::vector<Wide*> all{&a.gpu, &a.metered, &a.used, &a.idle, &a.cpu, &a.memory, &sums->lost_cpu};
  for (Wide& lost : a.lost) all.push_back(&lost);
  return all;
}

// Differences of it add up to the total, wherever a day is cut.
Wide UpTo(Wide total, int64_t micros) { return total * micros / kDayMicros; }

}  // namespace

void AddToDays(const IntervalRow& row, std::map<int64_t, DaySums>* days) {
  const int64_t end = std::max(row.end_us, row.start_us + 1), length = row.end_us - row.start_us;
  const int64_t lost_from = row.end_us - std::clamp<int64_t>(row.lost_us, 0, length);
  for (int64_t day = DayOf(row.start_us); day < end; day += kDayMicros) {
    DaySums& sums = (*days)[day];
    AddPart(row, {}, day, day + kDayMicros, &sums.amounts);
    const int64_t lost = std::min(row.end_us, day + kDayMicros) - std::max({day, row.start_us, lost_from});
    sums.lost_cpu += Wide{std::max<int64_t>(lost, 0)} * row.milli_cpus;
    sums.jobs.push_back(row.job);
    if (row.waited_us >= 0 && row.start_us >= day) sums.waits.push_back(row.waited_us);
  }
}

Status Merge(const std::string& encoded, DaySums* to) {
  if (encoded.empty()) return {};
  v1::DaySums stored;
  const std::vector<Wide*> amounts = AmountsOf(to);
  if (!stored.ParseFromString(encoded) || stored.amounts_size() % 2 != 0 ||
      static_cast<size_t>(stored.amounts_size()) > 2 * amounts.size()) {
    return Error(Code::kCorrupt, "the usage of a day in the database does not parse");
  }
  for (int i = 0; i + 1 < stored.amounts_size(); i += 2) {
    const Wide high = static_cast<int64_t>(stored.amounts(i + 1));
    *amounts[static_cast<size_t>(i) / 2] += high * (Wide{1} << 64) + Wide{stored.amounts(i)};
  }
  to->jobs.insert(to->jobs.end(), stored.jobs().begin(), stored.jobs().end());
  to->waits.insert(to->waits.end(), stored.waits_us().begin(), stored.waits_us().end());
  return {};
}

std::string Encode(DaySums sums) {
  v1::DaySums stored;
  for (const Wide* amount : AmountsOf(&sums)) {
    stored.add_amounts(static_cast<uint64_t>(*amount));
    stored.add_amounts(static_cast<uint64_t>(*amount >> 64));
  }
  std::sort(sums.jobs.begin(), sums.jobs.end());
  sums.jobs.erase(std::unique(sums.jobs.begin(), sums.jobs.end()), sums.jobs.end());
  for (const uint64_t job : sums.jobs) stored.add_jobs(job);
  for (const int64_t wait : sums.waits) stored.add_waits_us(wait);
  return stored.SerializeAsString();
}

Amounts PartOfDay(const DaySums& whole, int64_t day, std::span<const PriceStep> prices, int64_t from, int64_t to) {
  const int64_t begin = std::clamp<int64_t>(from, day, day + kDayMicros) - day;
  const int64_t end = std::clamp<int64_t>(to, day, day + kDayMicros) - day;
  if (begin >= end) return {};
  DaySums part = whole;
  for (Wide* amount : AmountsOf(&part)) *amount = UpTo(*amount, end) - UpTo(*amount, begin);
  Amounts& sum = part.amounts;
  const PriceStep* price = nullptr;
  for (const PriceStep& step : prices) {
    if (step.from_us <= day) price = &step;
  }
  if (price == nullptr) return sum;
  sum.cost = sum.gpu * price->gpu_hour_micros + sum.cpu * price->cpu_hour_micros;
  sum.lost_cost = sum.all_lost() * price->gpu_hour_micros + part.lost_cpu * price->cpu_hour_micros;
  sum.idle_cost = sum.idle * price->gpu_hour_micros;
  return sum;
}

}  // namespace vrun::control
