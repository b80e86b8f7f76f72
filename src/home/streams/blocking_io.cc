// SPDX-License-Identifier: Apache-2.0
#include "home/streams/blocking_io.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "base/files.h"

namespace vrun::home {
namespace {
// POSIX: poll says writable when at least PIPE_BUF can be written.
constexpr size_t kAtomicPipeWrite = 4096;
}  // namespace

BlockingIo::BlockingIo(EventLoop* loop, int fd, bool regular)
    : loop_(loop), fd_(fd), regular_(regular), cancel_(::eventfd(0, EFD_CLOEXEC)) {}

BlockingIo::~BlockingIo() {
  *alive_ = false;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    uint64_t one = 1;
    [[maybe_unused]] ssize_t r = ::write(cancel_.get(), &one, sizeof one);
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void BlockingIo::Post(Work work) {
  {
    MutexLock lock(mutex_);
    work_.push_back(std::move(work));
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  }
  wake_.notify_one();
}

void BlockingIo::Read(size_t n, std::function<void(Result<std::string>)> done) {
  Work work;
  work.n = n;
  work.read_done = std::move(done);
  Post(std::move(work));
}

void BlockingIo::Write(std::string data, std::function<void(size_t, Status)> done) {
  Work work;
  work.write = true;
  work.data = std::move(data);
  work.write_done = std::move(done);
  Post(std::move(work));
}

void BlockingIo::Run() {
  ::pthread_setname_np(::pthread_self(), "stdio");
  MutexLock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this]() VRUN_REQUIRES(mutex_) { return stopping_ || !work_.empty(); });
    if (stopping_) return;
    Work work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    // `alive` is checked on the loop, where the destructor runs: if expired, nobody is called.
    if (work.write) {
      size_t written = 0;
      Status status = DoWrite(work.data, &written);
      loop_->Post([alive = alive_, done = std::move(work.write_done), written, status = std::move(status)]() mutable {
        if (*alive) done(written, std::move(status));
      });
    } else {
      Result<std::string> data = DoRead(work.n);
      loop_->Post([alive = alive_, done = std::move(work.read_done), data = std::move(data)]() mutable {
        if (*alive) done(std::move(data));
      });
    }
    lock.lock();
  }
}

Status BlockingIo::WaitFor(short events) const {
  pollfd fds[2] = {{fd_, events, 0}, {cancel_.get(), POLLIN, 0}};
  while (::poll(fds, 2, -1) < 0) {
    if (errno != EINTR) return ErrnoError("poll");
  }
  if (fds[1].revents != 0) return Error(Code::kAborted, "closed");
  return {};
}

Result<std::string> BlockingIo::DoRead(size_t n) const {
  std::string data(n, '\0');
  for (;;) {
    if (!regular_) VRUN_TRY(WaitFor(POLLIN));
    ssize_t r = ::read(fd_, data.data(), n);
    if (r >= 0) {
      data.resize(static_cast<size_t>(r));
      return data;
    }
    // EAGAIN: the client's description was already non-blocking, and poll was wrong.
    if (errno != EINTR && errno != EAGAIN) return ErrnoError("read");
  }
}

Status BlockingIo::DoWrite(const std::string& data, size_t* written) const {
  while (*written < data.size()) {
    size_t n = data.size() - *written;
    if (!regular_) {
      VRUN_TRY(WaitFor(POLLOUT));
      n = std::min(n, kAtomicPipeWrite);
    }
    ssize_t r = ::write(fd_, data.data() + *written, n);
    if (r < 0 && errno != EINTR && errno != EAGAIN) return ErrnoError("write");
    if (r > 0) *written += static_cast<size_t>(r);
  }
  return {};
}

}  // namespace vrun::home
