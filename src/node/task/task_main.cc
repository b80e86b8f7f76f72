// SPDX-License-Identifier: Apache-2.0
// vrund-task: supervises one task of a node. Started by the node's agent, outlives it.
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/files.h"
#include "base/heap.h"
#include "base/io/event_loop.h"
#include "base/log.h"
#include "node/gang/job_client.h"
#include "node/task/task_supervisor.h"
#include "sandbox/cgroup.h"
#include "sandbox/sandbox.h"

namespace {

constexpr const char* kUsage =
    "usage: vrund-task --fd N [--orphan-limit SECONDS] [--grace SECONDS]\n"
    "       vrund-task --version\n"
    "Started by `vrund node` for each task; not meant to be started by hand.\n";

struct Arguments {
  int fd = -1;
  vrun::node::TaskOptions options;
};

bool ParseSeconds(const char* text, int64_t* micros) {
  char* end;
  double seconds = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(seconds >= 0 && seconds < 1e9)) return false;
  *micros = static_cast<int64_t>(seconds * 1e6);
  return true;
}

bool Parse(int argc, char** argv, Arguments* arguments) {
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i];
    if (i + 1 == argc) return false;
    const char* value = argv[++i];
    if (name == "--fd") {
      arguments->fd = std::atoi(value);
    } else if (name == "--orphan-limit") {
      if (!ParseSeconds(value, &arguments->options.orphan_micros)) return false;
    } else if (name == "--grace") {
      if (!ParseSeconds(value, &arguments->options.grace_micros)) return false;
    } else {
      return false;
    }
  }
  return arguments->fd > 2;
}

// Keeps only the connection and the error output of the agent's descriptors.
void LeaveTheAgent(int connection) {
  ::setsid();
  ::umask(022);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  ::fcntl(connection, F_SETFD, FD_CLOEXEC);
  if (connection > 3) ::syscall(SYS_close_range, 3u, static_cast<unsigned>(connection) - 1, 0u);
  ::syscall(SYS_close_range, static_cast<unsigned>(connection) + 1, ~0u, 0u);
  int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null >= 0) {
    ::dup2(null, 0);
    ::dup2(null, 1);
    if (null > 2) ::close(null);
  }
}

int Run(Arguments arguments) {
  vrun::InitLog("task");
  LeaveTheAgent(arguments.fd);
  vrun::UniqueFd connection(arguments.fd);
  if (vrun::Status entered = vrun::sandbox::EnterSupervisorNamespace(); !entered) {
    arguments.options.unusable = std::move(entered).error();  // reported when a task arrives
  }
  vrun::EventLoop loop;
  vrun::node::TaskSupervisor supervisor(&loop, arguments.options, vrun::sandbox::DetectCgroups());
  vrun::Status watched = loop.OnSignal(SIGTERM, [&](int) { supervisor.Terminate(); });
  if (!watched) vrun::LogError("{}", watched.error().message());
  supervisor.Serve(std::move(connection));
  loop.Run();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // A job finds this program under other names (sandbox::Spec::program).
  if (argc > 0 && vrun::node::IsJobClient(argv[0])) return vrun::node::JobClientMain(argc, argv);
  vrun::KeepFreedMemory();
  if (argc == 2 && std::strcmp(argv[1], "--version") == 0) {
    std::printf("vrund-task %s\n", VRUN_VERSION);
    return 0;
  }
  Arguments arguments;
  if (!Parse(argc, argv, &arguments)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  return Run(arguments);
}
