// SPDX-License-Identifier: Apache-2.0
// Watches what a pod has on the node's disk: its /tmp, and what it has written in a frozen root (RunSpec.tmp_bytes).
//
// A child process adds the files up again and again: the tree may be large, and the supervisor must not wait for it. It
// pauses ten times as long as a look takes, so it costs at most a tenth of a processor. So a job can be above its limit
// for a moment. Files that are open but have no name are not seen.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::node {

// Bytes on disk of everything below the directories, hard links once. Follows no link and crosses no mount. What
// disappears meanwhile is not counted. Returns early when it is more than `enough`.
uint64_t BytesBelow(const std::vector<int>& directories, uint64_t enough);

// Loop thread only.
class DiskLimit {
 public:
  explicit DiskLimit(EventLoop* loop) : loop_(loop) {}
  ~DiskLimit() { Stop(); }

  // `directories`: paths; missing ones are left out. `exceeded` is called once at most.
  Status Start(const std::vector<std::string>& directories, uint64_t limit, std::function<void()> exceeded);
  void Stop();

 private:
  EventLoop* const loop_;
  UniqueFd told_;  // the child writes one byte when the limit is exceeded
  pid_t child_ = -1;
};

}  // namespace vrun::node
