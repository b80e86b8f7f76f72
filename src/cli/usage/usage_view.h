// SPDX-License-Identifier: Apache-2.0
// Tables, JSON and CSV of who has used what.
#pragma once

#include <string>
#include <vector>

#include "cli/base/json.h"
#include "proto/local.pb.h"

namespace vrun::cli {

// The words of UsageReport.by.
std::vector<std::string> UsageWords(const v1::UsageReport& report);
// What tells the row apart in this respect: "vision"; "(none)"; "(others)".
std::string UsageLabel(const v1::UsageRow& row, const std::string& word);

std::string UsageTable(const v1::UsageReport& report, bool wide, bool headers);
std::string UsageJson(const v1::UsageReport& report);
// One line for each row and one for the total, whose groups are "(total)".
std::string UsageCsv(const v1::UsageReport& report, bool headers);

// "512.3" of milliseconds.
std::string HoursCell(int64_t gpu_ms);
// "12.50", with two digits behind the point.
std::string MoneyCell(int64_t micros);
// "83%"; "" when nothing was measured.
std::string PercentCell(int64_t part, int64_t whole);
// For `vctl job`: "cost" and "wasted", for people. "": there is nothing to say.
std::string CostText(const v1::JobCost& cost);
std::string WasteText(const v1::JobCost& cost);
// The key "cost" of a job's JSON.
void WriteCost(const v1::JobCost& cost, JsonWriter* json);

}  // namespace vrun::cli
