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

class LiveViewFixture : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNot(); !why.empty()) GTEST_SKIP() << why;
    ::umask(022);
    ::chmod(directory_.path().c_str(), 0755);  // for tests without privileges
    origin_ = directory_.path() + "/origin";
    root_ = directory_.path() + "/mnt";
    for (const char* sub : {"/origin", "/mnt", "/written"}) ASSERT_TRUE(MakeDirs(directory_.path() + sub, 0755));
    auto store = store::Store::Open({.directory = directory_.path() + "/store", .min_free_bytes = 0});
    ASSERT_TRUE(store) << store.error().message();
    store_ = *std::move(store);
    source_.SetReader([this](const std::string& path, uint64_t offset, uint64_t length) -> Result<std::string> {
      VRUN_ASSIGN(const UniqueFd fd, OpenFile(origin_ + path, O_RDONLY | O_NOFOLLOW));
      std::string data(length, 0);
      VRUN_ASSIGN(const size_t n, PreadUpTo(fd.get(), data.data(), length, offset));
      data.resize(n);
      return data;
    });
    backend_ = Backend::Create({.home_id = "home", .home_deadline_micros = 20'000'000}, &source_, store_.get());
  }
  void TearDown() override {
    view_.reset();
    backend_.reset();
  }

  // A file at home, before Mount.
  void AtHome(const std::string& path, const std::string& content, mode_t mode = 0644) {
    ASSERT_TRUE(MakeDirs((origin_ + path).substr(0, (origin_ + path).rfind('/')), 0755));
    const auto fd = OpenFile(origin_ + path, O_WRONLY | O_CREAT | O_TRUNC, mode);
    ASSERT_TRUE(fd) << fd.error().message();
    ASSERT_TRUE(WriteAll(fd->get(), content));
    ::fchmod(fd->get(), mode);
  }
  void Mount() {
    view_.reset();
    auto snapshot = tree::Scan({.root = origin_, .hollow = {}});
    ASSERT_TRUE(snapshot) << snapshot.error().message();
    source_.Add(*snapshot);
    options_.directory = root_;
    options_.written = directory_.path() + "/written";
    auto view = LiveView::Mount(backend_, (*snapshot)->id, options_);
    ASSERT_TRUE(view) << view.error().message();
    view_ = *std::move(view);
    watchdog_.Watch(root_);
  }

  std::string In(const std::string& path) const { return root_ + path; }
  std::string Content(const std::string& path) const {
    auto content = ReadFile(In(path));
    return content ? *std::move(content) : "error: " + content.error().message();
  }

  Watchdog watchdog_{std::getenv("VRUN_LIVE_COMMAND") != nullptr ? 550 : 90};
  TestDirectory directory_;
  std::string origin_;
  std::string root_;
  FakeSource source_;
  std::unique_ptr<store::Store> store_;
  std::shared_ptr<Backend> backend_;
  LiveViewOptions options_;
  std::unique_ptr<LiveView> view_;
};

}  // namespace vrun::vfs
