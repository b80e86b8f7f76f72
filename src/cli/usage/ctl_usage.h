// SPDX-License-Identifier: Apache-2.0
// `vctl usage`.
#pragma once

#include "cli/base/command.h"

namespace vrun::cli {

extern const CtlCommand kCtlUsage;

}  // namespace vrun::cli
