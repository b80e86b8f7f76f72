// SPDX-License-Identifier: Apache-2.0
// What intervals add up to. All sums are exact: they do not depend on where an interval is cut or in which order it is
// added. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "control/money/prices.h"
#include "control/store/store.h"
#include "proto/usage.pb.h"

namespace vrun::control {

__extension__ using Wide = __int128;  // a year of a large cluster in microseconds exceeds 64 bits

// Causes of lost time, as in UsageRow.
enum Loss : uint8_t { kLossFailed, kLossPreempted, kLossNode, kLossNotStarted, kLosses };

struct Amounts {
  // microseconds x thousandths of GPUs
  Wide gpu = 0;
  Wide metered = 0;
  Wide used = 0;
  Wide idle = 0;
  Wide lost[kLosses] = {};
  Wide cpu = 0;     // microseconds x thousandths of processors
  Wide memory = 0;  // microseconds x bytes
  // microseconds x thousandths x millionths of the currency's unit for an hour
  Wide cost = 0;
  Wide lost_cost = 0;
  Wide idle_cost = 0;

  void Add(const Amounts& other);
  Wide all_lost() const;
};

// GPU time and money in the units of UsageRow.
int64_t GpuMillis(Wide gpu);
int64_t MoneyMicros(Wide cost);
// Fills in the sums of the row.
void Put(const Amounts& amounts, v1::UsageRow* row);

// Adds the part of the interval within [from, to).
void AddPart(const IntervalRow& interval, std::span<const PriceStep> prices, int64_t from, int64_t to, Amounts* sum);

}  // namespace vrun::control
