// SPDX-License-Identifier: Apache-2.0
#include "tree/graft.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>

namespace vrun::tree {
namespace {

// path -> size of a file; paths of directories end with '/'. Parent directories are created.
using Names = std::map<std::string, uint64_t>;

DirectoryPtr MakeAt(const Names& names, const std::string& prefix) {
  std::vector<Entry> entries;
  std::map<std::string, DirectoryPtr, std::less<>> children;
  for (const auto& [path, size] : names) {
    if (!path.starts_with(prefix) || path.size() == prefix.size()) continue;
    const std::string name = path.substr(prefix.size(), path.find('/', prefix.size()) - prefix.size());
    const bool directory = path.size() > prefix.size() + name.size();
    if (children.contains(name)) continue;
    Entry entry;
    entry.name = name;
    entry.mode = directory ? S_IFDIR | 0755 : S_IFREG | 0644;
    if (directory) {
      entry.nlink = 0;
      children[name] = MakeAt(names, prefix + name + "/");
    } else {
      entry.size = size;
      entry.ino = 1000 + size;
    }
    entries.push_back(std::move(entry));
  }
  return Directory::Make(std::move(entries), [&](std::string_view name) { return children.find(name)->second; });
}

TreePtr Make(const Names& names) {
  Entry root;
  root.mode = S_IFDIR | 0755;
  return AssembleTree(root, MakeAt(names, "/"));
}

void ListAt(const Directory& directory, const std::string& prefix, Names* out) {
  for (size_t i = 0; i < directory.size(); ++i) {
    const Entry entry = directory.At(i);
    if (const DirectoryPtr child = directory.Child(i)) {
      if (child->size() == 0) (*out)[prefix + entry.name + "/"] = 0;
      ListAt(*child, prefix + entry.name + "/", out);
    } else {
      (*out)[prefix + entry.name] = entry.size;
    }
  }
}

Names Grafted(const Names& base, const Names& from, const std::set<std::string>& paths) {
  auto made = Graft(Make(base), *Make(from), paths);
  EXPECT_TRUE(made) << made.error().message();
  if (!made) return {};
  Names out;
  ListAt(*(*made)->directory, "/", &out);
  // The id matches the content.
  EXPECT_EQ((*made)->id, Make(out)->id);
  return out;
}

TEST(Graft, TakesTheNamedAndNothingElse) {
  const Names base{{"/p/a", 1}, {"/p/b", 2}, {"/p/sub/c", 3}, {"/q/d", 4}};
  const Names now{{"/p/a", 11}, {"/p/b", 12}, {"/p/sub/c", 13}, {"/q/d", 14}, {"/p/new", 15}, {"/p/other", 16}};
  EXPECT_EQ(Grafted(base, now, {"/p/a", "/p/new"}),
            (Names{{"/p/a", 11}, {"/p/b", 2}, {"/p/new", 15}, {"/p/sub/c", 3}, {"/q/d", 4}}));
}

TEST(Graft, WhatIsGoneThereGoes) {
  const Names base{{"/p/a", 1}, {"/p/sub/c", 3}, {"/q", 4}};
  EXPECT_EQ(Grafted(base, {{"/q", 9}}, {"/p/a"}), (Names{{"/p/sub/c", 3}, {"/q", 4}}));
  EXPECT_EQ(Grafted(base, {{"/p/a", 9}}, {"/p/sub"}), (Names{{"/p/a", 1}, {"/q", 4}}));
  EXPECT_EQ(Grafted(base, {}, {"/never"}), base);
}

TEST(Graft, ADirectoryThatIsNewComesWhole) {
  const Names base{{"/a", 1}};
  const Names now{{"/out/deep/x", 5}, {"/out/y", 6}, {"/a", 2}};
  const Names whole{{"/a", 1}, {"/out/deep/x", 5}, {"/out/y", 6}};
  EXPECT_EQ(Grafted(base, now, {"/out"}), whole);
  EXPECT_EQ(Grafted(base, now, {"/out/deep/x"}), whole);
  // A directory that the base has is not taken whole.
  EXPECT_EQ(Grafted({{"/out/y", 1}}, now, {"/out"}), (Names{{"/out/y", 1}}));
}

TEST(Graft, KindsMayChange) {
  EXPECT_EQ(Grafted({{"/a/b", 1}}, {{"/a", 2}}, {"/a"}), (Names{{"/a", 2}}));
  EXPECT_EQ(Grafted({{"/a", 1}}, {{"/a/b", 2}}, {"/a"}), (Names{{"/a/b", 2}}));
}

TEST(Graft, SharesWhatStays) {
  const TreePtr base = Make({{"/p/a", 1}, {"/q/d", 4}});
  auto made = Graft(base, *Make({{"/p/a", 2}}), {"/p/a"});
  ASSERT_TRUE(made);
  EXPECT_EQ(LookupDirectory(**made, "/q")->get(), LookupDirectory(*base, "/q")->get());
  EXPECT_EQ(*Graft(base, *Make({}), {}), base);
}

}  // namespace
}  // namespace vrun::tree
