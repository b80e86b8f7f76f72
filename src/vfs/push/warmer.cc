// SPDX-License-Identifier: Apache-2.0
#include "vfs/push/warmer.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/openat2.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "base/files.h"

namespace vrun::vfs {
namespace {

constexpr int kMostWalks = 32;  // at the same time

// A message is one byte with these descriptors.
struct Fds {
  int mount = -1;
  int names = -1;  // a memfd: names, each ended by a 0
};

struct Message {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(Fds))> control{};
  char byte = 0;
  iovec part{&byte, 1};
  msghdr header{};
  Message() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
};

void Send(int socket, Fds fds) {
  Message message;
  cmsghdr* const rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof fds);
  std::memcpy(CMSG_DATA(rights), &fds, sizeof fds);
  while (::sendmsg(socket, &message.header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EINTR) {
  }
}

// --- the processes: one thread each, no heap use (in tests the forking process had more threads) ---------------------

// Ends the process if the other side has ended.
std::optional<Fds> Receive(int socket) {
  Message message;
  ssize_t n = 0;
  do n = ::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC);
  while (n < 0 && errno == EINTR);
  if (n <= 0) ::_exit(0);
  const cmsghdr* const rights = CMSG_FIRSTHDR(&message.header);
  if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS || rights->cmsg_len != CMSG_LEN(sizeof(Fds))) return {};
  Fds fds;
  std::memcpy(&fds, CMSG_DATA(rights), sizeof fds);
  return fds;
}

void DieWith(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);
}

// So that it does not look like another server in process listings.
void Rename() {
  ::prctl(PR_SET_NAME, "warmer");
  constexpr std::string_view kTitle = "warmer";
  char arguments[4096];
  const int fd = ::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  const ssize_t size = fd < 0 ? -1 : ::read(fd, arguments, sizeof arguments);
  if (fd >= 0) ::close(fd);
  if (size <= static_cast<ssize_t>(kTitle.size())) return;
  std::memset(program_invocation_name, 0, static_cast<size_t>(size));  // argv[0]; the others follow it
  std::memcpy(program_invocation_name, kTitle.data(), kTitle.size());
}

void CloseAllBut(int kept) {
  if (kept > 3) ::syscall(SYS_close_range, 3u, static_cast<unsigned>(kept) - 1, 0u);
  ::syscall(SYS_close_range, static_cast<unsigned>(kept) + 1, ~0u, 0u);
}

// Takes the identity of the owner of the tree's root. Otherwise the kernel requests the ACL of each directory on the
// way each time; it does not for the caller's own directories.
void BecomeOwner(int mount) {
  struct stat st {};
  if (::fstat(mount, &st) != 0) return;
  ::setfsgid(st.st_gid);
  ::setfsuid(st.st_uid);
}

void LookUp(int mount, const char* name) {
  open_how how{};
  how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  const int fd = static_cast<int>(::syscall(SYS_openat2, mount, name, &how, sizeof how));
  if (fd < 0) return;
  char target[PATH_MAX];
  [[maybe_unused]] const ssize_t ignored = ::readlinkat(fd, "", target, sizeof target);  // cached, if a symlink
  ::close(fd);
}

void LookUpAll(Fds fds) {
  struct stat st {};
  if (::fstat(fds.names, &st) != 0 || st.st_size <= 0) return;
  const size_t size = static_cast<size_t>(st.st_size);
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fds.names, 0);
  if (mapped == MAP_FAILED) return;
  const char* at = static_cast<const char*>(mapped);
  for (const char* const end = at + size; at < end && end[-1] == '\0'; at += std::strlen(at) + 1) LookUp(fds.mount, at);
}

[[noreturn]] void Serve(int socket, pid_t server) {
  DieWith(server);
  CloseAllBut(socket);
  Rename();
  const pid_t us = ::getpid();
  int walks = 0;
  for (;;) {
    const std::optional<Fds> fds = Receive(socket);
    if (!fds) continue;
    while (walks > 0 && ::waitpid(-1, nullptr, WNOHANG) > 0) --walks;
    const pid_t walk = walks < kMostWalks ? ::fork() : -1;
    if (walk == 0) {
      BecomeOwner(fds->mount);
      DieWith(us);  // a change of credentials resets this
      LookUpAll(*fds);
      ::_exit(0);
    }
    if (walk > 0) ++walks;
    ::close(fds->mount);
    ::close(fds->names);
  }
}

// --- names ----------------------------------------------------------------------------------------------------------

std::string_view WithoutRoot(std::string_view path) {
  path.remove_prefix(std::min(path.find_first_not_of('/'), path.size()));
  return path;
}

// "…/libfoo.so.1" for "…/libfoo.so.1.2.3"; "": none.
std::string Soname(std::string_view path) {
  const size_t so = path.find(".so.", path.rfind('/') + 1);
  if (so == path.npos) return {};
  return std::string(path.substr(0, path.find('.', so + 4)));
}

// "…/foo.py" for "…/__pycache__/foo.cpython-311.pyc"; "": none.
std::string PythonSource(std::string_view path) {
  constexpr std::string_view kCache = "__pycache__/";
  const size_t directory = path.rfind('/') + 1, tag = path.find('.', directory);
  if (!path.substr(0, directory).ends_with(kCache) || !path.ends_with(".pyc") || tag == path.npos) return {};
  const size_t above = directory - kCache.size();
  return std::string(path.substr(0, above)).append(path.substr(directory, tag - directory)).append(".py");
}

}  // namespace

std::vector<std::string> NamesToLookUp(std::span<const std::string> paths) {
  std::vector<std::string> names;
  names.reserve(2 * paths.size());
  for (const std::string& absolute : paths) {
    const std::string_view path = WithoutRoot(absolute);
    if (path.empty() || path.find('\0') != path.npos) continue;
    for (std::string before : {Soname(path), PythonSource(path)}) {
      if (!before.empty() && before != path) names.push_back(std::move(before));
    }
    names.emplace_back(path);
  }
  return names;
}

Result<std::unique_ptr<Warmer>> Warmer::Start() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return ErrnoError("socketpair");
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  const pid_t us = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return ErrnoError("fork");
  if (child == 0) Serve(theirs.get(), us);
  return std::unique_ptr<Warmer>(new Warmer(std::move(ours)));
}

void Warmer::LookUp(int mount, std::span<const std::string> paths) {
  std::string text;
  for (const std::string& name : NamesToLookUp(paths)) text.append(name).push_back('\0');
  const UniqueFd names(::memfd_create("names", MFD_CLOEXEC));
  if (names && !text.empty() && PwriteAll(names.get(), text, 0)) Send(socket_.get(), {mount, names.get()});
}

}  // namespace vrun::vfs
