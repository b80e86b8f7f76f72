// SPDX-License-Identifier: Apache-2.0
// A directory for one test, on a disk file system, removed at the end.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "base/files.h"

namespace vrun::home {

class TestDirectory {
 public:
  TestDirectory() {
    const char* base = ::getenv("TMPDIR");
    path_ = std::string(base != nullptr ? base : "/var/tmp") + "/vrun-home-XXXXXX";
    VRUN_CHECK(::mkdtemp(path_.data()) != nullptr);
  }
  ~TestDirectory() { (void)RemoveTree(path_); }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  void Put(const std::string& name, std::string_view content) const {
    std::string file = path_ + "/" + name;
    VRUN_CHECK(MakeDirs(file.substr(0, file.rfind('/')), 0755).has_value());
    auto fd = OpenFile(file, O_WRONLY_CREATE, 0644);
    VRUN_CHECK(fd.has_value() && WriteAll(fd->get(), content).has_value());
  }

 private:
  static constexpr int O_WRONLY_CREATE = 01 | 0100 | 01000;  // O_WRONLY | O_CREAT | O_TRUNC
  std::string path_;
};

}  // namespace vrun::home
