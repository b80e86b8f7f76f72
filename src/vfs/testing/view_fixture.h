// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of views: a home, a mount, and counts of requests. (Not under valgrind: it runs one thread at a
// time, which would wait for itself inside the kernel.)
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "base/thread/mutex.h"
#include "store/store.h"
#include "tree/scan/scan.h"
#include "vfs/content/backend.h"
#include "vfs/frozen/frozen_view.h"
#include "vfs/fuse/fuse_abi.h"
#include "vfs/testing/mount_testing.h"
#include "vfs/testing/vfs_testing.h"

namespace vrun::vfs {

inline constexpr uint32_t kBase = 200000;

inline std::vector<std::string> List(const std::string& directory) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(directory.c_str());
  if (dir == nullptr) return {"opendir: " + std::string(std::strerror(errno))};
  while (const dirent* entry = ::readdir(dir)) names.emplace_back(entry->d_name);
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

inline std::string ReadLinkOf(const std::string& path) {
  char buffer[4096];
  const ssize_t n = ::readlink(path.c_str(), buffer, sizeof buffer);
  return n < 0 ? "error" : std::string(buffer, static_cast<size_t>(n));
}

inline std::map<std::string, std::string> XattrsOf(const std::string& path) {
  std::map<std::string, std::string> all;
  char names[4096];
  const ssize_t n = ::llistxattr(path.c_str(), names, sizeof names);
  for (ssize_t at = 0; at < n; at += static_cast<ssize_t>(std::strlen(names + at)) + 1) {
    char value[4096];
    const ssize_t size = ::lgetxattr(path.c_str(), names + at, value, sizeof value);
    all[names + at] = size < 0 ? std::strerror(errno) : std::string(value, static_cast<size_t>(size));
  }
  return all;
}

// Compares everything that a program can see of two trees, with mapped owners. An overlay has its own directory inode
// numbers.
inline void Compare(const std::string& home, const std::string& view, uint32_t base, bool overlay = false) {
  const auto names = List(home);
  EXPECT_EQ(List(view), names) << home;
  for (const std::string& name : names) {
    if (name == ".." || name == ".") continue;
    const std::string a = home + "/" + name;
    const std::string b = view + "/" + name;
    struct stat at {};
    struct stat bt {};
    ASSERT_EQ(::lstat(a.c_str(), &at), 0);
    ASSERT_EQ(::lstat(b.c_str(), &bt), 0) << b << ": " << std::strerror(errno);
    EXPECT_EQ(bt.st_mode, at.st_mode) << a;
    EXPECT_EQ(bt.st_uid, base + (at.st_uid <= 65535 ? at.st_uid : 65534)) << a;
    EXPECT_EQ(bt.st_gid, base + (at.st_gid <= 65535 ? at.st_gid : 65534)) << a;
    if (!overlay || !S_ISDIR(at.st_mode)) {
      EXPECT_EQ(bt.st_ino, at.st_ino) << a;
    }
    EXPECT_EQ(bt.st_mtim.tv_sec, at.st_mtim.tv_sec) << a;
    EXPECT_EQ(bt.st_mtim.tv_nsec, at.st_mtim.tv_nsec) << a;
    if (S_ISDIR(at.st_mode)) {
      Compare(a, b, base, overlay);
      continue;
    }
    EXPECT_EQ(bt.st_nlink, at.st_nlink) << a;
    EXPECT_EQ(bt.st_size, at.st_size) << a;
    EXPECT_EQ(bt.st_ctim.tv_nsec, at.st_ctim.tv_nsec) << a;
    const bool device = S_ISCHR(at.st_mode) || S_ISBLK(at.st_mode);
    EXPECT_EQ(bt.st_rdev, device ? makedev(0, 1) : at.st_rdev) << a;  // attributes.h, DeviceNumber
    if (S_ISLNK(at.st_mode)) {
      EXPECT_EQ(ReadLinkOf(b), ReadLinkOf(a));
    }
    if (S_ISREG(at.st_mode)) {
      EXPECT_EQ(bt.st_blocks, at.st_blocks) << a;
      const auto x = ReadFile(a);
      const auto y = ReadFile(b);
      ASSERT_TRUE(x);
      ASSERT_TRUE(y) << y.error().message();
      EXPECT_TRUE(*x == *y) << a;
    }
    EXPECT_EQ(XattrsOf(b), XattrsOf(a)) << a;
  }
}

class ViewTest : public MountFixture {
 protected:
  ViewTest() : MountFixture(std::getenv("VRUN_TEST_LARGE") != nullptr ? 600 : 90) {}
  void TearDown() override {
    view_.reset();
    backend_.reset();
  }

  void Mount(const Digest& tree) {
    view_.reset();
    options_.directory = mount_;
    options_.on_content_lost = [this](const std::string& path, const std::string&) {
      MutexLock lock(lost_mutex_);
      lost_.push_back(path);
    };
    auto view = FrozenView::Mount(backend_, tree, options_);
    ASSERT_TRUE(view) << view.error().message();
    view_ = *std::move(view);
    watchdog_.Watch(mount_);
  }
  std::array<uint64_t, 64> Requests() { return view_->stats().requests; }
  // Lookups, attributes, reads and listings since `before`; the kernel does not cache opens and xattrs.
  uint64_t Asked(const std::array<uint64_t, 64>& before) {
    const auto now = Requests();
    uint64_t sum = 0;
    for (const int op :
         {FUSE_LOOKUP, FUSE_GETATTR, FUSE_READ, FUSE_READLINK, FUSE_READDIR, FUSE_READDIRPLUS, FUSE_OPENDIR}) {
      if (op == FUSE_OPENDIR && !options_.no_open) continue;
      sum += now[op] - before[op];
    }
    return sum;
  }

  // The kernel may drop pages when memory is short: then the next pass asks for those, and only for those.
  void ExpectNothingAsked(const std::function<void()>& pass) {
    uint64_t asked = 1;
    for (int i = 0; i < 5 && asked != 0; ++i) {
      const auto before = Requests();
      pass();
      asked = Asked(before);
    }
    EXPECT_EQ(asked, 0u);
  }

  ViewOptions options_{.ids = kBase};
  std::unique_ptr<FrozenView> view_;
  Mutex lost_mutex_;
  std::vector<std::string> lost_;
};

}  // namespace vrun::vfs
