// SPDX-License-Identifier: Apache-2.0
// `vctl secret`.
#pragma once

#include "cli/base/command.h"

namespace vrun::cli {

extern const CtlCommand kCtlSecret;

}  // namespace vrun::cli
