// SPDX-License-Identifier: Apache-2.0
#include "node/task_streams.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.h"

namespace vrun::node {
namespace {
// At most this much in one turn, so that the other stream and the connection get theirs.
constexpr size_t kTurn = 1u << 20;
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
  // Removed, not masked: a hang-up is reported to whoever watches, wanted or not.
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
    if (n <= 0) return false;  // EIO: a terminal that nobody has open any more
    window_.Commit(static_cast<size_t>(n));
    total += static_cast<size_t>(n);
    if (static_cast<size_t>(n) < space.size && limit != SIZE_MAX) return true;  // most likely all that there was
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
  started_ = true;
  if (!fd_) return Close();
  Watch(0);  // errors are always reported: the reader's end may be closed before we write
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

Status InputPump::Receive(uint64_t offset, std::string data, bool end) {
  VRUN_TRY(window_.Receive(offset, std::move(data), end));
  if (started_) Write();
  return {};
}

void InputPump::Write() {
  if (!fd_) {
    if (started_) on_passed_();
    return;
  }
  uint64_t before = window_.passed();
  while (!window_.empty()) {
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
    fd_.Reset();  // the command reads its end of file
  } else if (watched_ || !window_.empty()) {
    Watch(window_.empty() ? 0u : EPOLLOUT);
  }
  if (window_.passed() != before) on_passed_();
}

void InputPump::Close() {
  if (watched_) loop_->Remove(fd_.get());
  watched_ = false;
  fd_.Reset();
  started_ = true;
  window_.Discard();
}

}  // namespace vrun::node
