// SPDX-License-Identifier: Apache-2.0
// A client's terminal: whose turn it is to read it, and how it was.
#pragma once

#include <termios.h>

#include <cstdint>
#include <optional>

namespace vrun::home {

// Is the process running (not stopped), and in the foreground of its terminal? Home has no terminal of its own, so the
// kernel would let it read at any time, and take the shell's keys. True when it cannot be found out.
bool MayReadTerminal(int32_t pid);

// The settings of a terminal, to be put back when its owner died without doing so itself.
class SavedTerminal {
 public:
  // Nothing is saved when `fd` is no terminal.
  explicit SavedTerminal(int fd);
  void Restore(int fd) const;
  bool saved() const { return settings_.has_value(); }

 private:
  std::optional<termios> settings_;
};

}  // namespace vrun::home
