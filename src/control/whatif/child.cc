// SPDX-License-Identifier: Apache-2.0
#include "control/whatif/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#define JSON_USE_IMPLICIT_CONVERSIONS 0
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/unique_fd.h"

namespace vrun::control {
namespace {

constexpr size_t kMostOutput = 64u << 20;
constexpr size_t kMostLine = 4096;
constexpr int kIdleClass = 3 << 13;  // IOPRIO_CLASS_IDLE, which has no header

struct PipeEnds {
  UniqueFd read, write;
};
Result<PipeEnds> NewPipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError("pipe");
  return PipeEnds{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// In the child: only what a signal handler may do.
[[noreturn]] void Become(char* const* argv, int null, int out, int err, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  ::setpriority(PRIO_PROCESS, 0, 19);
  ::syscall(SYS_ioprio_set, 1, 0, kIdleClass);
  // If memory gets short, this is what the kernel ends.
  const int badness = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (badness >= 0) [[maybe_unused]]
    const ssize_t n = ::write(badness, "1000", 4);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  // dup2 takes close-on-exec away, but not from a descriptor that is already the right one.
  const int to_out = ::fcntl(out, F_DUPFD_CLOEXEC, 10), to_err = ::fcntl(err, F_DUPFD_CLOEXEC, 10),
            from_null = ::fcntl(null, F_DUPFD_CLOEXEC, 10);
  if (::dup2(from_null, 0) < 0 || ::dup2(to_out, 1) < 0 || ::dup2(to_err, 2) < 0) ::_exit(127);
  ::execv(argv[0], argv);
  ::_exit(127);
}

// The message of an answer in JSON that is an error.
std::string ErrorIn(const std::string& output) {
  const nlohmann::json json = nlohmann::json::parse(output, nullptr, false);
  if (!json.is_object() || !json.contains("error") || !json["error"].is_object()) return "";
  const auto& error = json["error"];
  return error.contains("message") && error["message"].is_string() ? error["message"].get<std::string>() : "";
}

// Splits what comes into lines.
class LineReader {
 public:
  explicit LineReader(const std::function<void(std::string_view)>& line) : line_(line) {}
  void Add(std::string_view bytes) {
    for (const char c : bytes) {
      if (c != '\n') {
        if (text_.size() < kMostLine) text_ += c;
        continue;
      }
      line_(text_);
      const std::string read = std::exchange(text_, "");
      if (!read.starts_with('{')) last_ = read;  // that is progress
    }
  }
  // The last line, also if it has no end.
  std::string Last() const { return text_.empty() ? last_ : text_; }

 private:
  const std::function<void(std::string_view)>& line_;
  std::string text_, last_;
};

}  // namespace

Result<std::string> RunChild(const ChildSpec& spec, const std::function<void(std::string_view)>& line) {
  VRUN_ASSIGN(PipeEnds out, NewPipe());
  VRUN_ASSIGN(PipeEnds err, NewPipe());
  VRUN_ASSIGN(const UniqueFd null, OpenFile("/dev/null", O_RDWR));
  std::vector<std::string> words = spec.words;
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int64_t end = MonotonicMicros() + spec.limit_us;
  const pid_t self = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return ErrnoError("start " + Escape(words[0]));
  if (child == 0) Become(argv.data(), null.get(), out.write.get(), err.write.get(), self);
  out.write.Reset();
  err.write.Reset();
  std::string output;
  LineReader errors(line);
  Status verdict;
  std::string buffer(65536, 0);
  while (verdict && (out.read || err.read)) {
    pollfd wanted[3] = {{out.read ? out.read.get() : -1, POLLIN, 0},
                        {err.read ? err.read.get() : -1, POLLIN, 0},
                        {spec.stop_fd, POLLIN, 0}};
    const int64_t left = end - MonotonicMicros();
    if (left <= 0) {
      verdict = Error(Code::kTimeout, "it ran for longer than " + std::to_string(spec.limit_us / 60'000'000) +
                                          " minutes: take fewer days");
      break;
    }
    (void)::poll(wanted, 3, static_cast<int>(std::min<int64_t>(left / 1000 + 1, 60'000)));
    if ((wanted[2].revents & POLLIN) != 0) verdict = Error(Code::kAborted, "it was ended");
    for (int i = 0; i < 2; ++i) {
      if (wanted[i].revents == 0) continue;
      UniqueFd& from = i == 0 ? out.read : err.read;
      const ssize_t n = ::read(from.get(), buffer.data(), buffer.size());
      if (n <= 0) {
        from.Reset();
      } else if (i == 1) {
        errors.Add({buffer.data(), static_cast<size_t>(n)});
      } else if (output.size() < kMostOutput) {
        output.append(buffer.data(), static_cast<size_t>(n));
      }
    }
  }
  if (!verdict) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!verdict) return std::move(verdict).error();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return output;
  if (const std::string said = ErrorIn(output); !said.empty()) return Error(Code::kInternal, Escape(said));
  const std::string last = errors.Last();
  if (!last.empty()) return Error(Code::kInternal, Escape(last));
  return Error(Code::kInternal, WIFSIGNALED(status) ? "it was killed by signal " + std::to_string(WTERMSIG(status))
                                                    : "it failed without a message");
}

}  // namespace vrun::control
