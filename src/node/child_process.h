// SPDX-License-Identifier: Apache-2.0
// Starts one of our helper programs and reports its exit.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::node {

// One child. Loop thread only. Destroying the object neither kills nor waits: the child continues, and the loop reaps
// it (init does once this process is gone).
class ChildProcess {
 public:
  // Runs argv[0] (a path) with only PATH and VRUN_LOG in the environment, stdin from /dev/null, our stderr for logs,
  // and `inherited` (our descriptors) as 3, 4, ... Uses posix_spawn: our memory is not copied and no code runs between
  // fork and exec.
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

// The directory of the running executable, which also contains our other binaries.
std::string BinaryDirectory();

}  // namespace vrun::node
