// SPDX-License-Identifier: Apache-2.0
// The user's terminal: raw while it is connected to a remote one, and restored however this process ends.
#pragma once

#include <termios.h>

#include <string>

#include "base/result.h"
#include "proto/common.pb.h"

namespace vrun::cli {

// True when this process is a background job of the shell on this terminal. Then it must not read from the terminal or
// change its modes.
bool InBackground(int fd);

// Size of the first of the descriptors 0, 1, 2 that is a terminal; 24 x 80 when none is.
v1::TerminalSize CurrentTerminalSize();

// Columns of the terminal at fd, at least 20.
size_t TerminalColumns(int fd);

// Only one per process, because signal handlers that restore the terminal on a crash must find it. Main thread.
class RawTerminal {
 public:
  explicit RawTerminal(int fd) : fd_(fd) {}
  ~RawTerminal() { Leave(); }
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

  // Saves the present modes for the restore and sets raw mode. In the background it does nothing: call again after
  // SIGCONT.
  Status Enter();
  void Leave();
  // Ends raw input but leaves output raw, because some of the command's output may not be written yet.
  void LeaveInput();
  // After SIGCONT: another program may have set other modes meanwhile.
  void Resume();
  bool raw() const { return raw_; }  // whether output is raw; input is too, unless LeaveInput was called

 private:
  int fd_;
  bool raw_ = false;
  bool input_left_ = false;
  termios before_{};
};

// Stops our process group as Ctrl-Z would, but only if a shell can continue it: not in an orphaned group, and not if
// our parent ignores the key. Returns when continued. SIGTSTP may be blocked.
void StopAsByKey();

// Makes every signal that would end this process (except `handled` and SIGKILL) restore the terminal first.
void RestoreTerminalOnFatalSignals(const sigset_t& handled);

}  // namespace vrun::cli
