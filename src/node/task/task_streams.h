// SPDX-License-Identifier: Apache-2.0
// The pumps between the descriptors of a command and the windows of its streams. Loop thread only.
#pragma once

#include <functional>

#include "base/io/event_loop.h"
#include "base/unique_fd.h"
#include "node/stream_window.h"

namespace vrun::node {

// Reads the command's stdout, stderr or terminal into a window; stops while the window is full.
class OutputPump {
 public:
  // `on_data`: there is something new in the window (bytes or the end).
  OutputPump(EventLoop* loop, std::function<void()> on_data) : loop_(loop), on_data_(std::move(on_data)) {}
  ~OutputPump() { Close(); }

  void Start(UniqueFd fd);  // non-blocking; an empty one: the stream is over
  OutputWindow* window() { return &window_; }
  // The window may have room again.
  void Resume();
  // Every writer is dead: reads what is left, whatever the window says, and ends the stream.
  void Drain();
  // The reader is gone: the command gets SIGPIPE.
  void Close();
  int fd() const { return fd_.get(); }

 private:
  void OnReadable();
  bool ReadSome(size_t limit);  // false: end of the stream
  void Unwatch();

  EventLoop* loop_;
  std::function<void()> on_data_;
  UniqueFd fd_;
  bool watched_ = false;
  OutputWindow window_;
};

// Writes a window to the command's stdin or terminal.
class InputPump {
 public:
  // `on_passed`: bytes were passed on, or the command does not read any more.
  InputPump(EventLoop* loop, std::function<void()> on_passed) : loop_(loop), on_passed_(std::move(on_passed)) {}
  ~InputPump() { Close(); }

  // `terminal`: the end of input is not the terminal's business, ^D comes as a byte.
  void Start(UniqueFd fd, bool terminal);
  // `peeked`: home has not taken these bytes from where they came. The command gets them, but they are acknowledged
  // only when it has begun to read.
  Status Receive(uint64_t offset, std::string data, bool end, bool peeked = false);
  InputWindow* window() { return &window_; }
  bool closed() const { return window_.discarded(); }
  // Passed on for good: to a command that reads.
  uint64_t acknowledged() const {
    if (closed()) return taken_;
    return peeked_ ? 0 : window_.passed();
  }
  // Once closed: the command has read everything below this.
  uint64_t taken() const { return taken_; }
  void Close();

 private:
  void Write();
  bool FirstRead();
  size_t Unread() const;
  void Watch(uint32_t events);

  EventLoop* loop_;
  std::function<void()> on_passed_;
  UniqueFd fd_;
  UniqueFd ended_;  // the reading end of a pipe that we have ended: what is left in it was not read
  bool started_ = false, terminal_ = false, watched_ = false;
  bool peeked_ = false;   // and the command has read none of it, as far as is known
  bool offered_ = false;  // some of that is in the pipe, which has no room for more
  uint64_t taken_ = 0;
  uint32_t events_ = 0;
  InputWindow window_;
};

}  // namespace vrun::node
