// SPDX-License-Identifier: Apache-2.0
// A live view of a directory of this machine, mounted, for tests.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "base/files.h"
#include "store/store.h"
#include "tree/scan.h"
#include "vfs/live_view.h"
#include "vfs/mount_testing.h"
#include "vfs/vfs_testing.h"

namespace vrun::vfs {

// Runs `act` in a process of its own and returns what it returns, 0..97. Whatever maps a file of the view has to: the
// kernel waits for us in munmap with the address space locked, in which our own threads then cannot take a page fault.
inline int InChild(const std::function<int()>& act) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(act());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
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
