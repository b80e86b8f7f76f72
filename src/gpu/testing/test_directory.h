// SPDX-License-Identifier: Apache-2.0
// A directory of one test, removed at its end, and what is put there.
#pragma once

#include <stdlib.h>
#include <sys/stat.h>

#include <string>
#include <string_view>

#include "base/files.h"
#include "base/result.h"

namespace vrun::gpu {

class TestDirectory {
 public:
  TestDirectory() { VRUN_CHECK(::mkdtemp(path_.data()) != nullptr && ::chmod(path_.c_str(), 0755) == 0); }
  ~TestDirectory() { (void)RemoveTree(path_); }
  const std::string& path() const { return path_; }

  std::string Write(const std::string& name, std::string_view content, mode_t mode = 0644) const {
    const std::string path = path_ + "/" + name;
    VRUN_CHECK(MakeDirs(path.substr(0, path.rfind('/')), 0755).has_value());
    VRUN_CHECK(WriteFileAtomic(path, content, mode).has_value());
    return path;
  }

 private:
  std::string path_ = "/tmp/vrun-gpu-XXXXXX";
};

}  // namespace vrun::gpu
