// SPDX-License-Identifier: Apache-2.0
// Starts a helper program of ours and tells when it has ended.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::node {

// One child. Loop thread only. Destroying it neither kills nor waits: the child goes on, and
// the loop reaps it (init, when we are gone).
class ChildProcess {
 public:
  // Runs argv[0] (a path) with an empty-ish environment (PATH, VRUN_LOG), stdin from /dev/null, our stderr for logs,
  // and `inherited` (ours) as descriptors 3, 4, ... posix_spawn: no copy of our memory, nothing runs between fork and
  // exec.
  static Result<std::unique_ptr<ChildProcess>> Spawn(EventLoop* loop, const std::vector<std::string>& argv,
                                                     const std::vector<int>& inherited);
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // Called once on the loop with the wait status, after the child was reaped.
  void OnExit(std::function<void(int status)> callback) { on_exit_ = std::move(callback); }
  void Kill(int signal);

 private:
  ChildProcess(EventLoop* loop, pid_t pid, UniqueFd pidfd) : loop_(loop), pid_(pid), pidfd_(std::move(pidfd)) {}
  EventLoop* loop_;
  pid_t pid_;
  UniqueFd pidfd_;
  bool ended_ = false;
  std::function<void(int)> on_exit_;
};

// The directory of the running executable: our other binaries lie beside it.
std::string BinaryDirectory();

}  // namespace vrun::node
