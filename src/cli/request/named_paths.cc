// SPDX-License-Identifier: Apache-2.0
#include "cli/request/named_paths.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/files.h"
#include "base/unique_fd.h"
#include "cli/request/job_command.h"

namespace vrun::cli {
namespace {

constexpr int kMostArguments = 256;  // `vrun cat *` in a large directory: the first ones show where the files are

std::string Variable(const v1::Command& command, std::string_view name) {
  for (const std::string& entry : command.environment()) {
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
  }
  return "";
}

std::string LinkOf(int fd) {
  char buffer[PATH_MAX];
  const ssize_t n = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), buffer, sizeof buffer);
  return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : "";
}

class Root {
 public:
  explicit Root(const std::string& path) {
    if (auto fd = OpenFile(path, O_PATH | O_DIRECTORY)) {
      fd_ = *std::move(fd);
      real_ = LinkOf(fd_.get());
    }
  }

  // Opens a path of the root without side effects; an empty result: nothing is there.
  UniqueFd Open(const std::string& path) const {
    open_how how{};
    how.flags = O_PATH | O_CLOEXEC;
    how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
    return UniqueFd(static_cast<int>(::syscall(SYS_openat2, fd_.get(), path.c_str(), &how, sizeof how)));
  }

  std::string PathOf(const UniqueFd& file) const {
    const std::string path = LinkOf(file.get());
    return real_ == "/" ? path : InRoot(path, real_);
  }

 private:
  UniqueFd fd_;
  std::string real_;
};

bool IsProgram(const UniqueFd& file) {
  struct stat st;
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  return ::fstat(file.get(), &st) == 0 && S_ISREG(st.st_mode) &&
         ::faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0;
}

class Collector {
 public:
  Collector(const std::string& root, v1::Run* run)
      : root_(root), run_(run), directory_(run->spec().command().directory()) {}

  void Directory() { Add(v1::NamedPath::DIRECTORY, directory_, root_.Open(directory_)); }

  void Command() {
    if (run_->spec().command().argv_size() == 0) return;
    const std::string& name = run_->spec().command().argv(0);
    if (name.find('/') != std::string::npos) {
      const std::string path = Absolute(name, directory_);
      return Add(v1::NamedPath::COMMAND, path, root_.Open(path));
    }
    const std::string path = Variable(run_->spec().command(), "PATH");
    int found = 0;
    for (size_t at = 0; at < path.size() && found < 2;) {
      const size_t colon = std::min(path.find(':', at), path.size());
      const std::string candidate = Absolute(path.substr(at, colon - at) + "/" + name, directory_);
      at = colon + 1;
      UniqueFd file = root_.Open(candidate);
      if (!file || !IsProgram(file)) continue;
      Add(v1::NamedPath::COMMAND, candidate, std::move(file));
      ++found;
    }
  }

  void Arguments(size_t script) {
    int found = 0;
    for (int i = 1; i < run_->spec().command().argv_size() && found < kMostArguments; ++i) {
      std::string word = run_->spec().command().argv(i);
      // --config=/tmp/x and if=/tmp/x name a file too.
      if (const size_t value = word.find("=/"); value != std::string::npos && !word.starts_with('/')) {
        word = word.substr(value + 1);
      }
      if (word.empty() || word.size() >= PATH_MAX || word.find('\0') != std::string::npos) continue;
      const std::string path = Absolute(word, directory_);
      UniqueFd file = root_.Open(path);
      if (!file) continue;
      Add(script == static_cast<size_t>(i) ? v1::NamedPath::SCRIPT : v1::NamedPath::ARGUMENT, path, std::move(file));
      ++found;
    }
  }

  void Cache() {
    std::string path = Variable(run_->spec().command(), "XDG_CACHE_HOME");
    if (!path.starts_with('/')) {
      path = Variable(run_->spec().command(), "HOME");
      if (!path.starts_with('/')) return;
      path += "/.cache";
    }
    path = Absolute(path, "/");
    // In the nearest existing directory its user must be able to create the rest.
    for (std::string at = path;; at = at.substr(0, at.rfind('/'))) {
      UniqueFd file = root_.Open(at.empty() ? "/" : at);
      if (!file) {
        if (at.empty()) return;
        continue;
      }
      struct stat st;
      const std::string self = "/proc/self/fd/" + std::to_string(file.get());
      if (::fstat(file.get(), &st) != 0 || !S_ISDIR(st.st_mode)) return;
      if (::faccessat(AT_FDCWD, self.c_str(), W_OK | X_OK, AT_EACCESS) != 0) return;
      return Add(v1::NamedPath::CACHE, path, std::move(file));
    }
  }

 private:
  void Add(v1::NamedPath::Role role, const std::string& path, UniqueFd file) {
    if (!file) return;
    v1::NamedPath* named = run_->add_named();
    named->set_role(role);
    named->set_path(path);
    named->set_leads_to(root_.PathOf(file));
  }

  const Root root_;
  v1::Run* const run_;
  const std::string directory_;
};

}  // namespace

void AddNamedPaths(size_t script, const std::string& root, v1::Run* run) {
  Collector collect(root, run);
  collect.Directory();
  collect.Command();
  collect.Arguments(script);
  collect.Cache();
}

}  // namespace vrun::cli
