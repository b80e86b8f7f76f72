// SPDX-License-Identifier: Apache-2.0
// Output of a command.
#pragma once

#include <string_view>

#include "base/files.h"

namespace vrun::cli {

enum class OutputFormat { kTable, kWide, kName, kJson, kHtml, kCsv };

// Writes to stdout. A closed pipe is no error.
inline void Print(std::string_view text) { (void)WriteAll(1, text); }

}  // namespace vrun::cli
