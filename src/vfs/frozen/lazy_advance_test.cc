// SPDX-License-Identifier: Apache-2.0
// LazyRoot: Advance from the shown tree to home's next one.
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "vfs/testing/lazy_testing.h"

namespace vrun::vfs {
namespace {

std::multiset<std::string> Summary(const std::vector<FakeKernel::Notification>& notes) {
  std::multiset<std::string> out;
  for (const auto& note : notes) {
    if (note.code == FUSE_NOTIFY_INVAL_ENTRY) {
      out.insert("entry " + std::to_string(note.node()) + " " + note.name());
    } else {
      fuse_notify_inval_inode_out inode{};
      std::memcpy(&inode, note.body.data(), sizeof inode);
      out.insert((inode.off < 0 ? "attributes " : "listing ") + std::to_string(inode.ino));
    }
  }
  return out;
}

TEST_F(LazyRootTest, AdvanceInvalidatesWhatChangedAndNothingElse) {
  TreeMaker maker;
  maker.File("/p/edited", "old").File("/p/same", "same").File("/p/gone", "g").File("/q/deep/x", "x").Dir("/p/sub");
  Mount(maker);
  const auto p = Find("/p");
  const auto edited = Find("/p/edited");
  const auto same = Find("/p/same");
  const auto gone = Find("/p/gone");
  const auto q = Find("/q");
  const auto deep = Find("/q/deep");
  EXPECT_EQ(ReadAll("/p/edited"), "old");
  EXPECT_EQ(Find("/p/new").nodeid, 0u);
  EXPECT_EQ(kernel_->lookups(same.nodeid), 1u);

  maker.Edit("/p/edited", "new!").Remove("/p/gone").File("/p/new", "n").File("/p/aaa", "first");
  ASSERT_TRUE(root_->Advance(*dispatcher_, source_.Add(maker)));
  const std::string in = " " + std::to_string(p.nodeid) + " ";
  EXPECT_EQ(Summary(kernel_->TakeNotifications()),
            (std::multiset<std::string>{"entry" + in + "aaa", "entry" + in + "edited", "entry" + in + "gone",
                                        "entry" + in + "new", "listing 1", "listing " + std::to_string(p.nodeid)}));

  EXPECT_EQ(Find("/p").nodeid, p.nodeid);
  EXPECT_EQ(Find("/p/same").nodeid, same.nodeid);
  EXPECT_EQ(Find("/q/deep").nodeid, deep.nodeid);
  EXPECT_NE(Find("/p/edited").nodeid, edited.nodeid);  // so that old pages never appear under the new version
  EXPECT_EQ(ReadAll("/p/edited"), "new!");
  EXPECT_EQ(ReadAll("/p/same"), "same");
  EXPECT_EQ(ReadAll("/p/new"), "n");
  EXPECT_EQ(Find("/p/gone").nodeid, 0u);
  EXPECT_EQ(kernel_->GetAttr(gone.nodeid).error, ESTALE);
  (void)q;

  kernel_->ForgetAll();
  while (root_->inodes() != 1) std::this_thread::yield();
}

TEST_F(LazyRootTest, AdvanceSeesAttributesTypesAndRoot) {
  TreeMaker maker;
  maker.Dir("/d").File("/d/f", "x").File("/was_file", "x").Dir("/was_dir").File("/was_dir/inside", "i");
  Mount(maker);
  const auto d = Find("/d");
  const auto f = Find("/d/f");
  Find("/was_file");
  Find("/was_dir/inside");
  maker.At("/d").mode = S_IFDIR | 0700;
  maker.Remove("/was_file").Remove("/was_dir").File("/was_dir", "now a file").File("/was_file/in", "now a directory");
  ASSERT_TRUE(root_->Advance(*dispatcher_, source_.Add(maker)));
  EXPECT_EQ(Summary(kernel_->TakeNotifications()),
            (std::multiset<std::string>{"entry 1 was_dir", "entry 1 was_file", "listing 1",
                                        "attributes " + std::to_string(d.nodeid)}));
  EXPECT_EQ(kernel_->GetAttr(d.nodeid).As<fuse_attr_out>().attr.mode, uint32_t{S_IFDIR | 0700});
  EXPECT_EQ(Find("/d/f").nodeid, f.nodeid);
  EXPECT_EQ(ReadAll("/was_dir"), "now a file");
  EXPECT_EQ(ReadAll("/was_file/in"), "now a directory");
}

TEST_F(LazyRootTest, AdvanceKeepsHardLinksTogether) {
  TreeMaker maker;
  maker.File("/a/one", "x").HardLink("/b/two", "/a/one").File("/b/other", "o");
  Mount(maker);
  const auto one = Find("/a/one");
  Find("/b/two");
  maker.Edit("/b/other", "changed").File("/b/aa", "shifts the others");
  ASSERT_TRUE(root_->Advance(*dispatcher_, source_.Add(maker)));
  EXPECT_EQ(Find("/a/one").nodeid, one.nodeid);
  EXPECT_EQ(Find("/b/two").nodeid, one.nodeid);
  EXPECT_EQ(ReadAll("/b/two"), "x");
  kernel_->ForgetAll();
  while (root_->inodes() != 1) std::this_thread::yield();
}

TEST_F(LazyRootTest, AFailedAdvanceChangesNothing) {
  TreeMaker maker;
  maker.File("/d/f", "old");
  const Digest before = source_.Add(maker);
  Mount(before);
  Find("/d/f");
  maker.Edit("/d/f", "new");
  const Digest after = source_.Add(maker);
  source_.FailWith([](const FakeSource::Asked& asked) -> std::optional<Error> {
    if (asked.path == "/d") return Error(Code::kDenied, "no");
    return std::nullopt;
  });
  EXPECT_FALSE(root_->Advance(*dispatcher_, after));
  EXPECT_EQ(root_->tree(), before);
  EXPECT_EQ(kernel_->TakeNotifications().size(), 0u);
  EXPECT_EQ(ReadAll("/d/f"), "old");
  source_.FailWith(nullptr);
  ASSERT_TRUE(root_->Advance(*dispatcher_, after));
  EXPECT_EQ(ReadAll("/d/f"), "new");
}

TEST_F(LazyRootTest, AdvanceManyTimesAtRandomAgreesWithAFreshView) {
  std::mt19937_64 random(7);
  TreeMaker maker;
  std::vector<std::string> paths;
  for (int i = 0; i < 60; ++i) {
    paths.push_back("/d" + std::to_string(i % 4) + "/e" + std::to_string(i % 3) + "/f" + std::to_string(i));
    maker.File(paths.back(), std::to_string(i));
  }
  Mount(maker);
  std::set<std::string> alive(paths.begin(), paths.end());
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 20; ++i) {
      const std::string& path = paths[random() % paths.size()];
      const auto entry = Find(path);
      EXPECT_EQ(entry.nodeid != 0, alive.count(path) == 1) << path;
      if (entry.nodeid != 0) {
        EXPECT_EQ(kernel_->Read(entry.nodeid, 0, 100).body, maker.content(maker.At(path).version()));
        if (random() % 2 == 0) kernel_->Forget(entry.nodeid, 1);
      }
    }
    for (int i = 0; i < 5; ++i) {
      const std::string& path = paths[random() % paths.size()];
      if (alive.count(path) == 0) {
        maker.File(path, "back" + std::to_string(round));
        alive.insert(path);
      } else if (random() % 2 == 0) {
        maker.Edit(path, "edit" + std::to_string(random()));
      } else {
        maker.Remove(path);
        alive.erase(path);
      }
    }
    ASSERT_TRUE(root_->Advance(*dispatcher_, source_.Add(maker)));
    if (round % 10 == 9) {
      kernel_->ForgetAll();
      while (root_->inodes() != 1) std::this_thread::yield();
    }
  }
}

}  // namespace
}  // namespace vrun::vfs
