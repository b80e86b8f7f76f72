// SPDX-License-Identifier: Apache-2.0
#include "sim/report/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace vrun::sim {
namespace {

constexpr double kWidth = 640, kHeight = 300, kLeft = 70, kRight = 16, kTop = 34, kBottom = 46;

// "0.5", "20k", "1.5M".
std::string Num(double value) {
  constexpr struct {
    double unit;
    const char* name;
  } kUnits[] = {{1e9, "G"}, {1e6, "M"}, {1e4, "k"}};
  char buffer[48];
  for (const auto& [unit, name] : kUnits) {
    if (std::abs(value) < unit) continue;
    const double scale = unit == 1e4 ? 1e3 : unit;
    std::snprintf(buffer, sizeof buffer, "%.4g%s", value / scale, name);
    return buffer;
  }
  std::snprintf(buffer, sizeof buffer, "%.4g", value);
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

// Maps values to pixels and places ticks.
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

std::string Line(double x1, double y1, double x2, double y2, std::string_view more) {
  return "<line x1=\"" + At(x1) + "\" y1=\"" + At(y1) + "\" x2=\"" + At(x2) + "\" y2=\"" + At(y2) + "\" " +
         std::string(more) + "/>\n";
}

std::string Frame(const PlotAxes& axes, const Scale& y) {
  std::string out = "<svg viewBox=\"0 0 " + At(kWidth) + " " + At(kHeight) + "\" role=\"img\" aria-label=\"" +
                    HtmlEscape(axes.title) + "\">\n";
  out += Text(kLeft, 16, "start", axes.title, " class=\"title\"");
  for (double tick : y.ticks()) {
    out += Line(kLeft, y(tick), kWidth - kRight, y(tick), "class=\"grid\"") +
           Text(kLeft - 6, y(tick) + 4, "end", Num(tick));
  }
  out += Text((kLeft + kWidth - kRight) / 2, kHeight - 6, "middle", axes.x_label);
  out += Text(14, (kTop + kHeight - kBottom) / 2, "middle", axes.y_label,
              " transform=\"rotate(-90 14 " + At((kTop + kHeight - kBottom) / 2) + ")\"");
  return out;
}

std::string XTicks(const Scale& x) {
  std::string out;
  for (double tick : x.ticks()) out += Text(x(tick), kHeight - kBottom + 16, "middle", Num(tick));
  return out;
}

double MostOf(const std::vector<PlotSeries>& series, std::vector<double> PlotSeries::*values) {
  double most = 0;
  for (const PlotSeries& s : series) {
    for (double v : s.*values) most = std::max(most, v);
  }
  return most;
}

// Positions of groups of marks beside each other.
class Groups {
 public:
  explicit Groups(const std::vector<std::string>& names)
      : names_(names), width_((kWidth - kLeft - kRight) / static_cast<double>(std::max<size_t>(1, names.size()))) {}
  double Left(size_t group) const { return kLeft + width_ * (static_cast<double>(group) + 0.1); }
  double Width() const { return width_ * 0.8; }
  std::string Labels() const {
    std::string out;
    for (size_t g = 0; g < names_.size(); ++g) {
      out += Text(Left(g) + Width() / 2, kHeight - kBottom + 16, "middle", names_[g]);
    }
    return out;
  }

 private:
  const std::vector<std::string>& names_;
  double width_;
};

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

std::string SeriesClass(size_t i) { return "s" + std::to_string(i % 8); }

std::string Legend(const std::vector<std::string>& names) {
  std::string out = "<p class=\"legend\">";
  for (size_t i = 0; i < names.size(); ++i) {
    out += "<span class=\"" + SeriesClass(i) + "\"><i></i>" + HtmlEscape(names[i]) + "</span> ";
  }
  return out + "</p>\n";
}

std::string LinePlot(const PlotAxes& axes, const std::vector<PlotSeries>& series) {
  const Scale x(0, MostOf(series, &PlotSeries::x), kLeft, kWidth - kRight, axes.log_x);
  const Scale y(0, MostOf(series, &PlotSeries::y), kHeight - kBottom, kTop, false);
  std::string out = Frame(axes, y) + XTicks(x);
  for (size_t i = 0; i < series.size(); ++i) {
    out += "<polyline class=\"" + SeriesClass(i) + " line\" points=\"";
    for (size_t p = 0; p < series[i].x.size(); ++p) out += At(x(series[i].x[p])) + "," + At(y(series[i].y[p])) + " ";
    out += "\"><title>" + HtmlEscape(series[i].name) + "</title></polyline>\n";
  }
  return out + "</svg>\n";
}

std::string AreaPlot(const PlotAxes& axes, const std::vector<PlotSeries>& series) {
  std::vector<double> below(series.empty() ? 0 : series[0].x.size(), 0), top = below;
  for (const PlotSeries& s : series) {
    for (size_t p = 0; p < top.size(); ++p) top[p] += s.y[p];
  }
  const Scale x(0, MostOf(series, &PlotSeries::x), kLeft, kWidth - kRight, false);
  const Scale y(0, std::max(1.0, top.empty() ? 0 : *std::max_element(top.begin(), top.end())), kHeight - kBottom, kTop,
                false);
  std::string out = Frame(axes, y) + XTicks(x);
  for (size_t i = 0; i < series.size(); ++i) {
    out += "<polygon class=\"" + SeriesClass(i) + " area\" points=\"";
    std::string back;
    for (size_t p = 0; p < below.size(); ++p) {
      back = At(x(series[i].x[p])) + "," + At(y(below[p])) + " " + back;
      below[p] += series[i].y[p];
      out += At(x(series[i].x[p])) + "," + At(y(below[p])) + " ";
    }
    out += back + "\"><title>" + HtmlEscape(series[i].name) + "</title></polygon>\n";
  }
  return out + "</svg>\n";
}

std::string StackedBars(const PlotAxes& axes, const std::vector<std::string>& groups,
                        const std::vector<PlotSeries>& series) {
  std::vector<double> below(groups.size(), 0), top = below;
  for (const PlotSeries& s : series) {
    for (size_t g = 0; g < groups.size(); ++g) top[g] += s.y[g];
  }
  const Scale y(0, top.empty() ? 0 : *std::max_element(top.begin(), top.end()), kHeight - kBottom, kTop, false);
  const Groups places(groups);
  std::string out = Frame(axes, y) + places.Labels();
  for (size_t i = 0; i < series.size(); ++i) {
    for (size_t g = 0; g < groups.size(); ++g) {
      const double from = y(below[g]), to = y(below[g] + series[i].y[g]);
      below[g] += series[i].y[g];
      out += "<rect class=\"" + SeriesClass(i) + " area\" x=\"" + At(places.Left(g)) + "\" y=\"" + At(to) +
             "\" width=\"" + At(places.Width()) + "\" height=\"" + At(from - to) + "\"><title>" +
             HtmlEscape(series[i].name) + ": " + Num(series[i].y[g]) + "</title></rect>\n";
    }
  }
  return out + "</svg>\n";
}

std::string RangePlot(const PlotAxes& axes, const std::vector<std::string>& groups,
                      const std::vector<RangeSeries>& series) {
  double most = 0;
  for (const RangeSeries& s : series) {
    for (const RangeMark& mark : s.marks) {
      most = std::max(most, mark.high);
      for (double dot : mark.dots) most = std::max(most, dot);
    }
  }
  const Scale y(0, most, kHeight - kBottom, kTop, axes.log_y);
  const Groups places(groups);
  std::string out = Frame(axes, y) + places.Labels();
  const double step = places.Width() / static_cast<double>(std::max<size_t>(1, series.size()));
  for (size_t i = 0; i < series.size(); ++i) {
    for (size_t g = 0; g < groups.size() && g < series[i].marks.size(); ++g) {
      const RangeMark& mark = series[i].marks[g];
      const double x = places.Left(g) + step * (static_cast<double>(i) + 0.5);
      out += "<g class=\"" + SeriesClass(i) + "\"><title>" + HtmlEscape(series[i].name) + ": " + Num(mark.middle) +
             " (" + Num(mark.low) + " to " + Num(mark.high) + ")</title>\n";
      out += Line(x, y(mark.low), x, y(mark.high), "class=\"range\"");
      for (double dot : mark.dots) {
        out += "<circle class=\"dot\" cx=\"" + At(x) + "\" cy=\"" + At(y(dot)) + "\" r=\"2\"/>\n";
      }
      out += "<circle class=\"middle\" cx=\"" + At(x) + "\" cy=\"" + At(y(mark.middle)) + "\" r=\"4\"/></g>\n";
    }
  }
  return out + "</svg>\n";
}

}  // namespace vrun::sim
