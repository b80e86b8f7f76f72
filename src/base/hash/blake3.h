// SPDX-License-Identifier: Apache-2.0
// BLAKE3 digests (https://github.com/BLAKE3-team/BLAKE3-specs): the names of file content, docs/decisions/0026.
//
// Computed by the reference implementation in C and assembler, with the CPU's widest instructions.
#pragma once

#include <string_view>

#include "base/hash/digest.h"

namespace vrun {

Digest Blake3(std::string_view data);

}  // namespace vrun
