// SPDX-License-Identifier: Apache-2.0
#include "cli/usage/usage_view.h"

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "base/escape.h"
#include "cli/base/table.h"

namespace vrun::cli {
namespace {

std::string Decimal(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

double Seconds(int64_t millis) { return static_cast<double>(millis) / 1000; }
double Money(int64_t micros) { return static_cast<double>(micros) / 1e6; }

std::string OwnValue(const v1::UsageRow& row, const std::string& word) {
  if (word == "team") return row.team();
  if (word == "user") return row.user();
  if (word == "project") return row.project();
  if (word == "pool") return row.pool();
  if (word == "gpu-type") return row.gpu_type();
  if (word == "job") return row.job() == 0 ? "" : std::to_string(row.job());
  return row.day();
}

std::string Title(const std::string& word) {
  std::string title;
  for (const char c : word) title += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return title;
}

// A figure of a row: its name in JSON and CSV, and its value in seconds, bytes, counts or money.
struct Figure {
  const char* name;
  double (*value)(const v1::UsageRow&);
  int decimals;
};
constexpr Figure kFigures[] = {
    {"jobs", [](const v1::UsageRow& r) { return static_cast<double>(r.jobs()); }, 0},
    {"attempts", [](const v1::UsageRow& r) { return static_cast<double>(r.attempts()); }, 0},
    {"gpu_s", [](const v1::UsageRow& r) { return Seconds(r.gpu_ms()); }, 3},
    {"metered_gpu_s", [](const v1::UsageRow& r) { return Seconds(r.metered_gpu_ms()); }, 3},
    {"used_gpu_s", [](const v1::UsageRow& r) { return Seconds(r.used_gpu_ms()); }, 3},
    {"idle_gpu_s", [](const v1::UsageRow& r) { return Seconds(r.idle_gpu_ms()); }, 3},
    {"lost_gpu_s", [](const v1::UsageRow& r) { return Seconds(r.lost_gpu_ms()); }, 3},
    {"failed_gpu_s", [](const v1::UsageRow& r) { return Seconds(r.failed_gpu_ms()); }, 3},
    {"preempted_gpu_s", [](const v1::UsageRow& r) { return Seconds(r.preempted_gpu_ms()); }, 3},
    {"node_lost_gpu_s", [](const v1::UsageRow& r) { return Seconds(r.node_lost_gpu_ms()); }, 3},
    {"not_started_gpu_s", [](const v1::UsageRow& r) { return Seconds(r.not_started_gpu_ms()); }, 3},
    {"cpu_s", [](const v1::UsageRow& r) { return Seconds(r.cpu_ms()); }, 3},
    {"memory_mib_s", [](const v1::UsageRow& r) { return static_cast<double>(r.memory_mib_s()); }, 0},
    {"waited_s", [](const v1::UsageRow& r) { return Money(r.waited_us()); }, 3},
    {"wait_p50_s", [](const v1::UsageRow& r) { return Money(r.wait_p50_us()); }, 3},
    {"wait_p95_s", [](const v1::UsageRow& r) { return Money(r.wait_p95_us()); }, 3},
    {"cost", [](const v1::UsageRow& r) { return Money(r.cost_micros()); }, 6},
    {"lost_cost", [](const v1::UsageRow& r) { return Money(r.lost_cost_micros()); }, 6},
    {"idle_cost", [](const v1::UsageRow& r) { return Money(r.idle_cost_micros()); }, 6},
};

void WriteRow(const v1::UsageRow& row, const std::vector<std::string>& words, JsonWriter* json) {
  json->BeginObject();
  for (const std::string& word : words) {
    if (word == "job") {
      json->Key("job").Uint(row.job()).Key("job_name").String(row.job_name());
    } else {
      json->Key(word == "gpu-type" ? "gpu_type" : word).String(OwnValue(row, word));
    }
  }
  json->Key("others").Bool(row.others());
  for (const Figure& figure : kFigures) json->Key(figure.name).Number(figure.value(row), figure.decimals);
  json->EndObject();
}

void WriteBudget(const v1::Budget& budget, JsonWriter* json) {
  json->BeginObject().Key("team").String(budget.team());
  json->Key("from").Time(budget.from_us()).Key("until").Time(budget.until_us());
  json->Key("gpu_s");
  budget.gpu_ms() == 0 ? json->Null() : json->Number(Seconds(budget.gpu_ms()), 3);
  json->Key("money");
  budget.money_micros() == 0 ? json->Null() : json->Number(Money(budget.money_micros()), 2);
  json->Key("used_gpu_s").Number(Seconds(budget.used_gpu_ms()), 3);
  json->Key("used_money").Number(Money(budget.used_money_micros()), 6);
  json->Key("used_percent").Uint(budget.used_percent());
  json->Key("warn_percent").Uint(budget.warn_percent()).Key("stop_percent");
  budget.stop_percent() == 0 ? json->Null() : json->Uint(budget.stop_percent());
  json->Key("state").String(budget.state()).Key("exhausted").Time(budget.exhausted_us());
  json->Key("text").String(budget.text()).EndObject();
}

// A cell of CSV: quoted where it must be. Names are escaped, so that they have no line ends.
std::string CsvCell(const std::string& text) {
  const std::string safe = Escape(text);
  if (safe.find_first_of(",\"") == safe.npos) return safe;
  std::string out = "\"";
  for (const char c : safe) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

std::string WaitCell(int64_t micros, uint64_t attempts) { return attempts == 0 ? "" : FormatDuration(micros); }

}  // namespace

std::string HoursCell(int64_t gpu_ms) {
  const double hours = static_cast<double>(gpu_ms) / 3.6e6;
  return Decimal(hours, hours != 0 && hours < 10 ? 3 : 1);
}
std::string MoneyCell(int64_t micros) { return Decimal(Money(micros), 2); }
std::string PercentCell(int64_t part, int64_t whole) {
  return whole <= 0 ? "" : Decimal(100.0 * static_cast<double>(part) / static_cast<double>(whole), 0) + "%";
}

std::vector<std::string> UsageWords(const v1::UsageReport& report) {
  std::vector<std::string> words;
  for (size_t at = 0; at < report.by().size();) {
    const size_t comma = std::min(report.by().find(',', at), report.by().size());
    words.push_back(report.by().substr(at, comma - at));
    at = comma + 1;
  }
  return words;
}

std::string UsageLabel(const v1::UsageRow& row, const std::string& word) {
  const std::string value = OwnValue(row, word);
  if (!value.empty()) return value;
  return row.others() ? "(others)" : "(none)";
}

std::string UsageTable(const v1::UsageReport& report, bool wide, bool headers) {
  const std::vector<std::string> words = UsageWords(report);
  const bool money = !report.currency().empty();
  std::vector<std::string> columns;
  for (const std::string& word : words) columns.push_back(Title(word));
  if (words.empty()) columns.push_back("");
  const bool by_job = std::find(words.begin(), words.end(), "job") != words.end();
  if (by_job) columns.push_back("NAME");
  columns.insert(columns.end(), {"JOBS", "GPU-H", "USED", "IDLE-H", "LOST-H", "WAIT-P50", "WAIT-P95"});
  if (wide) columns.insert(columns.end(), {"FAILED-H", "PREEMPTED-H", "NODE-LOST-H", "CPU-H", "ATTEMPTS", "MEASURED"});
  if (money) columns.push_back("COST-" + report.currency());
  if (money && wide) columns.insert(columns.end(), {"LOST-" + report.currency(), "IDLE-" + report.currency()});
  Table table(std::move(columns));
  const auto add = [&](const v1::UsageRow& row, bool total) {
    std::vector<std::string> cells;
    for (const std::string& word : words) cells.push_back(total ? "" : UsageLabel(row, word));
    if (words.empty()) cells.push_back("");
    if (total) cells[0] = "total";
    if (by_job) cells.push_back(row.job_name());
    cells.insert(cells.end(), {std::to_string(row.jobs()), HoursCell(row.gpu_ms()),
                               PercentCell(row.used_gpu_ms(), row.metered_gpu_ms()), HoursCell(row.idle_gpu_ms()),
                               HoursCell(row.lost_gpu_ms()), WaitCell(row.wait_p50_us(), row.attempts()),
                               WaitCell(row.wait_p95_us(), row.attempts())});
    if (wide) {
      cells.insert(cells.end(), {HoursCell(row.failed_gpu_ms()), HoursCell(row.preempted_gpu_ms()),
                                 HoursCell(row.node_lost_gpu_ms()), HoursCell(row.cpu_ms()),
                                 std::to_string(row.attempts()), PercentCell(row.metered_gpu_ms(), row.gpu_ms())});
    }
    if (money) cells.push_back(MoneyCell(row.cost_micros()));
    if (money && wide) {
      cells.insert(cells.end(), {MoneyCell(row.lost_cost_micros()), MoneyCell(row.idle_cost_micros())});
    }
    table.Add(std::move(cells));
  };
  if (!words.empty()) {
    for (const v1::UsageRow& row : report.rows()) add(row, false);
  }
  add(report.total(), true);
  return table.Format(headers);
}

std::string UsageJson(const v1::UsageReport& report) {
  const std::vector<std::string> words = UsageWords(report);
  JsonWriter json;
  json.BeginObject().Key("schema").Int(kJsonSchema);
  json.Key("from").Time(report.from_us()).Key("to").Time(report.to_us()).Key("began").Time(report.began_us());
  json.Key("by").BeginArray();
  for (const std::string& word : words) json.String(word);
  json.EndArray().Key("currency");
  report.currency().empty() ? json.Null() : json.String(report.currency());
  json.Key("rows").BeginArray();
  for (const v1::UsageRow& row : report.rows()) WriteRow(row, words, &json);
  json.EndArray().Key("total");
  WriteRow(report.total(), {}, &json);
  json.Key("budgets").BeginArray();
  for (const v1::Budget& budget : report.budgets()) WriteBudget(budget, &json);
  json.EndArray().EndObject();
  return json.Take();
}

std::string UsageCsv(const v1::UsageReport& report, bool headers) {
  const std::vector<std::string> words = UsageWords(report);
  std::string out;
  const auto add = [&](const auto& label, const auto& figure) {
    std::string line;
    for (const std::string& word : words) line += (line.empty() ? "" : ",") + CsvCell(label(word));
    for (const Figure& f : kFigures) line += (line.empty() ? "" : ",") + figure(f);
    out += line + "\n";
  };
  const auto value = [](const v1::UsageRow& row) {
    return [&row](const Figure& f) { return Decimal(f.value(row), f.decimals); };
  };
  if (headers) {
    add([](const std::string& word) { return word == "gpu-type" ? std::string("gpu_type") : word; },
        [](const Figure& f) { return std::string(f.name); });
  }
  if (!words.empty()) {
    for (const v1::UsageRow& row : report.rows()) {
      add([&](const std::string& word) { return UsageLabel(row, word); }, value(row));
    }
  }
  add([](const std::string&) { return std::string("(total)"); }, value(report.total()));
  return out;
}

std::string CostText(const v1::JobCost& cost) {
  std::string text;
  if (!cost.currency().empty()) text = MoneyCell(cost.cost_micros()) + " " + cost.currency() + " for ";
  if (cost.gpu_ms() > 0) {
    text += HoursCell(cost.gpu_ms()) + " GPU-hours";
    const std::string used = PercentCell(cost.used_gpu_ms(), cost.metered_gpu_ms());
    if (!used.empty()) text += ", used to " + used;
  } else {
    text += HoursCell(cost.cpu_ms()) + " processor-hours";
  }
  return text + (cost.attempts() > 1 ? ", in " + std::to_string(cost.attempts()) + " attempts" : "");
}

void WriteCost(const v1::JobCost& cost, JsonWriter* json) {
  json->Key("cost").BeginObject().Key("currency");
  cost.currency().empty() ? json->Null() : json->String(cost.currency());
  json->Key("amount").Number(Money(cost.cost_micros()), 6);
  json->Key("lost_amount").Number(Money(cost.lost_cost_micros()), 6);
  json->Key("idle_amount").Number(Money(cost.idle_cost_micros()), 6);
  json->Key("gpu_s").Number(Seconds(cost.gpu_ms()), 3).Key("metered_gpu_s").Number(Seconds(cost.metered_gpu_ms()), 3);
  json->Key("used_gpu_s")
      .Number(Seconds(cost.used_gpu_ms()), 3)
      .Key("idle_gpu_s")
      .Number(Seconds(cost.idle_gpu_ms()), 3);
  json->Key("lost_gpu_s").Number(Seconds(cost.lost_gpu_ms()), 3).Key("cpu_s").Number(Seconds(cost.cpu_ms()), 3);
  json->Key("waited_s").Seconds(cost.waited_us()).Key("attempts").Uint(cost.attempts()).EndObject();
}

std::string WasteText(const v1::JobCost& cost) {
  if (cost.lost_gpu_ms() == 0 && cost.idle_gpu_ms() == 0) return "";
  std::string text;
  if (cost.lost_gpu_ms() > 0) text = HoursCell(cost.lost_gpu_ms()) + " GPU-hours lost (not saved)";
  if (cost.idle_gpu_ms() > 0) {
    text += (text.empty() ? "" : ", ") + HoursCell(cost.idle_gpu_ms()) + " GPU-hours idle";
  }
  const int64_t money = cost.lost_cost_micros() + cost.idle_cost_micros();
  return text + (cost.currency().empty() ? "" : ": " + MoneyCell(money) + " " + cost.currency());
}

}  // namespace vrun::cli
