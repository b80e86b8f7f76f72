// SPDX-License-Identifier: Apache-2.0
// A client's terminal: whether home may read it, and its saved settings.
#pragma once

#include <termios.h>

#include <cstdint>
#include <optional>

namespace vrun::home {

// Whether the process is running (not stopped) and in the foreground of its terminal. The kernel does not stop home
// from reading at other times and taking the shell's keys, because it is not home's terminal. True if unknown.
bool MayReadTerminal(int32_t pid);

// The settings of a terminal, restored if its owner died without doing so.
class SavedTerminal {
 public:
  // Saves nothing if `fd` is not a terminal.
  explicit SavedTerminal(int fd);
  void Restore(int fd) const;
  bool saved() const { return settings_.has_value(); }

 private:
  std::optional<termios> settings_;
};

}  // namespace vrun::home
