// SPDX-License-Identifier: Apache-2.0
#include "sandbox/sandbox.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <sstream>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "sandbox/command_plan.h"
#include "sandbox/inside.h"
#include "sandbox/mounts.h"
#include "sandbox/namespaces.h"
#include "sandbox/rootfs.h"
#include "sandbox/streams.h"
#include "sandbox/user_map.h"

namespace vrun::sandbox {

// Intermediate results of the steps that build a sandbox.
struct Builder {
  const Spec& spec;
  const CgroupHost& host;
  RootViews views;
  PrepareUpper prepare_upper;
  Sandbox* sandbox;

  UniqueFd root, live;
  PreparedMounts mounts;
  Pipes pipes;
  std::vector<Pipes> rank_pipes;      // of the command's further processes
  std::vector<UniqueFd> descriptors;  // the command's ends, in the order of the spec
  UniqueFd control_inside, start_inside;
  ClonedChild child;
  bool outside_group = false;  // init could not be put into the version 2 group

  Status MakeDirectories();
  Status MountTheRoot();
  Status PrepareTheMounts();
  Status MakeStreams();
  Status MakeControlGroups();
  Status LimitDevices();
  Status FilterDevices();
  Status FilterTheNetwork();
  Status LetCommandsStart();
  Status JudgeDeviceFilter(Status filtered);
  bool NeedsDeviceFilter() const;
  std::vector<DeviceRule> AllowedDevices() const;
  Status CloneInit();
  Status MapUsers();
};

namespace {

// /tmp is a directory of the overlay, so that a command can rename files from there to their destination. It is opaque,
// because the root has no names in it, so lookups need not go to the lower. It is never carried home
// (node/carry/carry.h, CarryOptions::skip). What an earlier attempt left in a continued upper is removed.
Status MakeTmpOfTheUpper() {
  struct stat upper;
  if (::stat("upper", &upper) != 0) return ErrnoError("stat upper");
  VRUN_TRY(RemoveTree("upper/tmp"));
  if (::mkdir("upper/tmp", 0700) != 0) return ErrnoError("mkdir upper/tmp");
  if (::setxattr("upper/tmp", "trusted.overlay.opaque", "y", 1, 0) != 0) return ErrnoError("mark upper/tmp");
  // Not a change by the command.
  const timespec times[2] = {upper.st_atim, upper.st_mtim};
  if (::utimensat(AT_FDCWD, "upper", times, 0) != 0) return ErrnoError("set the times of upper");
  return {};
}

struct Step {
  const char* name;
  Status (Builder::*run)();
};
// The isolation steps done outside; the inside's list is in inside.cc and begins with the clone.
constexpr Step kSteps[] = {
    {"make directories", &Builder::MakeDirectories},
    {"mount the root", &Builder::MountTheRoot},
    {"prepare mounts", &Builder::PrepareTheMounts},
    {"make streams", &Builder::MakeStreams},
    {"make control groups", &Builder::MakeControlGroups},
    {"limit devices", &Builder::LimitDevices},
    {"clone init", &Builder::CloneInit},
    {"map users", &Builder::MapUsers},
    // While init builds its part. It starts no command before the last step.
    {"filter devices", &Builder::FilterDevices},
    {"filter the network", &Builder::FilterTheNetwork},
    {"let commands start", &Builder::LetCommandsStart},
};

}  // namespace

Status Builder::MakeDirectories() {
  if (::chdir(spec.directory.c_str()) != 0) return ErrnoError("enter " + Escape(spec.directory));
  const bool of_the_upper = !spec.live_root && !IsLink(views.whole.get(), "tmp");
  const std::pair<const char*, bool> directories[] = {{"upper", !spec.live_root},
                                                      {"work", !spec.live_root},
                                                      {"lower", !spec.live_root},
                                                      {"apart", static_cast<bool>(views.apart)},
                                                      {"tmp", !of_the_upper}};
  for (const auto& [name, needed] : directories) {
    if (needed && ::mkdir(name, 0700) != 0 && errno != EEXIST) return ErrnoError(std::string("mkdir ") + name);
  }
  if (of_the_upper) VRUN_TRY(MakeTmpOfTheUpper());
  const char* tmp = of_the_upper ? "upper/tmp" : "tmp";
  if (::lchown(tmp, spec.ids.base(), spec.ids.base()) != 0) return ErrnoError("chown tmp");
  if (::chmod(tmp, 01777) != 0) return ErrnoError("chmod tmp");
  return {};
}

Status Builder::MountTheRoot() {
  if (spec.live_root) {
    root = std::move(views.whole);
    return {};
  }
  live = std::move(views.live);
  VRUN_ASSIGN(root, MountRoot(std::move(views), prepare_upper));
  return {};
}

Status Builder::PrepareTheMounts() {
  VRUN_ASSIGN(mounts, PrepareMounts(root.get(), spec));
  if (live) VRUN_TRY(CoverLivePaths(std::move(live), root.get(), spec.live_paths, &mounts));
  sandbox->job_socket_ = std::move(mounts.job_socket);
  sandbox->run_ = std::move(mounts.run);
  return {};
}

Status Builder::MakeStreams() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return ErrnoError("socketpair");
  sandbox->control_.Reset(ends[0]);
  control_inside.Reset(ends[1]);
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError("pipe");
  sandbox->start_.Reset(ends[0]);
  start_inside.Reset(ends[1]);
  const uint32_t uid = spec.ids.ToNode(spec.identity.uid), gid = spec.ids.ToNode(spec.identity.gid);
  for (const Descriptor& d : spec.descriptors) {
    UniqueFd* ours = &sandbox->descriptors_[static_cast<uint32_t>(d.number)];
    VRUN_TRY(MakePipe(d.output, uid, gid, ours, &descriptors.emplace_back()));
  }
  for (size_t i = 0; i < spec.more_ranks.size(); ++i) {
    VRUN_ASSIGN(Pipes rank, MakePipes(uid, gid));
    sandbox->rank_streams_.push_back({std::move(rank.ours[0]), std::move(rank.ours[1]), std::move(rank.ours[2])});
    rank_pipes.push_back(std::move(rank));
  }
  if (spec.terminal) return {};
  VRUN_ASSIGN(pipes, MakePipes(uid, gid));
  sandbox->input_ = std::move(pipes.ours[0]);
  sandbox->output_ = std::move(pipes.ours[1]);
  sandbox->error_ = std::move(pipes.ours[2]);
  if (spec.idle) {
    sandbox->idle_output_ = std::move(pipes.theirs[1]);
    sandbox->idle_error_ = std::move(pipes.theirs[2]);
  }
  return {};
}

Status Builder::MakeControlGroups() {
  sandbox->cgroup_.Create(host, spec.name, spec.limits, &sandbox->notices_);
  return {};
}

// A pod that has GPUs must not be able to take others.
bool Builder::NeedsDeviceFilter() const { return spec.policy.require_device_filter || !spec.injection.devices.empty(); }

Status Builder::JudgeDeviceFilter(Status filtered) {
  if (filtered || NeedsDeviceFilter()) return filtered;
  sandbox->notices_.push_back("devices are not filtered: " + filtered.error().message());
  return {};
}

// Version 1: a group that init enters.
Status Builder::LimitDevices() {
  if (sandbox->cgroup_.unified_fd() >= 0) return {};
  return JudgeDeviceFilter(sandbox->cgroup_.LimitDevices(host, spec.name, AllowedDevices()));
}

std::vector<DeviceRule> Builder::AllowedDevices() const {
  std::vector<DeviceRule> allowed = HarmlessDevices();
  if (spec.policy.allow_fuse) allowed.push_back(kFuseDevice);
  for (const Injection::Device& device : spec.injection.devices) allowed.push_back({device.major, device.minor});
  return allowed;
}

Status Builder::FilterDevices() {
  const int group = sandbox->cgroup_.unified_fd();
  if (group < 0) return {};  // LimitDevices
  if (outside_group) {
    return JudgeDeviceFilter(Error(Code::kUnsupported, "the version 2 control group accepts no process"));
  }
  return JudgeDeviceFilter(sandbox::FilterDevices(group, AllowedDevices()));
}

// Best effort: a kernel without these programs is older than all that have the new mount calls and BPF.
Status Builder::FilterTheNetwork() {
  const uint64_t pod = std::hash<std::string>()(spec.name) ^ static_cast<uint64_t>(::getpid()) << 32;
  NetworkPolicy policy = spec.policy.network;
  if (spec.policy.private_network) policy.job = 0, policy.refused_local_ports.clear();
  Status filtered = Error(Code::kUnsupported, "this host has no version 2 control groups");
  if (sandbox->cgroup_.unified_fd() >= 0 && !outside_group) {
    filtered = sandbox->network_.Attach(sandbox->cgroup_.unified_fd(), policy, pod);
  }
  if (!filtered) sandbox->notices_.push_back("the network is not filtered: " + filtered.error().message());
  return {};
}

Status Builder::LetCommandsStart() {
  const ControlMessage message{ControlType::kFiltered, 0, 0};
  if (::send(sandbox->control_.get(), &message, sizeof message, MSG_NOSIGNAL) == sizeof message) return {};
  return errno == EPIPE || errno == ECONNRESET ? Status()
                                               : Status(ErrnoError("talk to init"));  // its start pipe says why
}

Status Builder::CloneInit() {
  CommandPlan command(spec);
  std::vector<InsidePlan::Attachment> attachments;
  for (const PreparedMount& m : mounts.list) attachments.push_back({m.mount.get(), m.target.get()});
  InsidePlan plan{};
  plan.control = control_inside.get();
  plan.supervisor_end = sandbox->control_.get();
  plan.start = start_inside.get();
  plan.root = root.get();
  std::vector<int> entrances = sandbox->cgroup_.entrances();
  plan.entrances = entrances.data();
  plan.entrance_count = entrances.size();
  plan.attachments = attachments.data();
  plan.attachment_count = attachments.size();
  std::vector<InsidePlan::ProcAttachment> proc_attachments;
  for (const ProcMount& m : mounts.proc) proc_attachments.push_back({m.mount.get(), m.path.c_str()});
  plan.proc_attachments = proc_attachments.data();
  plan.proc_attachment_count = proc_attachments.size();
  plan.mask_driver = spec.injection.devices.empty();
  plan.dev = mounts.dev.get();
  plan.proc_target = mounts.proc_target.get();
  plan.pts_target = mounts.pts_target.get();
  plan.mqueue_target = mounts.mqueue_target.get();
  for (int i = 0; i < 3; ++i) plan.streams[i] = pipes.theirs[i].get();
  std::vector<InsidePlan::Move> moves;
  for (size_t i = 0; i < descriptors.size(); ++i) moves.push_back({descriptors[i].get(), spec.descriptors[i].number});
  plan.moves = moves.data();
  plan.move_count = moves.size();
  std::vector<InsidePlan::Rank> ranks;
  for (const Pipes& rank : rank_pipes) {
    ranks.push_back(
        {{rank.theirs[0].get(), rank.theirs[1].get(), rank.theirs[2].get()}, command.EnvironmentOf(ranks.size() + 1)});
  }
  plan.more_ranks = ranks.data();
  plan.more_rank_count = ranks.size();
  command.Fill(&plan);

  auto inside = [&plan] { RunInside(plan); };
  const bool network = spec.policy.private_network;
  Result<ClonedChild> cloned = CloneIntoNamespaces(sandbox->cgroup_.unified_fd(), network, inside);
  // A version 2 group may refuse new processes (threaded, frozen, not ours); the job then runs without it, unless its
  // filters are needed.
  if (!cloned && sandbox->cgroup_.unified_fd() >= 0 && !NeedsDeviceFilter()) {
    cloned = CloneIntoNamespaces(-1, network, inside);
    outside_group = true;
  }
  if (!cloned) return std::move(cloned).error();
  child = *std::move(cloned);
  sandbox->pid_ = child.pid;
  sandbox->pidfd_ = std::move(child.pidfd);
  sandbox->cgroup_.CloseEntrances();
  start_inside.Reset();
  control_inside.Reset();
  pipes = {};
  rank_pipes.clear();
  descriptors.clear();
  return {};
}

Status Builder::MapUsers() {
  VRUN_TRY(WriteUserMaps(child.pid, spec.ids, spec.identity));
  // The daemons of a node are protected, and their children inherit that. Written from here it is also the least that
  // the command can set.
  static_cast<void>(WriteKernelFile("/proc/" + std::to_string(child.pid) + "/oom_score_adj", "0"));
  ControlMessage message{ControlType::kMapped, 0, 0};
  if (::send(sandbox->control_.get(), &message, sizeof message, MSG_NOSIGNAL) != sizeof message) {
    return ErrnoError("talk to init");
  }
  return {};
}

Result<std::unique_ptr<Sandbox>> Sandbox::Start(const Spec& spec, RootViews views, const CgroupHost& cgroups,
                                                PrepareUpper prepare_upper) {
  std::unique_ptr<Sandbox> sandbox(new Sandbox);
  sandbox->spec_ = spec;
  Builder builder{spec, cgroups, std::move(views), std::move(prepare_upper), sandbox.get(), {}, {}, {}, {}, {}, {}, {},
                  {},   {}};
  if (!spec.more_ranks.empty()) sandbox->rank_statuses_.assign(1 + spec.more_ranks.size(), SIGKILL);
  int64_t began = MonotonicMicros();
  for (const Step& step : kSteps) {
    Status status = (builder.*step.run)();
    if (!status) return std::move(status).error().With(step.name);
    if (LogEnabled(LogLevel::kDebug)) LogDebug("{}: {} us", step.name, MonotonicMicros() - began);
  }
  return sandbox;
}

Sandbox::~Sandbox() {
  if (pid_ > 0 && !reaped_) {
    Kill();
    static_cast<void>(Reap());
  } else if (!reaped_) {
    static_cast<void>(cgroup_.Remove());
  }
}

std::optional<StartFailure> Sandbox::FinishStart() {
  StartMessage message{};
  ssize_t n;
  do {
    n = ::read(start_.get(), &message, sizeof message);
  } while (n < 0 && errno == EINTR);
  start_.Reset();
  if (n == sizeof message) return ExplainStart(message, spec_);
  static_cast<void>(ReadControl());  // the terminal was sent before this
  return std::nullopt;
}

void Sandbox::Signal(int signal, Target target) {
  constexpr ControlType kTypes[] = {ControlType::kSignal, ControlType::kSignalCommand, ControlType::kSignalAll,
                                    ControlType::kSignalOthers};
  SendControl(static_cast<uint32_t>(kTypes[static_cast<int>(target)]), signal);
}

void Sandbox::SendControl(uint32_t type, int32_t value) {
  const ControlMessage message{static_cast<ControlType>(type), value, 0};
  static_cast<void>(::send(control_.get(), &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

void Sandbox::Go() { SendControl(static_cast<uint32_t>(ControlType::kGo), 0); }

void Sandbox::EndWhenEmpty() { SendControl(static_cast<uint32_t>(ControlType::kEndWhenEmpty), 0); }

Status Sandbox::Replace(const RunFile& file) { return ReplaceBelowRun(run_.get(), file, spec_.ids.base()); }

Status Sandbox::AddHosts(const std::string& lines) { return AddToHosts(lines); }

Result<UniqueFd> Sandbox::Exec(int32_t number, const std::vector<std::string>& argv,
                               const std::vector<std::string>& environment, const std::string& directory, int output,
                               int error) {
  VRUN_ASSIGN(const UniqueFd block, WriteExecBlock(argv, environment, directory));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError("pipe");
  UniqueFd ours(ends[0]), theirs(ends[1]);
  ControlMessage message{ControlType::kExec, 0, number};
  iovec io{&message, sizeof message};
  const int descriptors[kExecDescriptors] = {block.get(), output, error, theirs.get()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptors)] = {};
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof descriptors);
  std::memcpy(CMSG_DATA(c), descriptors, sizeof descriptors);
  if (::sendmsg(control_.get(), &m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return ErrnoError("ask init for a process");
  return ours;
}

std::optional<StartFailure> Sandbox::FinishExec(int start, const std::string& name) const {
  StartMessage message{};
  ssize_t n;
  do {
    n = ::read(start, &message, sizeof message);
  } while (n < 0 && errno == EINTR);
  if (n != sizeof message) return std::nullopt;
  Spec spec;
  spec.argv = {name};
  spec.working_directory = spec_.working_directory;
  return ExplainStart(message, spec);
}

void Sandbox::Kill() {
  if (pid_ <= 0 || reaped_) return;
  ::kill(pid_, SIGKILL);  // not reaped yet, so the pid is still valid
  cgroup_.Kill();
}

void Sandbox::ReadUsage() {
  ending_->oom_kills = cgroup_.oom_kills();
  ending_->peak_memory_bytes = cgroup_.peak_memory_bytes();
  ending_->cpu_us = cgroup_.cpu_us();
}

Status Sandbox::Connect(int32_t number, uint16_t port, bool version6) {
  const ControlMessage message{ControlType::kConnect, version6 ? port | kConnectVersion6 : port, number};
  const ssize_t n = ::send(control_.get(), &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
  return n == sizeof message ? Status() : Status(ErrnoError("ask init for a connection"));
}

// Receives one packet without waiting; returns recvmsg's result.
ssize_t Sandbox::ReceiveControl(void* packet, size_t size, UniqueFd* descriptor) {
  iovec io{packet, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  ssize_t n;
  do {
    n = ::recvmsg(control_.get(), &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return n;
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  if (c != nullptr && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
    int received;
    std::memcpy(&received, CMSG_DATA(c), sizeof received);
    descriptor->Reset(received);
  }
  return n;
}

std::optional<Ending> Sandbox::ReadControl() {
  ControlMessage message;
  while (!control_closed_) {
    UniqueFd descriptor;
    ssize_t n = ReceiveControl(&message, sizeof message, &descriptor);
    if (n < 0 && errno == EAGAIN) break;
    // Init exited with a packet of ours unread. The kernel says so once, before what init had sent.
    if (n < 0 && errno == ECONNRESET) continue;
    if (n != sizeof message) {
      control_closed_ = true;
    } else if (message.type == ControlType::kPty) {
      input_.Reset(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 3));  // an event loop needs one descriptor per direction
      output_ = std::move(descriptor);
    } else if (message.type == ControlType::kConnected) {
      connections_.push_back({message.id, std::move(descriptor), message.value});
    } else if (message.type == ControlType::kStopped) {
      stop_ = message.value;
    } else if (message.type == ControlType::kPrepared) {
      prepared_ = true;
    } else if (message.type == ControlType::kRankEnded) {
      rank_ends_.push_back({message.id, message.value});
      rank_statuses_.at(static_cast<size_t>(message.id)) = message.value;
    } else if (message.type == ControlType::kExecEnded) {
      exec_ends_.push_back({message.id, message.value});
    } else if (message.type == ControlType::kEnded) {
      ending_ = Ending{};
      ending_->command_ended = true;
      ending_->wait_status = message.value;
      ending_->ranks = rank_statuses_;
      ReadUsage();
    }
  }
  return ending_;
}

Ending Sandbox::Reap() {
  rusage usage{};
  while (::wait4(pid_, nullptr, 0, &usage) < 0 && errno == EINTR) {
  }
  reaped_ = true;
  if (!ReadControl()) {
    ending_ = Ending{};
    ending_->wait_status = SIGKILL;
    ending_->ranks = rank_statuses_;
    ReadUsage();
  }
  // Without control groups: the usage of the processes that init has reaped, and the largest single process.
  auto micros = [](const timeval& t) {
    return static_cast<uint64_t>(t.tv_sec) * 1000000 + static_cast<uint64_t>(t.tv_usec);
  };
  if (ending_->cpu_us == 0) ending_->cpu_us = micros(usage.ru_utime) + micros(usage.ru_stime);
  if (ending_->peak_memory_bytes == 0) ending_->peak_memory_bytes = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
  network_.Forget();
  Status removed = cgroup_.Remove();
  if (!removed) LogWarning("{}", removed.error().message());
  return *ending_;
}

Status EnterSupervisorNamespace() {
  if (::unshare(CLONE_NEWNS) != 0) {
    Error error = ErrnoError("make a mount namespace");
    return Error(error.code(), error.message() + ": run the node as root");
  }
  // Slave, not private: what the host unmounts is unmounted here too.
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) return ErrnoError("make mounts private");
  return {};
}

void ForgetForeignMounts() {
  Result<std::string> mounts = ReadFile("/proc/self/mountinfo");
  struct statx lower {};
  struct statx apart {};
  char cwd[PATH_MAX];
  if (!mounts || ::getcwd(cwd, sizeof cwd) == nullptr) return;
  // Not all sandboxes have them; no mount has the id 0.
  if (::statx(AT_FDCWD, "lower", AT_NO_AUTOMOUNT, STATX_MNT_ID, &lower) != 0) lower.stx_mnt_id = 0;
  if (::statx(AT_FDCWD, "apart", AT_NO_AUTOMOUNT, STATX_MNT_ID, &apart) != 0) apart.stx_mnt_id = 0;
  std::string directory = std::string(cwd) + "/";
  std::istringstream lines(*mounts);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(" - fuse") == std::string::npos) continue;
    std::istringstream fields(line);
    std::string parent, device, root, path;
    uint64_t id = 0;
    fields >> id >> parent >> device >> root >> path;
    if (id == lower.stx_mnt_id || id == apart.stx_mnt_id || path == "/" || directory.rfind(path + "/", 0) == 0)
      continue;
    // A name with quoted characters is not found and stays mounted; the node's own views have no such names.
    ::umount2(path.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
  }
}

}  // namespace vrun::sandbox
