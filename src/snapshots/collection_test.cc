// SPDX-License-Identifier: Apache-2.0
#include "snapshots/collection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "base/files.h"
#include "snapshots/testing/collection_testing.h"

namespace vrun::snapshots {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(CollectionTest, EverythingIsReadableWhenTheRootIsGoneAndTheStoreWasStartedAgain) {
  const std::string large = Random(9'500'000, 1), middle = Random(300'000, 2);
  Write("bin/large", large);
  Write("bin/middle", middle);
  Write("etc/small", "small\n");
  Write("etc/empty", "");
  std::filesystem::create_symlink("small", root_.path() + "/etc/link");
  std::filesystem::create_hard_link(root_.path() + "/etc/small", root_.path() + "/etc/other");
  const v1::SnapshotInfo info = Made("one");
  EXPECT_EQ(info.entries(), 8u);
  EXPECT_EQ(info.sent_bytes(), large.size() + middle.size() + 6);

  std::filesystem::remove_all(root_.path() + "/bin");
  std::filesystem::remove_all(root_.path() + "/etc");
  OpenCollection();
  Disconnect();
  EXPECT_EQ(*Read("one", "/bin/large"), large);
  EXPECT_EQ(*Read("one", "/bin/middle"), middle);
  EXPECT_EQ(*Read("one", "/etc/small"), "small\n");
  EXPECT_EQ(*Read("one", "/etc/other"), "small\n");
  EXPECT_EQ(*Read("one", "/etc/empty"), "");
  EXPECT_EQ(tree::Lookup(*(*collection_->Find("one"))->tree, "/etc/link")->target, "small");
  const auto loaded = collection_->List();
  ASSERT_EQ(loaded.size(), 1u);
  EXPECT_EQ(loaded[0].SerializeAsString(), info.SerializeAsString());
}

TEST_F(CollectionTest, TheNextSnapshotSendsWhatChanged) {
  Write("a/large", Random(5'000'000, 3));
  for (int i = 0; i < 100; ++i) Write("b/" + std::to_string(i), Random(1000, static_cast<uint32_t>(i)));
  Made("one");
  Write("b/7", "changed");
  const uint64_t before = server_->served_bytes();
  EXPECT_EQ(Made("two").sent_bytes(), 7u);
  EXPECT_LT(server_->served_bytes() - before, 20'000u);  // plus two directories
  EXPECT_EQ(*Read("one", "/b/7"), Random(1000, 7));
  EXPECT_EQ(*Read("two", "/b/7"), "changed");
}

TEST_F(CollectionTest, ASnapshotOfAPartInBetweenCostsTheNextWholeOneNothing) {
  for (int i = 0; i < 500; ++i) Write("a/" + std::to_string(i), Random(100, static_cast<uint32_t>(i)));
  Write("b/file", "1");
  Made("whole");
  Made("part", {"/b"});
  Write("b/file", "2");
  const uint64_t before = server_->served_bytes();
  Made("next");
  EXPECT_LT(server_->served_bytes() - before, 2'000u);
}

TEST_F(CollectionTest, TheSameContentElsewhereIsNotKeptTwice) {
  const std::string content = Random(2'000'000, 4);
  Write("a", content);
  Made("one");
  const uint64_t before = DiskBytes();
  Write("b", content);
  Made("two");
  EXPECT_LT(DiskBytes(), before + 100'000);
  EXPECT_EQ(*Read("two", "/b"), content);
}

TEST_F(CollectionTest, WhatHomeMayNotReadIsLeftOutAndSaid) {
  Write("etc/shadow", "secret");
  Write("etc/passwd", "public");
  files_->denied = "/etc/shadow";
  const v1::SnapshotInfo info = Made("one");
  EXPECT_EQ(info.unreadable_files(), 1u);
  EXPECT_THAT(info.unreadable(), ElementsAre("/etc/shadow"));
  EXPECT_EQ(*Read("one", "/etc/passwd"), "public");
  EXPECT_EQ(Read("one", "/etc/shadow").error().code(), Code::kDenied);
  // Later snapshots also know it, even after a restart of the store.
  OpenCollection();
  Write("more", "m");
  EXPECT_THAT(Made("two").unreadable(), ElementsAre("/etc/shadow"));
  EXPECT_EQ(Read("two", "/etc/shadow").error().code(), Code::kDenied);
  EXPECT_THAT(Differences("one", "two"), ElementsAre("+/more"));
}

TEST_F(CollectionTest, AFileThatChangedMeanwhileIsNamedAndNothingIsMade) {
  Write("steady", "1");
  Write("busy", "2");
  const auto tree = Scan();
  Write("busy", "changed since");
  auto created = Create("one", tree);
  ASSERT_TRUE(created) << created.error().message();
  EXPECT_THAT(created->changed, ElementsAre("/busy"));
  EXPECT_THAT(collection_->List(), IsEmpty());
  EXPECT_EQ(*Read((Made("one"), "one"), "/busy"), "changed since");
}

TEST_F(CollectionTest, WhatIsDeletedIsFreeAndWhatOthersNeedIsNot) {
  Write("shared", Random(3'000'000, 5));
  Write("first", Random(4'000'000, 6));
  Made("one");
  std::filesystem::remove(root_.path() + "/first");
  Made("two");
  {
    const auto used = collection_->Find("one");
    const auto refused = collection_->Delete({"two", "one"});
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message(), HasSubstr("snapshot one: it is in use"));
  }
  // Waits for a user who is about to release it.
  std::thread user([used = *collection_->Find("one")]() mutable {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    used.reset();
  });
  auto freed = collection_->Delete({"one"});
  user.join();
  ASSERT_TRUE(freed) << freed.error().message();
  EXPECT_GE(*freed, 4'000'000u);
  EXPECT_LT(DiskBytes(), 3'200'000u);
  EXPECT_FALSE(collection_->Find("one"));
  OpenCollection();
  EXPECT_EQ(*Read("two", "/shared"), Random(3'000'000, 5));
  // The name is free, and the needed content is fetched again.
  Write("first", Random(4'000'000, 6));
  EXPECT_EQ(Made("one").sent_bytes(), 4'000'000u);
  EXPECT_EQ(*Read("one", "/first"), Random(4'000'000, 6));
}

TEST_F(CollectionTest, DifferencesSayWhatAPersonWouldSay) {
  Write("same", "x");
  Write("touched", "y");
  Write("content", "one");
  Write("mode", "m");
  Write("owner", "o");
  Write("attribute", "a");
  Write("type", "t");
  Write("gone/below", "g");
  std::filesystem::create_symlink("here", root_.path() + "/link");
  Made("from");
  Write("touched", "y");  // another time, perhaps another inode, the same content
  Write("content", "two");
  ::chmod((root_.path() + "/mode").c_str(), 0600);
  const bool root = ::geteuid() == 0 && ::chown((root_.path() + "/owner").c_str(), 12, 13) == 0;
  const bool xattrs = ::setxattr((root_.path() + "/attribute").c_str(), "user.note", "n", 1, 0) == 0;
  std::filesystem::remove(root_.path() + "/type");
  std::filesystem::create_directory(root_.path() + "/type");
  std::filesystem::remove_all(root_.path() + "/gone");
  Write("new/below", "n");
  std::filesystem::remove(root_.path() + "/link");
  std::filesystem::create_symlink("there", root_.path() + "/link");
  Made("to");
  std::vector<std::string> wanted{"~/content content", "~/mode mode", "~/type type", "-/gone",
                                  "-/gone/below",      "+/new",       "+/new/below", "~/link target"};
  if (root) wanted.push_back("~/owner owner");
  if (xattrs) wanted.push_back("~/attribute xattr");
  EXPECT_THAT(Differences("from", "to"), testing::UnorderedElementsAreArray(wanted));
  EXPECT_THAT(Differences("to", "to"), IsEmpty());
}

TEST_F(CollectionTest, APartOfTheRoot) {
  Write("home/project/main.py", "print()");
  Write("home/other", "o");
  Write("etc/passwd", "p");
  const v1::SnapshotInfo info = Made("part", {"/home/project", "/etc/passwd"});
  EXPECT_EQ(info.entries(), 5u);
  EXPECT_EQ(*Read("part", "/home/project/main.py"), "print()");
  EXPECT_EQ(*Read("part", "/etc/passwd"), "p");
  EXPECT_EQ(Read("part", "/home/other").error().code(), Code::kNotFound);
}

TEST_F(CollectionTest, DamageIsAnErrorAndNoWrongByte) {
  Write("file", Random(50'000, 8));
  Made("one");
  for (const auto& file : std::filesystem::recursive_directory_iterator(disk_.path() + "/store/objects")) {
    if (!file.is_regular_file() || file.path().extension() == ".map") continue;
    const UniqueFd fd(::open(file.path().c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_TRUE(PwriteAll(fd.get(), "damage", 20'000));
  }
  OpenCollection();
  const auto read = Read("one", "/file");
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), Code::kCorrupt);
  EXPECT_THAT(read.error().message(), HasSubstr("/file: damaged in the snapshot store"));
}

TEST_F(CollectionTest, ADamagedRecordCostsThatSnapshotOnly) {
  Write("file", "content");
  Made("one");
  Write("more", "more");
  Made("two");
  ASSERT_TRUE(WriteFileAtomic(disk_.path() + "/snapshots/one", "rubbish", 0600));
  OpenCollection();
  EXPECT_EQ(collection_->Find("one").error().code(), Code::kCorrupt);
  EXPECT_EQ(*Read("two", "/file"), "content");
  ASSERT_TRUE(collection_->Delete({"one"}));
  EXPECT_EQ(collection_->Find("one").error().code(), Code::kNotFound);
  EXPECT_EQ(*Read("two", "/more"), "more");
}

TEST_F(CollectionTest, AFullDiskIsAnErrorAndCostsNoOtherSnapshot) {
  Disconnect();
  collection_.reset();
  if (::mount("none", disk_.path().c_str(), "tmpfs", 0, "size=8m") != 0) GTEST_SKIP() << "needs root to mount";
  OpenCollection();
  Write("first", Random(4'000'000, 9));
  Made("one");
  Write("second", Random(6'000'000, 10));
  const auto refused = Create("two", Scan());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kExhausted) << refused.error().message();
  EXPECT_EQ(*Read("one", "/first"), Random(4'000'000, 9));
  // Works again once there is room.
  std::filesystem::remove(root_.path() + "/second");
  Write("third", "small");
  ASSERT_TRUE(collection_->Delete({"one"}));
  Made("three");
  EXPECT_EQ(*Read("three", "/first"), Random(4'000'000, 9));
  Disconnect();
  collection_.reset();
  ::umount2(disk_.path().c_str(), MNT_DETACH);
}

TEST_F(CollectionTest, NamesAreThoseOfTags) {
  for (const char* name : {"", "a/b", "..", ".a", "-a", "a b", "\x1b[2J"}) EXPECT_FALSE(CheckName(name)) << name;
  EXPECT_FALSE(CheckName(std::string(129, 'a')));
  for (const char* name : {"a", "v1.2-rc_3", "2026"}) EXPECT_TRUE(CheckName(name)) << name;
  Write("file", "content");
  Made("one");
  EXPECT_EQ(Create("one", Scan()).error().code(), Code::kExists);
}

}  // namespace
}  // namespace vrun::snapshots
