// SPDX-License-Identifier: Apache-2.0
// Whether a file of the node may be given to pods or be believed.
#pragma once

#include <string>

#include "base/result.h"

namespace vrun::gpu {

// kDenied unless `path`, which must be absolute and without links, and every directory above it belong to root (or to
// this process) and cannot be written by others. A directory with the sticky bit (/tmp) may be.
Status CheckOnlyRootWrites(const std::string& path);

}  // namespace vrun::gpu
