// SPDX-License-Identifier: Apache-2.0
#include "cli/usage/usage_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "base/time/calendar.h"
#include "cli/base/table.h"
#include "cli/usage/usage_view.h"

namespace vrun::cli {
namespace {

constexpr char kStyle[] = R"(
:root{--page:#fcfcfb;--ink:#1a1a19;--soft:#5c5c58;--line:#dddcd6;--used:#2a78d6;--idle:#eda100;--lost:#d03b3b;--rest:#b9b8b1;--card:#f3f2ee}
@media (prefers-color-scheme:dark){:root{--page:#1a1a19;--ink:#f2f1ec;--soft:#b4b3ab;--line:#3d3c38;--used:#3987e5;--idle:#c98500;--lost:#e66767;--rest:#66655f;--card:#262624}}
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem 1.25rem 4rem;max-width:66rem;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2.5rem 0 .5rem}p{margin:.3rem 0;color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem;margin:1.5rem 0}
.tile{background:var(--card);border-radius:.5rem;padding:.7rem .9rem}.tile b{display:block;font-size:1.45rem}.tile span{color:var(--soft);font-size:.85rem}
svg{display:block;width:100%;height:auto;overflow:visible}svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg .soft{fill:var(--soft)}
.used{fill:var(--used)}.idle{fill:var(--idle)}.lost{fill:var(--lost)}.rest{fill:var(--rest)}.grid{stroke:var(--line);stroke-width:1}
.curve{fill:none;stroke:var(--used);stroke-width:2}.mark{stroke:var(--ink);stroke-width:2}.track{fill:var(--card)}
.legend{display:flex;flex-wrap:wrap;gap:1rem;margin:.25rem 0 .75rem;color:var(--soft);font-size:.85rem}
.legend i{display:inline-block;width:.75rem;height:.75rem;border-radius:2px;margin-right:.35rem}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;margin-top:.75rem}
th,td{padding:.3rem .5rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}th:first-child,td:first-child{text-align:left}
th{color:var(--soft);font-weight:600}tfoot td{font-weight:600}
@media print{body{max-width:none}h2{break-after:avoid}svg,table{break-inside:avoid}}
)";

constexpr char kLegend[] =
    "<div class=\"legend\"><span><i style=\"background:var(--used)\"></i>used</span>"
    "<span><i style=\"background:var(--idle)\"></i>idle</span>"
    "<span><i style=\"background:var(--lost)\"></i>lost: not saved</span>"
    "<span><i style=\"background:var(--rest)\"></i>not measured</span></div>\n";

std::string Html(const std::string& text) {
  std::string out;
  for (const char c : Escape(text)) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string Number(double value, int digits = 1) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

double Hours(int64_t gpu_ms) { return static_cast<double>(gpu_ms) / 3.6e6; }

// The parts of a bar, in hours.
struct Parts {
  double used = 0, idle = 0, lost = 0, rest = 0;
  double sum() const { return used + idle + lost + rest; }
};
Parts PartsOf(const v1::UsageRow& row) {
  Parts parts;
  const double all = Hours(row.gpu_ms());
  parts.lost = std::min(Hours(row.lost_gpu_ms()), all);
  parts.idle = std::min(Hours(row.idle_gpu_ms()), all - parts.lost);
  // What was used of the time that was lost is shown as lost.
  parts.used = std::min(Hours(row.used_gpu_ms()), all - parts.lost - parts.idle);
  parts.rest = all - parts.lost - parts.idle - parts.used;
  return parts;
}

// 1, 2 or 5 times a power of ten, so that about four lines fit.
double GridStep(double most) {
  const double raw = most / 4;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

std::string Rect(const char* kind, double x, double y, double width, double height, const std::string& title) {
  if (width <= 0 || height <= 0) return "";
  return std::string("<rect class=\"") + kind + "\" x=\"" + Number(x, 2) + "\" y=\"" + Number(y, 2) + "\" width=\"" +
         Number(width, 2) + "\" height=\"" + Number(height, 2) + "\"><title>" + title + "</title></rect>";
}

std::string Text(double x, double y, const char* anchor, const std::string& text, const char* kind = "") {
  return "<text x=\"" + Number(x, 1) + "\" y=\"" + Number(y, 1) + "\" text-anchor=\"" + anchor + "\" class=\"" + kind +
         "\">" + text + "</text>";
}

std::string Svg(double height, const std::string& label, const std::string& body) {
  return "<svg viewBox=\"0 0 960 " + Number(height, 0) + "\" role=\"img\" aria-label=\"" + label + "\">" + body +
         "</svg>\n";
}

std::string PartTitle(const std::string& label, const char* part, double hours) {
  return Html(label) + ": " + Number(hours) + " GPU-hours " + part;
}

// Bars from left to right, the largest first.
std::string RowBars(const v1::UsageReport& report, const std::string& word, size_t most) {
  const size_t rows = static_cast<size_t>(report.rows_size());
  double largest = 0;
  for (size_t i = 0; i < std::min(rows, most); ++i) {
    largest = std::max(largest, Hours(report.rows(static_cast<int>(i)).gpu_ms()));
  }
  if (largest <= 0) return "<p>No GPU was allocated.</p>\n";
  constexpr double kLeft = 190, kWidth = 680, kRow = 26;
  std::string body;
  double y = 4;
  size_t shown = 0;
  for (const v1::UsageRow& row : report.rows()) {
    if (++shown > most) break;
    const std::string label = UsageLabel(row, word);
    const Parts p = PartsOf(row);
    double x = kLeft;
    const auto part = [&](const char* kind, double hours, const char* what) {
      const double width = hours / largest * kWidth;
      body += Rect(kind, x, y, width, kRow - 8, PartTitle(label, what, hours));
      x += width;
    };
    part("used", p.used, "used");
    part("idle", p.idle, "idle");
    part("lost", p.lost, "lost");
    part("rest", p.rest, "not measured");
    const std::string cut = label.size() > 26 ? label.substr(0, 25) + "…" : label;
    body += Text(kLeft - 8, y + 13, "end", Html(cut)) + Text(x + 6, y + 13, "start", Number(p.sum()), "soft");
    y += kRow;
  }
  return Svg(y + 4, "GPU-hours by " + word, body) + (rows <= most ? ""
                                                     : report.rows(static_cast<int>(rows) - 1).others()
                                                         ? "<p>and others</p>\n"
                                                         : "<p>and " + std::to_string(rows - most) + " more</p>\n");
}

// A bar for each day of the month, and the utilization as a curve below.
std::string Days(const v1::UsageReport& report) {
  struct Day {
    Parts parts;
    int64_t used = 0, metered = 0;
  };
  std::vector<Day> days(static_cast<size_t>((report.to_us() - report.from_us() + kDayMicros - 1) / kDayMicros));
  double largest = 0;
  for (const v1::UsageRow& row : report.rows()) {
    const auto at = ParseDay(row.day());
    if (!at || *at < report.from_us()) continue;
    const auto index = static_cast<size_t>((*at - report.from_us()) / kDayMicros);
    if (index >= days.size()) continue;
    days[index] = {PartsOf(row), row.used_gpu_ms(), row.metered_gpu_ms()};
    largest = std::max(largest, days[index].parts.sum());
  }
  if (largest <= 0) return "<p>No GPU was allocated.</p>\n";
  constexpr double kLeft = 56, kWidth = 896, kHeight = 190, kTop = 10, kCurveTop = 250, kCurve = 90;
  const double slot = kWidth / static_cast<double>(days.size());
  const double step = GridStep(largest), top = std::ceil(largest / step) * step;
  std::string body;
  for (double line = 0; line <= top + step / 2; line += step) {
    const double y = kTop + kHeight - line / top * kHeight;
    body += "<line class=\"grid\" x1=\"56\" x2=\"952\" y1=\"" + Number(y) + "\" y2=\"" + Number(y) + "\"/>";
    body += Text(kLeft - 6, y + 4, "end", Number(line, step < 1 ? 2 : 0), "soft");
  }
  for (const int percent : {0, 50, 100}) {
    const double y = kCurveTop + kCurve - percent * kCurve / 100;
    body += "<line class=\"grid\" x1=\"56\" x2=\"952\" y1=\"" + Number(y) + "\" y2=\"" + Number(y) + "\"/>";
    body += Text(kLeft - 6, y + 4, "end", std::to_string(percent) + "%", "soft");
  }
  std::string curve;
  bool on = false;
  for (size_t i = 0; i < days.size(); ++i) {
    const Day& day = days[i];
    const std::string label = DayText(report.from_us() + static_cast<int64_t>(i) * kDayMicros);
    const double x = kLeft + static_cast<double>(i) * slot + 2;
    double y = kTop + kHeight;
    const auto part = [&](const char* kind, double hours, const char* what) {
      const double height = hours / top * kHeight;
      y -= height;
      body += Rect(kind, x, y, slot - 4, height, PartTitle(label, what, hours));
    };
    part("used", day.parts.used, "used");
    part("idle", day.parts.idle, "idle");
    part("lost", day.parts.lost, "lost");
    part("rest", day.parts.rest, "not measured");
    body += Text(x + slot / 2 - 2, kTop + kHeight + 18, "middle", std::to_string(i + 1), "soft");
    if (day.metered == 0) {
      on = false;
      continue;
    }
    const double share = static_cast<double>(day.used) / static_cast<double>(day.metered);
    const double cx = x + slot / 2 - 2, cy = kCurveTop + kCurve - std::min(share, 1.0) * kCurve;
    curve += (on ? " L" : " M") + Number(cx) + " " + Number(cy);
    on = true;
    body += "<circle class=\"used\" cx=\"" + Number(cx) + "\" cy=\"" + Number(cy) + "\" r=\"3\"><title>" + label +
            ": " + Number(100 * share, 0) + " % of what was measured</title></circle>";
  }
  body += "<path class=\"curve\" d=\"" + curve + "\"/>" + Text(kLeft, kCurveTop - 10, "start", "Utilization", "soft");
  return Svg(kCurveTop + kCurve + 16, "GPU-hours and utilization by day", body);
}

std::string Waste(const v1::UsageReport& report) {
  const v1::UsageRow& total = report.total();
  struct Cause {
    const char* name;
    int64_t gpu_ms;
    const char* kind;
  };
  const Cause causes[] = {{"idle while held", total.idle_gpu_ms(), "idle"},
                          {"the program failed", total.failed_gpu_ms(), "lost"},
                          {"preempted, not saved", total.preempted_gpu_ms(), "lost"},
                          {"node or GPU lost", total.node_lost_gpu_ms(), "lost"},
                          {"could not be started", total.not_started_gpu_ms(), "lost"}};
  double largest = 0;
  for (const Cause& c : causes) largest = std::max(largest, Hours(c.gpu_ms));
  if (largest <= 0) return "<p>Nothing was wasted, as far as it was measured.</p>\n";
  std::string body;
  double y = 4;
  for (const Cause& c : causes) {
    const double hours = Hours(c.gpu_ms), width = hours / largest * 620;
    body += Text(182, y + 13, "end", c.name) + Rect(c.kind, 190, y, width, 18, PartTitle(c.name, "", hours));
    body +=
        Text(196 + width, y + 13, "start", Number(hours) + " (" + PercentCell(c.gpu_ms, total.gpu_ms()) + ")", "soft");
    y += 26;
  }
  return Svg(y + 4, "GPU-hours wasted by cause", body);
}

std::string BudgetBars(const v1::UsageReport& report) {
  if (report.budgets().empty()) return "";
  std::string body;
  double y = 4;
  for (const v1::Budget& b : report.budgets()) {
    const double full =
        std::max<double>({100.0, static_cast<double>(b.used_percent()), static_cast<double>(b.stop_percent())});
    const auto at = [&](double percent) { return 190 + percent / full * 560; };
    const char* kind = b.state() == "stop" ? "lost" : b.state() == "warn" ? "idle" : "used";
    body += Text(182, y + 13, "end", Html(b.team())) + Rect("track", 190, y, 560, 18, "");
    body += Rect(kind, 190, y, at(b.used_percent()) - 190, 18,
                 Html(b.team()) + ": " + std::to_string(b.used_percent()) + " %");
    const std::string mark = Number(at(100));
    body += "<line class=\"mark\" x1=\"" + mark + "\" x2=\"" + mark + "\" y1=\"" + Number(y - 2) + "\" y2=\"" +
            Number(y + 20) + "\"/>";
    const bool money = b.money_micros() > 0;
    body += Text(
        758, y + 13, "start",
        (money ? MoneyCell(b.used_money_micros()) + " of " + MoneyCell(b.money_micros()) + " " + Html(report.currency())
               : Number(Hours(b.used_gpu_ms())) + " of " + Number(Hours(b.gpu_ms())) + " GPU-h"),
        "soft");
    y += 30;
  }
  return "<h2>Budgets of " + MonthText(report.budgets(0).from_us()) + "</h2>\n" + Svg(y, "Budgets", body);
}

std::string FiguresTable(const v1::UsageReport& report, const char* heading) {
  const bool money = !report.currency().empty();
  std::string out = "<div class=\"wide\"><table><thead><tr><th>" + std::string(heading) +
                    "</th><th>Jobs</th><th>GPU-hours</th><th>Used</th><th>Idle</th><th>Lost</th><th>Wait "
                    "(half)</th><th>Wait (19 of 20)</th>" +
                    (money ? "<th>" + Html(report.currency()) + "</th><th>of it wasted</th>" : "") +
                    "</tr></thead><tbody>\n";
  const auto add = [&](const v1::UsageRow& row, const std::string& label) {
    out += "<tr><td>" + Html(label) + "</td><td>" + std::to_string(row.jobs()) + "</td><td>" +
           Number(Hours(row.gpu_ms())) + "</td><td>" + PercentCell(row.used_gpu_ms(), row.metered_gpu_ms()) +
           "</td><td>" + Number(Hours(row.idle_gpu_ms())) + "</td><td>" + Number(Hours(row.lost_gpu_ms())) +
           "</td><td>" + FormatDuration(row.wait_p50_us()) + "</td><td>" + FormatDuration(row.wait_p95_us()) + "</td>";
    if (money) {
      out += "<td>" + MoneyCell(row.cost_micros()) + "</td><td>" +
             MoneyCell(row.lost_cost_micros() + row.idle_cost_micros()) + "</td>";
    }
    out += "</tr>\n";
  };
  for (const v1::UsageRow& row : report.rows()) {
    std::string label;
    for (const std::string& word : UsageWords(report)) label += (label.empty() ? "" : ", ") + UsageLabel(row, word);
    add(row, label);
  }
  out += "</tbody><tfoot>";
  add(report.total(), "total");
  return out + "</tfoot></table></div>\n";
}

std::string Tile(const std::string& value, const std::string& what) {
  return "<div class=\"tile\"><b>" + value + "</b><span>" + what + "</span></div>\n";
}

// "+12 % to the month before"
std::string Change(int64_t now, int64_t before) {
  if (before <= 0) return "";
  const double percent = 100.0 * static_cast<double>(now - before) / static_cast<double>(before);
  return " (" + std::string(percent >= 0 ? "+" : "−") + Number(std::abs(percent), 0) + " % to the month before)";
}

}  // namespace

std::string MonthlyReport(const MonthFigures& figures) {
  const v1::UsageReport& teams = figures.by_team;
  const v1::UsageRow& total = teams.total();
  const std::string month = MonthText(teams.from_us());
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">"
      "<title>Usage of " +
      month + "</title><style>" + kStyle + "</style></head><body>\n";
  out += "<h1>Usage of " + month + "</h1>\n<p>" + DayText(teams.from_us()) + " to " +
         (figures.now_us < teams.to_us() ? FormatRfc3339(figures.now_us) + " (the month is not over)"
                                         : DayText(teams.to_us() - 1)) +
         ", days of UTC";
  if (teams.began_us() > teams.from_us()) out += "; accounted since " + FormatRfc3339(teams.began_us());
  out += ".</p>\n<div class=\"tiles\">\n";
  const v1::UsageRow& before = figures.before.total();
  out += Tile(Number(Hours(total.gpu_ms())), "GPU-hours allocated" + Change(total.gpu_ms(), before.gpu_ms()));
  const std::string used = PercentCell(total.used_gpu_ms(), total.metered_gpu_ms());
  out += Tile(used.empty() ? "–" : used, "utilization, where it was measured");
  const std::string wasted = PercentCell(total.lost_gpu_ms() + total.idle_gpu_ms(), total.gpu_ms());
  out += Tile(wasted.empty() ? "–" : wasted, "idle or lost");
  if (!teams.currency().empty()) {
    out += Tile(MoneyCell(total.cost_micros()) + " " + Html(teams.currency()),
                "cost" + Change(total.cost_micros(), before.cost_micros()));
  }
  out += Tile(std::to_string(total.jobs()), "jobs, " + std::to_string(total.attempts()) + " attempts");
  out += Tile(FormatDuration(total.wait_p50_us()),
              "wait of half of them; of 19 in 20: " + FormatDuration(total.wait_p95_us()));
  out += "</div>\n";
  out += BudgetBars(teams);
  out += "<h2>Teams</h2>\n<p>GPU-hours.</p>\n" + std::string(kLegend) + RowBars(teams, "team", 30) +
         FiguresTable(teams, "Team");
  out += "<h2>Days</h2>\n<p>GPU-hours and utilization.</p>\n" + std::string(kLegend) + Days(figures.by_day);
  out += "<h2>Waste by cause</h2>\n<p>GPU-hours, and their part of all that were allocated.</p>\n" + Waste(teams);
  out += "<h2>GPU types and pools</h2>\n" + FiguresTable(figures.by_type, "Type, pool");
  out += "<h2>People</h2>\n" + RowBars(figures.by_user, "user", 20) + FiguresTable(figures.by_user, "User");
  return out + "</body></html>\n";
}

}  // namespace vrun::cli
