// SPDX-License-Identifier: Apache-2.0
#include "sandbox/mounts.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include "base/command_path.h"
#include "base/escape.h"
#include "base/files.h"
#include "sandbox/mounts/devices.h"
#include "sandbox/mounts/mount_api.h"
#include "sandbox/rootfs.h"

namespace vrun::sandbox {
namespace {

constexpr const char kHostsFile[] = "hosts";  // in the task directory
constexpr size_t kMostHosts = 4u << 20;

Result<UniqueFd> MakeTmpfs(const char* mode, uint32_t owner, uint64_t size, unsigned attributes) {
  std::string id = std::to_string(owner);
  return NewMount("tmpfs", {{"mode", mode}, {"uid", id}, {"gid", id}, {"size", std::to_string(size)}}, attributes);
}

uint64_t HalfOfRam() {
  struct sysinfo info;
  if (::sysinfo(&info) != 0) return uint64_t{1} << 30;
  return uint64_t{info.totalram} * info.mem_unit / 2;
}

// As large as the job may be: PyTorch's data loaders share their batches there, and 64 MB are not enough.
uint64_t SharedMemorySize(const Spec& spec) {
  return spec.limits.memory_bytes != 0 ? spec.limits.memory_bytes : HalfOfRam();
}

Status MakeParentsBelow(int directory, const std::string& path, uint32_t owner) {
  for (size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    std::string parent = path.substr(0, slash);
    if (::mkdirat(directory, parent.c_str(), 0755) != 0) {
      if (errno == EEXIST) continue;
      return ErrnoError("mkdir /run/" + parent);
    }
    if (::fchownat(directory, parent.c_str(), owner, owner, 0) != 0) return ErrnoError("chown /run/" + parent);
  }
  return {};
}

Status WriteBelow(int directory, const std::string& path, const std::string& content, uint32_t owner,
                  mode_t mode = 0644) {
  VRUN_TRY(MakeParentsBelow(directory, path, owner));
  UniqueFd file(::openat(directory, path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, mode));
  if (!file) return ErrnoError("create /run/" + path);
  // The umask is the supervisor's.
  if (::fchmod(file.get(), mode) != 0 || ::fchown(file.get(), owner, owner) != 0)
    return ErrnoError("chown /run/" + path);
  return WriteAll(file.get(), content);
}

// The permissions are those of the file: every process inside may connect.
Result<UniqueFd> ListenBelow(int run, const std::string& path, uint32_t owner) {
  VRUN_TRY(MakeParentsBelow(run, path, owner));
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return ErrnoError("socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "/proc/self/fd/" + std::to_string(run) + "/" + path;
  if (name.size() >= sizeof address.sun_path) return Error(Code::kInvalid, "the path of a socket is too long");
  std::memcpy(address.sun_path, name.c_str(), name.size());
  const mode_t mask = ::umask(0111);
  const bool bound = ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  const int error = errno;
  ::umask(mask);
  if (!bound) return ErrnoError(error, "bind /run/" + path);
  if (::listen(listener.get(), 64) != 0) return ErrnoError("listen at /run/" + path);
  return listener;
}

std::string BelowRun(const std::string& path) { return path.substr(std::string_view("/run/").size()); }

Status WriteSecret(int run, const RunFile& file, const Spec& spec) {
  VRUN_TRY(WriteBelow(run, BelowRun(file.path), file.content, spec.ids.base(), 0400));
  const uint32_t uid = spec.ids.ToNode(spec.identity.uid), gid = spec.ids.ToNode(spec.identity.gid);
  if (::fchownat(run, BelowRun(file.path).c_str(), uid, gid, AT_SYMLINK_NOFOLLOW) != 0) {
    return ErrnoError("chown " + file.path);
  }
  return {};
}

// Best effort: without the program, a job can still use the socket itself.
void AddProgram(int run, const Spec& spec, PreparedMounts* mounts) {
  constexpr const char* kFirst = kProgramPaths[0];
  if (!WriteBelow(run, BelowRun(kFirst), "", spec.ids.base(), 0755)) return;
  UniqueFd target(::openat(run, BelowRun(kFirst).c_str(), O_PATH | O_CLOEXEC));
  Result<UniqueFd> mount = CloneMount(AT_FDCWD, spec.program, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
  if (!mount || !target) return;
  mounts->list.push_back({*std::move(mount), std::move(target)});
  const std::string name = std::string(kFirst).substr(std::string_view(kFirst).rfind('/') + 1);
  for (const char* other : kProgramPaths) {
    if (other == kFirst) continue;
    [[maybe_unused]] const int rc = ::symlinkat(name.c_str(), run, BelowRun(other).c_str());
  }
}

Result<UniqueFd> MakeRun(const Spec& spec) {
  VRUN_ASSIGN(UniqueFd run, MakeTmpfs("0755", spec.ids.base(), HalfOfRam() / 4, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
  if (!spec.script.empty()) {
    VRUN_TRY(WriteBelow(run.get(), BelowRun(kScriptPath), spec.script, spec.ids.base(), 0755));
  }
  for (const RunFile& file : spec.files) {
    if (file.secret) continue;  // later: it may be in the user's own directory
    VRUN_TRY(WriteBelow(run.get(), BelowRun(file.path), file.content, spec.ids.base()));
  }
  if (spec.identity.uid == 0) return run;
  uint32_t uid = spec.ids.ToNode(spec.identity.uid), gid = spec.ids.ToNode(spec.identity.gid);
  std::string own = "user/" + std::to_string(spec.identity.uid);
  if (::mkdirat(run.get(), "user", 0755) != 0 ||
      ::fchownat(run.get(), "user", spec.ids.base(), spec.ids.base(), 0) != 0 ||
      ::mkdirat(run.get(), own.c_str(), 0700) != 0 || ::fchownat(run.get(), own.c_str(), uid, gid, 0) != 0) {
    return ErrnoError("mkdir /run/" + own);
  }
  return run;
}

// The target of the root's /etc/resolv.conf if it is below /run; else "". systemd-resolved's file is a link to
// ../run/systemd/resolve/stub-resolv.conf, which no tree contains.
std::string ResolvConfBelowRun(int root) {
  char target[256];
  ssize_t n = ::readlinkat(root, "etc/resolv.conf", target, sizeof target);
  if (n <= 0 || static_cast<size_t>(n) == sizeof target) return "";
  std::string path(target, static_cast<size_t>(n));
  for (const char* prefix : {"../run/", "/run/", "../var/run/", "/var/run/"}) {
    if (path.rfind(prefix, 0) == 0) path = path.substr(std::string(prefix).size());
  }
  if (path.size() == static_cast<size_t>(n) || ("/" + path + "/").find("/../") != std::string::npos) return "";
  return path;
}

// The node's name servers, not home's, because the network is the node's. Best effort: a root without the file is not
// changed.
void AddResolvConf(int root, int run, const Spec& spec, PreparedMounts* mounts) {
  constexpr const char* kPath = "/etc/resolv.conf";
  if (Result<UniqueFd> target = OpenInRoot(root, "etc/resolv.conf", 0)) {
    struct stat st;
    if (::fstat(target->get(), &st) != 0 || !S_ISREG(st.st_mode)) return;
    Result<UniqueFd> mount = CloneMount(AT_FDCWD, kPath, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    if (mount) mounts->list.push_back({*std::move(mount), *std::move(target)});
    return;
  }
  std::string path = ResolvConfBelowRun(root);
  if (path.empty()) return;
  Result<std::string> content = ReadFile(kPath, 1 << 20);
  if (content) static_cast<void>(WriteBelow(run, path, *content, spec.ids.base()));
}

// Mounts a file of the task directory (the working directory) over `target`. Best effort.
void CoverFile(const char* name, const std::string& content, UniqueFd target, const Spec& spec,
               PreparedMounts* mounts) {
  Result<UniqueFd> file = OpenFile(name, O_CREAT | O_TRUNC | O_WRONLY, 0644);
  if (!file || !WriteAll(file->get(), content)) return;
  if (::fchmod(file->get(), 0644) != 0 || ::fchown(file->get(), spec.ids.base(), spec.ids.base()) != 0) return;
  Result<UniqueFd> mount = CloneMount(AT_FDCWD, name, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
  if (mount) mounts->list.push_back({*std::move(mount), std::move(target)});
}

// The file that sysconf(_SC_NPROCESSORS_ONLN) and so Python's os.cpu_count read: for programs that ignore the affinity.
void ShowProcessors(int sys, const Spec& spec, PreparedMounts* mounts) {
  if (spec.limits.cpus.empty()) return;
  Result<UniqueFd> target = OpenInRoot(sys, "devices/system/cpu/online", 0);
  if (target) CoverFile("online", FormatCpuList(spec.limits.cpus) + "\n", *std::move(target), spec, mounts);
}

// What tells of the node's other users, of its firmware, and of what its processors consume.
Status MaskSys(int sys, PreparedMounts* mounts) {
  if (::mkdir("empty", 0555) != 0 && errno != EEXIST) return ErrnoError("mkdir empty");
  for (const char* name :
       {"firmware", "fs", "kernel/security", "kernel/slab", "devices/virtual/bdi", "devices/virtual/powercap"}) {
    Result<UniqueFd> target = OpenInRoot(sys, name, O_DIRECTORY);
    if (!target) continue;  // not in this kernel
    VRUN_ASSIGN(UniqueFd mount,
                CloneMount(AT_FDCWD, "empty", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
    mounts->list.push_back({std::move(mount), *std::move(target)});
  }
  return {};
}

// The root's own file, followed by the node's names, so that home's entries take precedence. Read-only, so that a
// command that edits it gets an error: the change could not go home. Best effort, as with the name servers.
void AddHosts(int root, const Spec& spec, PreparedMounts* mounts) {
  if (spec.hosts.empty()) return;
  Result<UniqueFd> target = OpenInRoot(root, "etc/hosts", 0);
  if (!target) return;
  struct stat st;
  if (::fstat(target->get(), &st) != 0 || !S_ISREG(st.st_mode)) return;
  Result<std::string> own = ReadFile("/proc/self/fd/" + std::to_string(target->get()), kMostHosts);
  if (!own) return;
  const std::string lines = HostsWith(*own, spec.hosts);
  if (lines == *own) return;
  CoverFile(kHostsFile, lines, *std::move(target), spec, mounts);
}

}  // namespace

std::string HostsWith(const std::string& file, const std::string& lines) {
  std::set<std::string, std::less<>> known;
  auto each_name = [](const std::string& text, auto&& name) {
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
      std::istringstream words(line.substr(0, line.find('#')));
      std::string address;
      words >> address;
      for (std::string word; words >> word;) name(address, word);
    }
  };
  each_name(file, [&](const std::string&, const std::string& name) { known.insert(name); });
  std::string added;
  each_name("127.0.0.1 localhost\n" + lines, [&](const std::string& address, const std::string& name) {
    if (known.insert(name).second) added += address + "\t" + name + "\n";
  });
  if (added.empty()) return file;
  return file + (file.empty() || file.ends_with('\n') ? "" : "\n") + added;
}

Status ReplaceBelowRun(int run, const RunFile& file, uint32_t owner) {
  const std::string path = BelowRun(file.path);
  const size_t slash = path.rfind('/');
  const std::string name = path.substr(slash + 1), next = "." + name + ".new";
  // The sandbox's root owns these directories and may have put links there: they lead nowhere outside.
  VRUN_ASSIGN(UniqueFd directory, OpenInRoot(run, path.substr(0, slash), O_DIRECTORY));
  if (::unlinkat(directory.get(), next.c_str(), 0) != 0 && errno != ENOENT) return ErrnoError("replace " + file.path);
  VRUN_TRY(WriteBelow(directory.get(), next, file.content, owner));
  if (::renameat(directory.get(), next.c_str(), directory.get(), name.c_str()) != 0) {
    return ErrnoError("replace " + file.path);
  }
  return {};
}

Status AddToHosts(const std::string& lines) {
  Result<UniqueFd> file = OpenFile(kHostsFile, O_RDWR | O_APPEND, 0);
  if (!file) return file.error().error_number() == ENOENT ? Status() : Status(tl::unexpected(file.error()));
  VRUN_ASSIGN(std::string own, ReadFile(kHostsFile, kMostHosts));
  const std::string all = HostsWith(own, lines);
  return all.size() == own.size() ? Status() : WriteAll(file->get(), all.substr(own.size()));
}

Status CoverLivePaths(UniqueFd live, int root, const std::vector<std::string>& paths, PreparedMounts* mounts) {
  // Only parts of a mount that is attached can be cloned before Linux 6.15.
  constexpr const char* kHere = "live";
  if (::mkdir(kHere, 0700) != 0 && errno != EEXIST) return ErrnoError("mkdir live");
  VRUN_TRY(AttachMount(live.get(), AT_FDCWD, kHere));
  Status covered;
  for (const std::string& path : paths) {
    const auto missing = [&path](const Error& error, const char* where) {
      return Error(error.code(), "--live " + Escape(path) + ": " + error.message() + ", " + where);
    };
    Result<UniqueFd> source = OpenInRoot(live.get(), path, O_DIRECTORY);
    Result<UniqueFd> target = OpenInRoot(root, path, O_DIRECTORY);
    if (!source) covered = missing(source.error(), "at home");
    if (!target) covered = missing(target.error(), "in the job's frozen root: it must be there at submission");
    if (!covered) break;
    Result<UniqueFd> mount = CloneMount(AT_FDCWD, "/proc/self/fd/" + std::to_string(source->get()), MOUNT_ATTR_NODEV);
    if (!mount) {
      covered = missing(mount.error(), "at home");
      break;
    }
    mounts->list.push_back({*std::move(mount), *std::move(target)});
  }
  if (::umount2(kHere, MNT_DETACH | UMOUNT_NOFOLLOW) != 0) return ErrnoError("unmount live");
  return covered;
}

bool IsLink(int directory, const char* name) {
  struct stat st;
  return ::fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode);
}

Result<PreparedMounts> PrepareMounts(int root, const Spec& spec) {
  PreparedMounts mounts;
  auto add = [&](Result<UniqueFd> mount, Result<UniqueFd> target) -> Status {
    if (!mount) return std::move(mount).error();
    if (!target) return std::move(target).error();
    mounts.list.push_back({*std::move(mount), *std::move(target)});
    return {};
  };
  auto point = [&](const char* name) { return MountPoint(root, name, spec); };

  VRUN_TRY(add(MakeDevices(spec.ids.base()), point("dev")));
  mounts.dev.Reset(::fcntl(mounts.list.back().mount.get(), F_DUPFD_CLOEXEC, 3));
  int dev = mounts.dev.get();
  VRUN_TRY(add(MakeTmpfs("1777", spec.ids.base(), SharedMemorySize(spec), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV),
               OpenInRoot(dev, "shm", O_DIRECTORY)));
  // One mount without those below it: no control groups, no debugfs.
  VRUN_TRY(
      add(CloneMount(AT_FDCWD, "/sys", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC),
          point("sys")));
  const int sys = mounts.list.back().mount.get();
  ShowProcessors(sys, spec, &mounts);
  VRUN_TRY(MaskSys(sys, &mounts));
  // Otherwise /tmp is in the overlay (sandbox.cc). Writes in a live root go home, so there /tmp is a separate mount.
  // Also separate where the root has a link there, which stays a link.
  if (spec.live_root || IsLink(root, "tmp")) VRUN_TRY(add(CloneMount(AT_FDCWD, "tmp", MOUNT_ATTR_NODEV), point("tmp")));
  VRUN_TRY(add(MakeRun(spec), point("run")));
  mounts.run.Reset(::fcntl(mounts.list.back().mount.get(), F_DUPFD_CLOEXEC, 3));
  const int run = mounts.run.get();
  for (const RunFile& file : spec.files) {
    if (file.secret) VRUN_TRY(WriteSecret(run, file, spec));
  }
  AddResolvConf(root, run, spec, &mounts);
  AddHosts(root, spec, &mounts);
  if (!spec.program.empty()) AddProgram(run, spec, &mounts);
  if (spec.job_socket) {
    VRUN_ASSIGN(mounts.job_socket, ListenBelow(run, BelowRun(kJobSocketPath), spec.ids.base()));
  }

  VRUN_TRY(Inject(spec.injection, {root, dev, run, !spec.live_root, spec.ids.base()}, &mounts.list, &mounts.proc));

  VRUN_ASSIGN(mounts.proc_target, point("proc"));
  VRUN_ASSIGN(mounts.pts_target, OpenInRoot(dev, "pts", O_DIRECTORY));
  VRUN_ASSIGN(mounts.mqueue_target, OpenInRoot(dev, "mqueue", O_DIRECTORY));
  return mounts;
}

}  // namespace vrun::sandbox
