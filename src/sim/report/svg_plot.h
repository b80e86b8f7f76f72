// SPDX-License-Identifier: Apache-2.0
// Small plots as inline SVG: lines, stacked areas and bars, ranges. No scripts and no external resources. The page
// supplies the colours: classes "s0" to "s7" set --c, for light and for dark.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vrun::sim {

// Escapes & < > " and control characters for use in text and attributes.
std::string HtmlEscape(std::string_view bytes);
// The CSS class of series i, distinct for the first eight.
std::string SeriesClass(size_t i);
// The names with their colours.
std::string Legend(const std::vector<std::string>& names);

struct PlotSeries {
  std::string name;
  std::vector<double> x;  // as many values as y
  std::vector<double> y;
};

struct PlotAxes {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_x = false;  // scale is the logarithm of 1 + x
  bool log_y = false;  // scale is the logarithm of 1 + y; for ranges only
};

std::string LinePlot(const PlotAxes& axes, const std::vector<PlotSeries>& series);

// Stacked series, which must all have the same x.
std::string AreaPlot(const PlotAxes& axes, const std::vector<PlotSeries>& series);

// One bar per group with one piece per series: series[i].y has a value for each group.
std::string StackedBars(const PlotAxes& axes, const std::vector<std::string>& groups,
                        const std::vector<PlotSeries>& series);

struct RangeMark {
  double low = 0;
  double middle = 0;
  double high = 0;
  std::vector<double> dots;
};
struct RangeSeries {
  std::string name;
  std::vector<RangeMark> marks;  // one per group
};
std::string RangePlot(const PlotAxes& axes, const std::vector<std::string>& groups,
                      const std::vector<RangeSeries>& series);

}  // namespace vrun::sim
