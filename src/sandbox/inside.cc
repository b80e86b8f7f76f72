// SPDX-License-Identifier: Apache-2.0
// Async-signal-safe code only: see inside.h.
#include "sandbox/inside.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
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

#include "sandbox/spec.h"

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

void Tell(int control, ControlType type, int32_t value, int32_t id = 0) {
  const ControlMessage message{type, value, id};
  ::send(control, &message, sizeof message, MSG_NOSIGNAL);
}

bool SendDescriptor(int socket, ControlMessage message, int descriptor) {
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
  std::memcpy(CMSG_DATA(c), &descriptor, sizeof descriptor);
  return ::sendmsg(socket, &m, MSG_NOSIGNAL) >= 0;
}

// --- building the sandbox: each step returns 0 or an errno -----------------------------------------------------------

// What later steps need of earlier ones.
struct Built {
  int proc = -1;  // the procfs
};

int EnterGroups(const InsidePlan& plan, Built*) {
  for (size_t i = 0; i < plan.entrance_count; ++i) {
    if (::write(plan.entrances[i], "0", 1) != 1) return errno;
  }
  return 0;
}

int BecomeRoot(const InsidePlan& plan, Built*) {
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

int EnterRoot(const InsidePlan& plan, Built*) {
  // Mounted over /, because no other directory is sure to exist and be accessible; pivot_root then moves it.
  if (::move_mount(plan.root, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) != 0) return errno;
  return ::fchdir(plan.root) != 0 ? errno : 0;
}

int AttachMounts(const InsidePlan& plan, Built*) {
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

// With the empty directory of /dev on which the message queues are mounted later.
int MaskDirectory(const InsidePlan& plan, int proc, const char* name) {
  int empty = ::open_tree(plan.dev, "mqueue", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
  if (empty < 0) return errno;
  mount_attr attr{};
  attr.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV;
  int rc = ::mount_setattr(empty, "", AT_EMPTY_PATH, &attr, sizeof attr) != 0 ? errno : 0;
  if (rc == 0 && ::move_mount(empty, "", proc, name, MOVE_MOUNT_F_EMPTY_PATH) != 0) rc = errno;
  ::close(empty);
  return rc == ENOENT ? 0 : rc;
}

// The paths of runc. The kernel checks the rights for most of them too; these mounts do not depend on that.
int MaskProc(const InsidePlan& plan, int proc) {
  for (const char* name : {"kcore", "keys", "latency_stats", "sched_debug", "timer_list", "timer_stats"}) {
    if (int e = MaskFile(plan, proc, name)) return e;
  }
  for (const char* name : {"acpi", "asound", "scsi"}) {
    if (int e = MaskDirectory(plan, proc, name)) return e;
  }
  if (int e = plan.mask_driver ? MaskDirectory(plan, proc, "driver/nvidia") : 0) return e;
  for (const char* name : {"bus", "fs", "irq", "sys", "sysrq-trigger"}) {
    if (int e = MakeReadOnly(proc, name)) return e;
  }
  for (size_t i = 0; i < plan.proc_attachment_count; ++i) {
    const InsidePlan::ProcAttachment& a = plan.proc_attachments[i];
    if (::move_mount(a.mount, "", proc, a.path, MOVE_MOUNT_F_EMPTY_PATH) != 0 && errno != ENOENT) return errno;
  }
  return 0;
}

int MountProc(const InsidePlan& plan, Built* built) {
  int proc = MountFresh("proc", plan.proc_target, nullptr, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
  if (proc < 0) return -proc;
  built->proc = proc;
  return MaskProc(plan, proc);
}

int MountPts(const InsidePlan& plan, Built*) {
  static constexpr const char* kOptions[][2] = {
      {"ptmxmode", "0666"}, {"mode", "0620"}, {"gid", "5"}, {nullptr, nullptr}};
  int mount = MountFresh("devpts", plan.pts_target, kOptions, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
  return mount < 0 ? -mount : 0;
}

int MountMqueue(const InsidePlan& plan, Built*) {
  int mount =
      MountFresh("mqueue", plan.mqueue_target, nullptr, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
  return mount < 0 && mount != -ENODEV ? -mount : 0;  // a kernel without POSIX queues
}

int PivotRoot(const InsidePlan&, Built*) {
  // The old root is stacked over the new one and then unmounted, so no directory is needed for it.
  if (::syscall(SYS_pivot_root, ".", ".") != 0) return errno;
  if (::umount2(".", MNT_DETACH) != 0) return errno;
  return ::chdir("/") != 0 ? errno : 0;
}

int SetHostname(const InsidePlan& plan, Built*) {
  if (plan.hostname == nullptr) return 0;
  return ::sethostname(plan.hostname, std::strlen(plan.hostname)) != 0 ? errno : 0;
}

// After entering the control groups: the namespace's root is the current group at its creation.
int EnterCgroupNamespace(const InsidePlan&, Built*) {
  return ::unshare(CLONE_NEWCGROUP) != 0 && errno != EINVAL ? errno : 0;
}

int UpLoopback(const InsidePlan& plan, Built*) {
  if (!plan.own_network) return 0;
  const int any = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (any < 0) return errno;
  ifreq request{};
  std::memcpy(request.ifr_name, "lo", 3);
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  const int rc = ::ioctl(any, SIOCSIFFLAGS, &request) != 0 ? errno : 0;
  ::close(any);
  return rc;
}

int WriteOnce(int directory, const char* name, const char* text) {
  const int file = ::openat(directory, name, O_WRONLY | O_CLOEXEC);
  if (file < 0) return errno;
  const size_t length = std::strlen(text);
  const ssize_t n = ::write(file, text, length);
  const int rc = n == static_cast<ssize_t>(length) ? 0 : n < 0 ? errno : EIO;
  ::close(file);
  return rc;
}

// Of the process that writes the maps; used once, in a copy of this memory.
alignas(16) char g_helper_stack[16384];

struct MapHelper {
  int go, other_end, proc;
  const char* ids;
};

int WriteMaps(void* argument) {
  const auto* helper = static_cast<const MapHelper*>(argument);
  ::close(helper->other_end);
  char go;
  if (::read(helper->go, &go, 1) != 1) ::_exit(EIO);
  int e = WriteOnce(helper->proc, "1/uid_map", helper->ids);
  if (e == 0) e = WriteOnce(helper->proc, "1/gid_map", helper->ids);
  ::_exit(e);
}

// Everything so far was done as root of a namespace that could undo it. Init and the command live in a namespace inside
// that one, with the same ids: the kernel locks the mounts that it has been given, so that neither they nor their flags
// can be changed.
int LockMounts(const InsidePlan& plan, Built* built) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno;
  // Only somebody with rights in the outer namespace may write the maps of the inner one. While this process is not
  // dumpable these files are the host root's. Nobody else is inside yet.
  if (::prctl(PR_SET_DUMPABLE, 1) != 0) return errno;
  // It shares this memory, which is cheaper than a copy. While it runs this process only waits.
  MapHelper argument{ends[0], ends[1], built->proc, plan.inner_ids};
  const pid_t helper = ::clone(WriteMaps, g_helper_stack + sizeof g_helper_stack, CLONE_VM | SIGCHLD, &argument);
  if (helper < 0) return errno;
  const int unshared = ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 ? errno : 0;
  const bool told = unshared == 0 && ::write(ends[1], "x", 1) == 1;
  ::close(ends[0]);
  ::close(ends[1]);
  int status = 0;
  while (::waitpid(helper, &status, 0) < 0) {
    if (errno != EINTR) return errno;
  }
  if (unshared != 0) return unshared;
  if (!told || !WIFEXITED(status)) return EIO;
  if (WEXITSTATUS(status) != 0) return WEXITSTATUS(status);
  return ::prctl(PR_SET_DUMPABLE, 0) != 0 ? errno : 0;
}

struct Step {
  Stage stage;
  int (*run)(const InsidePlan&, Built*);
};
constexpr Step kSteps[] = {
    {Stage::kEnterGroups, EnterGroups},   {Stage::kCgroupNamespace, EnterCgroupNamespace},
    {Stage::kIdentity, BecomeRoot},       {Stage::kEnterRoot, EnterRoot},
    {Stage::kAttachMounts, AttachMounts}, {Stage::kMountProc, MountProc},
    {Stage::kMountPts, MountPts},         {Stage::kMountMqueue, MountMqueue},
    {Stage::kPivotRoot, PivotRoot},       {Stage::kHostname, SetHostname},
    {Stage::kNetwork, UpLoopback},        {Stage::kLockMounts, LockMounts},
};

// --- the terminal ----------------------------------------------------------------------------------------------------

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
  if (!SendDescriptor(plan.control, {ControlType::kPty, 0, 0}, master)) Fail(plan, Stage::kTerminal, errno);
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

// What no program of the command can get back. The other two parts are in BecomeCommand: the filter needs a privilege
// where setuid programs are allowed, and no_new_privs comes after the change of ids.
int DropCapabilities(const InsidePlan& plan) {
  for (int capability = 0; capability < 64; ++capability) {
    if (plan.capabilities >> capability & 1) continue;
    if (::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0) {
      if (errno == EINVAL) break;  // the kernel has no more
      return errno;
    }
  }
  if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0 && errno != EINVAL) return errno;
  // A user who has none and cannot get any: not by a change to uid 0 either.
  constexpr unsigned long kNone = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE |
                                  SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED | SECBIT_KEEP_CAPS_LOCKED;
  if (plan.capabilities == 0 && ::prctl(PR_SET_SECUREBITS, kNone, 0, 0, 0) != 0) return errno;
  return 0;
}

// Closes what is not the command's, except the start pipe. Not at the exec: until then the directory and the program
// would be looked up with the supervisor's descriptors, as in /proc/self/fd/9/etc.
void CloseForeign(const InsidePlan& plan) {
  int highest = 2;
  for (size_t i = 0; i < plan.move_count; ++i) highest = plan.moves[i].to > highest ? plan.moves[i].to : highest;
  for (int fd = 3; fd <= highest; ++fd) {
    bool own = fd == plan.start;
    for (size_t i = 0; i < plan.move_count; ++i) own |= plan.moves[i].to == fd;
    if (!own) ::close(fd);
  }
  const auto start = static_cast<unsigned>(plan.start), above = static_cast<unsigned>(highest) + 1;
  if (start > above) ::syscall(SYS_close_range, above, start - 1, 0u);
  ::syscall(SYS_close_range, start >= above ? start + 1 : above, ~0u, 0u);
}

// Returns 0 or an errno. A link of /proc leads to what a process has open, wherever that is: never to a directory to
// work in.
int EnterDirectory(const char* path) {
  open_how how{};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_NO_MAGICLINKS;
  const auto fd = static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how));
  if (fd < 0) return errno;
  const int error = ::fchdir(fd) != 0 ? errno : 0;
  ::close(fd);
  // The kernel begins the path of a directory outside of the root with "(unreachable)".
  char begin[4096];
  if (error == 0 && ::syscall(SYS_getcwd, begin, sizeof begin) > 0 && begin[0] != '/') return EXDEV;
  return error;
}

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
  for (size_t i = 0; i < plan.move_count; ++i) {
    if (::dup2(plan.moves[i].from, plan.moves[i].to) < 0) Fail(plan, Stage::kStreams, errno);
  }
  CloseForeign(plan);
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
  if (int e = DropCapabilities(plan)) Fail(plan, Stage::kCapabilities, e);
  // Without the flag, kernels before 5.16 slow the command's branches down.
  if (plan.filter != nullptr &&
      ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, plan.filter) != 0) {
    Fail(plan, Stage::kFilter, errno);
  }
  if (::syscall(SYS_setresuid, plan.uid, plan.uid, plan.uid) != 0) Fail(plan, Stage::kUid, errno);
  if (plan.no_new_privileges && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) Fail(plan, Stage::kUid, errno);
  ::umask(plan.umask);
  if (int e = EnterDirectory(plan.directory)) Fail(plan, Stage::kDirectory, e);
  ResetSignals();
  Exec(plan);
}

// --- init ------------------------------------------------------------------------------------------------------------

constexpr size_t kMostExecs = 1024;

// The children that init knows by number. 0: none, or no longer.
struct Children {
  pid_t ranks[kMostRanks];
  size_t rank_count = 0, ranks_alive = 0;
  struct {
    pid_t pid;
    int32_t id;
  } execs[kMostExecs];
  size_t exec_count = 0;  // used places, with gaps
  bool end_when_empty = false;
};

// The number of the rank with that pid; rank_count: none.
size_t RankOf(const Children& family, pid_t pid) {
  size_t rank = 0;
  while (rank < family.rank_count && family.ranks[rank] != pid) ++rank;
  return rank;
}

void ForwardSignal(pid_t command, int signal) {
  if (::kill(-command, signal) != 0) ::kill(command, signal);  // it has left its original group
}

// Signals every process except init and the command's first ones. A process started meanwhile may be missed; it
// inherits its parent's signal handling.
void SignalOthers(const Children& family, int signal) {
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
      if (*c == '\0' && pid > 1 && RankOf(family, pid) == family.rank_count) ::kill(pid, signal);
      at += length;
    }
  }
  ::close(proc);
}

// From here, because a socket belongs to the network and to the control group of the process that makes it: the
// connection is held to the rules of the job's own.
void Connect(int control, int32_t target, int32_t id) {
  const bool v6 = (target & kConnectVersion6) != 0;
  sockaddr_in6 six{};
  sockaddr_in four{};
  six.sin6_family = AF_INET6;
  six.sin6_addr = in6addr_loopback;
  six.sin6_port = htons(static_cast<uint16_t>(target));
  four.sin_family = AF_INET;
  four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  four.sin_port = six.sin6_port;
  const auto* address = v6 ? reinterpret_cast<const sockaddr*>(&six) : reinterpret_cast<const sockaddr*>(&four);
  const socklen_t size = v6 ? sizeof six : sizeof four;
  const int fd = ::socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return Tell(control, ControlType::kConnected, errno, id);
  if (::connect(fd, address, size) != 0 && errno != EINPROGRESS) {
    Tell(control, ControlType::kConnected, errno, id);
  } else {
    SendDescriptor(control, {ControlType::kConnected, 0, id}, fd);
  }
  ::close(fd);
}

void HandleControl(int control, const ControlMessage& message, Children* family) {
  switch (message.type) {
    case ControlType::kSignal:
    case ControlType::kSignalCommand:
      for (size_t i = 0; i < family->rank_count; ++i) {
        const pid_t pid = family->ranks[i];
        if (pid == 0) continue;
        message.type == ControlType::kSignal ? ForwardSignal(pid, message.value)
                                             : static_cast<void>(::kill(pid, message.value));
      }
      return;
    case ControlType::kSignalAll: ::kill(-1, message.value); return;
    case ControlType::kSignalOthers: return SignalOthers(*family, message.value);
    case ControlType::kEndWhenEmpty: family->end_when_empty = true; return;
    case ControlType::kConnect: return Connect(control, message.value, message.id);
    default: return;
  }
}

// Turns the offsets of an ExecBlock into addresses. Returns the block, or null.
ExecBlock* MapExec(int file) {
  struct stat st;
  if (::fstat(file, &st) != 0 || static_cast<size_t>(st.st_size) < sizeof(ExecBlock)) return nullptr;
  void* base = ::mmap(nullptr, static_cast<size_t>(st.st_size), PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  if (base == MAP_FAILED) return nullptr;
  auto* block = static_cast<ExecBlock*>(base);
  for (uint32_t i = 0; i < block->pointer_count; ++i) {
    char*& pointer = block->pointers[i];
    if (pointer != nullptr) pointer = static_cast<char*>(base) + reinterpret_cast<uintptr_t>(pointer);
  }
  return block;
}

[[noreturn]] void BecomeExec(InsidePlan plan, const int* descriptors) {
  // Init has no standard streams, so these may have their numbers.
  plan.start = MoveAbove(descriptors[3], 2);
  ExecBlock* block = MapExec(descriptors[0]);
  plan.streams[0] = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  plan.streams[1] = MoveAbove(descriptors[1], 2);
  plan.streams[2] = MoveAbove(descriptors[2], 2);
  if (block == nullptr || plan.streams[1] < 0 || plan.streams[2] < 0) Fail(plan, Stage::kStreams, errno);
  char** pointers = block->pointers;
  plan.candidates = pointers + block->candidates;
  plan.argv = pointers + block->argv;
  plan.shell_argv = pointers + block->shell_argv;
  plan.environment = pointers + block->environment;
  if (block->directory != 0) plan.directory = reinterpret_cast<char*>(block) + block->directory;
  plan.move_count = 0;
  plan.terminal = false;
  BecomeCommand(plan, -1);
}

void StartExec(const InsidePlan& plan, int32_t id, const int* descriptors, Children* family) {
  size_t place = 0;
  while (place < family->exec_count && family->execs[place].pid != 0) ++place;
  errno = EAGAIN;
  pid_t pid = -1;
  if (place < kMostExecs) pid = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (pid == 0) BecomeExec(plan, descriptors);
  if (pid < 0) {
    StartMessage message{};
    message.stage = Stage::kFork;
    message.error = errno;
    [[maybe_unused]] ssize_t n = ::write(descriptors[3], &message, sizeof message);
    return;
  }
  ::setpgid(pid, pid);
  family->execs[place] = {pid, id};
  if (place == family->exec_count) ++family->exec_count;
}

// Receives one packet without waiting, and starts what it may ask for. Returns recvmsg's result.
ssize_t ReceiveControl(const InsidePlan& plan, ControlMessage* message, Children* family) {
  iovec io{message, sizeof *message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kExecDescriptors)];
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  const ssize_t n = ::recvmsg(plan.control, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return n;
  const cmsghdr* c = CMSG_FIRSTHDR(&m);
  if (c == nullptr || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) return n;
  int descriptors[kExecDescriptors];
  const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  std::memcpy(descriptors, CMSG_DATA(c), count * sizeof(int));
  if (message->type == ControlType::kExec && count == kExecDescriptors) {
    StartExec(plan, message->id, descriptors, family);
  }
  for (size_t i = 0; i < count; ++i) ::close(descriptors[i]);
  return n;
}

// The command is over, and everything that it left behind is killed. All of it is dead before the end is reported, so
// the files can be examined without waiting for the namespaces to be torn down (a millisecond or two).
[[noreturn]] void End(int control, int status) {
  ::kill(-1, SIGKILL);
  while (::waitpid(-1, nullptr, __WALL) > 0 || errno == EINTR) {
  }
  Tell(control, ControlType::kEnded, status);
  ::_exit(0);
}

// Like a shell's `fg`.
void GiveTerminalTo(pid_t command) {
  int terminal = ::open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0) return;
  ::tcsetpgrp(terminal, command);
  ::close(terminal);
}

// A child has ended.
void OnEnd(int control, pid_t pid, int status, Children* family) {
  if (const size_t rank = RankOf(*family, pid); rank < family->rank_count) {
    family->ranks[rank] = 0;
    if (family->rank_count > 1) Tell(control, ControlType::kRankEnded, status, static_cast<int32_t>(rank));
    if (--family->ranks_alive == 0) End(control, status);
    return;
  }
  for (size_t i = 0; i < family->exec_count; ++i) {
    if (family->execs[i].pid != pid) continue;
    family->execs[i].pid = 0;
    Tell(control, ControlType::kExecEnded, status, family->execs[i].id);
  }
}

// Reaps until the command has ended.
[[noreturn]] void Supervise(const InsidePlan& plan, int children, Children* family) {
  bool stopped = false;
  for (;;) {
    pollfd fds[2] = {{children, POLLIN, 0}, {plan.control, POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) {
      ControlMessage message;
      ssize_t n = ReceiveControl(plan, &message, family);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) ::_exit(1);  // the supervisor is gone
      if (n == sizeof message) {
        if (message.type == ControlType::kSignal && message.value == SIGCONT && stopped) {
          GiveTerminalTo(family->ranks[0]);
          stopped = false;
        }
        HandleControl(plan.control, message, family);
      }
    }
    if (fds[0].revents == 0 && !family->end_when_empty) continue;
    signalfd_siginfo info;
    while (::read(children, &info, sizeof info) > 0) {
    }
    int status;
    pid_t pid;
    while ((pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED | __WALL)) > 0) {
      if (!WIFSTOPPED(status)) {
        OnEnd(plan.control, pid, status, family);
      } else if (family->rank_count > 0 && pid == family->ranks[0]) {
        stopped = true;
        Tell(plan.control, ControlType::kStopped, WSTOPSIG(status));
      }
    }
    if (pid < 0 && family->end_when_empty) End(plan.control, 0);
  }
}

// Starts process number `rank` of the command.
void StartRank(const InsidePlan& plan, size_t rank, int terminal, Children* family) {
  const auto pid = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (pid < 0) Fail(plan, Stage::kFork, errno);
  if (pid == 0 && rank == 0) BecomeCommand(plan, terminal);
  if (pid == 0) {
    InsidePlan own = plan;
    std::memcpy(own.streams, plan.more_ranks[rank - 1].streams, sizeof own.streams);
    own.environment = plan.more_ranks[rank - 1].environment;
    own.move_count = 0;
    own.terminal = false;
    BecomeCommand(own, -1);
  }
  if (rank > 0 || !plan.terminal) ::setpgid(pid, pid);  // parent and child both do this; the first one wins
  family->ranks[rank] = pid;
  family->rank_count = family->ranks_alive = rank + 1;
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
  Built built;
  for (const Step& step : kSteps) {
    if (int e = step.run(plan, &built)) Fail(plan, step.stage, e);
  }
  int children = PrepareInit(plan);
  int terminal = plan.terminal ? OpenTerminal(plan) : -1;
  Await(plan, ControlType::kFiltered);
  if (plan.gate) {
    Tell(plan.control, ControlType::kPrepared, 0);
    Await(plan, ControlType::kGo);
  }
  Children family;
  for (size_t rank = 0; !plan.idle && rank < 1 + plan.more_rank_count; ++rank) StartRank(plan, rank, terminal, &family);
  CloseAllBut(plan.control, children);
  Supervise(plan, children, &family);
}

}  // namespace vrun::sandbox
