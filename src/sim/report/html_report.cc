// SPDX-License-Identifier: Apache-2.0
#include "sim/report/html_report.h"

#include <algorithm>
#include <cstdio>

#include "sim/report/svg_plot.h"

namespace vrun::sim {
namespace {

constexpr size_t kCdfPoints = 200;
constexpr double kHour = 3600;

constexpr char kHead[] = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>vrun: policies on a trace</title>
<style>
:root { --bg: #ffffff; --card: #f8f9fa; --text: #212529; --dim: #6c757d; --rule: #dee2e6; }
.s0 { --c: #0b62a4; } .s1 { --c: #d9480f; } .s2 { --c: #2b8a3e; } .s3 { --c: #862e9c; }
.s4 { --c: #c92a2a; } .s5 { --c: #0c8599; } .s6 { --c: #a36200; } .s7 { --c: #495057; }
@media (prefers-color-scheme: dark) {
:root { --bg: #15181c; --card: #1e2227; --text: #e9ecef; --dim: #9aa3ab; --rule: #343a40; }
.s0 { --c: #4dabf7; } .s1 { --c: #ff922b; } .s2 { --c: #69db7c; } .s3 { --c: #da77f2; }
.s4 { --c: #ff8787; } .s5 { --c: #3bc9db; } .s6 { --c: #ffd43b; } .s7 { --c: #adb5bd; }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1360px; margin: 2em auto; padding: 0 1em;
  color: var(--text); background: var(--bg); }
h1 { font-size: 1.6em; margin-bottom: 0; } h2 { font-size: 1.15em; margin-top: 2em; } p { max-width: 60em; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); gap: 1em; margin: 1.5em 0; }
.tile { background: var(--card); border-radius: 8px; padding: .8em 1.1em; }
.tile b { display: block; font-size: 1.7em; } .tile span, small { color: var(--dim); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25em .6em; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } tr.first td { font-weight: 600; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(520px, 100%), 1fr)); gap: 1em; }
.plots svg { background: var(--card); border-radius: 8px; }
svg { width: 100%; font: 11px system-ui, sans-serif; } svg text { fill: var(--text); }
svg .title { font-weight: bold; font-size: 13px; } svg .grid { stroke: var(--rule); }
.line { fill: none; stroke: var(--c); stroke-width: 1.7; } .area { fill: var(--c); fill-opacity: .8; }
.range { stroke: var(--c); stroke-width: 2.5; stroke-opacity: .55; } .middle { fill: var(--c); }
.money .s1 { --c: #e03131; } .money .s2 { --c: var(--dim); }
.dot { fill: var(--c); fill-opacity: .45; }
.legend span { margin-right: 1.2em; } .legend i { display: inline-block; width: .9em; height: .9em;
  margin-right: .35em; border-radius: 3px; background: var(--c); vertical-align: -1px; }
@media print { body { max-width: none; } .tile, .plots svg { break-inside: avoid; } }
</style></head><body>
)";

std::string Fixed(double value, int decimals) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", decimals, value);
  return buffer;
}

// A table cell: shown in `unit`, and with the value as in the JSON for programs that read the page.
std::string Cell(const NamedMetric& metric, double mean, double half_width, double unit, int decimals) {
  std::string out = "<td data-metric=\"" + std::string(metric.name) + "\" data-value=\"" +
                    Fixed(mean, metric.decimals) + "\">" + Fixed(mean / unit, decimals);
  if (half_width > 0) out += " <small>±" + Fixed(half_width / unit, decimals) + "</small>";
  return out + "</td>";
}

const NamedMetric& MetricOf(double Metrics::*value) {
  for (const std::vector<NamedMetric>* metrics : {&AllMetrics(), &CostMetrics()}) {
    for (const NamedMetric& metric : *metrics) {
      if (metric.value == value) return metric;
    }
  }
  return AllMetrics().front();
}

std::string NameOf(const JobOutcome& o) { return o.policy + (o.free_moves ? "*" : ""); }

// The distribution function of sorted values, at kCdfPoints points.
PlotSeries Distribution(const std::string& name, const std::vector<double>& sorted) {
  PlotSeries out{name, {}, {}};
  for (size_t i = 0; i <= kCdfPoints && !sorted.empty(); ++i) {
    const size_t at = std::min(sorted.size() - 1, i * sorted.size() / kCdfPoints);
    out.x.push_back(sorted[at]);
    out.y.push_back(static_cast<double>(i) / kCdfPoints);
  }
  return out;
}

std::string Plots(const std::string& plots) { return "<div class=\"plots\">\n" + plots + "</div>\n"; }

// --- gang jobs ---

// The results of the first policy, compared with the best of the others.
std::string Tiles(const Study& study) {
  struct Tile {
    const char* title;
    double Metrics::*value;
    double unit;
    const char* unit_name;
    bool more_is_better;
  };
  static constexpr Tile kTiles[] = {
      {"average wait", &Metrics::avg_wait_s, kHour, " h", false},
      {"average completion", &Metrics::avg_completion_s, kHour, " h", false},
      {"average wait of gangs above 8 GPUs", &Metrics::wait_large_gangs_s, kHour, " h", false},
      {"utilization", &Metrics::utilization, 0.01, " %", true},
  };
  const JobOutcome& first = study.jobs.front();
  std::string out = "<div class=\"tiles\">\n";
  for (const Tile& tile : kTiles) {
    out += "<div class=\"tile\"><span>" + std::string(tile.title) + ", " + HtmlEscape(NameOf(first)) + "</span><b>" +
           Fixed(first.summary.mean.*tile.value / tile.unit, 2) + tile.unit_name + "</b><span>";
    const auto worse = [&](const JobOutcome& a, const JobOutcome& b) {
      const double x = a.summary.mean.*tile.value, y = b.summary.mean.*tile.value;
      return tile.more_is_better ? x > y : x < y;
    };
    if (study.jobs.size() > 1) {
      const auto best = std::min_element(study.jobs.begin() + 1, study.jobs.end(), worse);
      out += "best of the others: " + HtmlEscape(NameOf(*best)) + ", " +
             Fixed(best->summary.mean.*tile.value / tile.unit, 2) + tile.unit_name;
    }
    out += "</span></div>\n";
  }
  return out + "</div>\n";
}

std::string JobTable(const Study& study) {
  struct Column {
    const char* title;
    double Metrics::*value;
    double unit;
    int decimals;
    enum When { kAlways, kFaults, kDeadlines, kPrices } when = kAlways;
  };
  static constexpr Column kColumns[] = {
      {"completion, h", &Metrics::avg_completion_s, kHour, 2},
      {"p99 completion, h", &Metrics::p99_completion_s, kHour, 1},
      {"wait, h", &Metrics::avg_wait_s, kHour, 2},
      {"p99 wait, h", &Metrics::p99_wait_s, kHour, 1},
      {"wait of gangs &gt; 8 GPUs, h", &Metrics::wait_large_gangs_s, kHour, 1},
      {"utilization, %", &Metrics::utilization, 0.01, 1},
      {"preemptions", &Metrics::preemptions, 1, 0},
      {"restarts by faults", &Metrics::restarts, 1, 0, Column::kFaults},
      {"lost work, %", &Metrics::lost_work_percent, 1, 2},
      {"deadlines met, %", &Metrics::deadlines_met_percent, 1, 1, Column::kDeadlines},
      {"cost of work", &Metrics::cost_of_work, 1, 0, Column::kPrices},
      {"of lost work", &Metrics::cost_of_lost_work, 1, 0, Column::kPrices},
      {"of idle GPUs", &Metrics::cost_of_idle, 1, 0, Column::kPrices},
  };
  const bool shown[] = {true, study.cluster.HasFaults(), study.has_deadlines, study.has_prices};  // by Column::When
  std::string out = "<div class=\"scroll\"><table id=\"policies\"><tr><th>policy</th>";
  for (const Column& c : kColumns) {
    if (shown[c.when]) out += std::string("<th>") + c.title + "</th>";
  }
  out += "</tr>\n";
  for (const JobOutcome& o : study.jobs) {
    out += std::string("<tr") + (&o == &study.jobs.front() ? " class=\"first\"" : "") + " data-policy=\"" +
           HtmlEscape(o.policy) + "\"><td>" + HtmlEscape(NameOf(o)) + "</td>";
    for (const Column& c : kColumns) {
      if (!shown[c.when]) continue;
      out += Cell(MetricOf(c.value), o.summary.mean.*c.value, o.summary.half_width.*c.value, c.unit, c.decimals);
    }
    out += "</tr>\n";
  }
  out += "</table></div>\n";
  if (std::any_of(study.jobs.begin(), study.jobs.end(), [](const JobOutcome& o) { return o.free_moves; })) {
    out += "<p><small>* may move running jobs for nothing: a favour to this baseline.</small></p>\n";
  }
  return out;
}

RangeSeries RangesOf(const JobOutcome& o, Spread SizeClass::*spread) {
  RangeSeries out{o.policy, {}};
  for (const SizeClass& size : o.sizes) {
    const Spread& s = size.*spread;
    out.marks.push_back({s.p25 / kHour, s.p50 / kHour, s.p95 / kHour, {}});
  }
  return out;
}

std::string DistributionPlots(const Study& study) {
  std::vector<PlotSeries> waits, completions;
  std::vector<RangeSeries> wait_sizes, completion_sizes;
  std::vector<std::string> groups, names;
  for (const SizeClass& size : study.jobs.front().sizes) groups.push_back(size.gpus);
  for (const JobOutcome& o : study.jobs) {
    names.push_back(NameOf(o));
    waits.push_back(Distribution(o.policy, o.waits));
    completions.push_back(Distribution(o.policy, o.completions));
    wait_sizes.push_back(RangesOf(o, &SizeClass::wait));
    completion_sizes.push_back(RangesOf(o, &SizeClass::completion));
  }
  const std::string y = "hours: 25 %, median, 95 %";
  return "<h2>Wait and completion</h2>\n" + Legend(names) +
         Plots(
             LinePlot({.title = "Wait", .x_label = "seconds", .y_label = "part of jobs", .log_x = true}, waits) +
             LinePlot({.title = "Completion", .x_label = "seconds", .y_label = "part of jobs", .log_x = true},
                      completions) +
             RangePlot({.title = "Wait by size", .x_label = "GPUs", .y_label = y, .log_y = true}, groups, wait_sizes) +
             RangePlot({.title = "Completion by size", .x_label = "GPUs", .y_label = y, .log_y = true}, groups,
                       completion_sizes));
}

std::string SizeTable(const Study& study) {
  const std::vector<SizeClass>& sizes = study.jobs.front().sizes;
  std::string out = "<div class=\"scroll\"><table id=\"sizes\"><tr><th>average wait, h</th>";
  for (const SizeClass& size : sizes) {
    out += "<th>" + size.gpus + " GPUs <small>" + std::to_string(size.jobs) + "</small></th>";
  }
  out += "</tr>\n";
  for (const JobOutcome& o : study.jobs) {
    out += "<tr data-policy=\"" + HtmlEscape(o.policy) + "\"><td>" + HtmlEscape(NameOf(o)) + "</td>";
    for (const SizeClass& size : o.sizes) {
      out += "<td data-gpus=\"" + size.gpus + "\" data-value=\"" + Fixed(size.wait.mean, 1) + "\">" +
             Fixed(size.wait.mean / kHour, 2) + "</td>";
    }
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string TimePlots(const Study& study) {
  std::vector<PlotSeries> held, fragmented;
  for (const JobOutcome& o : study.jobs) {
    held.push_back({o.policy, o.curves.held.x, o.curves.held.y});
    // With free moves there is no fragmentation.
    fragmented.push_back({o.policy, {}, {}});
    if (!o.free_moves) fragmented.back() = {o.policy, o.curves.fragmented.x, o.curves.fragmented.y};
  }
  return "<h2>Use of the cluster</h2>\n" +
         Plots(LinePlot({.title = "GPUs held by jobs", .x_label = "days", .y_label = "part of capacity"}, held) +
               LinePlot({.title = "Idle GPUs on nodes that are partly taken",
                         .x_label = "days",
                         .y_label = "part of capacity"},
                        fragmented));
}

std::string ReplayPlots(const Study& study) {
  if (study.shifts < 2) return "";
  const auto plot = [&](const char* title, double Metrics::*value) {
    std::vector<RangeSeries> series;
    for (const JobOutcome& o : study.jobs) {
      const double mean = o.summary.mean.*value / kHour, half = o.summary.half_width.*value / kHour;
      RangeMark mark{std::max(0.0, mean - half), mean, mean + half, {}};
      for (const Metrics& run : o.runs) mark.dots.push_back(run.*value / kHour);
      series.push_back({o.policy, {mark}});
    }
    return RangePlot({.title = title, .x_label = "", .y_label = "hours"}, {"all replays"}, series);
  };
  return "<h2>" + std::to_string(study.shifts) + " replays with shifted arrivals</h2>\n" +
         Plots(plot("Average completion: replays, mean, 95 % confidence", &Metrics::avg_completion_s) +
               plot("Average wait of gangs above 8 GPUs", &Metrics::wait_large_gangs_s));
}

std::string CostPlot(const Study& study) {
  if (!study.has_prices) return "";
  std::vector<std::string> groups;
  std::vector<PlotSeries> parts{{"lasting work", {}, {}}, {"lost work", {}, {}}, {"idle GPUs", {}, {}}};
  for (const JobOutcome& o : study.jobs) {
    groups.push_back(o.policy);
    parts[0].y.push_back(o.summary.mean.cost_of_work);
    parts[1].y.push_back(o.summary.mean.cost_of_lost_work);
    parts[2].y.push_back(std::max(0.0, o.summary.mean.cost_of_idle));
  }
  return "<section class=\"money\"><h2>Money</h2>\n<p>What the whole cluster costs until the last job is done, by what "
         "became of it; in the "
         "currency of the prices.</p>\n" +
         Legend({parts[0].name, parts[1].name, parts[2].name}) +
         Plots(StackedBars({.title = "Cost", .x_label = "", .y_label = ""}, groups, parts)) + "</section>\n";
}

std::string TeamParts(const Study& study) {
  const JobOutcome& first = study.jobs.front();
  if (first.usage.empty()) return "";
  std::vector<std::string> names;
  for (const auto& [team, series] : first.curves.teams) names.push_back(team);
  std::string plots;
  for (const JobOutcome& o : study.jobs) {
    std::vector<PlotSeries> teams;
    for (const auto& [team, series] : o.curves.teams) teams.push_back({team, series.x, series.y});
    if (teams.empty()) continue;
    plots += AreaPlot({.title = o.policy, .x_label = "days", .y_label = "part of capacity"}, teams);
  }
  std::string out = "<h2>Teams</h2>\n" + (plots.empty() ? "" : Legend(names) + Plots(plots));
  out += "<div class=\"scroll\"><table id=\"usage\"><tr><th>" + HtmlEscape(first.policy) +
         "</th><th>jobs</th><th>GPU-hours</th>" + (study.has_prices ? "<th>cost</th>" : "") + "</tr>\n";
  for (const TeamUsage& usage : first.usage) {
    out += "<tr data-team=\"" + HtmlEscape(usage.team) + "\"><td>" + HtmlEscape(usage.team) + "</td><td>" +
           std::to_string(usage.jobs) + "</td><td data-metric=\"gpu_hours\" data-value=\"" + Fixed(usage.gpu_hours, 4) +
           "\">" + Fixed(usage.gpu_hours, 0) + "</td>";
    if (study.has_prices) {
      out += "<td data-metric=\"cost\" data-value=\"" + Fixed(usage.cost, 2) + "\">" + Fixed(usage.cost, 0) + "</td>";
    }
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

// The settings of the executor.
std::string Assumptions(const Study& study) {
  const EngineConfig& c = study.cluster;
  const auto seconds = [](int64_t us) { return Fixed(static_cast<double>(us) / kMicrosPerSecond, 0) + " s"; };
  std::string out = "<p><small>A preemption costs " + seconds(c.restore_us) + " and " + seconds(c.save_us) +
                    " of saving, a start " + seconds(c.start_latency_us) + ".";
  if (c.HasFaults()) {
    out += " A node fails every " + Fixed(static_cast<double>(c.node_mtbf_us) / 3600e6, 1) + " h and is back after " +
           Fixed(static_cast<double>(c.node_repair_us) / 3600e6, 1) + " h; jobs go back to their last save, " +
           (c.checkpoint_us == 0 ? std::string("which is always fresh") : "one every " + seconds(c.checkpoint_us)) +
           ".";
  }
  if (c.HasStragglers()) {
    out += " " + std::to_string(c.slow_nodes_percent) + " % of the nodes are slower by a factor of " +
           Fixed(c.slow_percent / 100.0, 2) + ".";
  }
  return out + " Large gangs have more than 8 GPUs. Wait is completion less duration.</small></p>\n";
}

// --- pods ---

std::string PodTable(const Study& study) {
  static const NamedMetric kAllocation{"allocation_percent", nullptr, 3};
  static const NamedMetric kFragments{"fragmentation_percent", nullptr, 3};
  static const NamedMetric kOfIdle{"fragmentation_idle_percent", nullptr, 3};
  static const NamedMetric kAllocated{"allocated_cost_per_hour", nullptr, 2};
  std::string out =
      "<table id=\"policies\"><tr><th>policy</th><th>allocated, %</th><th>fragmented, %</th><th>of idle, %</th>";
  out += study.has_prices ? "<th>allocated, cost an hour</th></tr>\n" : "</tr>\n";
  for (const PodOutcome& o : study.pods) {
    out += "<tr data-policy=\"" + HtmlEscape(o.policy) + "\"><td>" + HtmlEscape(o.policy) + "</td>" +
           Cell(kAllocation, o.allocation_percent, o.allocation_half_width, 1, 2) +
           Cell(kFragments, o.fragmentation_percent, o.fragmentation_half_width, 1, 2) +
           Cell(kOfIdle, o.fragmentation_idle_percent, 0, 1, 1);
    if (study.has_prices) out += Cell(kAllocated, o.allocated_cost_per_hour, 0, 1, 0);
    out += "</tr>\n";
  }
  out += "</table>\n";
  if (!study.has_prices) return out;
  return out + "<p>All GPUs cost " + Fixed(study.pods.front().cost_per_hour, 0) + " an hour.</p>\n";
}

std::string PodPlots(const Study& study) {
  std::vector<PlotSeries> allocation, fragmentation;
  std::vector<std::string> names;
  for (const PodOutcome& o : study.pods) {
    names.push_back(o.policy);
    allocation.push_back({o.policy, o.allocation.x, o.allocation.y});
    fragmentation.push_back({o.policy, o.fragmentation.x, o.fragmentation.y});
  }
  return Legend(names) +
         Plots(LinePlot({.title = "Allocation", .x_label = "% of GPUs asked for", .y_label = "% of GPUs"}, allocation) +
               LinePlot({.title = "Fragmentation", .x_label = "% of GPUs asked for", .y_label = "% of GPUs"},
                        fragmentation));
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
           ", averages with 95 % confidence intervals; plots over time and by size show the first";
  }
  out += ".</p>\n";
  if (is_jobs) {
    out += Tiles(study) + JobTable(study) + Assumptions(study) + DistributionPlots(study) + SizeTable(study) +
           TimePlots(study) + ReplayPlots(study) + CostPlot(study) + TeamParts(study);
  } else {
    out += PodTable(study) + PodPlots(study);
  }
  return out + "</body></html>\n";
}

}  // namespace vrun::sim
