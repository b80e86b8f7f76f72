// SPDX-License-Identifier: Apache-2.0
// Starts daemons that outlive us and finds and ends exactly those again. The only file here that forks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::cli {

struct DaemonSpec {
  std::string name;  // for messages: "home"
  std::string program;
  std::vector<std::string> arguments;  // "--ready-fd N" is added
  std::string log_file;                // its stdout and stderr, appended; made with mode 0600
  int timeout_ms = 30000;              // for getting ready
  int interrupt_fd = -1;               // readable: stop waiting, kAborted
};

// Which process: a pid alone may be somebody else's tomorrow.
struct ProcessId {
  pid_t pid = 0;
  uint64_t start_time = 0;  // clock ticks since boot, field 22 of /proc/PID/stat
};

// The daemon is a grandchild in its own session, with "/" as its directory, no descriptors of ours, an empty signal
// mask. It says "ok\n" or "error: TEXT\n" on --ready-fd. Returns once it is ready. An error holds the daemon's own
// words, or the last line of its log, and where the log is; such a daemon is not left running.
Result<ProcessId> StartDaemon(const DaemonSpec& spec);

// Runs a helper to its end, with /dev/null as its stdin and stdout. An exit status other than 0 is an error with the
// last line of its stderr.
Status RunHelper(const std::vector<std::string>& words);

// PATH of a program of ours: beside our own executable, else in $PATH. kNotFound says what to do.
Result<std::string> FindProgram(std::string_view name);

// kNotFound when there is no such process (zombies count as gone).
Result<ProcessId> IdentifyProcess(pid_t pid);
bool IsAlive(const ProcessId& process);
// TERM, then KILL after `grace_ms`; returns when it is gone. kTimeout when even KILL did not end it within 10 s.
Status StopProcess(const ProcessId& process, int grace_ms);

// "PID START\n"
Status WritePidFile(const std::string& path, const ProcessId& process);
Result<ProcessId> ReadPidFile(const std::string& path);
// The start time out of the text of /proc/PID/stat; the command's name may hold blanks and parentheses.
Result<uint64_t> ParseStartTime(std::string_view stat);

// An exclusive lock on a file that is made when absent. `wait`: block until it is free, else kExists.
Result<UniqueFd> LockFile(const std::string& path, bool wait);

}  // namespace vrun::cli
