// SPDX-License-Identifier: Apache-2.0
#include "gpu/programs.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"

namespace vrun::gpu {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// `input` and `output` become the standard descriptors.
Result<pid_t> Spawn(const std::vector<std::string>& argv, const std::vector<std::string>& environment, int input,
                    int output) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_adddup2(&actions, input, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output, 1);
  ::posix_spawn_file_actions_adddup2(&actions, output, 2);
  // The agent's signals are blocked for its loop, and some are ignored.
  sigset_t none, defaults;
  ::sigemptyset(&none);
  ::sigemptyset(&defaults);
  for (const int s : {SIGPIPE, SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&defaults, s);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  pid_t pid = -1;
  const int error =
      ::posix_spawn(&pid, argv[0].c_str(), &actions, &attributes, Pointers(argv).data(), Pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return ErrnoError(error, Escape(argv[0]));
  return pid;
}

// -1: it did not end in time, and was killed.
int WaitUntil(pid_t pid, int64_t deadline) {
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (MonotonicMicros() >= deadline) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      return -1;
    }
    ::usleep(2000);
  }
  return status;
}

}  // namespace

Result<std::string> RunProgram(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
                               const std::string& input, int timeout_ms) {
  const int64_t deadline = MonotonicMicros() + timeout_ms * 1000ll;
  int in[2], out[2];
  if (::pipe2(in, O_CLOEXEC) != 0) return ErrnoError("pipe");
  UniqueFd read_in(in[0]), write_in(in[1]);
  if (::pipe2(out, O_CLOEXEC) != 0) return ErrnoError("pipe");
  UniqueFd read_out(out[0]), write_out(out[1]);
  VRUN_ASSIGN(const pid_t pid, Spawn(argv, environment, read_in.get(), write_out.get()));
  read_in.Reset();
  write_out.Reset();
  // A few short lines, which fit in the pipe. A program that has ended is seen below.
  static_cast<void>(WriteAll(write_in.get(), input));
  write_in.Reset();
  std::string text;
  constexpr size_t kMost = 1 << 16;
  while (text.size() < kMost) {
    pollfd waiting{read_out.get(), POLLIN, 0};
    const int64_t left = (deadline - MonotonicMicros()) / 1000;
    if (left <= 0 || ::poll(&waiting, 1, static_cast<int>(left)) == 0) break;
    char buffer[4096];
    const ssize_t n = ::read(read_out.get(), buffer, sizeof buffer);
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  const int status = WaitUntil(pid, deadline);
  if (status == -1)
    return Error(Code::kTimeout, Escape(argv[0]) + ": it did not end within " + std::to_string(timeout_ms) + " ms");
  if (status != 0) return Error(Code::kUnavailable, Escape(argv[0]) + ": it failed: " + Escape(text.substr(0, 300)));
  return text;
}

Result<pid_t> StartDaemon(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
                          const std::string& log) {
  VRUN_ASSIGN(const UniqueFd null, OpenFile("/dev/null", O_RDONLY));
  VRUN_ASSIGN(const UniqueFd file, OpenFile(log, O_WRONLY | O_CREAT | O_APPEND, 0600));
  return Spawn(argv, environment, null.get(), file.get());
}

std::vector<pid_t> ProcessesWith(const std::string& assignment) {
  std::vector<pid_t> found;
  std::unique_ptr<DIR, int (*)(DIR*)> proc(::opendir("/proc"), ::closedir);
  const std::string wanted = std::string(1, '\0') + assignment + std::string(1, '\0');
  while (const dirent* entry = proc ? ::readdir(proc.get()) : nullptr) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    const std::string environment =
        std::string(1, '\0') + ReadFile(std::string("/proc/") + entry->d_name + "/environ").value_or("");
    if (environment.find(wanted) != std::string::npos) found.push_back(static_cast<pid_t>(std::atoi(entry->d_name)));
  }
  return found;
}

}  // namespace vrun::gpu
