// SPDX-License-Identifier: Apache-2.0
#include "base/io/find_program.h"

#include <limits.h>
#include <unistd.h>

#include <cstdlib>

namespace vrun {

Result<std::string> FindProgram(std::string_view name) {
  char buffer[PATH_MAX];
  ssize_t n = ::readlink("/proc/self/exe", buffer, sizeof buffer);
  if (n > 0) {
    std::string_view self(buffer, static_cast<size_t>(n));
    std::string beside = std::string(self.substr(0, self.rfind('/') + 1)) + std::string(name);
    if (::access(beside.c_str(), X_OK) == 0) return beside;
  }
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    size_t colon = rest.find(':');
    std::string_view dir = rest.substr(0, colon);
    rest = colon == std::string_view::npos ? std::string_view() : rest.substr(colon + 1);
    if (!dir.starts_with('/')) continue;
    std::string candidate = std::string(dir) + "/" + std::string(name);
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return Error(Code::kNotFound, std::string(name) + ": neither beside this program nor in PATH: install it there");
}

}  // namespace vrun
