// SPDX-License-Identifier: Apache-2.0
#include "sim/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace vrun::sim {
namespace {

constexpr double kWidth = 640, kHeight = 300, kLeft = 70, kRight = 16, kTop = 34, kBottom = 46;

std::string Num(double value) {
  char buffer[48];
  std::snprintf(buffer, sizeof buffer, "%.6g", value);
  return buffer;
}

std::string At(double value) {
  char buffer[48];
  std::snprintf(buffer, sizeof buffer, "%.1f", value);
  return buffer;
}

// 1, 2 or 5 times a power of ten, so that about five steps span the range.
double NiceStep(double range) {
  const double raw = range / 5;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

// Maps values to pixels and knows where ticks go.
class Scale {
 public:
  Scale(double least, double most, double from, double to, bool log) : from_(from), to_(to), log_(log) {
    low_ = Map(least);
    high_ = std::max(Map(most), low_ + 1e-9);
    if (log_) {
      for (double v = 1; v <= most * 1.0001; v *= 10) ticks_.push_back(v);
    } else {
      const double step = NiceStep(high_ - low_);
      for (double v = std::ceil(low_ / step) * step; v <= high_ + step / 1000; v += step) ticks_.push_back(v);
    }
  }
  double operator()(double value) const { return from_ + (Map(value) - low_) / (high_ - low_) * (to_ - from_); }
  const std::vector<double>& ticks() const { return ticks_; }

 private:
  double Map(double value) const { return log_ ? std::log10(1 + std::max(0.0, value)) : value; }
  double from_, to_;
  bool log_;
  double low_ = 0, high_ = 1;
  std::vector<double> ticks_;
};

std::string Text(double x, double y, std::string_view anchor, std::string_view text, std::string_view more = "") {
  return "<text x=\"" + At(x) + "\" y=\"" + At(y) + "\" text-anchor=\"" + std::string(anchor) + "\"" +
         std::string(more) + ">" + HtmlEscape(text) + "</text>\n";
}

std::string Frame(const PlotAxes& axes, const Scale& y, const std::vector<PlotSeries>& series) {
  std::string out = "<svg viewBox=\"0 0 " + At(kWidth) + " " + At(kHeight) + "\" role=\"img\">\n";
  out += Text(kLeft, 16, "start", axes.title, " class=\"title\"");
  for (double tick : y.ticks()) {
    out += "<line class=\"grid\" x1=\"" + At(kLeft) + "\" x2=\"" + At(kWidth - kRight) + "\" y1=\"" + At(y(tick)) +
           "\" y2=\"" + At(y(tick)) + "\"/>\n" + Text(kLeft - 6, y(tick) + 4, "end", Num(tick));
  }
  out += Text((kLeft + kWidth - kRight) / 2, kHeight - 6, "middle", axes.x_label);
  out += Text(14, (kTop + kHeight - kBottom) / 2, "middle", axes.y_label,
              " transform=\"rotate(-90 14 " + At((kTop + kHeight - kBottom) / 2) + ")\"");
  double x = kWidth - kRight;
  for (size_t i = series.size(); i-- > 0;) {
    out += Text(x, 16, "end", series[i].name, " fill=\"" + std::string(PlotColor(i)) + "\" font-weight=\"bold\"");
    x -= 12 + 7.0 * static_cast<double>(series[i].name.size());
  }
  return out;
}

}  // namespace

std::string HtmlEscape(std::string_view bytes) {
  std::string out;
  for (char c : bytes) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
    }
  }
  return out;
}

std::string_view PlotColor(size_t i) {
  static constexpr std::string_view kColors[] = {"#0b62a4", "#d9480f", "#2b8a3e", "#862e9c",
                                                 "#c92a2a", "#5f3dc4", "#e67700", "#495057"};
  return kColors[i % std::size(kColors)];
}

std::string LinePlot(const PlotAxes& axes, const std::vector<PlotSeries>& series) {
  double most_x = 0, most_y = 0;
  for (const PlotSeries& s : series) {
    for (double v : s.x) most_x = std::max(most_x, v);
    for (double v : s.y) most_y = std::max(most_y, v);
  }
  const Scale x(0, most_x, kLeft, kWidth - kRight, axes.log_x);
  const Scale y(0, most_y, kHeight - kBottom, kTop, false);
  std::string out = Frame(axes, y, series);
  for (double tick : x.ticks()) out += Text(x(tick), kHeight - kBottom + 16, "middle", Num(tick));
  for (size_t i = 0; i < series.size(); ++i) {
    out += "<polyline fill=\"none\" stroke=\"" + std::string(PlotColor(i)) + "\" stroke-width=\"1.6\" points=\"";
    for (size_t p = 0; p < series[i].x.size(); ++p) out += At(x(series[i].x[p])) + "," + At(y(series[i].y[p])) + " ";
    out += "\"/>\n";
  }
  return out + "</svg>\n";
}

std::string BarPlot(const PlotAxes& axes, const std::vector<std::string>& groups,
                    const std::vector<PlotSeries>& series) {
  double most = 0;
  for (const PlotSeries& s : series) {
    for (double v : s.y) most = std::max(most, v);
  }
  const Scale y(0, most, kHeight - kBottom, kTop, axes.log_y);
  std::string out = Frame(axes, y, series);
  const double group_width = (kWidth - kLeft - kRight) / static_cast<double>(std::max<size_t>(1, groups.size()));
  const double bar = group_width * 0.8 / static_cast<double>(std::max<size_t>(1, series.size()));
  for (size_t g = 0; g < groups.size(); ++g) {
    const double left = kLeft + group_width * (static_cast<double>(g) + 0.1);
    out += Text(left + group_width * 0.4, kHeight - kBottom + 16, "middle", groups[g]);
    for (size_t i = 0; i < series.size(); ++i) {
      if (g >= series[i].y.size()) continue;
      const double top = y(series[i].y[g]);
      out += "<rect x=\"" + At(left + bar * static_cast<double>(i)) + "\" y=\"" + At(top) + "\" width=\"" +
             At(bar * 0.92) + "\" height=\"" + At(kHeight - kBottom - top) + "\" fill=\"" + std::string(PlotColor(i)) +
             "\"><title>" + HtmlEscape(series[i].name) + ": " + Num(series[i].y[g]) + "</title></rect>\n";
    }
  }
  return out + "</svg>\n";
}

}  // namespace vrun::sim
