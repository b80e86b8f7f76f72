// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <random>

#include "tree/scan/scan.h"
#include "tree/testing/test_directory.h"

namespace vrun::tree {
namespace {

class RescanTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.root = dir_.path();
    for (const char* d : {"a/b/c", "other/x", "tmp"}) dir_.Mkdir(d);
    dir_.Write("a/f", "1");
    dir_.Write("a/b/g", "2");
    dir_.Write("other/x/h", "3");
    Start();
  }

  void Start() {
    auto base = Scan(options_);
    ASSERT_TRUE(base) << base.error().message();
    base_ = *base;
  }

  // The rescan must equal a scan.
  TreePtr Check(const DirtySet& dirty) {
    auto now = Rescan(base_, dirty, options_);
    auto whole = Scan(options_);
    if (!now || !whole) {
      ADD_FAILURE() << (now ? whole.error().message() : now.error().message());
      return nullptr;
    }
    if ((*now)->id != (*whole)->id) {
      ADD_FAILURE() << "rescan:\n" << Describe(**now) << "scan:\n" << Describe(**whole);
    }
    EXPECT_EQ((*now)->entries, (*whole)->entries);
    EXPECT_EQ((*now)->bytes, (*whole)->bytes);
    return *now;
  }

  static DirtySet Directories(std::set<std::string> paths) {
    DirtySet dirty;
    dirty.directories = std::move(paths);
    return dirty;
  }
  static DirtySet Names(std::map<std::string, std::set<std::string>> names) {
    DirtySet dirty;
    dirty.names = std::move(names);
    return dirty;
  }

  TestDirectory dir_;
  ScanOptions options_;
  TreePtr base_;
};

TEST_F(RescanTest, NothingDirtyIsTheSameSnapshot) {
  EXPECT_EQ(*Rescan(base_, {}, options_), base_);
  EXPECT_EQ(*Rescan(base_, Directories({"/a"}), options_), base_);
}

TEST_F(RescanTest, SaysWhetherNamesHaveChanged) {
  const auto changed = [&](const DirtySet& dirty) {
    bool names = false;
    const auto now = Rescan(base_, dirty, options_, &names);
    EXPECT_TRUE(now);
    base_ = *now;
    return names;
  };
  dir_.Write("a/b/g", "longer, in place");
  EXPECT_FALSE(changed(Names({{"/a/b", {"g"}}})));
  EXPECT_FALSE(changed(Directories({"/a/b"})));
  dir_.Write("a/b/new", "x");
  EXPECT_TRUE(changed(Names({{"/a/b", {"new"}}})));
  EXPECT_TRUE(changed(Names({{"/a/b", {"came and went"}}})));
  ASSERT_EQ(::rename((dir_.path() + "/a/b/new").c_str(), (dir_.path() + "/a/b/g").c_str()), 0);
  EXPECT_TRUE(changed(Names({{"/a/b", {"g"}}})));  // of another file
  EXPECT_TRUE(changed(Names({{"/a/b", {"new"}}})));
  ASSERT_EQ(::rename((dir_.path() + "/other/x").c_str(), (dir_.path() + "/other/y").c_str()), 0);
  EXPECT_TRUE(changed(Directories({"/other"})));
  EXPECT_FALSE(changed(Directories({"/other", "/a", "/a/b"})));
}

TEST_F(RescanTest, SharesWhatDidNotChange) {
  dir_.Write("a/b/new", "x");
  auto now = Check(Names({{"/a/b", {"new"}}}));
  ASSERT_TRUE(now);
  EXPECT_EQ(*LookupDirectory(*now, "/other"), *LookupDirectory(*base_, "/other"));
  EXPECT_EQ(*LookupDirectory(*now, "/a/b/c"), *LookupDirectory(*base_, "/a/b/c"));
  EXPECT_NE((*LookupDirectory(*now, "/a"))->digest(), (*LookupDirectory(*base_, "/a"))->digest());
}

TEST_F(RescanTest, AFileOnItsWayHomeIsInNoTree) {
  dir_.Write("a/.vrun-7-s-12", "half");
  dir_.Write("a/whole", "whole");
  const auto now = Check(Names({{"/a", {".vrun-7-s-12", "whole"}}}));
  ASSERT_TRUE(now);
  const auto directory = *LookupDirectory(*now, "/a");
  EXPECT_LT(directory->Find("whole"), directory->size());
  EXPECT_EQ(directory->Find(".vrun-7-s-12"), directory->size());
}

TEST_F(RescanTest, CreatedChangedRemoved) {
  dir_.Append("a/f", "more");
  dir_.Mkdir("a/new/deep");
  dir_.Write("a/new/deep/file", "x");
  dir_.Remove("a/b/g");
  Check(Directories({"/a", "/a/b"}));
  Check(Names({{"/a", {"f", "new"}}, {"/a/b", {"g"}}}));
}

TEST_F(RescanTest, AFileBecomesADirectoryAndBack) {
  dir_.Remove("a/f");
  dir_.Mkdir("a/f/in");
  dir_.Remove("a/b");
  dir_.Write("a/b", "now a file");
  Check(Directories({"/a", "/a/b", "/a/b/c"}));
  Check(Names({{"/a", {"f", "b"}}, {"/a/b", {"g"}}, {"/a/f", {"in"}}}));
}

TEST_F(RescanTest, ADirectoryBecomesASymlinkToAnother) {
  dir_.Remove("a/b");
  dir_.Symlink("../other", "a/b");
  Check(Directories({"/a", "/a/b", "/a/b/c"}));
}

TEST_F(RescanTest, PathsThatAreGoneHollowOrHidden) {
  options_.hidden = {"/a/hidden", "/a/secret-file"};
  dir_.Mkdir("a/hidden/x");
  Start();
  dir_.Write("a/hidden/x/y", "");
  dir_.Write("a/secret-file", "");
  dir_.Write("tmp/x", "");
  DirtySet dirty =
      Directories({"/a", "/a/hidden/x", "/a/hidden", "/tmp", "/tmp/q", "/gone/for/ever", "/a/f/not/a/directory"});
  dirty.names = {{"/tmp", {"x"}}, {"/a", {"secret-file", "hidden"}}, {"/a/hidden/x", {"y"}}};
  dirty.recursive = {"/a/hidden/x", "/tmp", "/nope"};
  auto now = Check(dirty);
  EXPECT_FALSE(Lookup(*now, "/a/hidden"));
  EXPECT_FALSE(Lookup(*now, "/a/secret-file"));
}

TEST_F(RescanTest, ARenamedTree) {
  dir_.Rename("a/b", "other/moved");
  dir_.Write("other/moved/c/late", "x");
  DirtySet dirty = Names({{"/a", {"b"}}, {"/other", {"moved"}}});
  dirty.recursive = {"/other/moved"};
  Check(dirty);
}

TEST_F(RescanTest, ADirectoryMadeAgainUnderItsInodeNumber) {
  // ext4 reuses the inode number of a removed directory for the next one: the old content must not reappear.
  dir_.Remove("other/x");
  dir_.Mkdir("other/x");
  Check(Names({{"/other", {"x"}}}));
}

TEST_F(RescanTest, AttributesOfDirectoriesAndOfTheRoot) {
  ASSERT_EQ(::chmod((dir_ / "a/b").c_str(), 0700), 0);
  ASSERT_EQ(::chmod(dir_.path().c_str(), 0711), 0);
  Check(Names({{"/a/b", {}}}));
  dir_.Write("top", "");
  Check(Names({{"/", {"top"}}, {"/a/b", {}}}));
}

TEST_F(RescanTest, OtherNamesOfAFileFollow) {
  dir_.Link("a/f", "other/x/f-link");
  Check(Names({{"/other/x", {"f-link"}}}));  // the new link of a/f was not announced
  Start();
  dir_.Append("a/f", "more");
  Check(Names({{"/a", {"f"}}}));
  Start();
  dir_.Remove("a/f");
  Check(Names({{"/a", {"f"}}}));
  // The same through whole directories that are added and removed.
  dir_.Write("other/base", "1");
  Start();
  dir_.Mkdir("copy/in");
  dir_.Link("other/base", "copy/in/base");
  DirtySet dirty = Names({{"/", {"copy"}}});
  dirty.recursive = {"/copy"};
  Check(dirty);
  Start();
  dir_.Remove("copy");
  Check(Names({{"/", {"copy"}}}));
}

TEST_F(RescanTest, VeryDeepPaths) {
  std::string path;
  for (int i = 0; i < 400; ++i) path += "/d";
  dir_.Mkdir(path.substr(1));
  Start();
  dir_.Write(path.substr(1) + "/file", "x");
  DirtySet dirty = Names({{path, {"file"}}});
  Check(dirty);
  std::string endless;
  for (int i = 0; i < 100000; ++i) endless += "/q";
  dirty.directories = {endless};
  Check(dirty);
}

// Random operations, announced like a watcher does, must give the same tree as a scan.
TEST_F(RescanTest, RandomChanges) {
  std::mt19937 random(7);
  const std::vector<std::string> dirs{"", "a", "a/b", "other", "other/x", "n", "n/m"};
  const std::vector<std::string> names{"p", "q", "r"};
  for (int step = 0; step < 400; ++step) {
    DirtySet dirty;
    auto touch = [&](const std::string& d, const std::string& n) {
      if (random() % 2)
        dirty.directories.insert("/" + d);
      else
        dirty.names["/" + d].insert(n);
    };
    for (unsigned n = 1 + random() % 4; n > 0; --n) {
      const std::string d = dirs[random() % dirs.size()], e = dirs[random() % dirs.size()];
      const std::string x = names[random() % 3], y = names[random() % 3];
      const std::string from = dir_ / (d + "/" + x), to = dir_ / (e + "/" + y);
      struct stat st;
      switch (random() % 7) {
        case 0:
        case 1:
          if (::lstat((dir_ / d).c_str(), &st) == 0 && (::lstat(from.c_str(), &st) != 0 || S_ISREG(st.st_mode))) {
            dir_.Append(d + "/" + x, "z");
            touch(d, x);
          }
          break;
        case 2:
          if (::mkdir(from.c_str(), 0755) == 0) touch(d, x), dirty.recursive.insert("/" + d + "/" + x);
          break;
        case 3:
          if (::lstat(from.c_str(), &st) == 0) (void)RemoveTree(from), touch(d, x);
          break;
        case 4:
          if (::rename(from.c_str(), to.c_str()) == 0) {
            touch(d, x);
            touch(e, y);
            dirty.recursive.insert("/" + e + "/" + y);
          }
          break;
        case 5:
          if (::link(from.c_str(), to.c_str()) == 0) touch(e, y);
          break;
        case 6:
          if (::chmod(from.c_str(), random() % 2 ? 0700 : 0755) == 0) touch(d, x);
          break;
      }
    }
    auto now = Check(dirty);
    ASSERT_TRUE(now);
    if (HasFailure()) {
      FAIL() << "at step " << step;
    }
    base_ = now;
  }
}

}  // namespace
}  // namespace vrun::tree
