// SPDX-License-Identifier: Apache-2.0
#include "home/streams/pipe_peek.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/files.h"

namespace vrun::home {
namespace {

bool IsPipe(int fd) {
  struct stat st;
  return ::fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode);
}

// All writers have closed it.
bool HungUp(int fd) {
  pollfd p{fd, POLLIN | POLLRDHUP, 0};
  return ::poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLRDHUP)) != 0;
}

size_t Waiting(int fd) {
  int n = 0;
  return ::ioctl(fd, FIONREAD, &n) == 0 && n > 0 ? static_cast<size_t>(n) : 0;
}

Result<size_t> CopyFromPipe(int fd, char* buffer, size_t n) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return ErrnoError("pipe");
  UniqueFd read(ends[0]), write(ends[1]);
  ssize_t copied;
  do {
    copied = ::tee(fd, write.get(), n, SPLICE_F_NONBLOCK);
  } while (copied < 0 && errno == EINTR);
  if (copied < 0) return ErrnoError("tee");
  if (copied == 0) return size_t{0};
  write.Reset();
  return ReadUpTo(read.get(), buffer, static_cast<size_t>(copied));
}

Result<size_t> CopyFromSocket(int fd, char* buffer, size_t n) {
  ssize_t copied;
  do {
    copied = ::recv(fd, buffer, n, MSG_PEEK | MSG_DONTWAIT);
  } while (copied < 0 && errno == EINTR);
  if (copied < 0) return ErrnoError("recv");
  return static_cast<size_t>(copied);
}

int32_t ParentOf(int32_t pid) {
  auto stat = ReadFile("/proc/" + std::to_string(pid) + "/stat", 4096);
  const size_t name_end = stat ? stat->rfind(')') : std::string::npos;
  int parent = 0;
  if (name_end == std::string::npos || std::sscanf(stat->c_str() + name_end + 1, " %*c %d", &parent) != 1) return 0;
  return parent;
}

bool ReadsIt(int32_t pid, const ClientFd& fd) {
  const std::string process = "/proc/" + std::to_string(pid);
  DIR* directory = ::opendir((process + "/fd").c_str());
  if (directory == nullptr) return false;
  bool found = false;
  while (const dirent* entry = found ? nullptr : ::readdir(directory)) {
    struct stat st;
    const std::string name = entry->d_name;
    if (::stat((process + "/fd/" + name).c_str(), &st) != 0 || st.st_dev != fd.dev || st.st_ino != fd.ino) continue;
    auto info = ReadFile(process + "/fdinfo/" + name, 4096);
    const size_t flags = info ? info->find("flags:") : std::string::npos;
    if (flags == std::string::npos) continue;
    found = (std::strtoul(info->c_str() + flags + 6, nullptr, 8) & O_ACCMODE) != O_WRONLY;
  }
  ::closedir(directory);
  return found;
}

}  // namespace

bool CanPeek(const ClientFd& fd) {
  if (fd.access == ClientFd::Access::kPolled) return IsPipe(fd.fd.get());
  int type = 0;
  socklen_t size = sizeof type;
  return fd.access == ClientFd::Access::kSocket && ::getsockopt(fd.fd.get(), SOL_SOCKET, SO_TYPE, &type, &size) == 0 &&
         type == SOCK_STREAM;
}

Result<Peeked> Peek(const ClientFd& fd, char* buffer, size_t n) {
  const bool socket = fd.access == ClientFd::Access::kSocket;
  // Checked first: data that arrives after the copy and before the end would be lost otherwise.
  const bool hung_up = HungUp(fd.fd.get());
  n = std::min(n, kMostPeeked);
  Peeked out;
  VRUN_ASSIGN(out.bytes, socket ? CopyFromSocket(fd.fd.get(), buffer, n) : CopyFromPipe(fd.fd.get(), buffer, n));
  out.ended = out.bytes == 0 || (hung_up && Waiting(fd.fd.get()) == out.bytes);
  return out;
}

bool TakePeeked(const ClientFd& fd, std::string_view expected) {
  bool same = true;
  while (!expected.empty()) {
    char buffer[4096];
    auto n = fd.Read(buffer, std::min(expected.size(), sizeof buffer));
    if (!n || *n == 0) return false;
    same &= expected.substr(0, *n) == std::string_view(buffer, *n);
    expected.remove_prefix(*n);
  }
  return same;
}

bool SharedWithAncestors(int32_t pid, const ClientFd& fd) {
  for (int depth = 0; depth < 64 && pid > 1; ++depth) {
    pid = ParentOf(pid);
    if (pid > 0 && ReadsIt(pid, fd)) return true;
  }
  return false;
}

}  // namespace vrun::home
