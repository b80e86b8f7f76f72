// SPDX-License-Identifier: Apache-2.0
#include "tree/scan/scan.h"

#include <dirent.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include <algorithm>
#include <functional>

#include "tree/testing/test_directory.h"

namespace vrun::tree {
namespace {

ScanOptions Options(const TestDirectory& dir) {
  ScanOptions options;
  options.root = dir.path();
  return options;
}

TreePtr MustScan(const ScanOptions& options, ScanStats* stats = nullptr) {
  auto snapshot = Scan(options, stats);
  EXPECT_TRUE(snapshot) << snapshot.error().message();
  return snapshot ? *snapshot : nullptr;
}

// Runs `body` in a child process (for namespaces and other users); its return value is the exit status.
int InChild(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(60);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

TEST(Scan, SeesEveryKindOfFile) {
  TestDirectory dir;
  dir.Write("plain", "hello");
  dir.Mkdir("sub/deeper");
  dir.Write("sub/deeper/x", "y");
  dir.Symlink("nowhere/at\nall", "link");
  dir.Symlink("loop", "loop");
  dir.Link("plain", "hard");
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  dir.Write("bad\xff\nname", "");
  dir.Write(std::string(255, 'n'), "");
  ASSERT_EQ(::truncate((dir / "sub/sparse").c_str(), 0), -1);
  dir.Write("sub/sparse", "");
  ASSERT_EQ(::truncate((dir / "sub/sparse").c_str(), 1 << 30), 0);
  struct timespec times[2] = {{5, 7}, {1234567890, 123456789}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (dir / "plain").c_str(), times, 0), 0);

  ScanStats stats;
  auto tree = MustScan(Options(dir), &stats);
  ASSERT_TRUE(tree);
  EXPECT_EQ(stats.entries, 11u);
  EXPECT_EQ(tree->entries, 11u);
  auto plain = *Lookup(*tree, "/plain");
  EXPECT_EQ(plain.size, 5u);
  EXPECT_EQ(plain.nlink, 2u);
  EXPECT_EQ(plain.mtime_ns, 1234567890123456789);
  EXPECT_EQ(Lookup(*tree, "/hard")->version(), plain.version());
  EXPECT_EQ(Lookup(*tree, "/link")->target, "nowhere/at\nall");
  EXPECT_EQ(Lookup(*tree, "/loop")->target, "loop");
  EXPECT_TRUE(S_ISFIFO(Lookup(*tree, "/fifo")->mode));
  EXPECT_TRUE(Lookup(*tree, "/bad\xff\nname"));
  EXPECT_TRUE(Lookup(*tree, "/" + std::string(255, 'n')));
  EXPECT_EQ(Lookup(*tree, "/sub/sparse")->size, 1u << 30);
  EXPECT_LT(Lookup(*tree, "/sub/sparse")->blocks, 100u);
  EXPECT_EQ(Lookup(*tree, "/sub/deeper/x")->size, 1u);
  EXPECT_EQ(MustScan(Options(dir))->id, tree->id) << "the same tree has the same id";
}

TEST(Scan, CarriesXattrs) {
  TestDirectory dir;
  dir.Write("f", "");
  dir.Mkdir("d");
  if (::setxattr((dir / "f").c_str(), "user.b", "2", 1, 0) != 0) GTEST_SKIP() << "no user xattrs on this file system";
  ASSERT_EQ(::setxattr((dir / "f").c_str(), "user.a", "", 0, 0), 0);
  ASSERT_EQ(::setxattr((dir / "d").c_str(), "user.c", std::string(1000, 'x').data(), 1000, 0), 0);
  auto tree = MustScan(Options(dir));
  const std::vector<std::pair<std::string, std::string>> wanted{{"user.a", ""}, {"user.b", "2"}};
  EXPECT_EQ(Lookup(*tree, "/f")->xattrs, wanted);
  EXPECT_EQ(Lookup(*tree, "/d")->xattrs.at(0).second.size(), 1000u);
  if (::geteuid() == 0 && ::setxattr((dir / "f").c_str(), "trusted.no", "x", 1, 0) == 0) {
    EXPECT_EQ(Lookup(*MustScan(Options(dir)), "/f")->xattrs, wanted) << "trusted.* is not part of a tree";
  }
}

TEST(Scan, HollowIsEmptyAndHiddenIsNotThere) {
  TestDirectory dir;
  for (const char* name : {"proc/1", "tmp/x", "keep/tmp", "home/u/.ssh", "state/deep"}) dir.Mkdir(name);
  dir.Write("home/u/.ssh/id", "secret");
  dir.Write("home/u/.ssh/id.pub", "public");
  ScanOptions options = Options(dir);
  options.hidden = {"/home/u/.ssh/id", "/state/", "/not/there"};
  auto tree = MustScan(options);
  EXPECT_EQ((*LookupDirectory(*tree, "/proc"))->size(), 0u);
  EXPECT_EQ((*LookupDirectory(*tree, "/tmp"))->size(), 0u);
  EXPECT_TRUE(Lookup(*tree, "/keep/tmp"));
  EXPECT_FALSE(Lookup(*tree, "/state"));
  EXPECT_FALSE(Lookup(*tree, "/home/u/.ssh/id"));
  EXPECT_TRUE(Lookup(*tree, "/home/u/.ssh/id.pub"));
  const Digest id = tree->id;
  dir.Write("tmp/another", "");
  EXPECT_EQ(MustScan(options)->id, id) << "what happens in a hollow directory is not part of the tree";
}

TEST(Scan, WhatIsBeingWrittenBackIsNotThereYet) {
  TestDirectory dir;
  for (const char* name : {".vrun-7-12", ".vrun-7-s-50331648", ".vrun-18446744073709551615-s-1"})
    dir.Write(name, "half");
  const std::vector<std::string> others = {".vrun-",   ".vrun-7",   ".vrun-7-", ".vrun-7-s-",   ".vrun-7-x-1",
                                           ".vrun--1", ".vrun-s-1", ".vrun-1a", ".vrun-7-s-1x", "x.vrun-7-s-1"};
  for (const std::string& name : others) dir.Write(name, "whole");
  const TreePtr snapshot = MustScan(Options(dir));
  ASSERT_TRUE(snapshot);
  EXPECT_EQ(snapshot->entries, others.size());
}

TEST(Scan, DeeperThanAnyPathMayBe) {
  TestDirectory dir;
  int at = ::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  constexpr int kDepth = 1000;
  const std::string name(20, 'd');
  for (int i = 0; i < kDepth; ++i) {
    ASSERT_EQ(::mkdirat(at, name.c_str(), 0755), 0);
    const int next = ::openat(at, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ASSERT_GE(next, 0);
    ::close(at);
    at = next;
  }
  ::close(at);
  auto tree = MustScan(Options(dir));
  ASSERT_TRUE(tree);
  EXPECT_EQ(tree->entries, static_cast<uint64_t>(kDepth));
}

TEST(Scan, ALargeDirectoryWithFewDescriptors) {
  TestDirectory dir;
  const int fd = ::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  dir.Mkdir("one");
  ASSERT_EQ(::mknodat(fd, "one/first", S_IFREG | 0644, 0), 0);
  const int one = ::openat(fd, "one", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  constexpr int kNames = 20000;
  for (int i = 0; i < kNames; ++i) ASSERT_EQ(::mknodat(one, ("n" + std::to_string(i)).c_str(), S_IFREG | 0644, 0), 0);
  ::close(one);
  ::close(fd);
  struct rlimit limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const struct rlimit low { 64, limit.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  ScanOptions options = Options(dir);
  options.threads = 8;
  auto tree = MustScan(options);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_TRUE(tree);
  EXPECT_EQ(tree->entries, kNames + 2u);
  EXPECT_EQ(MustScan(Options(dir))->id, tree->id);
}

TEST(Scan, ManyDirectoriesOnManyThreadsGiveOneTree) {
  TestDirectory dir;
  for (int i = 0; i < 40; ++i) {
    for (int j = 0; j < 20; ++j) {
      const std::string sub = "d" + std::to_string(i) + "/e" + std::to_string(j);
      dir.Mkdir(sub);
      dir.Write(sub + "/f", "x");
    }
  }
  ScanOptions options = Options(dir);
  options.threads = 1;
  auto one = MustScan(options);
  EXPECT_EQ(one->entries, 40u + 800 + 800);
  for (int round = 0; round < 5; ++round) {
    options.threads = 16;
    EXPECT_EQ(MustScan(options)->id, one->id);
  }
}

TEST(Scan, DoesNotChangeAtime) {
  TestDirectory dir;
  dir.Mkdir("d");
  struct timespec old[2] = {{1000, 0}, {2000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (dir / "d").c_str(), old, 0), 0);
  MustScan(Options(dir));
  struct stat st;
  ASSERT_EQ(::stat((dir / "d").c_str(), &st), 0);
  EXPECT_EQ(st.st_atim.tv_sec, 1000);
}

TEST(Scan, AMissingRootIsAnError) {
  ScanOptions options;
  options.root = "/var/tmp/vrun-no-such-directory";
  auto tree = Scan(options);
  ASSERT_FALSE(tree);
  EXPECT_EQ(tree.error().code(), Code::kNotFound);
  EXPECT_NE(tree.error().message().find("vrun-no-such-directory"), std::string::npos);
}

TEST(Scan, WhatAUserMayNotReadIsEmpty) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  TestDirectory dir;
  ASSERT_EQ(::chmod(dir.path().c_str(), 0755), 0);
  dir.Mkdir("closed/in");
  dir.Mkdir("searchable/in");
  dir.Mkdir("listable/in");
  dir.Write("listable/file", "");
  ::chmod((dir / "closed").c_str(), 0700);
  ::chmod((dir / "searchable").c_str(), 0711);
  ::chmod((dir / "listable").c_str(), 0744);
  const int failures = InChild([&] {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(1234, 1234, 1234) != 0 || ::setresuid(1234, 1234, 1234) != 0)
      return 100;
    ScanStats stats;
    auto tree = Scan(Options(dir), &stats);
    if (!tree) return 101;
    int wrong = 0;
    for (const char* name : {"/closed", "/searchable", "/listable"}) {
      auto sub = LookupDirectory(**tree, name);
      if (!sub || (*sub)->size() != 0) ++wrong;
    }
    if (stats.unreadable_directories != 2) wrong += 10;
    return wrong;
  });
  EXPECT_EQ(failures, 0);
}

TEST(Scan, MountsOfTheKernelAreEmptyAndLocalOnesAreIn) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to mount";
  TestDirectory dir;
  for (const char* name : {"kernel", "disk", "bind", "source/inner"}) dir.Mkdir(name);
  const int result = InChild([&] {
    if (::unshare(CLONE_NEWNS) != 0) return 77;
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 77;
    if (::mount("proc", (dir / "kernel").c_str(), "proc", 0, nullptr) != 0) return 77;
    if (::mount("t", (dir / "disk").c_str(), "tmpfs", 0, nullptr) != 0) return 77;
    if (::mount((dir / "source").c_str(), (dir / "bind").c_str(), nullptr, MS_BIND, nullptr) != 0) return 77;
    if (::mkdir((dir / "disk/in").c_str(), 0755) != 0) return 78;
    auto tree = Scan(Options(dir));
    if (!tree) return 1;
    if ((*LookupDirectory(**tree, "/kernel"))->size() != 0) return 2;
    if (!Lookup(**tree, "/disk/in")) return 3;
    if (!Lookup(**tree, "/bind/inner")) return 4;
    return 0;
  });
  if (result == 77) GTEST_SKIP() << "mounting is not possible here";
  EXPECT_EQ(result, 0);
}

TEST(ReadEntry, ReadsOneName) {
  TestDirectory dir;
  dir.Write("f", "abc");
  const int fd = ::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  EXPECT_EQ(ReadEntry(fd, "f")->size, 3u);
  EXPECT_TRUE(ReadEntry(fd, "")->is_directory());
  EXPECT_EQ(ReadEntry(fd, "nope").error().code(), Code::kNotFound);
  ::close(fd);
}

}  // namespace
}  // namespace vrun::tree
