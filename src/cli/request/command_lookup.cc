// SPDX-License-Identifier: Apache-2.0
#include "cli/request/command_lookup.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "base/command_path.h"
#include "base/escape.h"
#include "base/unique_fd.h"
#include "cli/request/job_command.h"

namespace vrun::cli {
namespace {

std::string RealPath(int fd) {
  char path[PATH_MAX];
  const ssize_t n = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : "";
}

enum class Found { kExecutable, kNotExecutable, kNothing, kUnknown };

Found Look(const std::string& path, const std::string& root) {
  if (IsOwnPlace(path)) {
    // A job's /tmp and /run are empty when it starts; the content of its other own directories is unknown here.
    return path.starts_with("/tmp") || path.starts_with("/run") ? Found::kNothing : Found::kUnknown;
  }
  UniqueFd top(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!top) return Found::kUnknown;
  open_how how;
  std::memset(&how, 0, sizeof how);
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT;
  UniqueFd file(static_cast<int>(::syscall(SYS_openat2, top.get(), path.c_str(), &how, sizeof how)));
  if (!file) return errno == ENOENT || errno == ENOTDIR ? Found::kNothing : Found::kUnknown;
  if (IsBelowOwnPlace(file.get(), root)) return Found::kNothing;
  struct stat st;
  if (::fstat(file.get(), &st) != 0) return Found::kUnknown;
  return S_ISREG(st.st_mode) && (st.st_mode & 0111) != 0 ? Found::kExecutable : Found::kNotExecutable;
}

}  // namespace

bool IsBelowOwnPlace(int fd, const std::string& root) {
  UniqueFd top(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const std::string real_root = top ? RealPath(top.get()) : "";
  return IsOwnPlace(InRoot(RealPath(fd), real_root.empty() ? root : real_root));
}

bool IsInRoot(const std::string& path, const std::string& root) { return Look(path, root) != Found::kNothing; }

Status CheckCommand(const v1::Command& command, const std::string& root) {
  if (command.argv_size() == 0) return Error(Code::kNotFound, CommandNotFound(""));
  const std::string& name = command.argv(0);
  if (!command.script().empty() && name == kScriptPath) return {};
  const std::vector<std::string> environment(command.environment().begin(), command.environment().end());
  bool there = false;
  for (const std::string& candidate : CommandCandidates(name, environment)) {
    switch (Look(Absolute(candidate, command.directory()), root)) {
      case Found::kExecutable:
      case Found::kUnknown: return {};
      case Found::kNotExecutable: there = true; break;
      case Found::kNothing: break;
    }
  }
  if (!there) return Error(Code::kNotFound, CommandNotFound(name));
  return Error(Code::kDenied, Escape(name) + ": " + std::strerror(EACCES) + ": chmod +x or name another file");
}

}  // namespace vrun::cli
