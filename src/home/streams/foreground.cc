// SPDX-License-Identifier: Apache-2.0
#include "home/streams/foreground.h"

#include <cstdio>
#include <string>

#include "base/files.h"

namespace vrun::home {

bool MayReadTerminal(int32_t pid) {
  if (pid <= 0) return true;
  auto stat = ReadFile("/proc/" + std::to_string(pid) + "/stat", 4096);
  if (!stat) return true;
  // The name in parentheses may contain anything, including parentheses.
  size_t name_end = stat->rfind(')');
  char state = 0;
  int parent, group, session, terminal, foreground;
  if (name_end == std::string::npos || std::sscanf(stat->c_str() + name_end + 1, " %c %d %d %d %d %d", &state, &parent,
                                                   &group, &session, &terminal, &foreground) != 6) {
    return true;
  }
  if (state == 'T' || state == 't') return false;
  return terminal == 0 || foreground <= 0 || foreground == group;
}

SavedTerminal::SavedTerminal(int fd) {
  termios settings;
  if (::tcgetattr(fd, &settings) == 0) settings_ = settings;
}

void SavedTerminal::Restore(int fd) const {
  // Home is not in a session of that terminal, so no SIGTTOU stops it.
  if (settings_) ::tcsetattr(fd, TCSANOW, &*settings_);
}

}  // namespace vrun::home
