// SPDX-License-Identifier: Apache-2.0
// Runs one command in its own root: user, mount, pid, uts, ipc and cgroup namespaces, limits, identity, streams.
//
// The order of isolation is the list of steps in sandbox.cc (outside, as the node's root) and the one in inside.cc
// (inside, before the command). Our init is pid 1 inside: it reaps, forwards signals and exits with the command. The
// kernel then kills everything left, so an ended sandbox has no process. The sandbox dies with its owner.
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

// Prepares the calling process to own sandboxes: enters a private mount namespace, so that its mounts are not seen on
// the host and disappear with the process. Needs host root. Call once, before threads start.
Status EnterSupervisorNamespace();
// Unmounts FUSE mounts inherited from the host, because a copy here would keep other tasks' file systems alive. Keeps
// the mount under the working directory (the task's) and "lower" and "apart" in it. Reads mountinfo, so do not call it
// on the path to the command.
void ForgetForeignMounts();

struct StartFailure {
  enum class Kind { kNotFound, kNotExecutable, kFailed };  // exit status 127, 126, 125
  Kind kind = Kind::kFailed;
  std::string reason;  // one line, escaped
};

struct Ending {
  bool command_ended = false;  // false: the whole sandbox was killed, including the command
  int wait_status = 0;         // the command's, as from waitpid
  uint64_t cpu_us = 0;
  uint64_t peak_memory_bytes = 0;
  uint64_t oom_kills = 0;
  std::vector<int> ranks;  // wait statuses of all processes of the command if it has several; wait_status is the last's
};

// A process, of the command or from Exec, that has ended.
struct ProcessEnd {
  int32_t number = 0;
  int wait_status = 0;
};

// The answer to Sandbox::Connect.
struct Connection {
  int32_t number = 0;
  UniqueFd socket;  // non-blocking; it may still be connecting: writable when that is over
  int error = 0;    // an errno; there is no socket then
};

struct ProcessStreams {
  UniqueFd input, output, error;
};

// Single-threaded. Sequence: Start, (start_fd readable) FinishStart, (control_fd readable) ReadControl, (pidfd
// readable) Reap.
class Sandbox {
 public:
  // Builds the sandbox and releases the command; returns before it runs. Changes the calling process's working
  // directory to spec.directory.
  static Result<std::unique_ptr<Sandbox>> Start(const Spec& spec, RootViews views, const CgroupHost& cgroups,
                                                PrepareUpper prepare_upper = nullptr);
  // Kills what still runs, waits for it, and removes the control groups.
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  // Readable (EPOLLIN or EPOLLHUP) when the command was started or its start failed.
  int start_fd() const { return start_.get(); }
  // Call after start_fd became readable; closes it. nullopt: the command runs.
  std::optional<StartFailure> FinishStart();

  // Our ends of the command's streams; take them after FinishStart. With a terminal, input and output are two
  // descriptors of the pty's master, and error is empty.
  UniqueFd TakeInput() { return std::move(input_); }
  UniqueFd TakeOutput() { return std::move(output_); }
  UniqueFd TakeError() { return std::move(error_); }
  // The same for the further processes of the command, from 1.
  ProcessStreams TakeStreamsOf(size_t rank) { return std::move(rank_streams_[rank - 1]); }
  // For Spec::descriptors; also with a terminal.
  UniqueFd TakeDescriptor(uint32_t number) { return std::move(descriptors_[number]); }

  // The recipients of a signal.
  enum class Target {
    kGroup,    // the command's process group
    kCommand,  // only the command's first process
    kAll,      // every process inside
    kOthers,   // every process inside except the command's first
  };
  // Only after FinishStart.
  void Signal(int signal, Target target = Target::kGroup);
  // Sends SIGKILL to everything inside.
  void Kill();

  // Readable when init has sent something or is gone. ReadControl returns the ending once the command is over and only
  // init is left inside, which takes a little longer to exit; nullopt before that. Stop watching it when
  // control_closed().
  int control_fd() const { return control_.get(); }
  std::optional<Ending> ReadControl();
  bool control_closed() const { return control_closed_; }
  // For Spec::gate. True once: all is prepared. The command is executed after Go. Call after ReadControl.
  bool TakePrepared() { return std::exchange(prepared_, false); }
  void Go();
  // For Spec::idle: ends once no process is left inside.
  void EndWhenEmpty();

  // Starts another process, as a child of init: with the command's identity, limits and root, /dev/null as stdin and a
  // process group of its own. `directory` "": the command's. Returns a pipe: end of file once it was executed;
  // FinishExec reads the failure, if there is one. `number` must be unique.
  Result<UniqueFd> Exec(int32_t number, const std::vector<std::string>& argv,
                        const std::vector<std::string>& environment, const std::string& directory, int output,
                        int error);
  std::optional<StartFailure> FinishExec(int start, const std::string& name) const;

  // What has ended since the last call: processes of the command, if it has several, and of Exec. Call after
  // ReadControl.
  std::vector<ProcessEnd> TakeRankEnds() { return std::exchange(rank_ends_, {}); }
  std::vector<ProcessEnd> TakeExecEnds() { return std::exchange(exec_ends_, {}); }

  // Connects to a port of the inside's localhost, as a process inside would: in its network, held to its filter.
  // `number` must be unique. kUnavailable: too many requests at once.
  Status Connect(int32_t number, uint16_t port, bool version6);
  // The answers. Call after ReadControl.
  std::vector<Connection> TakeConnections() { return std::exchange(connections_, {}); }

  // For Spec::job_socket: listens at kJobSocketPath.
  UniqueFd TakeJobSocket() { return std::move(job_socket_); }

  // Replaces a file below /run, at once for all who read it.
  Status Replace(const RunFile& file);
  // Adds lines to /etc/hosts, without names that it has. Requires the task directory as working directory.
  Status AddHosts(const std::string& lines);

  // The signal that stopped the command since the last call (Ctrl-Z, SIGSTOP); 0: none. Call after ReadControl.
  int TakeStop() { return std::exchange(stop_, 0); }

  // Readable when no process is left inside, not even init. The only notification when everything was killed.
  int pidfd() const { return pidfd_.get(); }
  pid_t pid() const { return pid_; }
  // Call once, after pidfd became readable (otherwise it waits). Removes the control groups and returns the ending
  // again.
  Ending Reap();

  const Spec& spec() const { return spec_; }

  // Lines for the user: limits that this host cannot enforce.
  const std::vector<std::string>& notices() const { return notices_; }

 private:
  friend struct Builder;
  Sandbox() = default;
  ssize_t ReceiveControl(void* packet, size_t size, UniqueFd* descriptor);
  void SendControl(uint32_t type, int32_t value);
  void ReadUsage();

  Spec spec_;
  UniqueFd start_, control_, pidfd_;
  UniqueFd input_, output_, error_;
  std::map<uint32_t, UniqueFd> descriptors_;  // by number
  std::vector<ProcessStreams> rank_streams_;
  UniqueFd idle_output_, idle_error_;  // writers, so that the pipes do not end before there is a process
  UniqueFd job_socket_, run_;
  bool prepared_ = false;
  std::vector<ProcessEnd> rank_ends_, exec_ends_;
  std::vector<Connection> connections_;
  std::vector<int> rank_statuses_;
  int stop_ = 0;
  pid_t pid_ = -1;
  bool reaped_ = false;
  bool control_closed_ = false;
  std::optional<Ending> ending_;
  Cgroup cgroup_;
  NetworkFilter network_;
  std::vector<std::string> notices_;
};

}  // namespace vrun::sandbox
