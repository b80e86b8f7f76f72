// SPDX-License-Identifier: Apache-2.0
// A live view of a directory of this machine, mounted, for tests.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "base/files.h"
#include "store/store.h"
#include "tree/scan/scan.h"
#include "vfs/live/live_view.h"
#include "vfs/testing/mount_testing.h"
#include "vfs/testing/vfs_testing.h"

namespace vrun::vfs {

// Runs `act` in a separate process and returns its result, 0..97. Needed to map files of the view: in munmap the kernel
// waits for us with the address space locked, and our own threads could not handle a page fault then.
inline int InChild(const std::function<int()>& act) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(act());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

inline std::string Xattrs(const std::string& path) {
  std::array<char, 4096> names{};
  const ssize_t n = ::llistxattr(path.c_str(), names.data(), names.size());
  std::set<std::string> sorted;
  for (ssize_t at = 0; at < n;) {
    const std::string name = names.data() + at;
    at += static_cast<ssize_t>(name.size()) + 1;
    std::array<char, 256> value{};
    const ssize_t size = ::lgetxattr(path.c_str(), name.c_str(), value.data(), value.size());
    sorted.insert(name + "=" + std::string(value.data(), static_cast<size_t>(std::max<ssize_t>(size, 0))));
  }
  std::string all;
  for (const std::string& one : sorted) all += " " + one;
  return all;
}

// Everything visible in a tree, as text; file contents only if requested.
inline void Describe(const std::string& root, const std::string& path, bool contents, std::ostream& out) {
  struct stat st {};
  const std::string full = root + path;
  if (::lstat(full.c_str(), &st) != 0) {
    out << path << ": " << std::strerror(errno) << "\n";
    return;
  }
  out << path << std::oct << " " << st.st_mode << std::dec << " " << st.st_uid << ":" << st.st_gid << " " << st.st_rdev;
  out << Xattrs(full);
  if (S_ISREG(st.st_mode)) {
    out << " links " << st.st_nlink << " size " << st.st_size << " ";
    if (contents) {
      const auto content = ReadFile(full);
      out << (content ? std::to_string(std::hash<std::string>()(*content)) : content.error().message());
    }
  }
  if (S_ISLNK(st.st_mode)) {
    std::array<char, 256> target{};
    const ssize_t n = ::readlink(full.c_str(), target.data(), target.size());
    out << " -> " << std::string(target.data(), static_cast<size_t>(std::max<ssize_t>(n, 0)));
  }
  out << "\n";
  if (!S_ISDIR(st.st_mode)) return;
  std::set<std::string> names;
  DIR* directory = ::opendir(full.c_str());
  while (const dirent* entry = directory != nullptr ? ::readdir(directory) : nullptr) {
    const std::string name = entry->d_name;
    if (name == "." || name == ".." || name == "lost+found") continue;
    EXPECT_TRUE(names.insert(name).second) << path << "/" << name << " is listed twice";
  }
  if (directory != nullptr) ::closedir(directory);
  for (const std::string& name : names) Describe(root, path + "/" + name, contents, out);
}

inline std::string Describe(const std::string& root, bool contents = true) {
  std::ostringstream out;
  Describe(root, "", contents, out);
  return out.str();
}

class LiveViewFixture : public MountFixture {
 protected:
  LiveViewFixture() : MountFixture(std::getenv("VRUN_LIVE_COMMAND") != nullptr ? 550 : 90) {}
  void TearDown() override {
    view_.reset();
    backend_.reset();
  }
  void Mount() {
    view_.reset();
    options_.directory = mount_;
    options_.written = directory_.path() + "/written";
    ASSERT_TRUE(RemoveTree(options_.written));  // of the previous view
    ASSERT_TRUE(MakeDirs(options_.written, 0755));
    auto view = LiveView::Mount(backend_, Scan(), options_);
    ASSERT_TRUE(view) << view.error().message();
    view_ = *std::move(view);
    watchdog_.Watch(mount_);
  }

  std::string In(const std::string& path) const { return mount_ + path; }
  std::string Content(const std::string& path) const {
    auto content = ReadFile(In(path));
    return content ? *std::move(content) : "error: " + content.error().message();
  }

  LiveViewOptions options_;
  std::unique_ptr<LiveView> view_;
};

}  // namespace vrun::vfs
