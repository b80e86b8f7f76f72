// SPDX-License-Identifier: Apache-2.0
// For tests with real mounts, in a mount namespace of their own.
#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"

namespace vrun::vfs {

// Why real mounts cannot be tested here; empty when they can.
inline std::string WhyNot() {
  if (::geteuid() != 0) return "needs root";
  if (::access("/dev/fuse", R_OK | W_OK) != 0) return "needs /dev/fuse";
  // With a fusectl of our own: the watchdog needs it.
  static const bool own = ::unshare(CLONE_NEWNS) == 0 &&
                          ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                          ::mount("none", "/sys/fs/fuse/connections", "fusectl", 0, nullptr) == 0;
  return own ? "" : "needs a mount namespace and fusectl (CAP_SYS_ADMIN)";
}

// Ends the process when a test hangs: aborts the FUSE connections that it was told of (and no others) first.
class Watchdog {
 public:
  explicit Watchdog(int seconds)
      : thread_([this, seconds] {
          std::unique_lock lock(mutex_);
          if (changed_.wait_for(lock, std::chrono::seconds(seconds), [this] { return done_; })) return;
          std::fprintf(stderr, "watchdog: the test hangs\n");
          for (const unsigned id : connections_) {
            (void)WriteKernelFile("/sys/fs/fuse/connections/" + std::to_string(id) + "/abort", "1");
          }
          ::_exit(99);
        }) {}
  ~Watchdog() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  void Watch(const std::string& directory) {
    struct statx st {};
    if (::statx(AT_FDCWD, directory.c_str(), AT_STATX_DONT_SYNC, 0, &st) != 0) return;
    std::lock_guard lock(mutex_);
    connections_.push_back(st.stx_dev_minor);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<unsigned> connections_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace vrun::vfs
