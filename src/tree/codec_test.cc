// SPDX-License-Identifier: Apache-2.0
#include "tree/codec.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <random>

namespace vrun::tree {
namespace {

Entry File(std::string name) {
  Entry e;
  e.name = std::move(name);
  e.mode = S_IFREG | 0644;
  e.uid = 1000;
  e.gid = 4000000000u;
  e.size = 123456789;
  e.blocks = 8;
  e.mtime_ns = 1700000000123456789;
  e.ctime_ns = -5;
  e.dev = 0xfe00;
  e.ino = 77;
  e.nlink = 2;
  e.xattrs = {{"security.capability", std::string("\1\0\2", 3)}, {"user.a", ""}};
  return e;
}

Result<Entry> Decode(std::string_view bytes) { return DecodeEntry(&bytes); }

TEST(Codec, EveryKindOfFileSurvives) {
  std::vector<Entry> entries{File("a"), File(std::string(255, '\xff')), File("new\nline")};
  Entry link = File("l");
  link.mode = S_IFLNK | 0777;
  link.target = "../somewhere";
  link.size = link.target.size();
  link.blocks = 0;
  entries.push_back(link);
  Entry device = File("d");
  device.mode = S_IFCHR | 0600;
  device.size = device.blocks = 0;
  device.rdev = 0x501;
  entries.push_back(device);
  device.mode = S_IFIFO | 0600;
  device.rdev = 0;
  entries.push_back(device);
  Entry directory = File("dir");
  directory.mode = S_IFDIR | 01777;
  directory.size = directory.blocks = 0;
  directory.ctime_ns = 0;
  directory.nlink = 0;
  directory.child = Sha256("x");
  entries.push_back(directory);
  for (const Entry& entry : entries) {
    std::string bytes;
    EncodeEntry(entry, &bytes);
    std::string_view rest = bytes;
    auto back = DecodeEntry(&rest);
    ASSERT_TRUE(back) << back.error().message();
    EXPECT_EQ(*back, entry);
    EXPECT_TRUE(rest.empty());
    // No prefix of it is a valid entry, and decoding must not read beyond the prefix.
    for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(Decode(std::string(bytes, 0, n)));
  }
}

TEST(Codec, RefusesNamesThatNoDirectoryCanHold) {
  for (std::string name : {std::string(), std::string("."), std::string(".."), std::string("a/b"),
                           std::string("a\0b", 3), std::string(256, 'x')}) {
    std::string bytes;
    EncodeEntry(File(name), &bytes);
    auto entry = Decode(bytes);
    ASSERT_FALSE(entry);
    EXPECT_EQ(entry.error().code(), Code::kCorrupt);
  }
}

TEST(Codec, RefusesWhatIsNotCanonical) {
  std::string bytes;
  Entry entry = File("a");
  entry.uid = 5;
  EncodeEntry(entry, &bytes);
  ASSERT_TRUE(Decode(bytes));
  // The uid follows the name (2 bytes) and the mode (3 bytes): encode it in two bytes.
  std::string longer = bytes;
  longer.replace(5, 1, std::string("\x85\x00", 2));
  EXPECT_FALSE(Decode(longer));
  std::string endless = bytes;
  endless.replace(5, 1, std::string(11, '\xff'));
  EXPECT_FALSE(Decode(endless));

  auto refused = [](Entry e) {
    std::string encoded;
    EncodeEntry(e, &encoded);
    return !Decode(encoded);
  };
  Entry e = File("a");
  e.mode = 0644;
  EXPECT_TRUE(refused(e)) << "no type";
  e = File("a");
  std::swap(e.xattrs[0], e.xattrs[1]);
  EXPECT_TRUE(refused(e)) << "xattrs out of order";
  e = File("a");
  e.xattrs[0].first = "trusted.overlay.opaque";
  EXPECT_TRUE(refused(e)) << "an xattr that would steer the node's overlay";
  e = File("a");
  e.xattrs[0].second.assign(kMaxXattrValueBytes + 1, 'x');
  EXPECT_TRUE(refused(e));
  e = File("a");
  e.size = 1ull << 63;
  EXPECT_TRUE(refused(e));
  e = File("l");
  e.mode = S_IFLNK | 0777;
  EXPECT_TRUE(refused(e)) << "no target";
  e.target = std::string("a\0b", 3);
  EXPECT_TRUE(refused(e));
  e = File("f");
  e.mode = S_IFIFO | 0600;
  e.rdev = 1;
  EXPECT_TRUE(refused(e));
}

TEST(Codec, RootIsBoundToItsDigest) {
  Entry root = File("");
  root.mode = S_IFDIR | 0755;
  root.size = root.blocks = root.nlink = 0;
  root.ctime_ns = 0;
  const std::string bytes = EncodeRoot(root);
  auto back = DecodeRoot(bytes, Sha256(bytes));
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(*back, root);
  EXPECT_FALSE(DecodeRoot(bytes, Sha256("other")));
  EXPECT_FALSE(DecodeRoot(bytes + "x", Sha256(bytes + "x")));
  const std::string file = EncodeRoot(File(""));
  EXPECT_FALSE(DecodeRoot(file, Sha256(file)));
  root.name = "a";
  const std::string named = EncodeRoot(root);
  EXPECT_FALSE(DecodeRoot(named, Sha256(named)));
}

TEST(Codec, KnownIds) {
  const std::vector<KnownId> ids{{0, std::string(33, 'a')}, {1, std::string(33, 'b')}, {4000000, std::string(33, 'c')}};
  const std::string bytes = EncodeKnownIds(ids);
  auto back = DecodeKnownIds(bytes, 4000001);
  ASSERT_TRUE(back);
  EXPECT_EQ(*back, ids);
  EXPECT_FALSE(DecodeKnownIds(bytes, 4000000));
  EXPECT_FALSE(DecodeKnownIds(bytes.substr(0, bytes.size() - 1), 4000001));
  EXPECT_TRUE(DecodeKnownIds("", 0)->empty());
}

TEST(Codec, DamageNeverCrashesAndWhatParsesIsCanonical) {
  std::vector<Entry> entries;
  for (int i = 0; i < 20; ++i) entries.push_back(File("name" + std::to_string(i)));
  const std::string good(Directory::Make(entries, nullptr)->encoded());
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (auto n = 1 + random() % 3; n > 0; --n) {
      const size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes.erase(at, 1 + random() % 4); break;
        default: bytes.insert(at, 1, static_cast<char>(random()));
      }
    }
    auto parsed = Directory::Parse(bytes);
    if (!parsed) continue;
    std::vector<Entry> back;
    for (size_t i = 0; i < (*parsed)->size(); ++i) back.push_back((*parsed)->At(i));
    EXPECT_EQ(Directory::Make(back, nullptr)->encoded(), bytes);
  }
}

}  // namespace
}  // namespace vrun::tree
