// SPDX-License-Identifier: Apache-2.0
// What was written and is not durable yet. Part of Applier.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::home {

class ApplyFlush {
 public:
  // A name in `parent` (O_PATH) came, went or changed; `file`: its new content, if it has some.
  void Touched(int parent, UniqueFd file = UniqueFd());
  // Anything may have.
  void TouchedEverything() { everywhere_ = true; }
  // Few operations are flushed one by one; more cost less as a flush of the file system.
  Status Flush();

 private:
  size_t operations_ = 0;
  std::vector<UniqueFd> files_;  // and directories
  std::map<dev_t, UniqueFd> devices_;
  bool everywhere_ = false;
};

}  // namespace vrun::home
