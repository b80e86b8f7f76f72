// SPDX-License-Identifier: Apache-2.0
// What is kept of intervals whose jobs are removed: their sums by day. Prices change only at the beginning of days, so
// money is computed from the sums as it is from the intervals, and the sums of whole days are the same. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "control/money/amounts.h"
#include "control/money/prices.h"
#include "control/store/store.h"

namespace vrun::control {

struct DaySums {
  Amounts amounts;             // without money
  Wide lost_cpu = 0;           // as Amounts::cpu
  std::vector<uint64_t> jobs;  // that had room on the day; with repetitions until Encode
  std::vector<int64_t> waits;  // microseconds, one for each attempt that began on it
};

// Adds the parts of the interval to its days, by their beginnings.
void AddToDays(const IntervalRow& interval, std::map<int64_t, DaySums>* days);
// Adds `encoded`, which Encode has made; "": nothing. kCorrupt.
Status Merge(const std::string& encoded, DaySums* to);
std::string Encode(DaySums sums);

// The part of the day within [from, to), with money; a day that is cut counts evenly.
Amounts PartOfDay(const DaySums& sums, int64_t day, std::span<const PriceStep> prices, int64_t from, int64_t to);

}  // namespace vrun::control
