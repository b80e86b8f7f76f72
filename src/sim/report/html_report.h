// SPDX-License-Identifier: Apache-2.0
// A study as one HTML page: tables and plots, self-contained.
#pragma once

#include <string>

#include "sim/report/study.h"

namespace vrun::sim {

std::string HtmlReport(const Study& study);

}  // namespace vrun::sim
