// SPDX-License-Identifier: Apache-2.0
// Opening files below a directory as if it were /, for roots that are not ours: no link leads out of it.
#pragma once

#include <sys/stat.h>

#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::gpu {

// O_PATH, links resolved below `root` (openat2 with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS).
Result<UniqueFd> OpenBelow(int root, const std::string& path);
// The same, and its attributes.
Result<UniqueFd> OpenBelow(int root, const std::string& path, struct stat* st);
// A regular file of at most `most` bytes. A FIFO or a device in its place is not opened. Needs /proc.
Result<std::string> ReadBelow(int root, const std::string& path, size_t most);
// The path by which this process reaches an open file or directory. Needs /proc.
Result<std::string> PathOf(int fd);
// Names in a directory opened by OpenBelow, sorted, without . and .. .
Result<std::vector<std::string>> NamesIn(int directory);

}  // namespace vrun::gpu
