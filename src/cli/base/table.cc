// SPDX-License-Identifier: Apache-2.0
#include "cli/base/table.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "base/escape.h"

namespace vrun::cli {

size_t DisplayWidth(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

void Table::Add(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = cell.empty() ? "-" : Escape(cell);
  cells.resize(rows_[0].size(), "-");
  rows_.push_back(std::move(cells));
}

std::string Table::Format(bool headers) const {
  std::vector<size_t> widths(rows_[0].size(), 0);
  for (size_t r = headers ? 0 : 1; r < rows_.size(); ++r) {
    for (size_t c = 0; c < widths.size(); ++c) widths[c] = std::max(widths[c], DisplayWidth(rows_[r][c]));
  }
  std::string out;
  for (size_t r = headers ? 0 : 1; r < rows_.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < widths.size(); ++c) {
      line += rows_[r][c];
      if (c + 1 < widths.size()) line.append(widths[c] - DisplayWidth(rows_[r][c]) + 2, ' ');
    }
    out += line + "\n";
  }
  return out;
}

std::string SafeLine(std::string_view text) {
  std::string out;
  for (;;) {
    size_t slash = text.find('\\');
    out += Escape(text.substr(0, slash));
    if (slash == std::string_view::npos) return out;
    out += '\\';
    text.remove_prefix(slash + 1);
  }
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr char kUnits[] = "KMGTPE";
  if (bytes < 1024) return std::to_string(bytes);
  double value = static_cast<double>(bytes);
  int unit = -1;
  while (value >= 1024 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, value < 10 ? "%.1f%c" : "%.0f%c", value, kUnits[unit]);
  return buffer;
}

std::string FormatDuration(int64_t micros) {
  int64_t s = std::max<int64_t>(0, micros / 1000000);
  char buffer[64];
  auto d = static_cast<long long>(s / 86400), h = static_cast<long long>(s / 3600 % 24);
  auto m = static_cast<long long>(s / 60 % 60), rest = static_cast<long long>(s % 60);
  if (d > 0) {
    std::snprintf(buffer, sizeof buffer, "%lld-%02lld:%02lld:%02lld", d, h, m, rest);
  } else if (h > 0) {
    std::snprintf(buffer, sizeof buffer, "%lld:%02lld:%02lld", h, m, rest);
  } else {
    std::snprintf(buffer, sizeof buffer, "%lld:%02lld", m, rest);
  }
  return buffer;
}

}  // namespace vrun::cli
