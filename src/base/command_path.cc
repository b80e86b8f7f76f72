// SPDX-License-Identifier: Apache-2.0
#include "base/command_path.h"

#include <algorithm>

#include "base/escape.h"

namespace vrun {
namespace {

constexpr const char* kDefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

std::string PathOf(const std::vector<std::string>& environment) {
  for (const std::string& e : environment) {
    if (e.rfind("PATH=", 0) == 0) return e.substr(5);
  }
  return kDefaultPath;
}

}  // namespace

std::vector<std::string> CommandCandidates(const std::string& name, const std::vector<std::string>& environment) {
  if (name.empty()) return {};
  if (name.find('/') != std::string::npos) return {name};
  std::vector<std::string> out;
  std::string path = PathOf(environment);
  for (size_t at = 0; at <= path.size();) {
    size_t colon = std::min(path.find(':', at), path.size());
    std::string directory = path.substr(at, colon - at);
    // An empty element means the working directory, by tradition.
    out.push_back(directory.empty() ? "./" + name : directory + "/" + name);
    at = colon + 1;
  }
  return out;
}

std::string CommandNotFound(const std::string& name) {
  if (name.empty()) return "no command given: name one";
  if (name.find('/') != std::string::npos) return Escape(name) + ": not in the mirrored root: check the path";
  return Escape(name) + ": command not found in PATH: install it or give its path";
}

std::string InterpreterNotFound(const std::string& name, const std::string& interpreter) {
  return Escape(name) + ": its interpreter " +
         (interpreter.empty() ? "(the loader of the program)" : Escape(interpreter)) +
         " is not in the mirrored root: install it";
}

bool IsOwnPlace(std::string_view path) {
  for (std::string_view place : {"/tmp", "/dev", "/proc", "/sys", "/run"}) {
    if (path.starts_with(place) && (path.size() == place.size() || path[place.size()] == '/')) return true;
  }
  return false;
}

}  // namespace vrun
