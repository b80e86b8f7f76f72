// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/csv.h"

#include <algorithm>
#include <charconv>

#include "base/escape.h"

namespace vrun::sim {
namespace {

constexpr size_t kMostBytes = 1u << 30;  // offsets are 32 bits
constexpr size_t kMostColumns = 256;
constexpr int64_t kMicro = 1'000'000;
constexpr int64_t kMostSeconds = int64_t{100} * 366 * 86400;

// The part of a field that an error shows.
std::string Shown(std::string_view field) { return "'" + Escape(field.substr(0, 40)) + "'"; }

Error LineError(const std::string& name, size_t line, std::string_view what) {
  return Error(Code::kInvalid, Escape(name) + ":" + std::to_string(line) + ": " + std::string(what));
}

std::string_view WithoutReturn(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace

Result<Csv> Csv::Parse(std::string text, std::string name) {
  Csv csv;
  csv.name_ = std::move(name);
  if (text.size() > kMostBytes) return LineError(csv.name_, 1, "larger than 1 GiB: split the table");
  if (text.starts_with("\x1f\x8b") || text.starts_with("\x28\xb5\x2f\xfd")) {
    return LineError(csv.name_, 1, "compressed: unpack it first");
  }
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  csv.text_ = std::move(text);
  const std::string_view all = csv.text_;
  const size_t end_of_content = all.find_last_not_of("\r\n") + 1;  // npos + 1 = 0
  size_t at = 0;
  for (uint32_t line_number = 1; at < end_of_content; ++line_number) {
    const size_t newline = std::min(all.find('\n', at), all.size());
    const std::string_view line = WithoutReturn(all.substr(at, newline - at));
    if (line.find('"') != line.npos) {
      return LineError(csv.name_, line_number, "a quote: quoted fields are not supported: write the fields without");
    }
    if (size_t bad = line.find_first_of(std::string_view("\0\r", 2)); bad != line.npos) {
      return LineError(csv.name_, line_number, Shown(line.substr(bad, 1)) + ": not a table of text");
    }
    const bool is_header = csv.header_.empty();
    size_t count = 0;
    for (size_t field = 0; field <= line.size(); ++count) {
      const size_t comma = std::min(line.find(',', field), line.size());
      if (is_header) {
        std::string column(line.substr(field, comma - field));
        if (column.empty()) return LineError(csv.name_, line_number, "a column without a name: write a header line");
        if (csv.Find(column)) return LineError(csv.name_, line_number, "column " + Shown(column) + " is there twice");
        if (count == kMostColumns) return LineError(csv.name_, line_number, "more than 256 columns");
        csv.header_.push_back(std::move(column));
      } else {
        csv.fields_.push_back(static_cast<uint32_t>(at + field));
      }
      field = comma + 1;
    }
    if (!is_header) {
      if (count != csv.header_.size()) {
        return LineError(csv.name_, line_number,
                         std::to_string(count) + " fields where the header has " + std::to_string(csv.header_.size()));
      }
      csv.ends_.push_back(static_cast<uint32_t>(at + line.size()));
      csv.lines_.push_back(line_number);
    }
    at = newline + 1;
  }
  if (csv.header_.empty()) return LineError(csv.name_, 1, "empty: expected a header line");
  return csv;
}

std::optional<size_t> Csv::Find(std::string_view column) const {
  auto found = std::find(header_.begin(), header_.end(), column);
  if (found == header_.end()) return std::nullopt;
  return static_cast<size_t>(found - header_.begin());
}

bool Csv::HasAll(std::initializer_list<std::string_view> columns) const {
  return std::all_of(columns.begin(), columns.end(), [&](std::string_view c) { return Find(c).has_value(); });
}

Result<size_t> Csv::Column(std::string_view column) const {
  if (auto found = Find(column)) return *found;
  return LineError(name_, 1, "no column '" + std::string(column) + "'");
}

std::string_view Csv::Field(size_t row, size_t column) const {
  const size_t i = row * header_.size() + column;
  const size_t end = column + 1 < header_.size() ? fields_[i + 1] - 1 : ends_[row];
  return std::string_view(text_).substr(fields_[i], end - fields_[i]);
}

Result<int64_t> Csv::Integer(size_t row, size_t column, int64_t least, int64_t most) const {
  const std::string_view field = Field(row, column);
  int64_t value = 0;
  auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (error != std::errc{} || end != field.data() + field.size() || value < least || value > most) {
    return AtField(row, column,
                   "expected a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return value;
}

Result<int64_t> Csv::Seconds(size_t row, size_t column) const {
  const std::string_view field = Field(row, column);
  const size_t dot = std::min(field.find('.'), field.size());
  int64_t whole = 0;
  auto [end, error] = std::from_chars(field.data(), field.data() + dot, whole);
  bool fine = dot > 0 && error == std::errc{} && end == field.data() + dot && whole >= 0 && whole <= kMostSeconds &&
              field[0] != '-';
  // More than six digits are below the resolution.
  int64_t fraction = 0;
  int64_t unit = kMicro / 10;
  for (size_t i = dot + 1; i < field.size(); ++i, unit /= 10) {
    if (field[i] < '0' || field[i] > '9') fine = false;
    fraction += unit * (field[i] - '0');
  }
  if (!fine || field.ends_with('.')) return AtField(row, column, "expected a number of seconds, 0 or more");
  return whole * kMicro + fraction;
}

Error Csv::At(size_t row, std::string_view what) const { return LineError(name_, lines_[row], what); }

Error Csv::AtField(size_t row, size_t column, std::string_view what) const {
  return At(row, header_[column] + " " + Shown(Field(row, column)) + ": " + std::string(what));
}

}  // namespace vrun::sim
