// SPDX-License-Identifier: Apache-2.0
#include "node/task/task_spec.h"

#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/hash/blake3.h"
#include "node/gang/gang.h"
#include "node/gang/gang_environment.h"

namespace vrun::node {
namespace {

bool IsCString(const std::string& s) { return s.find('\0') == std::string::npos; }

// Of this machine: the kernel stops at the smaller of two.
uint64_t MostProcesses() {
  uint64_t most = UINT64_MAX;
  for (const char* file : {"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"}) {
    const Result<std::string> text = ReadFile(file, 64);
    if (const uint64_t n = text ? std::strtoull(text->c_str(), nullptr, 10) : 0; n != 0) most = std::min(most, n);
  }
  return most == UINT64_MAX ? 32768 : most;
}

uint16_t Clip(uint32_t n) { return static_cast<uint16_t>(std::min<uint32_t>(n, UINT16_MAX)); }

// This program's path. Not /proc/self/exe itself: that is in the mount namespace of the agent, whose mounts cannot be
// copied from here. After an upgrade it is the new program.
std::string OwnProgram() {
  char path[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  if (n <= 0 || static_cast<size_t>(n) == sizeof path) return "";
  std::string program(path, static_cast<size_t>(n));
  constexpr std::string_view kReplaced = " (deleted)";
  if (program.ends_with(kReplaced)) program.resize(program.size() - kReplaced.size());
  return program;
}

sandbox::Injection InjectionOf(const v1::GpuInjection& in) {
  sandbox::Injection out;
  for (const auto& d : in.devices()) out.devices.push_back({d.path(), d.major(), d.minor(), d.mode()});
  for (const auto& m : in.mounts()) out.mounts.push_back({m.source(), m.target(), m.read_only(), m.optional()});
  for (const auto& f : in.files()) out.files.push_back({f.path(), f.content(), f.mode(), f.optional()});
  for (const auto& l : in.links()) out.links.push_back({l.path(), l.target()});
  return out;
}

// The variables of the injection: some replace the command's, others are put in front of a list of paths.
Status AddVariables(const v1::GpuInjection& in, std::vector<std::string>* environment) {
  const auto split = [](const std::string& variable) { return variable.find('='); };
  for (const auto* list : {&in.environment(), &in.prepend()}) {
    for (const std::string& variable : *list) {
      const size_t equal = split(variable);
      if (equal == std::string::npos || equal == 0 || !IsCString(variable)) {
        return Error(Code::kInvalid, "a variable for the GPUs: " + Escape(variable) + ": not NAME=value");
      }
      const std::string name = variable.substr(0, equal);
      std::string value = variable.substr(equal + 1);
      if (list == &in.prepend()) {
        for (const std::string& own : *environment) {
          if (own.starts_with(name + "=") && own.size() > name.size() + 1) value += ":" + own.substr(name.size() + 1);
        }
      }
      SetVariable(environment, name, value);
    }
  }
  return {};
}

Result<sandbox::Policy> PolicyOf(const v1::TaskSpec& spec) {
  const v1::Isolation& in = spec.isolation();
  sandbox::Policy out;
  out.allow_setuid = in.allow_setuid();
  out.allow_namespaces = !in.refuse_namespaces();
  out.allow_fuse = in.allow_fuse();
  out.private_network = in.private_network() || spec.order().spec().network() == v1::NETWORK_PRIVATE;
  out.require_device_filter = in.require_device_filter();
  for (const v1::Isolation::Destination& d : in.refused()) {
    if (d.port() > UINT16_MAX) return Error(Code::kInvalid, "a refused destination: no such port");
    const auto port = static_cast<uint16_t>(d.port());
    if (d.address().empty()) {
      out.network.refused_local_ports.push_back(port);
    } else {
      VRUN_ASSIGN(const sandbox::Destination refused, sandbox::ParseDestination(d.address(), d.prefix_bits(), port));
      out.network.refused.push_back(refused);
    }
  }
  // The same for all pods of the job, which may reach each other, and for no other job on any cluster of this host.
  const std::string job = std::to_string(spec.order().placement().job()) + " " + spec.order().home_id();
  out.network.job = std::strtoull(Blake3(job).Hex().substr(0, 16).c_str(), nullptr, 16) | 1;
  return out;
}

// The lines of /etc/hosts of a pod whose only address is its loopback.
std::string OwnHosts(const std::string& hostname) {
  utsname host{};
  const std::string name = !hostname.empty() ? hostname : ::uname(&host) == 0 ? host.nodename : "";
  return name.empty() ? "" : "127.0.0.1\t" + name + "\n";
}

// What home has sent of its secrets. Before the environments of further ranks are made.
Status AddSecrets(const v1::TaskSpec& in, sandbox::Spec* out) {
  for (const v1::SecretUse& use : in.order().spec().secrets()) {
    const auto value = std::find_if(in.secrets().begin(), in.secrets().end(),
                                    [&use](const v1::SecretValue& v) { return v.name() == use.name(); });
    if (value == in.secrets().end()) {
      return Error(Code::kNotFound, "secret " + Escape(use.name()) + " is no longer stored at home: `vctl secret set " +
                                        Escape(use.name()) + "`");
    }
    if (!use.path().empty()) {
      if (!use.path().starts_with("/run/") || !IsCString(use.path())) {
        return Error(Code::kInvalid, "secret " + Escape(use.name()) + ": its file is not below /run");
      }
      out->files.push_back({use.path(), value->value(), true});
    }
    if (use.variable().empty()) continue;
    if (!IsCString(value->value())) {
      return Error(Code::kInvalid, "secret " + Escape(use.name()) + ": it has a NUL byte, so it cannot be a variable");
    }
    SetVariable(&out->environment, use.variable(), value->value());
  }
  return {};
}

// What distinguishes a pod of a gang from the sandbox of a single process.
Status AddGang(const v1::TaskSpec& in, sandbox::Spec* out) {
  const v1::StartAttempt& order = in.order();
  const Gang gang(order, in.node());
  if (!Gang::Is(order)) {
    SetArrayEnvironment(in, gang, &out->environment);
    return {};
  }
  const uint32_t processes = Gang::ProcessesHere(order);
  if (processes > sandbox::kMostRanks) {
    return Error(Code::kInvalid, std::to_string(processes) + " processes in a pod: at most " +
                                     std::to_string(sandbox::kMostRanks) + ": use more pods");
  }
  if (out->hostname.empty()) out->hostname = gang.here().host_name;
  std::vector<std::vector<std::string>> environments = GangEnvironments(in, gang, out->environment);
  out->environment = std::move(environments[0]);
  out->more_ranks.assign(std::make_move_iterator(environments.begin() + 1),
                         std::make_move_iterator(environments.end()));
  out->idle = processes == 0;
  // Only one process can own the terminal, as with srun --pty.
  if (gang.pod() != 0) out->terminal = false;
  for (sandbox::RunFile& file : GangFiles(order, gang)) out->files.push_back(std::move(file));
  return {};
}

}  // namespace

std::vector<sandbox::RunFile> GangFiles(const v1::StartAttempt& order, const Gang& gang) {
  return {{kMembersPath, gang.MembersJson() + "\n"},
          {kHostfilePath, Hostfile(order, gang)},
          {kHydraHostsPath, HydraHosts(order, gang)}};
}

uint64_t PidsLimit(uint64_t asked, uint64_t machine) {
  constexpr uint64_t kDefault = 32768;
  return asked != 0 ? std::min(asked, machine / 2) : std::min(kDefault, machine / 4);
}

std::string CheckpointDirectory(const std::string& working_directory, uint64_t job) {
  return working_directory + (working_directory.ends_with('/') ? "" : "/") + ".vrun/ckpt/" + std::to_string(job);
}

std::string GroupName(const v1::TaskSpec& in) {
  struct stat st {};
  ::stat(in.task_directory().c_str(), &st);
  const std::string place = in.task_directory() + " " + std::to_string(st.st_dev) + " " + std::to_string(st.st_ino);
  return std::to_string(in.order().placement().job()) + "." + std::to_string(in.order().placement().attempt()) + "-" +
         Blake3(place).Hex().substr(0, 8);
}

IdMap IdsOf(const v1::TaskSpec& in) { return {in.uid_base(), {in.high_ids().begin(), in.high_ids().end()}}; }

Result<sandbox::Spec> SandboxSpec(const v1::TaskSpec& in, int64_t grace_micros) {
  const v1::RunSpec& run = in.order().spec();
  const v1::Placement& placement = in.order().placement();
  const v1::Command& command = run.command();
  sandbox::Spec out;
  out.directory = in.task_directory();
  out.ids = IdsOf(in);
  out.live_root = in.live_root();
  out.live_paths.assign(in.order().spec().live_paths().begin(), in.order().spec().live_paths().end());
  out.limits.memory_bytes = run.resources().memory_bytes();
  if (out.limits.memory_bytes == 0) out.limits.memory_bytes = in.isolation().default_memory_bytes();
  out.limits.milli_cpus = run.resources().milli_cpus();
  out.limits.cpus.assign(in.cpus().begin(), in.cpus().end());
  VRUN_ASSIGN(out.policy, PolicyOf(in));
  // In a network of its own the node's addresses are nobody's.
  out.hosts = out.policy.private_network ? OwnHosts(command.hostname()) : in.hosts();
  out.injection = InjectionOf(in.gpus());
  VRUN_TRY(sandbox::CheckInjection(out.injection));
  out.gate = in.wait_for_go();
  out.job_socket = true;
  out.program = OwnProgram();
  out.limits.pids = PidsLimit(run.resources().pids(), MostProcesses());
  out.hostname = command.hostname();
  out.argv.assign(command.argv().begin(), command.argv().end());
  out.environment.assign(command.environment().begin(), command.environment().end());
  out.script = command.script();
  out.working_directory = command.directory();
  out.identity.uid = command.identity().uid();
  out.identity.gid = command.identity().gid();
  out.identity.groups.assign(command.identity().groups().begin(), command.identity().groups().end());
  out.umask = command.umask();
  out.nice = command.nice();
  for (const v1::ResourceLimit& l : command.limits()) out.resource_limits.push_back({l.resource(), l.soft()});
  out.terminal = command.terminal();
  const v1::TerminalSize& size = command.terminal_size();
  out.window = {Clip(size.rows()), Clip(size.columns()), Clip(size.x_pixels()), Clip(size.y_pixels())};

  for (const v1::Descriptor& d : command.descriptors()) {
    if (d.number() <= 2 || d.number() > sandbox::kMostDescriptor) {
      return Error(Code::kInvalid, "descriptor " + std::to_string(d.number()) + " of the command: not between 3 and " +
                                       std::to_string(sandbox::kMostDescriptor));
    }
    out.descriptors.push_back({static_cast<int>(d.number()), d.output()});
  }

  auto absolute = [](const std::string& path) { return !path.empty() && path[0] == '/' && IsCString(path); };
  if (!absolute(out.directory))
    return Error(Code::kInvalid, "task directory " + Escape(out.directory) + ": not absolute");
  if (!absolute(out.working_directory)) {
    return Error(Code::kInvalid, "working directory " + Escape(out.working_directory) + ": not absolute");
  }
  if (!std::all_of(out.argv.begin(), out.argv.end(), IsCString)) {
    return Error(Code::kInvalid, "an argument of the command has a NUL byte");
  }
  if (!std::all_of(out.environment.begin(), out.environment.end(), IsCString)) {
    return Error(Code::kInvalid, "an environment variable has a NUL byte");
  }
  if (!IsCString(out.hostname) || out.hostname.size() > 64) {
    return Error(Code::kInvalid, "host name " + Escape(out.hostname) + ": longer than 64 bytes or not a text");
  }

  SetVariable(&out.environment, "VRUN_JOB_ID", std::to_string(placement.job()));
  SetVariable(&out.environment, "VRUN_TASK", "0");
  SetVariable(&out.environment, "VRUN_POOL", run.pool());
  SetVariable(&out.environment, "VRUN_NODELIST", in.node());
  SetVariable(&out.environment, "VRUN_RESTART_COUNT",
              std::to_string(placement.attempt() > 0 ? placement.attempt() - 1 : 0));
  SetVariable(&out.environment, "VRUN_GRACE_S", std::to_string(grace_micros / 1000000));
  // Without an injection the node knows no more of its GPUs than their number.
  if (placement.gpu_mask() != 0 && !in.has_gpus()) {
    std::string devices;
    for (int i = 0; i < 32; ++i) {
      if (placement.gpu_mask() >> i & 1) devices += (devices.empty() ? "" : ",") + std::to_string(i);
    }
    SetVariable(&out.environment, "CUDA_VISIBLE_DEVICES", devices);
  }
  VRUN_TRY(AddVariables(in.gpus(), &out.environment));
  if (run.scheduling().limit_s() != 0) {
    SetVariable(&out.environment, "VRUN_END_TIME",
                std::to_string(WallMicros() / 1000000 + static_cast<int64_t>(run.scheduling().limit_s())));
  }
  if (!run.scheduling().team().empty()) SetVariable(&out.environment, "VRUN_TEAM", run.scheduling().team());
  SetVariable(&out.environment, "VRUN_JOB_SOCKET", sandbox::kJobSocketPath);
  SetVariable(&out.environment, "VRUN_CKPT_DIR", CheckpointDirectory(out.working_directory, placement.job()));
  VRUN_TRY(AddSecrets(in, &out));
  if (Gang::Is(in.order()) || in.order().parent_array() != 0) VRUN_TRY(AddGang(in, &out));
  return out;
}

}  // namespace vrun::node
