// SPDX-License-Identifier: Apache-2.0
#include "cli/host/env_shell.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "base/escape.h"
#include "base/files.h"
#include "cli/base/daemon_process.h"

namespace vrun::cli {
namespace {

constexpr char kInside[] = "/run/vrun";  // VRUN_DIR of the vrun inside; /run is never part of a root

constexpr off_t kEnding = 1;  // size of the lock file that marks a holder that ends or has ended

// The data for the holder, all prepared before the fork.
struct Plan {
  std::string layers;       // directory
  std::string options;      // of the overlay, relative to it
  std::string root;         // mount point
  std::string home;         // directory for kInside
  std::string vrun, vrund;  // programs
  std::string credentials;  // "": there is no cluster
  std::string lock;
  std::string name;
};

Status Mount(const std::string& what, const std::string& where, const char* type, unsigned long flags,
             const std::string& options = "") {
  if (::mount(what.c_str(), where.c_str(), type, flags, options.empty() ? nullptr : options.c_str()) != 0) {
    return ErrnoError("mount " + Escape(where));
  }
  return {};
}

Status BindReadOnly(const std::string& what, const std::string& where) {
  VRUN_TRY(Mount(what, where, nullptr, MS_BIND));
  return Mount("", where, nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID);
}

// Mounts a file of this machine that name resolution needs over the environment's own. Leaves a symlink alone.
Status BindFile(const std::string& file, const std::string& root) {
  const std::string where = root + file;
  struct stat st;
  if (!PathExists(file)) return {};
  if (::lstat(where.c_str(), &st) != 0) {
    if (errno != ENOENT || !OpenFile(where, O_WRONLY | O_CREAT, 0644)) return {};
  } else if (!S_ISREG(st.st_mode)) {
    return {};
  }
  return BindReadOnly(file, where);
}

Status MakeMounts(const Plan& plan) {
  VRUN_TRY(Mount("", "/", nullptr, MS_REC | MS_PRIVATE));
  if (::chdir(plan.layers.c_str()) != 0) return ErrnoError("enter " + Escape(plan.layers));
  VRUN_TRY(Mount("overlay", plan.root, "overlay", 0, plan.options));
  for (const char* name : {"/proc", "/sys", "/dev", "/run", "/tmp"}) {
    const std::string path = plan.root + name;
    if (::mkdir(path.c_str(), std::string_view(name) == "/tmp" ? 01777 : 0755) != 0 && errno != EEXIST) {
      return ErrnoError("make " + Escape(path));
    }
  }
  VRUN_TRY(Mount("proc", plan.root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC));
  for (const char* name : {"/dev", "/sys"}) VRUN_TRY(Mount(name, plan.root + name, nullptr, MS_BIND | MS_REC));
  VRUN_TRY(Mount("tmpfs", plan.root + "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755"));
  const std::string inside = plan.root + kInside;
  VRUN_TRY(MakeDirs(inside, 0700));
  VRUN_TRY(Mount(plan.home, inside, nullptr, MS_BIND));
  VRUN_TRY(MakeDirs(inside + "/bin", 0755));
  for (const char* program : {"vrun", "vbatch", "vctl", "vrund"}) {
    const std::string where = inside + "/bin/" + program;
    VRUN_ASSIGN(UniqueFd point, OpenFile(where, O_WRONLY | O_CREAT, 0755));
    VRUN_TRY(BindReadOnly(program == std::string_view("vrund") ? plan.vrund : plan.vrun, where));
  }
  if (!plan.credentials.empty()) {
    VRUN_TRY(MakeDirs(inside + "/credentials", 0700));
    VRUN_TRY(BindReadOnly(plan.credentials, inside + "/credentials"));
  }
  for (const char* file : {"/etc/resolv.conf", "/etc/hosts"}) VRUN_TRY(BindFile(file, plan.root));
  if (::chdir(plan.root.c_str()) != 0 || ::syscall(SYS_pivot_root, ".", ".") != 0 || ::umount2(".", MNT_DETACH) != 0 ||
      ::chdir("/") != 0) {
    return ErrnoError("enter the environment's root");
  }
  if (::sethostname(plan.name.data(), plan.name.size()) != 0) return ErrnoError("set the host's name");
  return {};
}

// The first process inside. Writes "ok" or the error to `told`.
[[noreturn]] void Hold(const Plan& plan, UniqueFd told) {
  ::setsid();
  // Above all closes our share of the lock, which would otherwise be held forever.
  const auto mine = static_cast<unsigned>(told.get());
  ::close_range(3, mine - 1, 0);
  ::close_range(mine + 1, ~0u, 0);
  auto lock = OpenFile(plan.lock, O_RDWR);
  auto null = OpenFile("/dev/null", O_RDWR);
  Status made = lock && null ? MakeMounts(plan) : Status(lock ? null.error() : lock.error());
  (void)WriteAll(told.get(), made ? "ok" : made.error().message());
  told.Reset();
  if (!made) ::_exit(1);
  for (int fd : {0, 1, 2}) ::dup2(null->get(), fd);
  // Orphans inside become our children; their exit status is not needed.
  ::signal(SIGCHLD, SIG_IGN);
  while (::flock(lock->get(), LOCK_EX) != 0 && errno == EINTR) {
  }
  // The next process to get the lock may be faster than our exit, and must not enter these namespaces.
  [[maybe_unused]] const int marked = ::ftruncate(lock->get(), kEnding);
  ::_exit(0);
}

Result<ProcessId> StartHolder(const Plan& plan) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return ErrnoError("pipe");
  UniqueFd read(pipe[0]), write(pipe[1]);
  if (::pipe2(pipe, O_CLOEXEC) != 0) return ErrnoError("pipe");
  UniqueFd pid_read(pipe[0]), pid_write(pipe[1]);
  const pid_t child = ::fork();
  if (child < 0) return ErrnoError("fork");
  if (child == 0) {
    if (::unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS) != 0) {
      (void)WriteAll(write.get(), ErrnoError("make namespaces").message());
      ::_exit(1);
    }
    const pid_t holder = ::fork();
    if (holder == 0) Hold(plan, std::move(write));
    (void)WriteAll(pid_write.get(), std::string_view(reinterpret_cast<const char*>(&holder), sizeof holder));
    ::_exit(0);
  }
  write.Reset();
  pid_write.Reset();
  pid_t holder = -1;
  auto got = ReadUpTo(pid_read.get(), &holder, sizeof holder);
  std::string text(1024, 0);
  auto n = ReadUpTo(read.get(), text.data(), text.size());
  text.resize(n.value_or(0));
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (text != "ok" || !got || *got != sizeof holder) {
    return Error(Code::kUnavailable, text.empty() ? "the environment's first process ended at once" : text);
  }
  return IdentifyProcess(holder);
}

Result<Plan> MakePlan(const Environments& environments, const Environment& environment, const Places& places) {
  Plan plan;
  const std::string path = environments.PathOf(environment.name);
  plan.name = environment.name;
  plan.layers = environments.LayerPath(1);
  plan.layers.resize(plan.layers.rfind('/'));
  // Numbers and a checked name: no quoting needed.
  for (uint64_t layer : environment.layers) {
    plan.options += (plan.options.empty() ? "lowerdir=" : ":") + std::to_string(layer);
  }
  plan.options += ",upperdir=" + std::to_string(environment.upper) + ",workdir=../envs/" + environment.name +
                  "/work,redirect_dir=on,metacopy=on,index=off,xino=on";
  plan.root = path + "/root";
  plan.home = path + "/home";
  plan.lock = path + "/lock";
  VRUN_TRY(MakeDirs(plan.root, 0700));
  VRUN_TRY(MakeDirs(plan.home, 0700));
  VRUN_ASSIGN(plan.vrund, FindProgram("vrund"));
  VRUN_ASSIGN(plan.vrun, FindProgram("vrun"));
  auto config = ReadConfig(places.config_file);
  if (!config && config.error().code() == Code::kNotFound) return plan;  // the vrun inside reports it
  if (!config) return std::move(config).error();
  plan.credentials = config->credentials;
  config->credentials = std::string(kInside) + "/credentials";
  config->root = "/";
  VRUN_TRY(WriteFileAtomic(plan.home + "/config.toml", FormatConfig(*config), 0600));
  return plan;
}

std::vector<std::string> MakeEnvironment(const std::string& name) {
  std::vector<std::string> out{
      "PATH=" + std::string(kInside) + "/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
      "HOME=/root",
      "USER=root",
      "LOGNAME=root",
      "VRUN_DIR=" + std::string(kInside),
      "VRUN_ENV=" + name};
  for (const char* kept : {"TERM", "COLORTERM", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "VRUN_LOG"}) {
    if (const char* value = std::getenv(kept)) out.push_back(std::string(kept) + "=" + value);
  }
  return out;
}

[[noreturn]] void Exec(std::vector<std::string> words, std::vector<std::string> environment, bool terminal) {
  if (terminal) {
    // Its own process group, in the foreground: our old group does not exist in the inner pid namespace.
    ::setpgid(0, 0);
    ::signal(SIGTTOU, SIG_IGN);
    ::tcsetpgrp(0, ::getpid());
    ::signal(SIGTTOU, SIG_DFL);
  }
  if (::chdir("/root") != 0 && ::chdir("/") != 0) ::_exit(125);
  if (words.empty()) words = {::access("/bin/bash", X_OK) == 0 ? "/bin/bash" : "/bin/sh"};
  std::vector<char*> argv, env;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  for (std::string& value : environment) env.push_back(value.data());
  env.push_back(nullptr);
  ::environ = env.data();
  ::execvp(argv[0], argv.data());
  const int failed = errno;
  (void)WriteAll(2, "vctl: " + ErrnoError(failed, Escape(words[0])).message() + "\n");
  ::_exit(failed == ENOENT ? 127 : 126);
}

}  // namespace

Result<int> RunInEnvironment(const Environments& environments, const std::string& name,
                             const std::vector<std::string>& command, const Places& places) {
  VRUN_ASSIGN(UniqueFd used, environments.Use(name));
  const std::string path = environments.PathOf(name);
  ProcessId holder;
  {
    VRUN_ASSIGN(UniqueFd starting, LockFile(path + "/start", true));
    auto known = ReadPidFile(path + "/init");
    struct stat st;
    if (::fstat(used.get(), &st) != 0) return ErrnoError("lock " + Escape(name));
    if (st.st_size == kEnding) {
      if (known && IsAlive(*known)) VRUN_TRY(StopProcess(*known, 0));
      if (::ftruncate(used.get(), 0) != 0) return ErrnoError("lock " + Escape(name));
    }
    if (known && IsAlive(*known)) {
      holder = *known;
    } else {
      // Read under the lock: a clone may have changed the layers.
      VRUN_ASSIGN(Environment environment, environments.Find(name));
      VRUN_ASSIGN(Plan plan, MakePlan(environments, environment, places));
      auto started = StartHolder(plan);
      if (!started) return std::move(started).error().With("start environment " + Escape(name));
      holder = *started;
      VRUN_TRY(WritePidFile(path + "/init", holder));
    }
  }
  std::vector<UniqueFd> namespaces;
  for (const char* kind : {"ipc", "uts", "pid", "mnt"}) {
    VRUN_ASSIGN(UniqueFd fd, OpenFile("/proc/" + std::to_string(holder.pid) + "/ns/" + kind, O_RDONLY));
    namespaces.push_back(std::move(fd));
  }
  const bool terminal = ::isatty(0) == 1;
  const std::vector<std::string> environment = MakeEnvironment(name);
  // A child enters the namespaces; this process stays in its own.
  const pid_t child = ::fork();
  if (child < 0) return ErrnoError("fork");
  if (child == 0) {
    for (const UniqueFd& fd : namespaces) {
      if (::setns(fd.get(), 0) == 0) continue;
      (void)WriteAll(2, "vctl: " + ErrnoError("enter the environment").message() + "\n");
      ::_exit(125);
    }
    const pid_t inside = ::fork();
    if (inside == 0) Exec(command, environment, terminal);
    // Ctrl-C is meant for the command inside.
    for (int s : {SIGINT, SIGQUIT}) ::signal(s, SIG_IGN);
    int status = 125 << 8;
    while (::waitpid(inside, &status, 0) < 0 && errno == EINTR) {
    }
    ::_exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
  }
  for (int s : {SIGINT, SIGQUIT, SIGTTOU}) ::signal(s, SIG_IGN);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (terminal) ::tcsetpgrp(0, ::getpgrp());
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace vrun::cli
