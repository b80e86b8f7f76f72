// SPDX-License-Identifier: Apache-2.0
#include "node/task/task_streams.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/log.h"

namespace vrun::node {
namespace {
// The maximum per loop turn, so that the other stream and the connection get their share.
constexpr size_t kTurn = 1u << 20;
constexpr size_t kSmallestPipe = 4096;
constexpr int kUsualPipe = 64 * 1024;
constexpr int kLargePipe = 256 * 1024;
}  // namespace

void OutputPump::Start(UniqueFd fd) {
  fd_ = std::move(fd);
  if (!fd_) window_.SetEnd();
  Resume();
}

void OutputPump::Unwatch() {
  if (watched_) loop_->Remove(fd_.get());
  watched_ = false;
}

void OutputPump::Resume() {
  // Removed, not masked: epoll reports a hang-up even for an empty mask.
  if (!fd_ || watched_ || window_.full()) return;
  Status added = loop_->Add(fd_.get(), EPOLLIN, [this](uint32_t) { OnReadable(); });
  if (!added) LogError("watch an output: {}", added.error().message());
  watched_ = added.has_value();
}

bool OutputPump::ReadSome(size_t limit) {
  for (size_t total = 0; total < limit;) {
    OutputWindow::Space space = window_.Reserve();
    if (space.size == 0) return true;
    ssize_t n = ::read(fd_.get(), space.data, space.size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) return false;  // EIO: a terminal that no process has open any more
    window_.Commit(static_cast<size_t>(n));
    total += static_cast<size_t>(n);
    // probably everything that was available
    if (static_cast<size_t>(n) < space.size && limit != SIZE_MAX) return true;
  }
  return true;
}

void OutputPump::OnReadable() {
  if (!ReadSome(kTurn)) {
    Unwatch();
    fd_.Reset();
    window_.SetEnd();
  } else if (window_.full()) {
    Unwatch();
  }
  on_data_();
}

void OutputPump::Drain() {
  window_.SetUnbounded();
  if (fd_) static_cast<void>(ReadSome(SIZE_MAX));
  Close();
}

void OutputPump::Close() {
  Unwatch();
  fd_.Reset();
  window_.SetEnd();
}

void InputPump::Start(UniqueFd fd, bool terminal) {
  fd_ = std::move(fd);
  terminal_ = terminal;
  if (terminal) peeked_ = false;  // cannot see whether a terminal was read
  started_ = true;
  if (!fd_) return Close();
  Watch(0);  // errors are always reported: the reader may close its end before we write
  Write();
}

void InputPump::Watch(uint32_t events) {
  if (watched_) {
    if (events != events_) loop_->Modify(fd_.get(), events);
  } else {
    watched_ = loop_
                   ->Add(fd_.get(), events,
                         [this](uint32_t ready) {
                           // A terminal hangs up when its last process closes it, and may be opened again: only a write
                           // tells.
                           if (!terminal_ && (ready & EPOLLERR)) {
                             Close();
                             return on_passed_();
                           }
                           if (terminal_ && (ready & EPOLLHUP)) {
                             loop_->Remove(fd_.get());
                             watched_ = false;
                           }
                           Write();
                         })
                   .has_value();
  }
  events_ = events;
}

Status InputPump::Receive(uint64_t offset, std::string data, bool end, bool peeked) {
  if (peeked && window_.received() == 0 && !terminal_) peeked_ = true;
  VRUN_TRY(window_.Receive(offset, std::move(data), end));
  if (started_) Write();
  return {};
}

void InputPump::Write() {
  if (!fd_) {
    if (started_) on_passed_();
    return;
  }
  const bool unread = peeked_;
  uint64_t before = window_.passed();
  if (peeked_ && !FirstRead()) return;
  while (!window_.empty() && !peeked_) {
    iovec vectors[16];
    int count = window_.Pending(vectors, 16);
    ssize_t n = ::writev(fd_.get(), vectors, count);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) {
      Close();
      return on_passed_();
    }
    window_.Passed(static_cast<size_t>(n));
  }
  if (window_.empty() && window_.ended() && !terminal_) {
    if (watched_) loop_->Remove(fd_.get());
    watched_ = false;
    ended_.Reset(::open(("/proc/self/fd/" + std::to_string(fd_.get())).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    fd_.Reset();  // the command reads end of file
  } else {
    const bool waits = !window_.empty() || (peeked_ && offered_);
    if (watched_ || waits) Watch(waits ? EPOLLOUT : 0u);
  }
  if (window_.passed() != before || unread != peeked_) on_passed_();
}

// A one-page pipe that holds any bytes is full, and becomes writable once all of them were read. This reveals the
// command's first read without polling. False: the pipe cannot be written.
bool InputPump::FirstRead() {
  if (offered_) {
    pollfd room{fd_.get(), POLLOUT, 0};
    if (::poll(&room, 1, 0) != 1 || (room.revents & POLLOUT) == 0) return true;
    peeked_ = false;
    if (::fcntl(fd_.get(), F_SETPIPE_SZ, kLargePipe) < 0) ::fcntl(fd_.get(), F_SETPIPE_SZ, kUsualPipe);
    return true;
  }
  if (window_.empty()) return true;
  const int size = ::fcntl(fd_.get(), F_SETPIPE_SZ, static_cast<int>(kSmallestPipe));
  if (size < 0 || Unread() > 0) {
    peeked_ = false;  // cannot be detected
    return true;
  }
  iovec first;
  window_.Pending(&first, 1);
  const ssize_t n = ::write(fd_.get(), first.iov_base, std::min(first.iov_len, kSmallestPipe));
  if (n < 0 && errno != EAGAIN && errno != EINTR) {
    Close();
    on_passed_();
    return false;
  }
  if (n > 0) {
    offered_ = true;
    window_.Passed(static_cast<size_t>(n));
  }
  return true;
}

size_t InputPump::Unread() const {
  const int fd = fd_ ? fd_.get() : ended_.get();
  int n = 0;
  return fd >= 0 && !terminal_ && ::ioctl(fd, FIONREAD, &n) == 0 && n > 0 ? static_cast<size_t>(n) : 0;
}

void InputPump::Close() {
  if (!closed()) taken_ = window_.passed() - std::min<uint64_t>(Unread(), window_.passed());
  if (watched_) loop_->Remove(fd_.get());
  watched_ = false;
  fd_.Reset();
  ended_.Reset();
  started_ = true;
  window_.Discard();
}

}  // namespace vrun::node
