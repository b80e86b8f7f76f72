// SPDX-License-Identifier: Apache-2.0
#include "http/metrics_page.h"

#include <fmt/format.h>

namespace vrun::http {
namespace {

std::string Quoted(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

void MetricsPage::Head(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void MetricsPage::Value(const Labels& labels, double value, std::string_view suffix) {
  text_ += name_;
  text_ += suffix;
  if (!labels.empty()) text_ += '{';
  for (size_t i = 0; i < labels.size(); ++i) {
    text_ += fmt::format("{}{}=\"{}\"", i == 0 ? "" : ",", labels[i].first, Quoted(labels[i].second));
  }
  text_ += fmt::format("{} {}\n", labels.empty() ? "" : "}", value);
}

void MetricsPage::Only(std::string_view name, std::string_view type, std::string_view help, double value) {
  Head(name, type, help);
  Value({}, value);
}

void MetricsPage::Distribution(const double* bounds, const uint64_t* counts, size_t size, double sum) {
  uint64_t below = 0;
  for (size_t i = 0; i < size; ++i) {
    below += counts[i];
    Value({{"le", fmt::format("{}", bounds[i])}}, static_cast<double>(below), "_bucket");
  }
  below += counts[size];
  Value({{"le", "+Inf"}}, static_cast<double>(below), "_bucket");
  Value({}, sum, "_sum");
  Value({}, static_cast<double>(below), "_count");
}

}  // namespace vrun::http
