// SPDX-License-Identifier: Apache-2.0
// The output of `vrun --explain-io` after a run.
#pragma once

#include <string>

#include "proto/local.pb.h"

namespace vrun::cli {

// Lines for stderr, each with its newline.
std::string FormatIo(const v1::Finished& finished);

}  // namespace vrun::cli
