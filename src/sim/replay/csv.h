// SPDX-License-Identifier: Apache-2.0
// Comma-separated tables, read strictly: a header line, then rows with exactly as many fields. No quoting: a quote is
// an error, since none of the trace formats uses it. A carriage return before a line end, a byte order mark and empty
// lines at the end of the text are accepted.
//
// Every error is one line, "NAME:LINE: what: what to do", code kInvalid, with bytes from the text escaped.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vrun::sim {

class Csv {
 public:
  // `name` stands for the text in errors: usually its path. The Csv owns the text.
  static Result<Csv> Parse(std::string text, std::string name);

  size_t rows() const { return lines_.size(); }
  const std::string& name() const { return name_; }

  std::optional<size_t> Find(std::string_view column) const;
  bool HasAll(std::initializer_list<std::string_view> columns) const;
  // kInvalid when the column is missing.
  Result<size_t> Column(std::string_view column) const;

  // Valid while the Csv lives.
  std::string_view Field(size_t row, size_t column) const;
  // A whole number in [least, most].
  Result<int64_t> Integer(size_t row, size_t column, int64_t least, int64_t most) const;
  // A number of seconds >= 0, possibly with a fraction, at most 100 years. Returns microseconds.
  Result<int64_t> Seconds(size_t row, size_t column) const;
  // An error about a row.
  Error At(size_t row, std::string_view what) const;

 private:
  Csv() = default;
  Error AtField(size_t row, size_t column, std::string_view what) const;

  std::string text_;
  std::string name_;
  std::vector<std::string> header_;
  std::vector<uint32_t> fields_;  // begin of each field of each row, one row after another
  std::vector<uint32_t> ends_;    // end of each row
  std::vector<uint32_t> lines_;   // line number of each row
};

}  // namespace vrun::sim
