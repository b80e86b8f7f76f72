// SPDX-License-Identifier: Apache-2.0
// Runs a command in a sandbox whose root is this machine's own, without a cluster: for tests/security and
// bench/sandbox.
#include <fcntl.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "sandbox/sandbox.h"

extern char** environ;

namespace vrun::sandbox {
namespace {

constexpr const char* kUsage =
    "usage: sandbox_run [--uid N] [--allow-setuid] [--no-namespaces] [--fuse] [--private-network] [--live]\n"
    "                   [--device PATH:MAJOR:MINOR] [--mount SOURCE:TARGET] [--file PATH:CONTENT] [--link "
    "PATH:TARGET]\n"
    "                   [--directory DIRECTORY] [--secret PATH:CONTENT]\n"
    "                   [--root DIRECTORY] [--memory BYTES] [--pids N] [--refuse-port N] [--owner N]\n"
    "                   [--starts N] [--] COMMAND...\n"
    "--starts: starts it so often and prints the microseconds from the start to the exec, one a line.\n";

struct Options {
  Spec spec;
  std::string root = "/";
  int starts = 0;
};

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) c == separator ? parts.emplace_back() : (parts.back() += c, parts.back());
  return parts;
}

uint32_t Number(const std::string& text) { return static_cast<uint32_t>(std::strtoul(text.c_str(), nullptr, 10)); }

bool Parse(int argc, char** argv, Options* out) {
  Spec& spec = out->spec;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--" || name[0] != '-') {
      spec.argv.assign(argv + i + (name == "--"), argv + argc);
      return !spec.argv.empty();
    }
    if (name == "--allow-setuid") {
      spec.policy.allow_setuid = true;
    } else if (name == "--no-namespaces") {
      spec.policy.allow_namespaces = false;
    } else if (name == "--fuse") {
      spec.policy.allow_fuse = true;
    } else if (name == "--private-network") {
      spec.policy.private_network = true;
    } else if (name == "--live") {
      spec.live_root = true;
    } else {
      if (++i == argc) return false;
      const std::string value = argv[i];
      const std::vector<std::string> parts = Split(value, ':');
      if (name == "--uid") {
        spec.identity.uid = spec.identity.gid = Number(value);
      } else if (name == "--root") {
        out->root = value;
      } else if (name == "--directory") {
        spec.working_directory = value;
      } else if (name == "--secret" && parts.size() == 2) {
        spec.files.push_back({parts[0], parts[1], true});
      } else if (name == "--memory") {
        spec.limits.memory_bytes = Number(value);
      } else if (name == "--pids") {
        spec.limits.pids = Number(value);
      } else if (name == "--owner") {
        spec.policy.network.job = Number(value);
      } else if (name == "--refuse-port") {
        spec.policy.network.refused_local_ports.push_back(static_cast<uint16_t>(Number(value)));
      } else if (name == "--starts") {
        out->starts = static_cast<int>(Number(value));
      } else if (name == "--device" && parts.size() == 3) {
        spec.injection.devices.push_back({parts[0], Number(parts[1]), Number(parts[2]), 0666});
      } else if (name == "--mount" && parts.size() == 2) {
        spec.injection.mounts.push_back({parts[0], parts[1], true, false});
      } else if (name == "--file" && parts.size() == 2) {
        spec.injection.files.push_back({parts[0], parts[1], 0644, false});
      } else if (name == "--link" && parts.size() == 2) {
        spec.injection.links.push_back({parts[0], parts[1]});
      } else {
        return false;
      }
    }
  }
  return false;
}

void Wait(int fd) {
  pollfd p{fd, POLLIN, 0};
  while (::poll(&p, 1, -1) < 0) {
  }
}

// Until both outputs have ended.
void Copy(UniqueFd output, UniqueFd error) {
  pollfd fds[2] = {{output.get(), POLLIN, 0}, {error.get(), POLLIN, 0}};
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    if (::poll(fds, 2, -1) < 0) continue;
    for (int i = 0; i < 2; ++i) {
      if (fds[i].revents == 0) continue;
      char buffer[65536];
      const ssize_t n = ::read(fds[i].fd, buffer, sizeof buffer);
      if (n == 0 || (n < 0 && errno != EAGAIN)) fds[i].fd = -1;
      if (n > 0) static_cast<void>(WriteAll(i + 1, {buffer, static_cast<size_t>(n)}));
    }
  }
}

// Returns the exit status; `start_us`: from the call to the exec.
int RunOnce(const Options& options, const CgroupHost& groups, int64_t* start_us) {
  UniqueFd view(::open_tree(AT_FDCWD, options.root.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  const int64_t began = MonotonicMicros();
  auto sandbox = Sandbox::Start(options.spec, {std::move(view), {}, {}}, groups);
  if (!sandbox) return std::fprintf(stderr, "sandbox_run: %s\n", sandbox.error().message().c_str()), 125;
  Wait((*sandbox)->start_fd());
  const auto failure = (*sandbox)->FinishStart();
  *start_us = MonotonicMicros() - began;
  for (const std::string& notice : (*sandbox)->notices()) std::fprintf(stderr, "notice: %s\n", notice.c_str());
  if (failure) return std::fprintf(stderr, "sandbox_run: %s\n", failure->reason.c_str()), 125;
  (*sandbox)->TakeInput();
  Copy((*sandbox)->TakeOutput(), (*sandbox)->TakeError());
  Wait((*sandbox)->pidfd());
  const Ending ending = (*sandbox)->Reap();
  if (ending.oom_kills > 0)
    std::fprintf(stderr, "oom kills: %llu\n", static_cast<unsigned long long>(ending.oom_kills));
  return WIFEXITED(ending.wait_status) ? WEXITSTATUS(ending.wait_status) : 128 + WTERMSIG(ending.wait_status);
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) return std::fputs(kUsage, stderr), 2;
  InitLog("sandbox_run");
  std::string base = "/var/tmp/vrun-box-XXXXXX";
  if (::mkdtemp(base.data()) == nullptr || ::chmod(base.c_str(), 0755) != 0) return 125;
  if (Status entered = EnterSupervisorNamespace(); !entered) {
    return std::fprintf(stderr, "sandbox_run: %s\n", entered.error().message().c_str()), 125;
  }
  Spec& spec = options.spec;
  spec.name = "box." + std::to_string(::getpid());
  spec.directory = base + "/task";
  spec.ids = 0x40000000;
  if (spec.working_directory.empty()) spec.working_directory = "/";
  for (char** variable = environ; *variable != nullptr; ++variable) spec.environment.emplace_back(*variable);
  static_cast<void>(MakeDirs(spec.directory, 0755));
  const CgroupHost groups = DetectCgroups();
  int status = 0;
  for (int i = 0; i < std::max(options.starts, 1); ++i) {
    int64_t start_us = 0;
    status = RunOnce(options, groups, &start_us);
    ::umount2("lower", MNT_DETACH);
    static_cast<void>(RemoveTree("upper"));
    static_cast<void>(RemoveTree("work"));
    if (options.starts > 0) std::printf("%lld\n", static_cast<long long>(start_us));
    if (options.starts > 0 && status != 0) break;
  }
  static_cast<void>(::chdir("/"));
  static_cast<void>(RemoveTree(base));
  return status;
}

}  // namespace
}  // namespace vrun::sandbox

int main(int argc, char** argv) { return vrun::sandbox::Main(argc, argv); }
