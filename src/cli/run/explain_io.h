// SPDX-License-Identifier: Apache-2.0
// What `vrun --explain-io` says after a run.
#pragma once

#include <string>

#include "proto/local.pb.h"

namespace vrun::cli {

// Lines for stderr, each with its newline.
std::string FormatIo(const v1::Finished& finished);

}  // namespace vrun::cli
