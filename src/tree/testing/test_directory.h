// SPDX-License-Identifier: Apache-2.0
// A temporary directory for one test, with the file operations that the tests of scan and watch need.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "base/files.h"
#include "tree/tree.h"

namespace vrun::tree {

class TestDirectory {
 public:
  TestDirectory() {
    const char* base = ::getenv("TMPDIR");
    std::string pattern =
        std::string(base != nullptr && std::string_view(base) != "/tmp" ? base : "/var/tmp") + "/vrun-tree-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~TestDirectory() { (void)RemoveTree(path_); }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

  void Mkdir(std::string_view name, mode_t mode = 0755) const { EXPECT_TRUE(MakeDirs(*this / name, mode)); }
  void Write(std::string_view name, std::string_view data) const { WriteWith(name, data, O_TRUNC); }
  void Append(std::string_view name, std::string_view data) const { WriteWith(name, data, O_APPEND); }
  // Overwrites in place: inode and size stay.
  void Overwrite(std::string_view name, std::string_view data) const { WriteWith(name, data, 0); }
  void Link(std::string_view target, std::string_view name) const {
    EXPECT_EQ(::link((*this / target).c_str(), (*this / name).c_str()), 0) << name;
  }
  void Symlink(std::string_view target, std::string_view name) const {
    EXPECT_EQ(::symlink(std::string(target).c_str(), (*this / name).c_str()), 0) << name;
  }
  void Rename(std::string_view from, std::string_view to) const {
    EXPECT_EQ(::rename((*this / from).c_str(), (*this / to).c_str()), 0) << from << " -> " << to;
  }
  void Remove(std::string_view name) const { EXPECT_TRUE(RemoveTree(*this / name)); }

 private:
  void WriteWith(std::string_view name, std::string_view data, int flags) const {
    const int fd = ::open((*this / name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644);
    ASSERT_GE(fd, 0) << name;
    EXPECT_EQ(::write(fd, data.data(), data.size()), static_cast<ssize_t>(data.size()));
    ::close(fd);
  }

  std::string path_;
};

// Every path with its attributes as text, to show when a comparison of two trees fails.
inline std::string Describe(const Tree& snapshot) {
  std::string out;
  std::vector<std::pair<std::string, DirectoryPtr>> stack{{"", snapshot.directory}};
  while (!stack.empty()) {
    auto [path, directory] = stack.back();
    stack.pop_back();
    for (size_t i = 0; i < directory->size(); ++i) {
      const Entry e = directory->At(i);
      out += path + "/" + e.name + " mode=" + std::to_string(e.mode) + " size=" + std::to_string(e.size) +
             " ino=" + std::to_string(e.ino) + " nlink=" + std::to_string(e.nlink) +
             " mtime=" + std::to_string(e.mtime_ns) + " ctime=" + std::to_string(e.ctime_ns) +
             " xattrs=" + std::to_string(e.xattrs.size()) + "\n";
      if (auto child = directory->Child(i)) stack.emplace_back(path + "/" + e.name, child);
    }
  }
  return out;
}

}  // namespace vrun::tree
