// SPDX-License-Identifier: Apache-2.0
#include "vfs/fuse/transport.h"

#include <cerrno>

#include "base/log.h"
#include "vfs/fuse/fuse_abi.h"

namespace vrun::vfs {

int Notify(Transport& transport, int code, std::string_view head, std::string_view tail) {
  fuse_out_header header{};
  header.len = static_cast<uint32_t>(sizeof header + head.size() + tail.size());
  header.error = code;
  header.unique = 0;
  const iovec parts[3] = {{&header, sizeof header},
                          {const_cast<char*>(head.data()), head.size()},
                          {const_cast<char*>(tail.data()), tail.size()}};
  return transport.Send(parts, tail.empty() ? 2 : 3);
}

void DevFuse::SetAbort(std::function<void()> abort) {
  MutexLock lock(mutex_);
  abort_ = std::move(abort);
}

size_t DevFuse::Receive(void* buffer, size_t size) {
  for (;;) {
    const ssize_t n = ::read(fd_.get(), buffer, size);
    if (n > 0) return static_cast<size_t>(n);
    if (n == 0) return 0;
    // ENOENT: the request was withdrawn while it was being copied.
    if (errno == EINTR || errno == EAGAIN || errno == ENOENT) continue;
    if (errno != ENODEV && errno != ECONNABORTED) {
      LogError("{}", ErrnoError("read /dev/fuse").message());
    }
    return 0;
  }
}

int DevFuse::Send(const iovec* parts, int count) {
  for (;;) {
    if (::writev(fd_.get(), parts, count) >= 0) return 0;
    if (errno != EINTR) return errno;
  }
}

int DevFuse::OpenBacking(int fd) {
  BackingMap map{.fd = fd, .flags = 0, .padding = 0};
  const int id = ::ioctl(fd_.get(), kIoctlBackingOpen, &map);
  return id > 0 ? id : (id == 0 ? -EIO : -errno);
}

void DevFuse::CloseBacking(int id) {
  uint32_t value = static_cast<uint32_t>(id);
  ::ioctl(fd_.get(), kIoctlBackingClose, &value);
}

void DevFuse::Abort() {
  std::function<void()> abort;
  {
    MutexLock lock(mutex_);
    abort = abort_;
  }
  if (abort) abort();
}

}  // namespace vrun::vfs
