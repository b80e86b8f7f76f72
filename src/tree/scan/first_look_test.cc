// SPDX-License-Identifier: Apache-2.0
#include "tree/scan/first_look.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tree/diff.h"
#include "tree/testing/test_directory.h"
#include "tree/unread.h"

namespace vrun::tree {
namespace {

class FirstLookTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.root = dir_.path();
    for (const char* d : {"a/b/c", "other/x/y", "tmp/in"}) dir_.Mkdir(d);
    dir_.Write("f", "0");
    dir_.Write("a/f", "1");
    dir_.Write("a/b/g", "2");
    dir_.Write("other/x/h", "3");
    auto now = FirstLook(options_);
    ASSERT_TRUE(now) << now.error().message();
    now_ = *now;
  }
  TreePtr Whole() { return Scan(options_).value(); }
  void Apply(const DirtySet& dirty) {
    auto next = Rescan(now_, dirty, options_);
    ASSERT_TRUE(next) << next.error().message();
    now_ = *next;
  }
  void Want(std::set<std::string> paths) {
    DirtySet dirty;
    dirty.wanted = std::move(paths);
    Apply(dirty);
  }
  void Read(const std::string& path) {
    auto piece = PieceAt(*now_, path);
    ASSERT_TRUE(piece) << path;
    ASSERT_TRUE(ReadPiece(options_, &*piece));
    auto next = PutPiece(now_, *piece);
    ASSERT_TRUE(next && *next) << path;
    now_ = *next;
  }

  TestDirectory dir_;
  ScanOptions options_;
  TreePtr now_;
};

TEST_F(FirstLookTest, KnowsOnlyTheRootsOwnNames) {
  EXPECT_EQ(now_->directory->size(), 4u);
  EXPECT_EQ(Lookup(*now_, "/f")->size, 1u);
  EXPECT_TRUE(IsUnread(Lookup(*now_, "/a")->child));
  EXPECT_FALSE(IsUnread(Lookup(*now_, "/tmp")->child));  // hollow
  EXPECT_EQ(UnreadAbove(*now_, "/a/b/g"), "/a");
  EXPECT_EQ(UnreadAbove(*now_, "/f"), "");
  EXPECT_EQ(UnreadAbove(*now_, "/nothing/x"), "");
  EXPECT_EQ(UnreadAbove(*now_, "/"), "");
}

TEST_F(FirstLookTest, ListsWhatIsWantedAndTheDirectoriesOnTheWayThere) {
  Want({"/a/b/g", "/gone/x", "/f/x"});
  EXPECT_EQ(Lookup(*now_, "/a/b/g")->version(), Lookup(*Whole(), "/a/b/g")->version());
  EXPECT_EQ(Lookup(*now_, "/a/f")->size, 1u);
  EXPECT_EQ(UnreadAbove(*now_, "/a/b/c/x"), "/a/b/c");
  EXPECT_EQ(UnreadAbove(*now_, "/other/x"), "/other");
  Want({"/a/b/c", "/other/x/y"});
  EXPECT_EQ(AnyUnread(now_->directory, "/"), "");
  EXPECT_EQ(now_->id, Whole()->id) << Describe(*now_) << "\nscan\n" << Describe(*Whole());
}

TEST_F(FirstLookTest, ThePiecesAreTheWhole) {
  Want({"/a/b"});
  const std::string left = AnyUnread(now_->directory, "/");
  EXPECT_TRUE(left == "/other" || left == "/a/b/c") << left;
  Read("/a");
  Read("/other");
  EXPECT_EQ(AnyUnread(now_->directory, "/"), "");
  EXPECT_EQ(now_->id, Whole()->id);
}

TEST_F(FirstLookTest, AChangeInAnUnreadDirectoryReadsNothing) {
  dir_.Write("a/b/new", "4");
  DirtySet dirty;
  dirty.names["/a/b"].insert("new");
  dirty.names["/"].insert("f");
  dirty.recursive.insert("/other/x");
  Apply(dirty);
  EXPECT_TRUE(IsUnread(Lookup(*now_, "/a")->child));
  EXPECT_TRUE(IsUnread(Lookup(*now_, "/other")->child));
  Want({"/a/b"});
  EXPECT_EQ(Lookup(*now_, "/a/b/new")->size, 1u);
}

TEST_F(FirstLookTest, APieceOfADirectoryThatWasReplacedIsNotTaken) {
  auto piece = PieceAt(*now_, "/a");
  ASSERT_TRUE(piece && ReadPiece(options_, &*piece));
  dir_.Rename("a", "b");
  dir_.Mkdir("a");
  DirtySet dirty;
  dirty.names["/"] = {"a", "b"};
  Apply(dirty);
  auto next = PutPiece(now_, *piece);
  ASSERT_TRUE(next);
  EXPECT_EQ(*next, nullptr);
  EXPECT_TRUE(IsUnread(Lookup(*now_, "/a")->child));
  EXPECT_EQ(Lookup(*now_, "/b/f")->size, 1u);
}

TEST_F(FirstLookTest, WhatIsReadIsNewToWhoeverHasTheTreeBefore) {
  const TreePtr before = now_;
  Read("/a");
  std::set<std::string> paths;
  for (const NewDirectory& item : NewDirectories(before->directory, now_->directory)) paths.insert(item.path);
  EXPECT_EQ(paths, (std::set<std::string>{"/", "/a", "/a/b", "/a/b/c"}));
}

}  // namespace
}  // namespace vrun::tree
