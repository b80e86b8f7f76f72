// SPDX-License-Identifier: Apache-2.0
#include "node/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "base/escape.h"

namespace vrun::node {

Result<std::unique_ptr<ChildProcess>> ChildProcess::Spawn(EventLoop* loop, const std::vector<std::string>& argv,
                                                          const std::vector<int>& inherited) {
  // Moved above the numbers that the child will get.
  std::vector<UniqueFd> high;
  for (const int fd : inherited) {
    high.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 3 + static_cast<int>(inherited.size())));
    if (!high.back()) return ErrnoError("start " + Escape(argv[0]));
  }
  std::vector<char*> args;
  for (const std::string& a : argv) args.push_back(const_cast<char*>(a.c_str()));
  args.push_back(nullptr);
  std::vector<std::string> environment = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"};
  if (const char* level = std::getenv("VRUN_LOG")) environment.push_back(std::string("VRUN_LOG=") + level);
  std::vector<char*> env;
  for (std::string& e : environment) env.push_back(e.data());
  env.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, 2, 1);
  for (size_t i = 0; i < high.size(); ++i) {
    posix_spawn_file_actions_adddup2(&actions, high[i].get(), 3 + static_cast<int>(i));
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // The loop blocks the signals that it reads with signalfd; the child must start with them unblocked.
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  pid_t pid = -1;
  int rc = ::posix_spawn(&pid, args[0], &actions, &attributes, args.data(), env.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (rc != 0) return ErrnoError(rc, "start " + Escape(argv[0]));

  // glibc 2.36 declares pidfd_open without extern "C".
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) {
    Error e = ErrnoError("pidfd_open");
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return e;
  }
  std::unique_ptr<ChildProcess> child(new ChildProcess(loop, pid, std::move(pidfd)));
  ChildProcess* raw = child.get();
  VRUN_TRY(loop->Add(raw->pidfd_.get(), EPOLLIN, [raw](uint32_t) {
    int status = 0;
    if (::waitpid(raw->pid_, &status, WNOHANG) != raw->pid_) return;
    raw->ended_ = true;
    raw->loop_->Remove(raw->pidfd_.get());
    if (auto callback = std::move(raw->on_exit_)) callback(status);  // may destroy *raw
  }));
  return child;
}

ChildProcess::~ChildProcess() {
  if (ended_) return;
  loop_->Remove(pidfd_.get());
  // The owner no longer needs it, but it must still be reaped.
  auto pidfd = std::make_shared<UniqueFd>(std::move(pidfd_));
  (void)loop_->Add(pidfd->get(), EPOLLIN, [loop = loop_, pid = pid_, pidfd](uint32_t) {
    ::waitpid(pid, nullptr, WNOHANG);
    loop->Remove(pidfd->get());
  });
}

void ChildProcess::Kill(int signal) {
  if (!ended_) ::kill(pid_, signal);
}

std::string BinaryDirectory() {
  char path[4096];
  ssize_t n = ::readlink("/proc/self/exe", path, sizeof path - 1);
  std::string exe(path, n > 0 ? static_cast<size_t>(n) : 0);
  size_t slash = exe.rfind('/');
  return slash == std::string::npos ? "." : exe.substr(0, slash);
}

}  // namespace vrun::node
