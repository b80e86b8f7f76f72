// SPDX-License-Identifier: Apache-2.0
// The pumps between the descriptors of a command and the windows of its streams. Loop thread only.
#pragma once

#include <functional>

#include "base/event_loop.h"
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
  Status Receive(uint64_t offset, std::string data, bool end);
  InputWindow* window() { return &window_; }
  bool closed() const { return window_.discarded(); }
  void Close();

 private:
  void Write();
  void Watch(uint32_t events);

  EventLoop* loop_;
  std::function<void()> on_passed_;
  UniqueFd fd_;
  bool started_ = false, terminal_ = false, watched_ = false;
  uint32_t events_ = 0;
  InputWindow window_;
};

}  // namespace vrun::node
