// SPDX-License-Identifier: Apache-2.0
// What a team may use in a month. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "control/money/amounts.h"
#include "proto/usage.pb.h"

namespace vrun::control {

struct MonthlyBudget {
  int64_t gpu_ms = 0;        // milliseconds of whole GPUs; 0: not bounded
  int64_t money_micros = 0;  // 0: not bounded
  uint32_t warn_percent = 80;
  uint32_t stop_percent = 0;  // 0: never
  bool any() const { return gpu_ms > 0 || money_micros > 0; }
};

// How the team stands at `now`. `used`: since the beginning of the month, with all teams below it.
v1::Budget Judge(const std::string& team, const MonthlyBudget& budget, const Amounts& used, const std::string& currency,
                 int64_t now);

// "1234.50"
std::string MoneyText(int64_t micros);
// "512.3"
std::string HoursText(int64_t gpu_ms);

}  // namespace vrun::control
