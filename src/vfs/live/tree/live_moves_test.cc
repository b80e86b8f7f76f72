// SPDX-License-Identifier: Apache-2.0
// Home renames files and directories that are in use in a live view.
#include "vfs/live/tree/live_moves.h"

#include <linux/fs.h>
#include <linux/fuse.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <map>
#include <thread>

#include "base/clock.h"
#include "vfs/testing/live_advance_testing.h"

namespace vrun::vfs {
namespace {

using LiveMovesTest = LiveAdvanceTest;

TEST_F(LiveMovesTest, WhoStandsInADirectoryThatHomeRenamesGoesWithIt) {
  Write("/proj/sub/file", "content");
  Write("/proj/sub/later", "not read yet");
  Mount();
  const UniqueFd sub(::open(In("/proj/sub").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_TRUE(sub);
  const uint64_t inode = Stat(In("/proj/sub")).st_ino;
  ASSERT_EQ(::rename(Origin("/proj").c_str(), Origin("/project").c_str()), 0);
  Follow();
  EXPECT_FALSE(Is(In("/proj")));
  EXPECT_EQ(Stat(In("/project/sub")).st_ino, inode);
  EXPECT_EQ(ReadFile("/proc/self/fd/" + std::to_string(sub.get()) + "/later").value_or("?"), "not read yet");
  const UniqueFd made(::openat(sub.get(), "made", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  ASSERT_TRUE(made) << std::strerror(errno);
  EXPECT_TRUE(Is(In("/project/sub/made")));
  EXPECT_EQ(Link("/proc/self/fd/" + std::to_string(sub.get())), In("/project/sub"));
  // Into a new directory that nobody here knows.
  ASSERT_EQ(::mkdir(Origin("/archive").c_str(), 0755), 0);
  ASSERT_EQ(::mkdir(Origin("/archive/2026").c_str(), 0755), 0);
  Write("/project/sub/file", "new content");
  ASSERT_EQ(::rename(Origin("/project/sub").c_str(), Origin("/archive/2026/sub").c_str()), 0);
  FollowPushed();
  EXPECT_EQ(Content("/archive/2026/sub/file"), "new content");
  EXPECT_TRUE(Is(In("/archive/2026/sub/made")));
  EXPECT_FALSE(Is(In("/project/sub")));
  EXPECT_EQ(Stat(In("/archive/2026/sub")).st_ino, inode);
}

TEST_F(LiveMovesTest, APathOfWhoStandsThereIsRightAllTheTime) {
  options_.journal = directory_.path() + "/journal";
  Write("/proj/sub/file", "content");
  Mount();
  if (!view_->stats().no_open) GTEST_SKIP() << "this kernel asks for opens";
  const UniqueFd sub(::open(In("/proj/sub").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::rename(Origin("/proj").c_str(), Origin("/project").c_str()), 0);
  Follow();
  const std::string link = "/proc/self/fd/" + std::to_string(sub.get());
  const std::string path = Link(link);
  EXPECT_TRUE(path == In("/proj/sub") || path == In("/project/sub")) << path;
  EXPECT_TRUE(Soon([&] { return Link(link) == In("/project/sub"); })) << Link(link);  // new path never looked up
}

TEST_F(LiveMovesTest, RenamesAreFoundHoweverTheyAreDone) {
  for (const char* name : {"/a/in", "/b/in", "/c/in", "/d/e/in"}) Write(name, name);
  Mount();
  const auto inode = [&](const std::string& path) { return Stat(In(path)).st_ino; };
  std::map<std::string, uint64_t> was;
  const auto look = [&](const std::string& path) { was[path] = (Content(path + "/in"), inode(path)); };
  for (const char* path : {"/a", "/b", "/c", "/d", "/d/e"}) look(path);
  // Exchanges two names.
  ASSERT_EQ(::renameat2(AT_FDCWD, Origin("/a").c_str(), AT_FDCWD, Origin("/b").c_str(), RENAME_EXCHANGE), 0);
  // Moves a directory into the one that now has its name.
  ASSERT_EQ(::rename(Origin("/c").c_str(), Origin("/tmp").c_str()), 0);
  ASSERT_EQ(::mkdir(Origin("/c").c_str(), 0755), 0);
  ASSERT_EQ(::rename(Origin("/tmp").c_str(), Origin("/c/old").c_str()), 0);
  // Moves the inner directory out and the outer one into it.
  ASSERT_EQ(::rename(Origin("/d/e").c_str(), Origin("/e").c_str()), 0);
  ASSERT_EQ(::rename(Origin("/d").c_str(), Origin("/e/d").c_str()), 0);
  FollowPushed();
  EXPECT_EQ(inode("/a"), was["/b"]);
  EXPECT_EQ(inode("/b"), was["/a"]);
  EXPECT_EQ(inode("/c/old"), was["/c"]);
  EXPECT_NE(inode("/c"), was["/c"]);
  EXPECT_EQ(inode("/e"), was["/d/e"]);
  EXPECT_EQ(inode("/e/d"), was["/d"]);
  EXPECT_EQ(Describe(mount_), Describe(origin_));
  // Over a known name, and over one whose inode number is reused while another is removed.
  look("/a");
  ASSERT_TRUE(RemoveTree(Origin("/b")));
  ASSERT_EQ(::rename(Origin("/a").c_str(), Origin("/b").c_str()), 0);
  Follow();
  EXPECT_EQ(inode("/b"), was["/a"]);
  EXPECT_FALSE(Is(In("/a")));
  // Another directory gets the inode number, with content and without.
  for (const bool empty : {false, true}) {
    const std::string gone = empty ? "/empty" : "/b";
    if (empty) {
      ASSERT_EQ(::mkdir(Origin(gone).c_str(), 0755), 0);
    }
    Follow();
    const uint64_t number = Stat(Origin(gone)).st_ino;
    const UniqueFd fd(::open(In(gone).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    EXPECT_TRUE(fd && Stat(In(gone)).st_nlink > 0);
    ASSERT_TRUE(RemoveTree(Origin(gone)));
    std::string name;
    for (int i = 0; i < 200 && name.empty(); ++i) {
      const std::string made = gone + std::to_string(i);
      ASSERT_EQ(::mkdir(Origin(made).c_str(), 0755), 0);
      if (Stat(Origin(made)).st_ino == number) name = made;
    }
    Follow();
    EXPECT_EQ(Describe(mount_), Describe(origin_));
    if (name.empty()) continue;
    EXPECT_EQ(::openat(fd.get(), "x", O_WRONLY | O_CREAT | O_CLOEXEC, 0644), -1) << name << " is another directory";
  }
}

TEST_F(LiveMovesTest, WhatIsOursInADirectoryThatHomeRenamesIsThere) {
  Write("/dir/home", "x");
  Mount();
  const uint64_t before = view_->changes();
  Put(In("/dir/ours"), "ours");
  const UniqueFd fd(::open(In("/dir/ours").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  ASSERT_EQ(::rename(Origin("/dir").c_str(), Origin("/moved").c_str()), 0);
  Follow(before);
  ASSERT_TRUE(WriteAll(fd.get(), " and more"));
  EXPECT_EQ(Content("/moved/ours"), "ours and more");
  EXPECT_EQ(Content("/moved/home"), "x");
  EXPECT_FALSE(Is(In("/dir")));
}

TEST_F(LiveMovesTest, WhatAJobHasWrittenKeepsItsPlaceWhenHomeRenamesIt) {
  Write("/other", "x");
  Mount();
  for (const char* name : {"/log", "/mode"}) {
    Put(In(name), "ours");
    Put(Origin(name), "ours");  // as home applies it
    const timespec times[2] = {Stat(In(name)).st_atim, Stat(In(name)).st_mtim};
    ASSERT_EQ(::utimensat(AT_FDCWD, Origin(name).c_str(), times, 0), 0);
    view_->Acknowledge(NodeOf(In(name)), VersionOf(name));
  }
  ASSERT_TRUE(Soon([&] { return Requests(FUSE_RELEASE) >= 2; }));
  FollowAll();
  const UniqueFd log(::open(In("/log").c_str(), O_RDONLY | O_CLOEXEC));
  const uint64_t inode = Stat(In("/log")).st_ino, mode = Stat(In("/mode")).st_ino;
  ASSERT_EQ(::rename(Origin("/log").c_str(), Origin("/log.1").c_str()), 0);
  ASSERT_EQ(::chmod(Origin("/mode").c_str(), 0600), 0);
  Follow();
  EXPECT_FALSE(Is(In("/log")));
  EXPECT_EQ(Stat(In("/log.1")).st_ino, inode);
  struct stat st {};
  EXPECT_TRUE(::fstat(log.get(), &st) == 0 && st.st_nlink == 1);
  EXPECT_EQ(Stat(In("/mode")).st_ino, mode);
  EXPECT_EQ(Stat(In("/mode")).st_mode & 0777, 0600u);
  EXPECT_EQ(Describe(mount_), Describe(origin_));
  // Written at home since then, so it is another file.
  ASSERT_EQ(::rename(Origin("/log.1").c_str(), Origin("/log.2").c_str()), 0);
  Write("/log.2", "home's");
  Follow();
  EXPECT_EQ(Content("/log.2"), "home's");
  EXPECT_EQ(All(log.get()), "ours");
}

TEST_F(LiveMovesTest, AFifoThatHomeRenamesIsTheSame) {
  ASSERT_EQ(::mkfifo(Origin("/fifo").c_str(), 0644), 0);
  Mount();
  const UniqueFd reader(::open(In("/fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_EQ(::rename(Origin("/fifo").c_str(), Origin("/pipe").c_str()), 0);
  Follow();
  const UniqueFd writer(::open(In("/pipe").c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(writer && WriteAll(writer.get(), "through"));
  char data[16] = {};
  EXPECT_EQ(::read(reader.get(), data, sizeof data), 7);
}

}  // namespace
}  // namespace vrun::vfs
