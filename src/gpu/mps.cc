// SPDX-License-Identifier: Apache-2.0
#include "gpu/mps.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/hash/digest.h"
#include "base/log.h"
#include "gpu/programs.h"

namespace vrun::gpu {
namespace {

constexpr int kAnswerMs = 8000;
constexpr int64_t kStartMicros = 8'000'000;
constexpr int64_t kEndMicros = 5'000'000;
// A path of a Unix socket has 108 bytes, and the daemon's longest name there is control_privileged.
constexpr size_t kMostPipeBytes = 107 - sizeof "/control_privileged";

// As the daemon reads it: whole MiB.
std::string MemoryLimit(uint64_t bytes) { return std::to_string(std::max<uint64_t>(1, bytes >> 20)) + "M"; }

std::string Joined(const std::string& root, const std::string& path) { return root == "/" ? path : root + path; }

}  // namespace

std::string MpsDaemons::NameOf(const Member& member) const {
  return std::to_string(member.gpu) + "-" + Sha256(member.owner).Hex().substr(0, 12);
}

Result<std::string> MpsDaemons::Program() const {
  for (const char* place : {"/usr/bin", "/usr/local/nvidia/bin", "/usr/local/bin", "/opt/bin"}) {
    const std::string path = Joined(options_.driver_root, std::string(place) + "/nvidia-cuda-mps-control");
    if (PathExists(path)) return path;
  }
  return Error(Code::kNotFound,
               "nvidia-cuda-mps-control: the node's driver has no MPS: ask for whole GPUs or --share=time");
}

std::vector<std::string> MpsDaemons::Environment(const std::string& name, const std::string& gpu_uuid) const {
  // The control program starts nvidia-cuda-mps-server, which it looks for in PATH.
  std::string path, libraries;
  for (const char* place : {"/usr/bin", "/usr/local/nvidia/bin", "/bin"})
    path += Joined(options_.driver_root, place) + ":";
  for (const char* place :
       {"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64", "/usr/lib/aarch64-linux-gnu"}) {
    libraries += Joined(options_.driver_root, place) + ":";
  }
  std::vector<std::string> environment = {"PATH=" + path + "/usr/bin:/bin", "CUDA_MPS_PIPE_DIRECTORY=" + Pipe(name),
                                          "CUDA_MPS_LOG_DIRECTORY=" + options_.directory + "/" + name + "/log",
                                          "CUDA_VISIBLE_DEVICES=" + gpu_uuid};
  if (options_.driver_root != "/") environment.push_back("LD_LIBRARY_PATH=" + libraries);
  return environment;
}

Result<std::string> MpsDaemons::Ask(const std::string& name, const std::string& command, int timeout_ms) const {
  VRUN_ASSIGN(const std::string program, Program());
  return RunProgram({program}, Environment(name, ""), command + "\n", timeout_ms);
}

Status MpsDaemons::Start(const std::string& name, const Member& member) {
  VRUN_ASSIGN(const std::string program, Program());
  const std::string base = options_.directory + "/" + name;
  if (Pipe(name).size() > kMostPipeBytes) {
    return Error(Code::kInvalid, Escape(Pipe(name)) + ": too long for a socket: give the node a shorter --state-dir");
  }
  // Clients of other user ids enter through the mount, so only these two directories must be open to them.
  for (const char* sub : {"/pipe", "/log"}) VRUN_TRY(MakeDirs(base + sub, 0755));
  VRUN_TRY(WriteFileAtomic(base + "/mps", Escape(member.owner) + "\n", 0600));
  VRUN_ASSIGN(const pid_t pid,
              StartDaemon({program, "-f"}, Environment(name, member.gpu_uuid), base + "/log/daemon.log"));
  children_.push_back(pid);
  const int64_t end = MonotonicMicros() + kStartMicros;
  while (MonotonicMicros() < end) {
    if (::waitpid(pid, nullptr, WNOHANG) == pid) {
      std::erase(children_, pid);
      break;
    }
    if (PathExists(Pipe(name) + "/control") && Ask(name, "get_server_list", kAnswerMs)) return {};
    ::usleep(10'000);
  }
  const std::string said = ReadFile(base + "/log/daemon.log").value_or("");
  return Error(Code::kUnavailable, "MPS: the daemon of GPU " + std::to_string(member.gpu) + " does not start: " +
                                       Escape(said.substr(said.size() > 200 ? said.size() - 200 : 0)));
}

Status MpsDaemons::SetLimits(const std::string& name, Daemon* daemon, bool started) {
  uint32_t percentage = 1;
  uint64_t memory = 0;
  bool limited = true;
  for (const auto& [pod, member] : daemon->members) {
    percentage = std::max(percentage, member.percentage);
    memory = std::max(memory, member.memory_bytes);
    limited = limited && member.memory_bytes != 0;
  }
  if (!limited) memory = 0;
  if (percentage == daemon->percentage && memory == daemon->memory_bytes && !started) return {};
  VRUN_TRY(Ask(name, "set_default_active_thread_percentage " + std::to_string(percentage), kAnswerMs));
  // Of the daemon's only device. There is no command that removes a limit, so a larger one than any card has does.
  const std::string limit = memory == 0 ? "1048576M" : MemoryLimit(memory);
  if (memory != 0 || daemon->memory_bytes != 0) {
    VRUN_TRY(Ask(name, "set_default_device_pinned_mem_limit 0 " + limit, kAnswerMs));
  }
  // Defaults hold for servers that start later; a running one is told by itself.
  VRUN_ASSIGN(const std::string servers, Ask(name, "get_server_list", kAnswerMs));
  for (size_t at = 0; at < servers.size();) {
    const size_t end = std::min(servers.find('\n', at), servers.size());
    const std::string pid = servers.substr(at, end - at);
    at = end + 1;
    if (pid.empty() || pid.find_first_not_of("0123456789") != pid.npos) continue;
    VRUN_TRY(Ask(name, "set_active_thread_percentage " + pid + " " + std::to_string(percentage), kAnswerMs));
    if (memory != 0 || daemon->memory_bytes != 0) {
      VRUN_TRY(Ask(name, "set_device_pinned_mem_limit " + pid + " 0 " + limit, kAnswerMs));
    }
  }
  daemon->percentage = percentage;
  daemon->memory_bytes = memory;
  return {};
}

Result<MpsShare> MpsDaemons::Join(const Member& member) {
  const std::string name = NameOf(member);
  Daemon& daemon = daemons_[name];
  const bool runs = !daemon.members.empty() && Ask(name, "get_server_list", kAnswerMs).has_value();
  daemon.members[member.pod] = member;
  const auto begin = [&]() -> Status {
    if (!runs) VRUN_TRY(Start(name, member));
    return SetLimits(name, &daemon, !runs);
  };
  if (const Status begun = begin(); !begun) {
    const Error why = begun.error();
    Leave(member.pod);
    return why;
  }
  return MpsShare{Pipe(name), member.percentage, member.memory_bytes};
}

void MpsDaemons::Leave(const std::string& pod) {
  for (auto it = daemons_.begin(); it != daemons_.end(); ++it) {
    if (it->second.members.erase(pod) == 0) continue;
    if (it->second.members.empty()) {
      TakeDown(it->first);
      daemons_.erase(it);
    } else if (const Status set = SetLimits(it->first, &it->second, false); !set) {
      LogWarning("MPS: the limits of {} stay as they were: {}", it->first, set.error().message());
    }
    return;
  }
}

void MpsDaemons::TakeDown(const std::string& name) {
  const std::string assignment = "CUDA_MPS_PIPE_DIRECTORY=" + Pipe(name);
  if (!ProcessesWith(assignment).empty()) static_cast<void>(Ask(name, "quit -t 2", kAnswerMs));
  const int64_t end = MonotonicMicros() + kEndMicros;
  for (std::vector<pid_t> left; !(left = ProcessesWith(assignment)).empty();) {
    if (MonotonicMicros() >= end) {
      LogWarning("MPS: {} processes of {} did not end by themselves: killed", left.size(), name);
      for (const pid_t pid : left) ::kill(pid, SIGKILL);
      break;
    }
    ::usleep(10'000);
  }
  // The daemons of an earlier agent are init's.
  std::erase_if(children_, [](pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) != 0; });
  if (const Status removed = RemoveTree(options_.directory + "/" + name); !removed)
    LogWarning("{}", removed.error().message());
}

void MpsDaemons::Recover(const std::vector<Member>& alive) {
  std::map<std::string, std::vector<Member>> wanted;
  for (const Member& member : alive) wanted[NameOf(member)].push_back(member);
  std::error_code error;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory, error))
    names.push_back(entry.path().filename());
  for (const std::string& name : names) {
    if (!wanted.contains(name)) TakeDown(name);
  }
  for (const auto& [name, members] : wanted) {
    Daemon& daemon = daemons_[name];
    for (const Member& member : members) daemon.members[member.pod] = member;
    const bool runs = Ask(name, "get_server_list", kAnswerMs).has_value();
    Status fine;
    if (!runs) fine = Start(name, members[0]);
    if (fine) fine = SetLimits(name, &daemon, true);
    if (!fine) LogError("MPS: {}: {}", name, fine.error().message());
  }
}

}  // namespace vrun::gpu
