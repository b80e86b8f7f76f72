// SPDX-License-Identifier: Apache-2.0
#include "tree/tree.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <random>
#include <set>

#include "tree/codec.h"
#include "tree/inode_number.h"

namespace vrun::tree {
namespace {

Entry File(std::string name, uint64_t size = 1) {
  Entry e;
  e.name = std::move(name);
  e.mode = S_IFREG | 0644;
  e.size = size;
  e.ino = 1 + size;
  return e;
}

Entry Dir(std::string name) {
  Entry e;
  e.name = std::move(name);
  e.mode = S_IFDIR | 0755;
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

TEST(Directory, IsInByteOrderWhateverTheOrderOfMaking) {
  std::vector<Entry> entries{File("b"),  File("\xff"),       File("a"),         File("B"),
                             File("ab"), File("aaaaaaaaab"), File("aaaaaaaaaa")};
  auto first = Directory::Make(entries, nullptr);
  std::reverse(entries.begin(), entries.end());
  auto second = Directory::Make(entries, nullptr);
  EXPECT_EQ(first->digest(), second->digest());
  std::vector<std::string> names;
  for (size_t i = 0; i < first->size(); ++i) names.emplace_back(first->NameAt(i));
  EXPECT_EQ(names, (std::vector<std::string>{"B", "a", "aaaaaaaaaa", "aaaaaaaaab", "ab", "b", "\xff"}));
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(first->Find(names[i]), i);
  EXPECT_EQ(first->Find("c"), first->size());
  EXPECT_EQ(first->Find(""), first->size());
}

TEST(Directory, ParsesItsOwnBytesAndNoOthers) {
  auto made = Directory::Make({File("a", 5), Dir("d"), File("z", 7)}, nullptr);
  auto parsed = Directory::Parse(std::string(made->encoded()));
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ((*parsed)->digest(), made->digest());
  EXPECT_EQ((*parsed)->At(2), made->At(2));
  EXPECT_EQ((*parsed)->totals().bytes, 12u);

  const std::string bytes(made->encoded());
  EXPECT_FALSE(Directory::Parse(""));
  EXPECT_FALSE(Directory::Parse("VRD1"));
  EXPECT_FALSE(Directory::Parse(bytes + '\0'));
  EXPECT_FALSE(Directory::Parse(bytes.substr(0, bytes.size() - 1)));
  std::string version = bytes;
  version[3] = '2';
  EXPECT_FALSE(Directory::Parse(version));
  // A count that would allocate gigabytes.
  EXPECT_FALSE(Directory::Parse("VRD1\xff\xff\xff\xff\x0f"));
  // Wrong order and duplicate names.
  std::string a, z;
  EncodeEntry(File("a"), &a);
  EncodeEntry(File("z"), &z);
  EXPECT_TRUE(Directory::Parse("VRD1\2" + a + z));
  EXPECT_FALSE(Directory::Parse("VRD1\2" + z + a));
  EXPECT_FALSE(Directory::Parse("VRD1\2" + a + a));
}

TEST(Directory, DigestOfAChildIsInItsParent) {
  auto leaf = Directory::Make({File("x", 10)}, nullptr);
  auto other = Directory::Make({File("x", 11)}, nullptr);
  auto one = MakeWith({Dir("d"), File("f", 1)}, {{"d", leaf}});
  auto two = MakeWith({Dir("d"), File("f", 1)}, {{"d", other}});
  EXPECT_NE(one->digest(), two->digest());
  EXPECT_EQ(one->At(one->Find("d")).child, leaf->digest());
  EXPECT_EQ(one->Child(one->Find("d")), leaf);
  EXPECT_EQ(one->Child(one->Find("f")), nullptr);
  EXPECT_EQ(one->totals().entries, 3u);
  EXPECT_EQ(one->totals().bytes, 11u);
}

TEST(Tree, LooksUpPaths) {
  auto leaf = Directory::Make({File("x", 10)}, nullptr);
  auto middle = MakeWith({Dir("leaf")}, {{"leaf", leaf}});
  auto top = MakeWith({Dir("m"), File("f")}, {{"m", middle}});
  auto snapshot = AssembleTree(Dir(""), top);
  EXPECT_EQ(snapshot->entries, 4u);
  EXPECT_EQ(Lookup(*snapshot, "/m/leaf/x")->size, 10u);
  EXPECT_EQ(Lookup(*snapshot, "//m/./leaf/")->child, leaf->digest());
  EXPECT_EQ(*Lookup(*snapshot, "/"), snapshot->root);
  EXPECT_EQ(*LookupDirectory(*snapshot, "/m/leaf"), leaf);
  EXPECT_EQ(*LookupDirectory(*snapshot, "/"), top);
  EXPECT_EQ(Lookup(*snapshot, "/nope").error().code(), Code::kNotFound);
  EXPECT_EQ(Lookup(*snapshot, "/f/x").error().code(), Code::kNotFound);
  EXPECT_EQ(LookupDirectory(*snapshot, "/f").error().code(), Code::kNotFound);
  EXPECT_EQ(Lookup(*snapshot, "m").error().code(), Code::kInvalid);
  EXPECT_EQ(Lookup(*snapshot, "/m/../f").error().code(), Code::kInvalid);
  auto root = DecodeRoot(EncodeRoot(snapshot->root), snapshot->id);
  ASSERT_TRUE(root);
  EXPECT_EQ(root->child, top->digest());
}

TEST(Tree, WhatLiesApartIsATreeOfItsOwn) {
  Entry marked = File("marked", 3);
  marked.xattrs = {{"user.a", "1"}};
  Entry acl = Dir("acl");
  acl.xattrs = {{"system.posix_acl_default", "x"}};
  auto deep = MakeWith({File("large", kApartBytes), File("small", kApartBytes - 1), marked}, {});
  auto plain = Directory::Make({File("x", 10)}, nullptr);
  auto top =
      MakeWith({Dir("deep"), Dir("plain"), acl, File("f", 1)}, {{"deep", deep}, {"plain", plain}, {"acl", plain}});
  auto snapshot = AssembleTree(Dir(""), top);
  ASSERT_TRUE(snapshot->apart);
  const Tree& apart = *snapshot->apart;
  EXPECT_NE(apart.id, snapshot->id);
  EXPECT_EQ(apart.entries, 4u) << "deep, deep/large, deep/marked, acl";
  EXPECT_EQ(*Lookup(apart, "/deep/large"), *Lookup(*snapshot, "/deep/large"));
  EXPECT_EQ(*Lookup(apart, "/deep/marked"), marked);
  EXPECT_FALSE(Lookup(apart, "/deep/small"));
  EXPECT_FALSE(Lookup(apart, "/plain"));
  EXPECT_EQ(Lookup(apart, "/acl")->xattrs, acl.xattrs);
  EXPECT_EQ((*LookupDirectory(apart, "/acl"))->size(), 0u);
  // Changing something outside the apart view keeps the same apart object.
  auto other = MakeWith({Dir("deep"), acl, File("f", 2)}, {{"deep", deep}, {"acl", plain}});
  EXPECT_EQ(AssembleTree(Dir(""), other)->apart->id, apart.id);
  EXPECT_FALSE(AssembleTree(Dir(""), plain)->apart);
  Entry root = Dir("");
  root.xattrs = acl.xattrs;
  EXPECT_EQ(AssembleTree(root, plain)->apart->root.xattrs, acl.xattrs);
}

TEST(Directory, AChainDeeperThanTheStackIsMadeAndReleased) {
  DirectoryPtr at = Directory::Make({File("bottom", kApartBytes)}, nullptr);  // apart at every level
  for (int i = 0; i < 300000; ++i) at = MakeWith({Dir("d")}, {{"d", at}});
  EXPECT_EQ(at->totals().entries, 300001u);
  at.reset();
}

TEST(Directory, HoldsAMillionNames) {
  std::vector<Entry> entries;
  for (int64_t i = 0; i < 1000000; ++i) entries.push_back(File("file-" + std::to_string(i * 7919 % 1000000), 4096));
  auto directory = Directory::Make(std::move(entries), nullptr);
  ASSERT_EQ(directory->size(), 1000000u);
  EXPECT_LT(directory->encoded().size(), 60u << 20);
  for (int i = 0; i < 1000; ++i) {
    const std::string name = "file-" + std::to_string(i * 997);
    EXPECT_EQ(directory->NameAt(directory->Find(name)), name);
  }
  auto parsed = Directory::Parse(std::string(directory->encoded()));
  ASSERT_TRUE(parsed);
  EXPECT_EQ((*parsed)->digest(), directory->digest());
}

TEST(ShownInode, FilesOfAllDevicesHaveNumbersOfTheirOwn) {
  const uint64_t kRoot = makedev(259, 2);
  std::set<uint64_t> numbers;
  size_t files = 0;
  for (const uint64_t ino : {1ull, 2ull, 128ull, 0xffffffffull}) {
    numbers.insert(ShownInode(kRoot, ino, kRoot));
    for (unsigned minor = 1; minor < 1000; ++minor) numbers.insert(ShownInode(makedev(0, minor), ino, kRoot));
    for (unsigned minor = 0; minor < 64; ++minor) numbers.insert(ShownInode(makedev(8, minor), ino, kRoot));
    files += 1 + 999 + 64;
  }
  EXPECT_EQ(numbers.size(), files);
  EXPECT_LT(*numbers.rbegin(), 1ull << 60) << "what is above is overlayfs's";
  EXPECT_EQ(ShownInode(kRoot, 1ull << 40, kRoot), 1ull << 40);
  EXPECT_NE(ShownInode(makedev(0, 7), 1ull << 40, kRoot), ShownInode(makedev(0, 8), 1ull << 40, kRoot));
}

}  // namespace
}  // namespace vrun::tree
