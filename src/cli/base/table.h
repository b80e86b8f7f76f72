// SPDX-License-Identifier: Apache-2.0
// Text tables for people: aligned columns. Every cell is escaped, so that a job's name cannot move the cursor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vrun::cli {

class Table {
 public:
  explicit Table(std::vector<std::string> headers) : rows_{std::move(headers)} {}
  // As many cells as headers; "" is shown as "-".
  void Add(std::vector<std::string> cells);
  std::string Format(bool headers) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Width of the text on a terminal in columns, counted in code points.
size_t DisplayWidth(std::string_view text);
// For a line written by another daemon: escapes control characters but not backslashes, since the daemon has escaped
// the names in it already.
std::string SafeLine(std::string_view text);
// "1.5G", "512M", "17" for bytes.
std::string FormatBytes(uint64_t bytes);
// "0:07", "1:02:03", "3-04:05:06".
std::string FormatDuration(int64_t micros);

}  // namespace vrun::cli
