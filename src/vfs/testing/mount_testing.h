// SPDX-License-Identifier: Apache-2.0
// For tests with real mounts, in a mount namespace of their own.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "base/thread/mutex.h"
#include "store/store.h"
#include "tree/scan/scan.h"
#include "vfs/content/backend.h"
#include "vfs/push/warmer.h"
#include "vfs/testing/vfs_testing.h"

namespace vrun::vfs {

// Why real mounts cannot be tested here; empty when they can.
inline std::string WhyNot() {
  if (::geteuid() != 0) return "needs root";
  if (::access("/dev/fuse", R_OK | W_OK) != 0) return "needs /dev/fuse";
  // Mounts a fusectl of our own: the watchdog needs it.
  static const bool own = ::unshare(CLONE_NEWNS) == 0 &&
                          ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                          ::mount("none", "/sys/fs/fuse/connections", "fusectl", 0, nullptr) == 0;
  return own ? "" : "needs a mount namespace and fusectl (CAP_SYS_ADMIN)";
}

// Factor for test durations in this build: the address sanitizer makes file system tests four times as slow.
#ifdef __SANITIZE_ADDRESS__
inline constexpr int kSlowerBuild = 5;
#else
inline constexpr int kSlowerBuild = 1;
#endif

// Ends the process when a test hangs (`seconds`, with a sanitizer multiplied by kSlowerBuild). First aborts the FUSE
// connections that were registered with it (and no others).
class Watchdog {
 public:
  explicit Watchdog(int seconds)
      : thread_([this, seconds] {
          MutexLock lock(mutex_);
          if (changed_.wait_for(lock, std::chrono::seconds(seconds * kSlowerBuild), [this] { return done_; })) return;
          std::fprintf(stderr, "watchdog: the test hangs\n");
          for (const unsigned id : connections_) {
            (void)WriteKernelFile("/sys/fs/fuse/connections/" + std::to_string(id) + "/abort", "1");
          }
          ::_exit(99);
        }) {}
  ~Watchdog() {
    {
      MutexLock lock(mutex_);
      done_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  void Watch(const std::string& directory) {
    struct statx st {};
    if (::statx(AT_FDCWD, directory.c_str(), AT_STATX_DONT_SYNC, 0, &st) != 0) return;
    MutexLock lock(mutex_);
    connections_.push_back(st.stx_dev_minor);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<unsigned> connections_;
  bool done_ = false;
  std::thread thread_;
};

inline tree::FileVersion VersionOf(int fd) {
  struct stat st {};
  ::fstat(fd, &st);
  return {st.st_dev, st.st_ino, st.st_ctim.tv_sec * 1'000'000'000 + st.st_ctim.tv_nsec,
          static_cast<uint64_t>(st.st_size)};
}

// A directory of this machine as home, a store, and a directory to mount at.
class MountFixture : public testing::Test {
 protected:
  explicit MountFixture(int seconds) : watchdog_(seconds) {}
  void SetUp() override {
    if (const std::string why = WhyNot(); !why.empty()) GTEST_SKIP() << why;
    ::umask(022);
    ::chmod(directory_.path().c_str(), 0755);  // for tests without privileges
    for (const std::string& made : {origin_, mount_}) ASSERT_TRUE(MakeDirs(made, 0755));
    auto store = store::Store::Open({.directory = directory_.path() + "/store", .min_free_bytes = 0});
    ASSERT_TRUE(store) << store.error().message();
    store_ = *std::move(store);
    source_.SetReader([this](const std::string& path, const tree::FileVersion& version, uint64_t offset,
                             uint64_t length) -> Result<std::string> {
      // As home does it: checks that the file is that version before and after the read.
      const Error changed(Code::kAborted, "the file has changed");
      const auto fd = OpenFile(origin_ + path, O_RDONLY | O_NOFOLLOW);
      if (!fd || VersionOf(fd->get()) != version) return changed;
      std::string data(length, 0);
      VRUN_ASSIGN(const size_t n, PreadUpTo(fd->get(), data.data(), length, offset));
      data.resize(n);
      if (VersionOf(fd->get()) != version) return changed;
      return data;
    });
    backend_ = Backend::Create({.home_id = "home", .home_deadline_micros = 20'000'000, .warmer = *Warmer::Start()},
                               &source_, store_.get());
  }
  Digest Scan() {
    auto snapshot = tree::Scan({.root = origin_, .hollow = {}});
    EXPECT_TRUE(snapshot) << snapshot.error().message();
    source_.Add(*snapshot);
    return (*snapshot)->id;
  }
  // A file at home.
  void Write(const std::string& path, const std::string& content, mode_t mode = 0644) {
    ASSERT_TRUE(MakeDirs((origin_ + path).substr(0, (origin_ + path).rfind('/')), 0755));
    const auto fd = OpenFile(origin_ + path, O_WRONLY | O_CREAT | O_TRUNC, mode);
    ASSERT_TRUE(fd) << fd.error().message();
    ASSERT_TRUE(WriteAll(fd->get(), content));
    ::fchmod(fd->get(), mode);
  }

  Watchdog watchdog_;
  TestDirectory directory_;
  const std::string origin_ = directory_.path() + "/origin", mount_ = directory_.path() + "/mnt";
  FakeSource source_;
  std::unique_ptr<store::Store> store_;
  std::shared_ptr<Backend> backend_;
};

}  // namespace vrun::vfs
