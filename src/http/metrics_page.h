// SPDX-License-Identifier: Apache-2.0
// A page of figures as Prometheus reads them: its text format 0.0.4
// (https://prometheus.io/docs/instrumenting/exposition_formats/). Any thread, one at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vrun::http {

inline constexpr const char* kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

class MetricsPage {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string_view>>;

  // Begins a metric. `type`: gauge, counter or histogram. `help`: one line without a backslash.
  void Head(std::string_view name, std::string_view type, std::string_view help);
  // A value of the metric that was begun last. `suffix`: "_bucket" and the like, of a histogram.
  void Value(const Labels& labels, double value, std::string_view suffix = "");
  // A metric of one value without labels.
  void Only(std::string_view name, std::string_view type, std::string_view help, double value);
  // `counts[i]`: observations up to bounds[i] and above bounds[i - 1]; one more count, of those above all bounds.
  void Distribution(const double* bounds, const uint64_t* counts, size_t size, double sum);

  std::string Take() { return std::move(text_); }

 private:
  std::string_view name_;
  std::string text_;
};

}  // namespace vrun::http
