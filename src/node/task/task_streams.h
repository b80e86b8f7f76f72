// SPDX-License-Identifier: Apache-2.0
// The pumps between a command's descriptors and the windows of its streams. Loop thread only.
#pragma once

#include <functional>

#include "base/io/event_loop.h"
#include "base/unique_fd.h"
#include "node/stream_window.h"

namespace vrun::node {

// Reads the command's stdout, stderr or terminal into a window; pauses while the window is full.
class OutputPump {
 public:
  // `on_data`: the window has new bytes or the end.
  OutputPump(EventLoop* loop, std::function<void()> on_data) : loop_(loop), on_data_(std::move(on_data)) {}
  ~OutputPump() { Close(); }

  void Start(UniqueFd fd);  // non-blocking; an empty fd: the stream is over
  OutputWindow* window() { return &window_; }
  // The window may have room again.
  void Resume();
  // Every writer is dead: reads the rest, even beyond the window, and ends the stream.
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
  // `on_passed`: bytes were passed on, or the command no longer reads.
  InputPump(EventLoop* loop, std::function<void()> on_passed) : loop_(loop), on_passed_(std::move(on_passed)) {}
  ~InputPump() { Close(); }

  // `terminal`: the end of input does not close a terminal; ^D arrives as a byte.
  void Start(UniqueFd fd, bool terminal);
  // `peeked`: home has not consumed these bytes at their origin. The command gets them, but they are acknowledged only
  // once it has begun to read.
  Status Receive(uint64_t offset, std::string data, bool end, bool peeked = false);
  InputWindow* window() { return &window_; }
  bool closed() const { return window_.discarded(); }
  // Bytes passed to a command that reads.
  uint64_t acknowledged() const {
    if (closed()) return taken_;
    return peeked_ ? 0 : window_.passed();
  }
  // After the close: the command has read everything below this.
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
  UniqueFd ended_;  // the read end of a pipe that we closed: what is left in it was not read
  bool started_ = false, terminal_ = false, watched_ = false;
  bool peeked_ = false;   // and the command has read none of it, as far as known
  bool offered_ = false;  // some of that is in the pipe, which is full
  uint64_t taken_ = 0;
  uint32_t events_ = 0;
  InputWindow window_;
};

}  // namespace vrun::node
