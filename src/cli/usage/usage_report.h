// SPDX-License-Identifier: Apache-2.0
// The report of a month: one HTML file without scripts or references to elsewhere, with plots as SVG, for light and
// dark screens and for paper.
#pragma once

#include <cstdint>
#include <string>

#include "proto/local.pb.h"

namespace vrun::cli {

// Answers for one month.
struct MonthFigures {
  v1::UsageReport by_team;  // also has the total and the budgets
  v1::UsageReport by_day;
  v1::UsageReport by_user;
  v1::UsageReport by_type;  // gpu-type,pool
  v1::UsageReport before;   // the total of the month before
  int64_t now_us = 0;       // when the report is made
};

std::string MonthlyReport(const MonthFigures& figures);

}  // namespace vrun::cli
