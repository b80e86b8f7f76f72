// SPDX-License-Identifier: Apache-2.0
// What a command prints.
#pragma once

#include <string_view>

#include "base/files.h"

namespace vrun::cli {

enum class OutputFormat { kTable, kWide, kName, kJson, kHtml };

// To stdout. A closed pipe ends quietly.
inline void Print(std::string_view text) { (void)WriteAll(1, text); }

}  // namespace vrun::cli
