// SPDX-License-Identifier: Apache-2.0
// One command in a root of its own: user, mount, pid, uts, ipc and cgroup namespaces, limits, identity, streams.
//
// The order of isolation is the list of steps in sandbox.cc (outside, as the node's root) and the one in inside.cc
// (inside, before the command). An init of ours is pid 1 inside: it reaps, forwards signals and ends with the command,
// and the kernel then kills whatever is left, so an ended sandbox has no process. The sandbox dies with its owner.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "sandbox/cgroup.h"
#include "sandbox/spec.h"

namespace vrun::sandbox {

// Makes the calling process fit to own sandboxes: a private mount namespace, so that nothing mounted here is seen on
// the host and everything is gone when the process is. Needs host root. Once, before threads start.
Status EnterSupervisorNamespace();
// Lets go of FUSE mounts that came along from the host: a copy here would keep other tasks' file systems alive. Keeps
// what the working directory (the task's) lies on, and "lower" and "apart" in it. Reads mountinfo: call it off the path
// to the command.
void ForgetForeignMounts();

struct StartFailure {
  enum class Kind { kNotFound, kNotExecutable, kFailed };  // 127, 126, 125
  Kind kind = Kind::kFailed;
  std::string reason;  // one line, escaped
};

struct Ending {
  bool command_ended = false;  // false: all of the sandbox was killed, the command with it
  int wait_status = 0;         // of the command, as waitpid gives it
  uint64_t cpu_us = 0;
  uint64_t peak_memory_bytes = 0;
  uint64_t oom_kills = 0;
};

// One thread. Life: Start, (start_fd readable) FinishStart, (control_fd readable) ReadControl, (pidfd readable) Reap.
class Sandbox {
 public:
  // Builds everything and lets the command go; returns before it runs. Changes the working directory of
  // the calling process to spec.directory.
  static Result<std::unique_ptr<Sandbox>> Start(const Spec& spec, RootViews views, const CgroupHost& cgroups,
                                                PrepareUpper prepare_upper = nullptr);
  // Kills and reaps what still runs (waits for it), removes the control groups.
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  // Readable (EPOLLIN or EPOLLHUP) when the command was started or could not be.
  int start_fd() const { return start_.get(); }
  // After start_fd became readable; closes it. nullopt: the command runs.
  std::optional<StartFailure> FinishStart();

  // Our ends of the command's streams; take them after FinishStart. With a terminal, input and output are two
  // descriptors of the pty's master and error is empty.
  UniqueFd TakeInput() { return std::move(input_); }
  UniqueFd TakeOutput() { return std::move(output_); }
  UniqueFd TakeError() { return std::move(error_); }
  // Of Spec::descriptors; also with a terminal.
  UniqueFd TakeDescriptor(uint32_t number) { return std::move(descriptors_[number]); }

  // Whom a signal goes to.
  enum class Target {
    kGroup,    // the command's process group
    kCommand,  // its first process alone
    kAll,      // every process inside
    kOthers,   // every process inside but its first
  };
  // Only after FinishStart.
  void Signal(int signal, Target target = Target::kGroup);
  // SIGKILL to everything inside.
  void Kill();

  // Readable when init has something to say or is gone. ReadControl gives the ending once the command is over and no
  // other process is left inside but init, which needs a little longer to go; nullopt before. Do not watch it any more
  // when control_closed().
  int control_fd() const { return control_.get(); }
  std::optional<Ending> ReadControl();
  bool control_closed() const { return control_closed_; }
  // The signal that has stopped the command since the last call (Ctrl-Z, SIGSTOP); 0: none. After ReadControl.
  int TakeStop() { return std::exchange(stop_, 0); }

  // Readable when no process is left inside, init included. The only sign when all was killed.
  int pidfd() const { return pidfd_.get(); }
  pid_t pid() const { return pid_; }
  // After pidfd became readable (it waits otherwise): removes the control groups. The ending once more. Once.
  Ending Reap();

  // Lines for the user: limits that this host cannot enforce.
  const std::vector<std::string>& notices() const { return notices_; }

 private:
  friend struct Builder;
  Sandbox() = default;
  ssize_t ReceiveControl(void* packet, size_t size);
  void ReadUsage();

  Spec spec_;
  UniqueFd start_, control_, pidfd_;
  UniqueFd input_, output_, error_;
  std::map<uint32_t, UniqueFd> descriptors_;  // by number
  int stop_ = 0;
  pid_t pid_ = -1;
  bool reaped_ = false;
  bool control_closed_ = false;
  std::optional<Ending> ending_;
  Cgroup cgroup_;
  std::vector<std::string> notices_;
};

}  // namespace vrun::sandbox
