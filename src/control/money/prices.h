// SPDX-License-Identifier: Apache-2.0
// What an hour costs, by pool and GPU type. A price holds from its date until the next one for the same pool and type,
// so that a new price changes nothing of the past. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace vrun::control {

// Amounts are millionths of the currency's unit for an hour.
struct PriceRule {
  int64_t from_us = 0;   // 0: from the beginning
  std::string pool;      // "": pools without a rule of their own
  std::string gpu_type;  // "": types without a rule of their own
  std::optional<int64_t> gpu_hour_micros;
  std::optional<int64_t> cpu_hour_micros;  // of any GPU type
};

// From this moment until the next step.
struct PriceStep {
  int64_t from_us = 0;
  int64_t gpu_hour_micros = 0;
  int64_t cpu_hour_micros = 0;
};

struct Prices {
  std::string currency;          // "EUR"; "": there are no prices
  std::vector<PriceRule> rules;  // in the order of the file; of two for the same date, the later one holds

  // In order of time; the first step is at 0. A rule that names the pool goes before one that does not, then one that
  // names the type before one that does not.
  std::vector<PriceStep> StepsOf(const std::string& pool, const std::string& gpu_type) const;
};

}  // namespace vrun::control
