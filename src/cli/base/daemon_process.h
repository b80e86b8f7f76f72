// SPDX-License-Identifier: Apache-2.0
// Starts daemons that outlive this process, finds them again and ends exactly those. The only file here that forks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/io/find_program.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::cli {

struct DaemonSpec {
  std::string name;  // for messages: "home"
  std::string program;
  std::vector<std::string> arguments;  // "--ready-fd N" is added
  std::string log_file;                // receives its stdout and stderr, appended; created with mode 0600
  int timeout_ms = 30000;              // limit for becoming ready
  int interrupt_fd = -1;               // when readable: stop waiting, kAborted
};

// Identifies a process: a pid alone may be reused.
struct ProcessId {
  pid_t pid = 0;
  uint64_t start_time = 0;  // clock ticks since boot, field 22 of /proc/PID/stat
};

// Starts the daemon and returns once it is ready. It is a grandchild in its own session, with "/" as its directory,
// none of our descriptors and an empty signal mask. It writes "ok\n" or "error: TEXT\n" to --ready-fd. An error
// contains the daemon's own text, or the last line of its log, and the path of the log; the failed daemon is stopped.
Result<ProcessId> StartDaemon(const DaemonSpec& spec);

// Runs a helper to its end, with /dev/null as stdin. An exit status other than 0 is an error with the last line of its
// stderr. `shown`: what it writes to its stdout goes to our stderr, otherwise nowhere.
Status RunHelper(const std::vector<std::string>& words, bool shown = false);

// kNotFound when there is no such process (zombies count as gone).
Result<ProcessId> IdentifyProcess(pid_t pid);
bool IsAlive(const ProcessId& process);
// TERM, then KILL after `grace_ms`. Returns when the process is gone. kTimeout when it outlives KILL by 10 s.
Status StopProcess(const ProcessId& process, int grace_ms);

// "PID START\n"
Status WritePidFile(const std::string& path, const ProcessId& process);
Result<ProcessId> ReadPidFile(const std::string& path);
// Parses the start time in the text of /proc/PID/stat. The command's name there may contain blanks and parentheses.
Result<uint64_t> ParseStartTime(std::string_view stat);

// Takes an exclusive lock on a file, which is created if missing. `wait`: block until it is free, else kExists.
Result<UniqueFd> LockFile(const std::string& path, bool wait);

}  // namespace vrun::cli
