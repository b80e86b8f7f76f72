// SPDX-License-Identifier: Apache-2.0
#include "tree/diff.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <set>

namespace vrun::tree {
namespace {

Entry File(std::string name, uint64_t size = 1) {
  Entry e;
  e.name = std::move(name);
  e.mode = S_IFREG | 0644;
  e.size = size;
  return e;
}

Entry Dir(std::string name, uint32_t mode = 0755) {
  Entry e;
  e.name = std::move(name);
  e.mode = S_IFDIR | mode;
  e.nlink = 0;
  return e;
}

DirectoryPtr MakeWith(std::vector<Entry> entries, std::vector<std::pair<std::string, DirectoryPtr>> children) {
  return Directory::Make(std::move(entries), [&](std::string_view name) {
    for (auto& [n, d] : children) {
      if (n == name) return d;
    }
    return DirectoryPtr();
  });
}

std::set<std::string> Differences(const DirectoryPtr& a, const DirectoryPtr& b, const DiffOptions& options = {}) {
  std::set<std::string> out;
  Diff(
      a, b,
      [&](const Difference& d) {
        const char* sign = d.change == Change::kAdded     ? "+"
                           : d.change == Change::kRemoved ? "-"
                           : d.only_below                 ? "."
                                                          : "*";
        out.insert(sign + std::string(d.directory == "/" ? "" : d.directory) + "/" + std::string(d.name));
      },
      options);
  return out;
}

class DiffTest : public testing::Test {
 protected:
  DirectoryPtr same_ = Directory::Make({File("s1"), File("s2")}, nullptr);
  DirectoryPtr x1_ = Directory::Make({File("a"), File("b"), File("gone")}, nullptr);
  DirectoryPtr x2_ = Directory::Make({File("a"), File("b", 2), File("new")}, nullptr);
  DirectoryPtr deep_ = MakeWith({Dir("in")}, {{"in", same_}});
  DirectoryPtr old_ =
      MakeWith({Dir("same"), Dir("x"), Dir("left"), File("was-file")}, {{"same", same_}, {"x", x1_}, {"left", deep_}});
  DirectoryPtr new_ = MakeWith({Dir("same"), Dir("x"), Dir("right", 0700), Dir("was-file")},
                               {{"same", same_}, {"x", x2_}, {"right", deep_}, {"was-file", x1_}});
};

TEST_F(DiffTest, NamesWhatWasAddedRemovedAndChanged) {
  EXPECT_EQ(Differences(old_, new_),
            (std::set<std::string>{"./x", "*/x/b", "-/x/gone", "+/x/new", "-/left", "+/right", "*/was-file"}));
  EXPECT_TRUE(Differences(old_, old_).empty());
  EXPECT_TRUE(Differences(nullptr, nullptr).empty());
}

TEST_F(DiffTest, DescendsWhereAsked) {
  DiffOptions options;
  options.descend_added = options.descend_removed = true;
  auto found = Differences(old_, new_, options);
  for (const char* path : {"-/left/in", "-/left/in/s1", "+/right/in/s2", "+/was-file/gone"})
    EXPECT_TRUE(found.contains(path)) << path;
  EXPECT_EQ(Differences(nullptr, deep_, options), (std::set<std::string>{"+/in", "+/in/s1", "+/in/s2"}));
}

TEST_F(DiffTest, DoesNotVisitWhatIsEqual) {
  int loads = 0;
  DiffOptions options;
  options.old_child = options.new_child = [&](const Directory& d, size_t i) {
    EXPECT_NE(d.NameAt(i), "same");
    ++loads;
    return d.Child(i);
  };
  Differences(old_, new_, options);
  EXPECT_EQ(loads, 2);  // both sides of x
}

TEST_F(DiffTest, ShipsNewObjectsParentsFirstEachOnce) {
  auto objects = NewDirectories(old_, new_);
  ASSERT_FALSE(objects.empty());
  EXPECT_EQ(objects[0].path, "/");
  std::set<Digest> have{same_->digest(), x1_->digest(), deep_->digest(), old_->digest()};
  std::set<Digest> seen;
  for (auto& object : objects) {
    EXPECT_TRUE(seen.insert(object.directory->digest()).second) << object.path;
    have.insert(object.directory->digest());
  }
  EXPECT_TRUE(have.contains(x2_->digest()));
  EXPECT_EQ(objects[0].base, old_);
  for (auto& object : objects) {
    if (object.directory == x2_) {
      EXPECT_EQ(object.base, x1_);
    }
  }
  EXPECT_TRUE(NewDirectories(new_, new_).empty());
  size_t changed = 0;
  VisitChanged(*x1_, *x2_, [&](size_t index, size_t was) {
    ++changed;
    if (was < x1_->size()) {
      EXPECT_EQ(x1_->NameAt(was), x2_->NameAt(index));
    }
    EXPECT_TRUE(was == x1_->size() || x1_->EncodedAt(was) != x2_->EncodedAt(index));
  });
  EXPECT_GT(changed, 0u);
  VisitChanged(*x2_, *x2_, [&](size_t, size_t) { ADD_FAILURE(); });
  EXPECT_EQ(NewDirectories(nullptr, new_).size(), 5u);  // root, same, x2, deep, x1
}

}  // namespace
}  // namespace vrun::tree
