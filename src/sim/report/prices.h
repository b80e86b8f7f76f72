// SPDX-License-Identifier: Apache-2.0
// The price of a GPU hour, by GPU type.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/result.h"

namespace vrun::sim {

struct Prices {
  std::map<std::string, double, std::less<>> by_type;
  double other = 0;  // of types without a price, and of GPUs of unknown type

  bool empty() const { return by_type.empty() && other == 0; }
  double Of(std::string_view gpu_type) const;
};

// Reads a table `gpu_type,price`; the type `*` stands for all others. Prices are numbers >= 0 in any currency. kInvalid
// with file and line.
Result<Prices> ReadPrices(const std::string& text, const std::string& name);
// One price for all GPUs.
Result<Prices> ParsePrice(std::string_view text);

}  // namespace vrun::sim
