// SPDX-License-Identifier: Apache-2.0
// Small plots as inline SVG: lines over a linear or logarithmic axis, and grouped bars. No scripts, nothing from
// outside.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vrun::sim {

// & < > " and control characters made safe for text and attributes.
std::string HtmlEscape(std::string_view bytes);
// Of series i, distinct for the first eight.
std::string_view PlotColor(size_t i);

struct PlotSeries {
  std::string name;
  std::vector<double> x;  // as many as y
  std::vector<double> y;
};

struct PlotAxes {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_x = false;  // of 1 + x
  bool log_y = false;  // bars only: of 1 + y
};

std::string LinePlot(const PlotAxes& axes, const std::vector<PlotSeries>& series);

// groups: labels below; bars: per series one value per group.
std::string BarPlot(const PlotAxes& axes, const std::vector<std::string>& groups,
                    const std::vector<PlotSeries>& series);

}  // namespace vrun::sim
