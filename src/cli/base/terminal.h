// SPDX-License-Identifier: Apache-2.0
// The person's terminal: raw while a remote one is behind it, and as it was after any end of ours.
#pragma once

#include <termios.h>

#include <string>

#include "base/result.h"
#include "proto/common.pb.h"

namespace vrun::cli {

// True when we are a background job of the shell on this terminal: reading from it or changing its modes is not ours
// now.
bool InBackground(int fd);

// Of the first of the descriptors 0, 1, 2 that is a terminal; 24 x 80 when none is.
v1::TerminalSize CurrentTerminalSize();

// Columns of the terminal at fd, at least 20.
size_t TerminalColumns(int fd);

// One at a time in a process: signal handlers that restore the terminal on a crash have to find it. Main thread.
class RawTerminal {
 public:
  explicit RawTerminal(int fd) : fd_(fd) {}
  ~RawTerminal() { Leave(); }
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

  // Takes the present modes as those to come back to. In the background it does nothing: call again after SIGCONT.
  Status Enter();
  void Leave();
  // Keys are ours again, but output is passed as it is: some of the command's may not be written yet.
  void LeaveInput();
  // After SIGCONT: whoever had the terminal meanwhile may have set other modes.
  void Resume();
  bool raw() const { return raw_; }  // output is; input too unless LeaveInput was called

 private:
  int fd_;
  bool raw_ = false;
  bool input_left_ = false;
  termios before_{};
};

// Stops our process group as Ctrl-Z would: only where a shell can let it go on, which is not so in an orphaned group,
// or where our starter ignores the key. Returns when it goes on. SIGTSTP may be blocked.
void StopAsByKey();

// Makes every signal that would end this process (but for those in `handled` and SIGKILL) restore the terminal first.
void RestoreTerminalOnFatalSignals(const sigset_t& handled);

}  // namespace vrun::cli
