// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace vrun {

// Path of one of our programs: beside our own executable, else in $PATH. kNotFound says what to do. Any thread.
Result<std::string> FindProgram(std::string_view name);

}  // namespace vrun
