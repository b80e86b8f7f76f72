// SPDX-License-Identifier: Apache-2.0
#include "sim/html_report.h"

#include <algorithm>
#include <cstdio>

#include "sim/svg_plot.h"

namespace vrun::sim {
namespace {

constexpr size_t kCdfPoints = 200;

constexpr char kHead[] = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>vrun: policies on a trace</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1360px; margin: 2em auto; padding: 0 1em; color: #212529; }
h1 { font-size: 1.5em; } p { max-width: 60em; }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25em .8em; text-align: right; border-bottom: 1px solid #dee2e6; }
th:first-child, td:first-child { text-align: left; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(520px, 1fr)); gap: 1em; }
svg { width: 100%; font: 11px system-ui, sans-serif; } svg .title { font-weight: bold; font-size: 13px; }
svg .grid { stroke: #e9ecef; } small { color: #868e96; }
</style></head><body>
)";

std::string Fixed(double value, int decimals) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", decimals, value);
  return buffer;
}

std::string Cell(double mean, double half_width, int decimals) {
  std::string out = "<td>" + Fixed(mean, decimals);
  if (half_width > 0) out += " <small>±" + Fixed(half_width, decimals) + "</small>";
  return out + "</td>";
}

// The part of sorted values up to each of kCdfPoints of them.
PlotSeries Distribution(const std::string& name, const std::vector<double>& sorted) {
  PlotSeries out{name, {}, {}};
  for (size_t i = 0; i <= kCdfPoints && !sorted.empty(); ++i) {
    const size_t at = std::min(sorted.size() - 1, i * sorted.size() / kCdfPoints);
    out.x.push_back(sorted[at]);
    out.y.push_back(static_cast<double>(i) / kCdfPoints);
  }
  return out;
}

std::string JobTable(const Study& study) {
  struct Column {
    const char* title;
    double Metrics::*value;
    double unit;
    int decimals;
  };
  static constexpr Column kColumns[] = {
      {"completion, h", &Metrics::avg_completion_s, 3600, 2},
      {"wait, h", &Metrics::avg_wait_s, 3600, 2},
      {"p99 wait, h", &Metrics::p99_wait_s, 3600, 1},
      {"wait of gangs &gt; 8 GPUs, h", &Metrics::wait_large_gangs_s, 3600, 1},
      {"utilization, %", &Metrics::utilization, 0.01, 1},
      {"preemptions", &Metrics::preemptions, 1, 0},
      {"lost work, %", &Metrics::lost_work_percent, 1, 2},
      {"deadlines met, %", &Metrics::deadlines_met_percent, 1, 1},
  };
  std::string out = "<table><tr><th>policy</th>";
  for (const Column& c : kColumns) out += std::string("<th>") + c.title + "</th>";
  out += "</tr>\n";
  for (const JobOutcome& o : study.jobs) {
    out += "<tr><td>" + HtmlEscape(o.policy) + (o.free_moves ? "*" : "") + "</td>";
    for (const Column& c : kColumns) {
      out += Cell(o.summary.mean.*c.value / c.unit, o.summary.half_width.*c.value / c.unit, c.decimals);
    }
    out += "</tr>\n";
  }
  return out + "</table>\n<p><small>* may move running jobs for nothing: a favour to this baseline.</small></p>\n";
}

std::string JobPlots(const Study& study) {
  std::vector<PlotSeries> waits, completions, sizes, use;
  std::vector<std::string> groups;
  for (const JobOutcome& o : study.jobs) {
    waits.push_back(Distribution(o.policy, o.waits));
    completions.push_back(Distribution(o.policy, o.completions));
    PlotSeries by_size{o.policy, {}, {}};
    groups.clear();
    for (const auto& [size, wait] : o.wait_by_size) {
      groups.push_back(size);
      by_size.y.push_back(wait / 3600);
    }
    sizes.push_back(std::move(by_size));
    use.push_back({o.policy, o.utilization.x, o.utilization.y});
  }
  return "<div class=\"plots\">\n" +
         LinePlot({.title = "Wait", .x_label = "seconds", .y_label = "part of jobs", .log_x = true}, waits) +
         LinePlot({.title = "Completion", .x_label = "seconds", .y_label = "part of jobs", .log_x = true},
                  completions) +
         BarPlot({.title = "Average wait by size", .x_label = "GPUs", .y_label = "hours", .log_y = true}, groups,
                 sizes) +
         LinePlot({.title = "GPUs in use", .x_label = "days", .y_label = "part of capacity"}, use) + "</div>\n";
}

std::string PodTable(const Study& study) {
  std::string out = "<table><tr><th>policy</th><th>allocated, %</th><th>fragmented, %</th><th>of idle, %</th></tr>\n";
  for (const PodOutcome& o : study.pods) {
    out += "<tr><td>" + HtmlEscape(o.policy) + "</td>" + Cell(o.allocation_percent, o.allocation_half_width, 2) +
           Cell(o.fragmentation_percent, o.fragmentation_half_width, 2) + Cell(o.fragmentation_idle_percent, 0, 1) +
           "</tr>\n";
  }
  return out + "</table>\n";
}

std::string PodPlots(const Study& study) {
  std::vector<PlotSeries> allocation, fragmentation;
  for (const PodOutcome& o : study.pods) {
    allocation.push_back({o.policy, o.allocation.x, o.allocation.y});
    fragmentation.push_back({o.policy, o.fragmentation.x, o.fragmentation.y});
  }
  return "<div class=\"plots\">\n" +
         LinePlot({.title = "Allocation", .x_label = "% of GPUs asked for", .y_label = "% of GPUs"}, allocation) +
         LinePlot({.title = "Fragmentation", .x_label = "% of GPUs asked for", .y_label = "% of GPUs"}, fragmentation) +
         "</div>\n";
}

}  // namespace

std::string HtmlReport(const Study& study) {
  const bool is_jobs = !study.jobs.empty();
  std::string out = kHead;
  out += "<h1>" + HtmlEscape(study.trace_name) + "</h1>\n<p>" + std::to_string(study.arrivals) +
         (is_jobs ? " jobs in " + Fixed(study.span_days, 1) + " days" : std::string(" pods")) + " on " +
         std::to_string(study.nodes) + " nodes with " + std::to_string(study.gpus) + " GPUs, offered load " +
         Fixed(100 * study.offered_load, 1) + " %";
  if (study.shifts > 1) {
    out += "; " + std::to_string(study.shifts) + (is_jobs ? " replays with shifted arrivals" : " random orders") +
           ", averages with 95 % confidence intervals; plots show the first";
  }
  out += ".</p>\n";
  out += is_jobs ? JobTable(study) + JobPlots(study) : PodTable(study) + PodPlots(study);
  return out + "</body></html>\n";
}

}  // namespace vrun::sim
