// SPDX-License-Identifier: Apache-2.0
#include "sandbox/command_plan.h"

#include <linux/capability.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/command_path.h"
#include "base/escape.h"
#include "base/files.h"
#include "sandbox/user_map.h"

namespace vrun::sandbox {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const std::string& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

// What a root needs for apt, pip, dpkg, chown, debuggers and its own namespaces. It is a root of its own user namespace
// only; the rest would act there on nothing, or on more than a command needs.
uint64_t Capabilities(const Spec& spec) {
  // No root, and none to become: nothing at all.
  if (spec.identity.uid != 0 && !spec.policy.allow_setuid) return 0;
  uint64_t bits = 0;
  for (const int capability : {CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_KILL, CAP_SETGID, CAP_SETUID,
                               CAP_SETPCAP, CAP_NET_BIND_SERVICE, CAP_SYS_CHROOT, CAP_SYS_PTRACE, CAP_SETFCAP}) {
    bits |= uint64_t{1} << capability;
  }
  // Whoever may make a user namespace has it there anyway.
  if (spec.policy.allow_namespaces) bits |= uint64_t{1} << CAP_SYS_ADMIN;
  return bits;
}

bool KnownLimit(int resource) { return resource >= 0 && resource < static_cast<int>(RLIM_NLIMITS); }

const char* StageName(Stage stage) {
  switch (stage) {
    case Stage::kEnterGroups: return "enter the control groups";
    case Stage::kIdentity: return "become root of the user namespace";
    case Stage::kEnterRoot: return "enter the root";
    case Stage::kAttachMounts: return "mount /dev, /sys, /tmp and /run";
    case Stage::kMountProc: return "mount /proc";
    case Stage::kMaskProc: return "mask files of /proc";
    case Stage::kMountPts: return "mount /dev/pts";
    case Stage::kMountMqueue: return "mount /dev/mqueue";
    case Stage::kPivotRoot: return "pivot_root";
    case Stage::kHostname: return "set the host name";
    case Stage::kCgroupNamespace: return "enter the cgroup namespace";
    case Stage::kNetwork: return "bring the loopback interface up";
    case Stage::kLockMounts: return "lock the mounts in an inner namespace";
    case Stage::kSupervise: return "start init";
    case Stage::kTerminal: return "open a terminal";
    case Stage::kFork: return "fork";
    case Stage::kStreams: return "set up the streams";
    case Stage::kSession: return "make a session";
    case Stage::kLimits: return "set resource limits";
    case Stage::kGroups: return "set the groups";
    case Stage::kGid: return "set the gid";
    case Stage::kCapabilities: return "give up capabilities";
    case Stage::kFilter: return "install the filter of system calls";
    case Stage::kUid: return "set the uid";
    default: return "start";
  }
}

}  // namespace

CommandPlan::CommandPlan(const Spec& spec)
    : spec_(spec),
      candidates_(CommandCandidates(spec.argv.empty() ? "" : spec.argv[0], spec.environment)),
      argv_(Pointers(spec_.argv)),
      environment_(Pointers(spec_.environment)),
      groups_(spec.identity.groups.begin(), spec.identity.groups.end()),
      cpus_(CpuMask(spec.limits.cpus)),
      filter_(SeccompProgram({.allow_namespaces = spec.policy.allow_namespaces})),
      filter_program_{static_cast<unsigned short>(filter_.size()), filter_.data()},
      inner_ids_(InnerIdMapText(spec.ids)) {
  for (const std::vector<std::string>& environment : spec_.more_ranks) {
    rank_environments_.push_back(Pointers(environment));
  }
  static char shell[] = "/bin/sh";
  shell_argv_ = {shell, nullptr};
  for (size_t i = 1; i < argv_.size(); ++i) shell_argv_.push_back(argv_[i]);
  if (argv_.size() == 1) shell_argv_.push_back(nullptr);
  for (const std::string& c : candidates_) candidate_pointers_.push_back(c.c_str());
  candidate_pointers_.push_back(nullptr);
  for (const ResourceLimit& l : spec.resource_limits) {
    rlimit current;
    if (!KnownLimit(l.resource) || ::getrlimit(static_cast<__rlimit_resource_t>(l.resource), &current) != 0) continue;
    current.rlim_cur = std::min<rlim_t>(l.soft, current.rlim_max);
    limits_.push_back({l.resource, current});
  }
}

void CommandPlan::Fill(InsidePlan* plan) const {
  plan->hostname = spec_.hostname.empty() ? nullptr : spec_.hostname.c_str();
  plan->terminal = spec_.terminal;
  plan->window = {spec_.window.rows, spec_.window.columns, spec_.window.x_pixels, spec_.window.y_pixels};
  plan->directory = spec_.working_directory.c_str();
  plan->uid = spec_.identity.uid;
  plan->gid = spec_.identity.gid;
  plan->groups = groups_.data();
  plan->group_count = groups_.size();
  plan->capabilities = Capabilities(spec_);
  plan->no_new_privileges = !spec_.policy.allow_setuid;
  plan->filter = &filter_program_;
  plan->inner_ids = inner_ids_.c_str();
  plan->own_network = spec_.policy.private_network;
  plan->umask = spec_.umask & 0777;
  plan->nice = spec_.nice;
  plan->cpus = cpus_.data();
  plan->cpus_size = cpus_.size() * sizeof(unsigned long);
  plan->limits = limits_.data();
  plan->limit_count = limits_.size();
  plan->candidates = candidate_pointers_.data();
  plan->argv = argv_.data();
  plan->shell_argv = shell_argv_.data();
  plan->environment = environment_.data();
  plan->idle = spec_.idle;
  plan->gate = spec_.gate;
}

Result<UniqueFd> WriteExecBlock(const std::vector<std::string>& argv, const std::vector<std::string>& environment,
                                const std::string& directory) {
  const std::vector<std::string> candidates = CommandCandidates(argv.empty() ? "" : argv[0], environment);
  std::vector<std::string> shell = {"/bin/sh", ""};  // the second one is the candidate, which is known then
  shell.insert(shell.end(), argv.empty() ? argv.end() : argv.begin() + 1, argv.end());
  const std::vector<std::string>* lists[] = {&candidates, &argv, &shell, &environment};
  static_assert(sizeof(char*) == sizeof(uint64_t));
  ExecBlock head{};
  uint32_t* places[] = {&head.candidates, &head.argv, &head.shell_argv, &head.environment};
  for (size_t i = 0; i < std::size(lists); ++i) {
    *places[i] = head.pointer_count;
    head.pointer_count += static_cast<uint32_t>(lists[i]->size()) + 1;
  }
  std::vector<uint64_t> pointers;
  std::string strings;
  const uint64_t base = sizeof head + head.pointer_count * sizeof(uint64_t);
  const auto add = [&](const std::string& text) {
    const uint64_t offset = base + strings.size();
    strings.append(text.c_str(), text.size() + 1);
    return offset;
  };
  for (const auto* list : lists) {
    for (const std::string& text : *list) pointers.push_back(add(text));
    pointers.push_back(0);
  }
  if (!directory.empty()) head.directory = static_cast<uint32_t>(add(directory));
  UniqueFd file(::memfd_create("vrun-exec", MFD_CLOEXEC));
  if (!file) return ErrnoError("memfd_create");
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes.append(reinterpret_cast<const char*>(pointers.data()), pointers.size() * sizeof(uint64_t));
  VRUN_TRY(WriteAll(file.get(), bytes + strings));
  return file;
}

StartFailure ExplainStart(const StartMessage& message, const Spec& spec) {
  using Kind = StartFailure::Kind;
  std::string why = std::strerror(message.error);
  std::string name = Escape(spec.argv.empty() ? "" : spec.argv[0]);
  std::string raw_detail(message.detail, ::strnlen(message.detail, sizeof message.detail));
  std::string detail = Escape(raw_detail);
  switch (message.stage) {
    case Stage::kDirectory: {
      std::string text = "working directory " + Escape(spec.working_directory) + " is not in the mirrored root: " + why;
      if (message.error == EACCES) text = "working directory " + Escape(spec.working_directory) + ": " + why;
      if (IsOwnPlace(spec.working_directory)) text += ": /tmp, /dev, /run, /proc and /sys are the job's own";
      return {Kind::kFailed, text + ": run from another directory"};
    }
    case Stage::kNotFound: return {Kind::kNotFound, CommandNotFound(spec.argv.empty() ? "" : spec.argv[0])};
    case Stage::kNoInterpreter:
      return {Kind::kNotFound, InterpreterNotFound(spec.argv.empty() ? "" : spec.argv[0], raw_detail)};
    case Stage::kNotExecutable:
      if (message.error == EACCES) return {Kind::kNotExecutable, name + ": " + why + ": chmod +x or name another file"};
      return {Kind::kNotExecutable, name + ": cannot be executed: " + why};
    case Stage::kExec: return {Kind::kFailed, name + ": cannot be started: " + detail + ": " + why};
    default: return {Kind::kFailed, std::string("sandbox: ") + StageName(message.stage) + ": " + why};
  }
}

}  // namespace vrun::sandbox
