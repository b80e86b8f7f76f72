// SPDX-License-Identifier: Apache-2.0
// The files behind the trees that a ContentServer serves: by path and version, whole or not at all.
#pragma once

#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"
#include "tree/tree.h"

namespace vrun::home {

// Any thread.
class ContentFiles {
 public:
  virtual ~ContentFiles() = default;

  // A descriptor of the regular file at `path` (absolute, in the root) with exactly the content of this version.
  // kAborted: there is no such content any more; kDenied: it may not be read.
  virtual Result<UniqueFd> OpenVersion(std::string_view path, const tree::FileVersion& version) const = 0;

  // kAborted unless the open file is (still) that version. What was read between two such checks is of that version.
  virtual Status Check(int fd, std::string_view path, const tree::FileVersion& version) const = 0;
};

}  // namespace vrun::home
