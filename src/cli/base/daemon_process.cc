// SPDX-License-Identifier: Apache-2.0
#include "cli/base/daemon_process.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "cli/base/table.h"
#include "cli/base/values.h"

namespace vrun::cli {
namespace {

constexpr int kReadyFd = 3;
constexpr size_t kMaxReadyLine = 4096;

struct Pipe {
  UniqueFd read, write;
};

Result<Pipe> MakePipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoError("pipe");
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// In the grandchild, between fork and exec: async-signal-safe calls only. Never returns.
[[noreturn]] void BecomeDaemon(const char* program, char* const* argv, int log, int ready, int failure) {
  auto fail = [&] {
    int e = errno;
    [[maybe_unused]] ssize_t n = ::write(failure, &e, sizeof e);
    ::_exit(127);
  };
  // Our descriptors may be 0, 1, 2 or 3: first move them out of the way, then into place.
  int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  int high_null = ::fcntl(null, F_DUPFD_CLOEXEC, 10), high_log = ::fcntl(log, F_DUPFD_CLOEXEC, 10);
  int high_ready = ::fcntl(ready, F_DUPFD_CLOEXEC, 10), high_failure = ::fcntl(failure, F_DUPFD_CLOEXEC, 10);
  if (null < 0 || high_null < 0 || high_log < 0 || high_ready < 0 || high_failure < 0) fail();
  failure = high_failure;
  if (::dup2(high_null, 0) < 0 || ::dup2(high_log, 1) < 0 || ::dup2(high_log, 2) < 0 ||
      ::dup2(high_ready, kReadyFd) < 0) {
    fail();
  }
  // The daemon must not inherit what our parent passed to us (a job server's pipes, fd:N of --status-json), because a
  // reader of such a pipe would wait for the daemon to end. CLOEXEC keeps `failure` open until the exec.
  ::syscall(SYS_close_range, kReadyFd + 1, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
  for (int s = 1; s < NSIG; ++s) ::signal(s, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::umask(022);
  if (::chdir("/") != 0) fail();
  ::execv(program, argv);
  fail();
  ::_exit(127);
}

std::string LastLine(const std::string& file, off_t from) {
  auto fd = OpenFile(file, O_RDONLY);
  if (!fd) return "";
  char buffer[8192];
  struct stat st;
  if (::fstat(fd->get(), &st) != 0) return "";
  off_t start = std::max<off_t>(from, st.st_size - static_cast<off_t>(sizeof buffer));
  auto n = PreadUpTo(fd->get(), buffer, sizeof buffer, static_cast<uint64_t>(start));
  if (!n) return "";
  std::string_view text(buffer, *n);
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  size_t newline = text.rfind('\n');
  return std::string(newline == std::string_view::npos ? text : text.substr(newline + 1));
}

// The daemon's line; "" when it closed the descriptor without writing one.
Result<std::string> ReadReadyLine(int fd, const DaemonSpec& spec) {
  std::string line;
  int64_t deadline = MonotonicMicros() + int64_t{spec.timeout_ms} * 1000;
  while (line.find('\n') == std::string::npos && line.size() < kMaxReadyLine) {
    int64_t left = deadline - MonotonicMicros();
    if (left <= 0) {
      return Error(Code::kTimeout, "start " + spec.name + ": not ready after " +
                                       std::to_string(spec.timeout_ms / 1000) + " s: look into " +
                                       Escape(spec.log_file));
    }
    pollfd p[2] = {{fd, POLLIN, 0}, {spec.interrupt_fd, POLLIN, 0}};
    int n = ::poll(p, spec.interrupt_fd >= 0 ? 2 : 1, static_cast<int>(left / 1000 + 1));
    if (n < 0 && errno != EINTR) return ErrnoError("poll");
    if (n > 0 && spec.interrupt_fd >= 0 && p[1].revents != 0) {
      return Error(Code::kAborted, "start " + spec.name + ": interrupted");
    }
    if (n <= 0 || p[0].revents == 0) continue;
    char buffer[512];
    ssize_t r = ::read(fd, buffer, sizeof buffer);
    if (r < 0 && errno == EINTR) continue;
    if (r <= 0) break;
    line.append(buffer, static_cast<size_t>(r));
  }
  return line.substr(0, line.find('\n'));
}

Result<UniqueFd> OpenPidFd(const ProcessId& process) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!fd) return ErrnoError("pidfd_open");
  // The pid may have been reused since the pid file was read.
  if (!IsAlive(process)) return Error(Code::kNotFound, "process is gone");
  return fd;
}

bool WaitGone(int pidfd, int timeout_ms) {
  int64_t deadline = MonotonicMicros() + int64_t{timeout_ms} * 1000;
  for (;;) {
    int64_t left = std::max<int64_t>(0, deadline - MonotonicMicros());
    pollfd p{pidfd, POLLIN, 0};
    int n = ::poll(&p, 1, static_cast<int>((left + 999) / 1000));
    if (n > 0) return true;
    if (n == 0 && left == 0) return false;
  }
}

}  // namespace

Result<ProcessId> StartDaemon(const DaemonSpec& spec) {
  VRUN_ASSIGN(Pipe ready, MakePipe());
  VRUN_ASSIGN(Pipe failure, MakePipe());
  VRUN_ASSIGN(Pipe pid_pipe, MakePipe());
  VRUN_ASSIGN(UniqueFd log, OpenFile(spec.log_file, O_WRONLY | O_CREAT | O_APPEND, 0600));
  off_t log_start = ::lseek(log.get(), 0, SEEK_END);

  std::vector<std::string> words{spec.program};
  words.insert(words.end(), spec.arguments.begin(), spec.arguments.end());
  words.insert(words.end(), {"--ready-fd", std::to_string(kReadyFd)});
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);

  pid_t child = ::fork();
  if (child < 0) return ErrnoError("fork");
  if (child == 0) {
    // The session's leader exits at once, so the daemon can never get a controlling terminal.
    ::setsid();
    pid_t daemon = ::fork();
    if (daemon == 0) BecomeDaemon(spec.program.c_str(), argv.data(), log.get(), ready.write.get(), failure.write.get());
    [[maybe_unused]] ssize_t n = ::write(pid_pipe.write.get(), &daemon, sizeof daemon);
    ::_exit(0);
  }
  ready.write.Reset();
  failure.write.Reset();
  pid_pipe.write.Reset();
  int status;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  pid_t daemon = -1;
  VRUN_ASSIGN(size_t got, ReadUpTo(pid_pipe.read.get(), &daemon, sizeof daemon));
  if (got != sizeof daemon || daemon <= 0) return Error(Code::kExhausted, "start " + spec.name + ": fork failed");
  auto process = IdentifyProcess(daemon);

  int exec_errno = 0;
  VRUN_ASSIGN(got, ReadUpTo(failure.read.get(), &exec_errno, sizeof exec_errno));
  if (got == sizeof exec_errno) return ErrnoError(exec_errno, "start " + spec.name + ": " + Escape(spec.program));

  auto line = ReadReadyLine(ready.read.get(), spec);
  if (line && *line == "ok") {
    if (!process) return Error(Code::kAborted, "start " + spec.name + ": it exited at once: see " + spec.log_file);
    return *process;
  }
  // Interrupted: leave it running; it may be ready for the next client.
  bool leave = !line && line.error().code() == Code::kAborted;
  if (process && !leave && !(line && line->starts_with("error: "))) (void)StopProcess(*process, 1000);
  if (!line) return std::move(line).error();
  std::string why = line->starts_with("error: ") ? line->substr(7) : LastLine(spec.log_file, log_start);
  if (why.empty()) why = "it exited without a message";
  return Error(Code::kUnavailable,
               "start " + spec.name + ": " + SafeLine(why) + ": the log is " + Escape(spec.log_file));
}

Status RunHelper(const std::vector<std::string>& words, bool shown) {
  VRUN_ASSIGN(Pipe errors, MakePipe());
  VRUN_ASSIGN(UniqueFd null, OpenFile("/dev/null", O_RDWR));
  std::vector<std::string> copy = words;
  std::vector<char*> argv;
  for (std::string& w : copy) argv.push_back(w.data());
  argv.push_back(nullptr);
  pid_t child = ::fork();
  if (child < 0) return ErrnoError("fork");
  if (child == 0) {
    int err = ::fcntl(errors.write.get(), F_DUPFD_CLOEXEC, 10), zero = ::fcntl(null.get(), F_DUPFD_CLOEXEC, 10);
    if (::dup2(zero, 0) < 0 || ::dup2(shown ? 2 : zero, 1) < 0 || ::dup2(err, 2) < 0) ::_exit(127);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  errors.write.Reset();
  std::string text(65536, 0);
  auto n = ReadUpTo(errors.read.get(), text.data(), text.size());
  text.resize(n ? *n : 0);
  errors.read.Reset();
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t newline = text.rfind('\n');
  std::string last = newline == std::string::npos ? text : text.substr(newline + 1);
  if (last.empty()) last = Escape(words[0]) + " failed";
  return Error(Code::kInternal, SafeLine(last));
}

Result<uint64_t> ParseStartTime(std::string_view stat) {
  size_t paren = stat.rfind(')');
  if (paren == std::string_view::npos || paren + 2 >= stat.size()) return Error(Code::kCorrupt, "/proc/PID/stat");
  std::string_view rest = stat.substr(paren + 2);
  if (rest[0] == 'Z' || rest[0] == 'X') return Error(Code::kNotFound, "process is gone");
  for (int field = 3; field < 22; ++field) {
    size_t blank = rest.find(' ');
    if (blank == std::string_view::npos) return Error(Code::kCorrupt, "/proc/PID/stat");
    rest.remove_prefix(blank + 1);
  }
  return ParseNumber(rest.substr(0, rest.find(' ')), std::numeric_limits<uint64_t>::max() / 2);
}

Result<ProcessId> IdentifyProcess(pid_t pid) {
  auto stat = ReadFile("/proc/" + std::to_string(pid) + "/stat", 4096);
  if (!stat) return Error(Code::kNotFound, "process is gone");
  VRUN_ASSIGN(uint64_t start, ParseStartTime(*stat));
  return ProcessId{pid, start};
}

bool IsAlive(const ProcessId& process) {
  auto now = IdentifyProcess(process.pid);
  return now && now->start_time == process.start_time;
}

Status StopProcess(const ProcessId& process, int grace_ms) {
  auto fd = OpenPidFd(process);
  if (!fd) return {};
  auto send = [&](int s) { return ::syscall(SYS_pidfd_send_signal, fd->get(), s, nullptr, 0) == 0 || errno == ESRCH; };
  if (!send(SIGTERM)) return ErrnoError("stop process " + std::to_string(process.pid));
  if (WaitGone(fd->get(), grace_ms)) return {};
  if (!send(SIGKILL)) return ErrnoError("kill process " + std::to_string(process.pid));
  if (WaitGone(fd->get(), 10000)) return {};
  return Error(Code::kTimeout, "stop process " + std::to_string(process.pid) +
                                   ": it does not exit even when killed: check its state with ps");
}

Status WritePidFile(const std::string& path, const ProcessId& process) {
  return WriteFileAtomic(path, std::to_string(process.pid) + " " + std::to_string(process.start_time) + "\n", 0600);
}

Result<ProcessId> ReadPidFile(const std::string& path) {
  VRUN_ASSIGN(std::string text, ReadFile(path, 256));
  size_t blank = text.find(' '), newline = text.find('\n');
  if (blank == std::string::npos || newline == std::string::npos || newline < blank) {
    return Error(Code::kCorrupt, Escape(path) + ": not a pid file");
  }
  std::string_view view = text;
  VRUN_ASSIGN(uint64_t pid, ParseNumber(view.substr(0, blank), std::numeric_limits<pid_t>::max()));
  VRUN_ASSIGN(uint64_t start,
              ParseNumber(view.substr(blank + 1, newline - blank - 1), std::numeric_limits<uint64_t>::max() / 2));
  if (pid == 0) return Error(Code::kCorrupt, Escape(path) + ": not a pid file");
  return ProcessId{static_cast<pid_t>(pid), start};
}

Result<UniqueFd> LockFile(const std::string& path, bool wait) {
  VRUN_ASSIGN(UniqueFd fd, OpenFile(path, O_RDWR | O_CREAT, 0600));
  int rc;
  do {
    rc = ::flock(fd.get(), wait ? LOCK_EX : LOCK_EX | LOCK_NB);
  } while (rc != 0 && errno == EINTR);
  if (rc != 0 && errno == EWOULDBLOCK) return Error(Code::kExists, Escape(path) + ": another process holds it");
  if (rc != 0) return ErrnoError("lock " + Escape(path));
  return fd;
}

}  // namespace vrun::cli
