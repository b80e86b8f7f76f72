// SPDX-License-Identifier: Apache-2.0
#include "sim/report/prices.h"

#include <charconv>
#include <cmath>

#include "base/escape.h"
#include "sim/replay/csv.h"

namespace vrun::sim {
namespace {

constexpr double kMostPrice = 1e6;

// -1: not a price. from_chars also reads "nan" and "inf".
double NumberOf(std::string_view text) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool fine = error == std::errc{} && end == text.data() + text.size() && std::isfinite(value) && value >= 0 &&
                    value <= kMostPrice && !std::signbit(value);
  return fine ? value : -1;
}

}  // namespace

double Prices::Of(std::string_view gpu_type) const {
  auto found = by_type.find(gpu_type);
  return found == by_type.end() ? other : found->second;
}

Result<Prices> ReadPrices(const std::string& text, const std::string& name) {
  VRUN_ASSIGN(Csv csv, Csv::Parse(text, name));
  VRUN_ASSIGN(size_t type, csv.Column("gpu_type"));
  VRUN_ASSIGN(size_t price, csv.Column("price"));
  Prices out;
  for (size_t row = 0; row < csv.rows(); ++row) {
    const double value = NumberOf(csv.Field(row, price));
    if (value < 0) {
      return csv.At(row, "price '" + Escape(csv.Field(row, price).substr(0, 40)) +
                             "': write what an hour of a GPU costs, a number from 0 to 1000000");
    }
    if (csv.Field(row, type) == "*") {
      out.other = value;
    } else {
      out.by_type[std::string(csv.Field(row, type))] = value;
    }
  }
  return out;
}

Result<Prices> ParsePrice(std::string_view text) {
  const double value = NumberOf(text);
  if (value < 0)
    return Error(Code::kInvalid, "'" + Escape(text.substr(0, 40)) + "': not a price: write 2.5, or a file");
  Prices out;
  out.other = value;
  return out;
}

}  // namespace vrun::sim
