// SPDX-License-Identifier: Apache-2.0
#include "home/serve/peer_board.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <vector>

#include "base/files.h"
#include "home/testing/test_directory.h"

namespace vrun::home {
namespace {

struct Told {
  std::vector<v1::Peers> lists;
  PeerBoard::Tell Tell() {
    return [this](const v1::Peers& peers) { lists.push_back(peers); };
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& peer : lists.back().peer()) names.push_back(peer.name() + "@" + peer.address());
    return names;
  }
};

TEST(PeerBoard, EachMemberOfAPoolIsToldOfTheOthersAndOfChanges) {
  PeerBoard board;
  Told a, b, elsewhere;
  const uint64_t first = *board.Join({"a", "1:1", "pool"}, a.Tell());
  EXPECT_EQ(a.names(), std::vector<std::string>{"a@1:1"});
  EXPECT_EQ(a.lists.back().self(), first);
  const uint64_t second = *board.Join({"b", "2:2", "pool"}, b.Tell());
  EXPECT_GT(second, first);
  const std::vector<std::string> both = {"a@1:1", "b@2:2"};
  EXPECT_EQ(a.names(), both);
  EXPECT_EQ(b.names(), both);
  EXPECT_EQ(a.lists.back().self(), first);
  EXPECT_EQ(b.lists.back().self(), second);
  EXPECT_EQ(a.lists.back().secret(), b.lists.back().secret());
  EXPECT_EQ(a.lists.back().secret().size(), 32u);

  (void)*board.Join({"c", "3:3", "another pool"}, elsewhere.Tell());
  EXPECT_EQ(elsewhere.names(), std::vector<std::string>{"c@3:3"});
  EXPECT_EQ(a.lists.size(), 2u);

  board.Leave(first);
  board.Leave(first);
  EXPECT_EQ(b.names(), std::vector<std::string>{"b@2:2"});
  EXPECT_EQ(a.lists.size(), 2u) << "who has left is not told";
}

TEST(PeerBoard, TwoHomesShareNoSecretAndNoKey) {
  PeerBoard one, other;
  Told a, b;
  (void)*one.Join({"a", "1:1", "pool"}, a.Tell());
  (void)*other.Join({"a", "1:1", "pool"}, b.Tell());
  EXPECT_NE(a.lists[0].secret(), b.lists[0].secret());
  const std::string signature = one.Sign("text");
  EXPECT_TRUE(VerifySignature(a.lists[0].public_key(), "text", signature));
  EXPECT_FALSE(VerifySignature(b.lists[0].public_key(), "text", signature));
}

TEST(PeerBoard, SecretAndKeyAreThoseOfTheFile) {
  TestDirectory directory;
  const std::string file = directory / "peers";
  Told before, after, another;
  std::string signature;
  {
    PeerBoard board(file);
    (void)*board.Join({"a", "1:1", "pool"}, before.Tell());
    signature = board.Sign("text");
  }
  struct stat st {};
  ASSERT_EQ(::stat(file.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  PeerBoard again(file);
  (void)*again.Join({"a", "1:1", "pool"}, after.Tell());
  EXPECT_EQ(after.lists[0].secret(), before.lists[0].secret());
  EXPECT_TRUE(VerifySignature(after.lists[0].public_key(), "text", signature));

  directory.Put("peers", "damaged");
  PeerBoard anew(file);
  (void)*anew.Join({"a", "1:1", "pool"}, another.Tell());
  EXPECT_NE(another.lists[0].secret(), before.lists[0].secret());
  EXPECT_EQ(another.lists[0].secret().size(), 32u);
  EXPECT_EQ(ReadFile(file)->size(), 64u);
}

}  // namespace
}  // namespace vrun::home
