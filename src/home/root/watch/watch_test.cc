// SPDX-License-Identifier: Apache-2.0
#include "home/root/watch/watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "home/root/watch/watch_events.h"
#include "tree/testing/test_directory.h"

namespace vrun::home {
namespace {

using Backend = WatchOptions::Backend;
using namespace std::chrono_literals;

class WatchTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    options_.scan.root = dir_.path();
    options_.scan.hidden = {"/state"};
    options_.cookie_directory = dir_ / "state";
    options_.backend = GetParam();
    for (const char* d : {"a/b/c", "other/x", "tmp/y", "state"}) dir_.Mkdir(d);
    dir_.Write("a/f", "12345");
    dir_.Write("a/b/g", "2");
    dir_.Write("tmp/y/z", "");
  }

  void Start() {
    watcher_ = nullptr;
    auto watcher = Watcher::Start(options_);
    if (!watcher) GTEST_SKIP() << "this kernel or user cannot: " << watcher.error().message();
    watcher_ = *std::move(watcher);
    auto base = tree::Scan(options_.scan);
    ASSERT_TRUE(base) << base.error().message();
    tree_ = *base;
    Barrier();
  }

  tree::DirtySet Barrier() {
    auto dirty = watcher_->Barrier(5s);
    EXPECT_TRUE(dirty) << dirty.error().message();
    return dirty ? *std::move(dirty) : tree::DirtySet();
  }

  // The barrier's result must turn the last tree into the one that a scan sees.
  tree::DirtySet Check() {
    tree::DirtySet dirty = Barrier();
    auto now = tree::Rescan(tree_, dirty, options_.scan);
    auto whole = tree::Scan(options_.scan);
    if (!now || !whole) {
      ADD_FAILURE() << "scan failed";
      return dirty;
    }
    if ((*now)->id != (*whole)->id) {
      std::string said;
      for (const auto& [d, names] : dirty.names) {
        said += d + ":";
        for (const auto& n : names) said += " " + n;
        said += "\n";
      }
      for (const auto& d : dirty.recursive) said += "recursive " + d + "\n";
      ADD_FAILURE() << "dirty:\n" << said << "rescan:\n" << Describe(**now) << "scan:\n" << Describe(**whole);
    }
    tree_ = *now;
    return dirty;
  }

  tree::TestDirectory dir_;
  WatchOptions options_;
  std::unique_ptr<Watcher> watcher_;
  tree::TreePtr tree_;
};

#define START() \
  Start();      \
  if (watcher_ == nullptr) return

TEST_P(WatchTest, NothingHappened) {
  START();
  EXPECT_TRUE(Barrier().empty());
  EXPECT_TRUE(Barrier().empty());
}

TEST_P(WatchTest, CreateModifyRenameDelete) {
  START();
  EXPECT_EQ(watcher_->kind(), GetParam() == Backend::kFanotify ? "fanotify" : "inotify");
  dir_.Write("a/new", "x");
  auto dirty = Check();
  EXPECT_TRUE(dirty.names.contains("/a"));
  EXPECT_FALSE(dirty.everything());
  dir_.Append("a/new", "more");
  Check();
  dir_.Overwrite("a/f", "54321");  // same inode, same size
  Check();
  dir_.Rename("a/new", "other/x/new");
  Check();
  dir_.Remove("other/x/new");
  Check();
  dir_.Remove("a/f");
  dir_.Write("a/f", "again");
  Check();
  dir_.Write("top", "");
  Check();
}

TEST_P(WatchTest, AttributesAndLinks) {
  START();
  ASSERT_EQ(::chmod((dir_ / "a/f").c_str(), 0600), 0);
  Check();
  ASSERT_EQ(::chmod((dir_ / "a/b").c_str(), 0700), 0);
  Check();
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0711), 0);
  Check();
  struct timespec times[2] = {{1, 2}, {3, 4}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (dir_ / "a/b").c_str(), times, 0), 0);
  Check();
  dir_.Symlink("x", "a/link");
  Check();
  dir_.Link("a/f", "other/hard");
  Check();
  dir_.Append("other/hard", "seen under both names");
  Check();
  dir_.Remove("a/f");
  Check();
}

// inotify does not report such a change.
class FanotifyTest : public WatchTest {};
INSTANTIATE_TEST_SUITE_P(Backends, FanotifyTest, testing::Values(Backend::kFanotify),
                         [](const auto&) { return "fanotify"; });

// Opened by one of two names, which is then removed by unlink(2) or rename(2): the other name changes.
TEST_P(FanotifyTest, AFileIsWrittenUnderANameThatItHasLost) {
  for (const bool replaced : {false, true}) {
    dir_.Write("a/opened", "12345");
    ASSERT_EQ(::link((dir_ / "a/opened").c_str(), (dir_ / (replaced ? "other/x/two" : "other/x/one")).c_str()), 0);
    START();
    const UniqueFd fd(::open((dir_ / "a/opened").c_str(), O_WRONLY | O_CLOEXEC));
    dir_.Write("a/new", "");
    if (replaced) {
      dir_.Rename("a/new", "a/opened");
    } else {
      dir_.Remove("a/opened");
    }
    Check();
    ASSERT_EQ(::pwrite(fd.get(), "67", 2, 0), 2);
    EXPECT_FALSE(Check().empty());
    ASSERT_EQ(::pwrite(fd.get(), "and more", 8, 0), 8);
    Check();
  }
}

TEST_P(WatchTest, ATreeIsRenamedAndWrittenBelow) {
  START();
  dir_.Rename("a/b", "other/moved");
  dir_.Write("other/moved/c/late", "x");
  Check();
  dir_.Write("other/moved/c/later", "x");
  dir_.Append("other/moved/g", "x");
  Check();
  dir_.Rename("other", "o");
  Check();
  dir_.Write("o/moved/c/last", "x");
  Check();
  // Twice before a barrier, and back.
  dir_.Rename("o/moved", "a/b");
  dir_.Rename("a/b", "o/again");
  dir_.Rename("o/again", "a/b");
  dir_.Write("a/b/c/once more", "x");
  Check();
  dir_.Write("a/b/c/and more", "x");
  Check();
}

TEST_P(WatchTest, DirectoriesMadeAndFilledAtOnce) {
  START();
  dir_.Mkdir("p/q/r");
  dir_.Write("p/q/r/file", "x");
  Check();
  dir_.Write("p/q/r/second", "x");
  Check();
  dir_.Remove("p");
  dir_.Mkdir("p/q");
  Check();
  dir_.Write("p/q/f", "x");
  Check();
  dir_.Remove("p/q");
  dir_.Write("p/q", "a file now");
  Check();
}

TEST_P(WatchTest, HollowAndHiddenAreSilent) {
  START();
  dir_.Write("tmp/y/z", "x");
  dir_.Write("tmp/new", "x");
  dir_.Mkdir("tmp/y/deep/er");
  dir_.Write("state/file", "x");
  EXPECT_TRUE(Barrier().empty());
}

TEST_P(WatchTest, WhatHappensOutsideOfTheRootIsSilent) {
  options_.scan.root = dir_ / "a";
  options_.scan.hidden.clear();
  START();
  dir_.Write("other/x/file", "x");
  dir_.Mkdir("other/new");
  EXPECT_TRUE(Barrier().empty());
  dir_.Rename("other/x", "a/came");
  EXPECT_FALSE(Check().empty());
  dir_.Write("a/came/file2", "x");
  Check();
  dir_.Rename("a/came", "other/left");
  Check();
  dir_.Write("other/left/file3", "x");
  EXPECT_TRUE(Barrier().empty());
}

TEST_P(WatchTest, LostEventsMeanEverything) {
  options_.simulate_overflow_after = 20;
  START();
  for (int i = 0; i < 100; ++i) dir_.Write("a/n" + std::to_string(i), "x");
  EXPECT_TRUE(Check().everything());
  dir_.Write("a/b/c/after", "x");
  dir_.Mkdir("a/fresh/in");
  EXPECT_FALSE(Check().everything());
}

TEST_P(WatchTest, WithoutACookie) {
  options_.cookie_directory.clear();
  START();
  dir_.Write("a/new", "x");
  EXPECT_FALSE(Check().empty());
}

TEST_P(WatchTest, ACookieOutsideOfTheRoot) {
  tree::TestDirectory elsewhere;
  options_.cookie_directory = elsewhere / "deep/state";
  START();
  dir_.Write("a/new", "x");
  EXPECT_FALSE(Check().everything());
  watcher_ = nullptr;
  EXPECT_EQ(::rmdir((elsewhere / "deep/state").c_str()), 0) << "the cookie file is gone with its watcher";
}

TEST_P(WatchTest, AWriterWithoutEndDoesNotHoldABarrier) {
  START();
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    const int fd = ::open((dir_ / "a/log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    while (!stop) (void)!::write(fd, "line\n", 5);
    ::close(fd);
  });
  for (int i = 0; i < 50; ++i) {
    const int64_t start = MonotonicMicros();
    auto dirty = Barrier();
    EXPECT_FALSE(dirty.everything());
    EXPECT_LT(MonotonicMicros() - start, 4000000);
  }
  stop = true;
  writer.join();
  tree_ = *tree::Scan(options_.scan);
  dir_.Write("a/last", "x");
  Check();
}

TEST_P(WatchTest, ManyNamesBecomeTheirDirectory) {
  START();
  for (int i = 0; i < 1000; ++i) dir_.Write("a/b/n" + std::to_string(i), "");
  auto dirty = Check();
  // Or everything, if others have filled the queue that the whole file system shares.
  EXPECT_TRUE(dirty.everything() || dirty.directories.contains("/a/b"));
}

TEST_P(WatchTest, RandomOperations) {
  START();
  std::mt19937 random(11);
  const std::vector<std::string> names{"p", "q", "r"};
  // A random place in a tree three levels deep.
  auto place = [&] {
    std::string path;
    for (auto depth = random() % 3; depth > 0; --depth) path += names[random() % 3] + "/";
    return dir_ / (path + names[random() % 3]);
  };
  for (int step = 0; step < 500; ++step) {
    for (auto n = 1 + random() % 6; n > 0; --n) {
      const std::string a = place(), b = place();
      switch (random() % 9) {
        case 0:
        case 1: {
          const int fd = ::open(a.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
          if (fd < 0) break;
          EXPECT_EQ(::write(fd, "x", 1), 1);
          ::close(fd);
          break;
        }
        case 2:
        case 3: (void)::mkdir(a.c_str(), 0755); break;
        case 4: (void)::rename(a.c_str(), b.c_str()); break;
        case 5: (void)RemoveTree(a); break;
        case 6: (void)!::link(a.c_str(), b.c_str()); break;
        case 7: (void)!::symlink("t", a.c_str()); break;
        case 8: {
          struct stat st;
          if (::lstat(a.c_str(), &st) == 0 && !S_ISLNK(st.st_mode))
            (void)::chmod(a.c_str(), random() % 2 ? 0711 : 0755);
          break;
        }
      }
    }
    Check();
    if (HasFailure()) FAIL() << "at step " << step;
  }
}

TEST_P(WatchTest, MountsComeAndGo) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to mount";
  // In a child with its own mount namespace, so that nothing stays mounted. The watcher's thread belongs to the child.
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(60);
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) ::_exit(77);
    dir_.Mkdir("bind");
    Start();
    if (watcher_ == nullptr) ::_exit(77);
    if (::mount("t", (dir_ / "other").c_str(), "tmpfs", 0, nullptr) != 0) ::_exit(77);
    Check();
    dir_.Mkdir("other/in/the/mount");
    Check();
    dir_.Write("other/in/the/mount/f", "x");
    Check();
    ::mount((dir_ / "a").c_str(), (dir_ / "bind").c_str(), nullptr, MS_BIND, nullptr);
    Check();
    dir_.Write("a/b/through one", "x");
    Check();
    dir_.Write("bind/b/through the other", "x");
    Check();
    if (::umount((dir_ / "other").c_str()) != 0) ::_exit(78);  // we must not keep it mounted
    Check();
    dir_.Write("other/x/below", "x");
    Check();
    if (::umount((dir_ / "bind").c_str()) != 0) ::_exit(78);
    Check();
    watcher_ = nullptr;
    ::_exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "mounting or watching is not possible here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_P(WatchTest, AnIdleBarrierIsFast) {
  START();
  std::vector<int64_t> times;
  for (int i = 0; i < 1000; ++i) {
    const int64_t start = MonotonicMicros();
    Barrier();
    times.push_back(MonotonicMicros() - start);
  }
  std::sort(times.begin(), times.end());
  RecordProperty("median_us", static_cast<int>(times[500]));
  RecordProperty("p99_us", static_cast<int>(times[990]));
  std::printf("idle barrier: median %ld us, p99 %ld us\n", times[500], times[990]);
  EXPECT_LT(times[500], 5000);
}

INSTANTIATE_TEST_SUITE_P(Backends, WatchTest, testing::Values(Backend::kFanotify, Backend::kInotify),
                         [](const auto& info) { return info.param == Backend::kFanotify ? "fanotify" : "inotify"; });

TEST(Watch, TooFewWatchesMeanRescanAndSaySo) {
  tree::TestDirectory dir;
  for (int i = 0; i < 20; ++i) dir.Mkdir("d" + std::to_string(i));
  WatchOptions options;
  options.scan.root = dir.path();
  options.backend = Backend::kInotify;
  options.simulate_watch_limit = 10;
  auto refused = Watcher::Start(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kExhausted);
  EXPECT_NE(refused.error().message().find("max_user_watches"), std::string::npos);

  // Reached while running: from then on everything is rescanned.
  options.simulate_watch_limit = 25;
  auto watcher = Watcher::Start(options);
  ASSERT_TRUE(watcher) << watcher.error().message();
  EXPECT_EQ((*watcher)->kind(), "inotify");
  for (int i = 0; i < 10; ++i) dir.Mkdir("e" + std::to_string(i));
  EXPECT_TRUE((*watcher)->Barrier(1s)->everything());
  EXPECT_TRUE((*watcher)->Barrier(1s)->everything());
  EXPECT_EQ((*watcher)->kind(), "rescan");
  EXPECT_NE((*watcher)->reason().find("max_user_watches"), std::string::npos);
}

// `cp -al` of a tree: each link causes an event for its file.
TEST(Watch, ManyFilesByNumberAreNotEverything) {
  DirtyLog log;
  for (uint64_t ino = 1; ino <= 100'000; ++ino) log.Inode(ino);
  EXPECT_EQ(log.Take().inodes.size(), 100'000u);
  for (uint64_t ino = 1; ino <= 1'000'000; ++ino) log.Inode(ino);  // memory is bounded
  EXPECT_TRUE(log.Take().everything());
}

TEST(Watch, RescanSaysEverything) {
  WatchOptions options;
  options.backend = Backend::kRescan;
  auto watcher = Watcher::Start(options);
  ASSERT_TRUE(watcher);
  EXPECT_EQ((*watcher)->kind(), "rescan");
  EXPECT_TRUE((*watcher)->Barrier(1s)->everything());
}

TEST(Watch, TheBestAlwaysStartsUnlessTheRootIsNotThere) {
  tree::TestDirectory dir;
  WatchOptions options;
  options.scan.root = dir.path();
  auto watcher = Watcher::Start(options);
  ASSERT_TRUE(watcher) << watcher.error().message();
  dir.Write("x", "");
  EXPECT_FALSE((*watcher)->Barrier(1s)->empty());
  options.scan.root = dir / "missing";
  options.backend = Backend::kInotify;
  EXPECT_FALSE(Watcher::Start(options));
}

}  // namespace
}  // namespace vrun::home
