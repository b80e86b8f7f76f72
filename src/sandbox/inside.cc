// SPDX-License-Identifier: Apache-2.0
// Async-signal-safe code only: see inside.h.
#include "sandbox/inside.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace vrun::sandbox {
namespace {

// --- reporting -------------------------------------------------------------------------------------------------------

[[noreturn]] void Fail(const InsidePlan& plan, Stage stage, int error, const char* detail = "") {
  StartMessage message{};
  message.stage = stage;
  message.error = error;
  std::strncpy(message.detail, detail, sizeof message.detail - 1);
  [[maybe_unused]] ssize_t n = ::write(plan.start, &message, sizeof message);  // atomic: below PIPE_BUF
  ::_exit(127);
}

// Waits for one packet of this type. Exits if the supervisor has died.
void Await(const InsidePlan& plan, ControlType type) {
  ControlMessage message;
  ssize_t n;
  do {
    n = ::recv(plan.control, &message, sizeof message, 0);
  } while (n < 0 && errno == EINTR);
  if (n != sizeof message || message.type != type) ::_exit(1);
}

// --- building the sandbox: each step returns 0 or an errno -----------------------------------------------------------

int EnterGroups(const InsidePlan& plan) {
  for (size_t i = 0; i < plan.entrance_count; ++i) {
    if (::write(plan.entrances[i], "0", 1) != 1) return errno;
  }
  return 0;
}

int BecomeRoot(const InsidePlan& plan) {
  Await(plan, ControlType::kMapped);
  // Raw calls: glibc's wrappers would signal other threads, which the copied memory lists but which do not exist here.
  if (::syscall(SYS_setgroups, 0, nullptr) != 0) return errno;
  if (::syscall(SYS_setresgid, 0, 0, 0) != 0) return errno;
  if (::syscall(SYS_setresuid, 0, 0, 0) != 0) return errno;
  // Our memory is a copy of the supervisor's: nobody inside may read it, not even the sandbox's root.
  if (::prctl(PR_SET_DUMPABLE, 0) != 0) return errno;
  ::umask(0);
  return 0;
}

int EnterRoot(const InsidePlan& plan) {
  // Mounted over /, because no other directory is sure to exist and be accessible; pivot_root then moves it.
  if (::move_mount(plan.root, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) != 0) return errno;
  return ::fchdir(plan.root) != 0 ? errno : 0;
}

int AttachMounts(const InsidePlan& plan) {
  for (size_t i = 0; i < plan.attachment_count; ++i) {
    const InsidePlan::Attachment& a = plan.attachments[i];
    if (::move_mount(a.mount, "", a.target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) != 0) return errno;
  }
  return 0;
}

// Mounts a new file system of a type that belongs to the new namespaces. Returns the mount (kept open) or -errno.
int MountFresh(const char* type, int target, const char* const (*options)[2], unsigned attributes) {
  int context = ::fsopen(type, FSOPEN_CLOEXEC);
  if (context < 0) return -errno;
  for (; options != nullptr && (*options)[0] != nullptr; ++options) {
    if (::fsconfig(context, FSCONFIG_SET_STRING, (*options)[0], (*options)[1], 0) != 0) return -errno;
  }
  if (::fsconfig(context, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) return -errno;
  int mount = ::fsmount(context, FSMOUNT_CLOEXEC, attributes);
  if (mount < 0) return -errno;
  ::close(context);
  if (::move_mount(mount, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) != 0) return -errno;
  return mount;
}

int MaskFile(const InsidePlan& plan, int proc, const char* name) {
  int null = ::open_tree(plan.dev, "null", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
  if (null < 0) return errno;
  int rc = ::move_mount(null, "", proc, name, MOVE_MOUNT_F_EMPTY_PATH) != 0 ? errno : 0;
  ::close(null);
  return rc == ENOENT ? 0 : rc;
}

int MakeReadOnly(int proc, const char* name) {
  int copy = ::open_tree(proc, name, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
  if (copy < 0) return errno == ENOENT ? 0 : errno;
  mount_attr attr{};
  attr.attr_set = MOUNT_ATTR_RDONLY;
  int rc = ::mount_setattr(copy, "", AT_EMPTY_PATH, &attr, sizeof attr) != 0 ? errno : 0;
  if (rc == 0 && ::move_mount(copy, "", proc, name, MOVE_MOUNT_F_EMPTY_PATH) != 0) rc = errno;
  ::close(copy);
  return rc;
}

int MaskProc(const InsidePlan& plan, int proc) {
  for (const char* name : {"kcore", "keys", "sysrq-trigger", "timer_list"}) {
    if (int e = MaskFile(plan, proc, name)) return e;
  }
  for (const char* name : {"sys", "irq", "bus", "fs"}) {
    if (int e = MakeReadOnly(proc, name)) return e;
  }
  return 0;
}

int MountProc(const InsidePlan& plan) {
  int proc = MountFresh("proc", plan.proc_target, nullptr, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
  if (proc < 0) return -proc;
  int e = MaskProc(plan, proc);
  ::close(proc);
  return e;
}

int MountPts(const InsidePlan& plan) {
  static constexpr const char* kOptions[][2] = {
      {"ptmxmode", "0666"}, {"mode", "0620"}, {"gid", "5"}, {nullptr, nullptr}};
  int mount = MountFresh("devpts", plan.pts_target, kOptions, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
  return mount < 0 ? -mount : 0;
}

int MountMqueue(const InsidePlan& plan) {
  int mount =
      MountFresh("mqueue", plan.mqueue_target, nullptr, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
  return mount < 0 && mount != -ENODEV ? -mount : 0;  // a kernel without POSIX queues
}

int PivotRoot(const InsidePlan&) {
  // The old root is stacked over the new one and then unmounted, so no directory is needed for it.
  if (::syscall(SYS_pivot_root, ".", ".") != 0) return errno;
  if (::umount2(".", MNT_DETACH) != 0) return errno;
  return ::chdir("/") != 0 ? errno : 0;
}

int SetHostname(const InsidePlan& plan) {
  if (plan.hostname == nullptr) return 0;
  return ::sethostname(plan.hostname, std::strlen(plan.hostname)) != 0 ? errno : 0;
}

// After entering the control groups: the namespace's root is the current group at its creation.
int EnterCgroupNamespace(const InsidePlan&) { return ::unshare(CLONE_NEWCGROUP) != 0 && errno != EINVAL ? errno : 0; }

struct Step {
  Stage stage;
  int (*run)(const InsidePlan&);
};
constexpr Step kSteps[] = {
    {Stage::kEnterGroups, EnterGroups},   {Stage::kCgroupNamespace, EnterCgroupNamespace},
    {Stage::kIdentity, BecomeRoot},       {Stage::kEnterRoot, EnterRoot},
    {Stage::kAttachMounts, AttachMounts}, {Stage::kMountProc, MountProc},
    {Stage::kMountPts, MountPts},         {Stage::kMountMqueue, MountMqueue},
    {Stage::kPivotRoot, PivotRoot},       {Stage::kHostname, SetHostname},
};

// --- the terminal ----------------------------------------------------------------------------------------------------

void SendMaster(const InsidePlan& plan, int master) {
  ControlMessage message{ControlType::kPty, 0};
  iovec io{&message, sizeof message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(c), &master, sizeof master);
  if (::sendmsg(plan.control, &m, MSG_NOSIGNAL) < 0) Fail(plan, Stage::kTerminal, errno);
}

// A pty from the sandbox's own devpts, so that ttyname works inside. Returns the slave.
int OpenTerminal(const InsidePlan& plan) {
  int master = ::open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
  if (master < 0) Fail(plan, Stage::kTerminal, errno);
  int unlocked = 0;
  if (::ioctl(master, TIOCSPTLCK, &unlocked) != 0) Fail(plan, Stage::kTerminal, errno);
  int slave = ::ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (slave < 0) Fail(plan, Stage::kTerminal, errno);
  constexpr gid_t kTty = 5;
  if (::fchown(slave, plan.uid, kTty) != 0 || ::fchmod(slave, 0620) != 0) Fail(plan, Stage::kTerminal, errno);
  if (plan.window.ws_row != 0 || plan.window.ws_col != 0) ::ioctl(master, TIOCSWINSZ, &plan.window);
  termios modes;
  if (::tcgetattr(slave, &modes) == 0) {
    modes.c_iflag |= IUTF8;  // like terminal emulators: erase removes a whole character
    ::tcsetattr(slave, TCSANOW, &modes);
  }
  // Belongs to init's session: the command is not a session leader, so it has a parent in the session and can be
  // stopped.
  if (::ioctl(slave, TIOCSCTTY, 0) != 0) Fail(plan, Stage::kSession, errno);
  SendMaster(plan, master);
  ::close(master);
  return slave;
}

// --- the command -----------------------------------------------------------------------------------------------------

// Finds argv[0] like execvp, but distinguishes the reasons of a failure.
[[noreturn]] void Exec(const InsidePlan& plan) {
  int denied = 0;
  for (const char* const* p = plan.candidates; *p != nullptr; ++p) {
    ::execve(*p, plan.argv, plan.environment);
    int e = errno;
    switch (e) {
      case ENOENT:
      case ENOTDIR: {
        if (::faccessat(AT_FDCWD, *p, F_OK, 0) != 0) continue;
        // The file exists: what is missing is the interpreter named by its first line or its ELF header.
        char head[sizeof(StartMessage::detail) + 2] = {};
        int fd = ::open(*p, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0 && ::read(fd, head, sizeof head - 1) < 2) head[0] = '\0';
        char* line = head;
        if (head[0] == '#' && head[1] == '!') {
          line = head + 2;
          while (*line == ' ' || *line == '\t') ++line;
          line[std::strcspn(line, " \t\n")] = '\0';
        } else {
          line[0] = '\0';
        }
        Fail(plan, Stage::kNoInterpreter, e, line);
      }
      case ENOEXEC: {
        // A text file without #! is run by the shell; anything else is for another machine.
        char head[128];
        int fd = ::open(*p, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        ssize_t n = fd >= 0 ? ::read(fd, head, sizeof head) : 0;
        if (n < 0 || std::memchr(head, '\0', static_cast<size_t>(n)) != nullptr)
          Fail(plan, Stage::kNotExecutable, e, *p);
        plan.shell_argv[1] = const_cast<char*>(*p);
        ::execve(plan.shell_argv[0], plan.shell_argv, plan.environment);
        Fail(plan, Stage::kNotExecutable, e, *p);
      }
      case EACCES:
        // A PATH directory without search permission hides its content; a file without execute permission is an answer.
        if (plan.candidates[1] == nullptr || ::faccessat(AT_FDCWD, *p, F_OK, 0) == 0) denied = e;
        continue;
      case EISDIR:
      case ETXTBSY:
      case E2BIG:
      case EPERM:
      case ELIBBAD: Fail(plan, Stage::kNotExecutable, e, *p);
      case ELOOP:
      case ENAMETOOLONG: continue;
      default: Fail(plan, Stage::kExec, e, *p);
    }
  }
  if (denied != 0) Fail(plan, Stage::kNotExecutable, denied);
  Fail(plan, Stage::kNotFound, ENOENT);
}

void ResetSignals() {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int s = 1; s < NSIG; ++s) ::sigaction(s, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Moves fd above the numbers that the command's further descriptors will have.
int MoveAbove(int fd, int highest) { return ::fcntl(fd, F_DUPFD_CLOEXEC, highest + 1); }

[[noreturn]] void BecomeCommand(InsidePlan plan, int terminal) {
  if (plan.move_count > 0) {
    int highest = 2;
    for (size_t i = 0; i < plan.move_count; ++i) highest = plan.moves[i].to > highest ? plan.moves[i].to : highest;
    const int start = MoveAbove(plan.start, highest);
    if (start < 0) Fail(plan, Stage::kStreams, errno);
    plan.start = start;
    for (size_t i = 0; i < plan.move_count; ++i) {
      plan.moves[i].from = MoveAbove(plan.moves[i].from, highest);
      if (plan.moves[i].from < 0) Fail(plan, Stage::kStreams, errno);
    }
  }
  // A process group of its own in init's session: not orphaned, so that SIGTSTP stops it as at home.
  if (::setpgid(0, 0) != 0) Fail(plan, Stage::kSession, errno);
  // SIGTTOU is blocked, like all signals.
  if (plan.terminal && ::tcsetpgrp(terminal, ::getpid()) != 0) Fail(plan, Stage::kSession, errno);
  for (int i = 0; i < 3; ++i) {
    if (::dup2(plan.terminal ? terminal : plan.streams[i], i) < 0) Fail(plan, Stage::kStreams, errno);
  }
  ::syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC);
  for (size_t i = 0; i < plan.move_count; ++i) {
    if (::dup2(plan.moves[i].from, plan.moves[i].to) < 0) Fail(plan, Stage::kStreams, errno);
  }
  for (size_t i = 0; i < plan.limit_count; ++i) {
    if (::setrlimit(static_cast<__rlimit_resource_t>(plan.limits[i].resource), &plan.limits[i].value) != 0) {
      Fail(plan, Stage::kLimits, errno);
    }
  }
  // Fails if a processor has gone offline meanwhile; the control groups enforce the limit in any case.
  if (plan.cpus_size != 0) ::syscall(SYS_sched_setaffinity, 0, plan.cpus_size, plan.cpus);
  ::setpriority(PRIO_PROCESS, 0, plan.nice);  // raising the priority needs a privilege that the node may lack
  if (::syscall(SYS_setgroups, plan.group_count, plan.groups) != 0) Fail(plan, Stage::kGroups, errno);
  if (::syscall(SYS_setresgid, plan.gid, plan.gid, plan.gid) != 0) Fail(plan, Stage::kGid, errno);
  if (::syscall(SYS_setresuid, plan.uid, plan.uid, plan.uid) != 0) Fail(plan, Stage::kUid, errno);
  ::umask(plan.umask);
  if (::chdir(plan.directory) != 0) Fail(plan, Stage::kDirectory, errno);
  ResetSignals();
  Exec(plan);
}

// --- init ------------------------------------------------------------------------------------------------------------

void ForwardSignal(pid_t command, int signal) {
  if (::kill(-command, signal) != 0) ::kill(command, signal);  // it has left its original group
}

// Signals every process except init and `spared`. A process started meanwhile may be missed; it inherits its parent's
// signal handling.
void SignalOthers(pid_t spared, int signal) {
  const int proc = ::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (proc < 0) return;
  alignas(8) char buffer[4096];
  for (long n; (n = ::syscall(SYS_getdents64, proc, buffer, sizeof buffer)) > 0;) {
    for (long at = 0; at < n;) {
      uint16_t length;
      std::memcpy(&length, buffer + at + 16, sizeof length);  // struct linux_dirent64: ino, off, reclen, type, name
      pid_t pid = 0;
      const char* c = buffer + at + 19;
      for (; *c >= '0' && *c <= '9' && pid < (1 << 26); ++c) pid = pid * 10 + (*c - '0');
      if (*c == '\0' && pid > 1 && pid != spared) ::kill(pid, signal);
      at += length;
    }
  }
  ::close(proc);
}

void HandleControl(const ControlMessage& message, pid_t command) {
  switch (message.type) {
    case ControlType::kSignal: return ForwardSignal(command, message.value);
    case ControlType::kSignalCommand: ::kill(command, message.value); return;
    case ControlType::kSignalAll: ::kill(-1, message.value); return;
    case ControlType::kSignalOthers: return SignalOthers(command, message.value);
    default: return;
  }
}

// The command is over, and everything that it left behind is killed. All of it is dead before the end is reported, so
// the files can be examined without waiting for the namespaces to be torn down (a millisecond or two).
[[noreturn]] void End(int control, int status) {
  ::kill(-1, SIGKILL);
  while (::waitpid(-1, nullptr, __WALL) > 0 || errno == EINTR) {
  }
  ControlMessage ended{ControlType::kEnded, status};
  ::send(control, &ended, sizeof ended, MSG_NOSIGNAL);
  ::_exit(0);
}

// Like a shell's `fg`.
void GiveTerminalTo(pid_t command) {
  int terminal = ::open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0) return;
  ::tcsetpgrp(terminal, command);
  ::close(terminal);
}

// Reaps until the command has ended.
[[noreturn]] void Supervise(int control, int children, pid_t command) {
  bool stopped = false;
  for (;;) {
    pollfd fds[2] = {{children, POLLIN, 0}, {control, POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) {
      ControlMessage message;
      ssize_t n = ::recv(control, &message, sizeof message, MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) ::_exit(1);  // the supervisor is gone
      if (n == sizeof message) {
        if (message.type == ControlType::kSignal && message.value == SIGCONT && stopped) {
          GiveTerminalTo(command);
          stopped = false;
        }
        HandleControl(message, command);
      }
    }
    if (fds[0].revents == 0) continue;
    signalfd_siginfo info;
    while (::read(children, &info, sizeof info) > 0) {
    }
    int status;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED | __WALL)) > 0;) {
      if (pid != command) continue;
      if (!WIFSTOPPED(status)) End(control, status);
      stopped = true;
      ControlMessage message{ControlType::kStopped, WSTOPSIG(status)};
      ::send(control, &message, sizeof message, MSG_NOSIGNAL);
    }
  }
}

// Closes all of the supervisor's descriptors in init.
void CloseAllBut(int a, int b) {
  unsigned low = static_cast<unsigned>(a < b ? a : b), high = static_cast<unsigned>(a < b ? b : a);
  if (low > 0) ::syscall(SYS_close_range, 0u, low - 1, 0u);
  if (high - low > 1) ::syscall(SYS_close_range, low + 1, high - 1, 0u);
  ::syscall(SYS_close_range, high + 1, ~0u, 0u);
}

// Blocks every signal; SIGCHLD is read from the descriptor.
int PrepareInit(const InsidePlan& plan) {
  sigset_t all, child;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &action, nullptr);
  int children = ::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
  // Both: the signal is immediate; the socket's end also covers a supervisor that died before the next line.
  if (children < 0 || ::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) Fail(plan, Stage::kSupervise, errno);
  ::prctl(PR_SET_NAME, "vrun-init");
  ::setsid();
  return children;
}

}  // namespace

void RunInside(const InsidePlan& plan) {
  ::close(plan.supervisor_end);  // a copy here would hide the supervisor's death
  for (const Step& step : kSteps) {
    if (int e = step.run(plan)) Fail(plan, step.stage, e);
  }
  int children = PrepareInit(plan);
  int terminal = plan.terminal ? OpenTerminal(plan) : -1;
  pid_t command = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (command < 0) Fail(plan, Stage::kFork, errno);
  if (command == 0) BecomeCommand(plan, terminal);
  if (!plan.terminal) ::setpgid(command, command);  // parent and child both do this; the first one wins
  CloseAllBut(plan.control, children);
  Supervise(plan.control, children, command);
}

}  // namespace vrun::sandbox
