// SPDX-License-Identifier: Apache-2.0
#include "home/streams/client_fd.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <string>

namespace vrun::home {

ClientFd ClientFd::Adopt(UniqueFd passed, Direction direction) {
  ClientFd c;
  c.fd = std::move(passed);
  struct stat st;
  if (::fstat(c.fd.get(), &st) != 0) return c;
  c.dev = st.st_dev;
  c.ino = st.st_ino;
  if (S_ISSOCK(st.st_mode)) {
    c.access = Access::kSocket;
    return c;
  }
  if (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode) || S_ISDIR(st.st_mode)) {
    c.regular = !S_ISDIR(st.st_mode);
    return c;
  }
  if (S_ISCHR(st.st_mode) && st.st_rdev == ::makedev(1, 3)) {
    c.access = Access::kNull;
    return c;
  }
  c.terminal = S_ISCHR(st.st_mode) && ::isatty(c.fd.get()) == 1;
  // Other character devices (/dev/zero, /dev/full) never say EAGAIN and cannot be polled.
  if (!S_ISFIFO(st.st_mode) && !c.terminal) return c;
  int mode = direction == Direction::kRead ? O_RDONLY : O_WRONLY;
  // Reopening must not grant a direction that the descriptor does not allow.
  int flags = ::fcntl(c.fd.get(), F_GETFL);
  if (flags < 0 || ((flags & O_ACCMODE) != O_RDWR && (flags & O_ACCMODE) != mode)) return c;
  std::string link = "/proc/self/fd/" + std::to_string(c.fd.get());
  UniqueFd own(::open(link.c_str(), mode | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!own) return c;
  c.fd = std::move(own);
  c.access = Access::kPolled;
  return c;
}

Result<size_t> ClientFd::Read(char* buffer, size_t n) const {
  for (;;) {
    ssize_t r = access == Access::kSocket ? ::recv(fd.get(), buffer, n, MSG_DONTWAIT) : ::read(fd.get(), buffer, n);
    if (r >= 0) return static_cast<size_t>(r);
    if (errno == EINTR) continue;
    return ErrnoError("read");
  }
}

Result<size_t> ClientFd::Write(const char* data, size_t n) const {
  for (;;) {
    ssize_t r =
        access == Access::kSocket ? ::send(fd.get(), data, n, MSG_DONTWAIT | MSG_NOSIGNAL) : ::write(fd.get(), data, n);
    if (r >= 0) return static_cast<size_t>(r);
    if (errno == EINTR) continue;
    return ErrnoError("write");
  }
}

}  // namespace vrun::home
