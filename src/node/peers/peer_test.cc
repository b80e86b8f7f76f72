// SPDX-License-Identifier: Apache-2.0
// Nodes that share a home's content: each unit leaves home once. A peer that lies, stalls, dies or has no right to the
// content does not change what readers get. Real gRPC and stores.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/clock.h"
#include "base/thread/mutex.h"
#include "node/peers/rendezvous.h"
#include "node/testing/peer_testing.h"

namespace vrun::node {
namespace {

uint64_t OwnerOf(uint64_t key, const std::vector<uint64_t>& seeds) {
  return *std::max_element(seeds.begin(), seeds.end(),
                           [key](uint64_t a, uint64_t b) { return Weight(key, a) < Weight(key, b); });
}

TEST(Rendezvous, SharesAreEvenAndOnlyTheShareOfAMemberMoves) {
  std::vector<uint64_t> seeds;
  for (int i = 0; i < 16; ++i) seeds.push_back(MemberSeed("n" + std::to_string(i), "10.0.0." + std::to_string(i)));
  std::map<uint64_t, int> shares;
  constexpr int kKeys = 16'000;
  int moved = 0;
  std::vector<uint64_t> fewer(seeds.begin(), seeds.end() - 1);
  for (int i = 0; i < kKeys; ++i) {
    const uint64_t key = GroupKey({1, 100 + static_cast<uint64_t>(i) / 4, 5, 4 << 20}, static_cast<uint64_t>(i) % 4);
    const uint64_t owner = OwnerOf(key, seeds), without = OwnerOf(key, fewer);
    ++shares[owner];
    if (owner == without) continue;
    ++moved;
    EXPECT_EQ(owner, seeds.back()) << "a key moved that the one who left did not have";
  }
  EXPECT_EQ(shares.size(), 16u);
  for (const auto& [seed, n] : shares) {
    EXPECT_GT(n, kKeys / 16 * 8 / 10);
    EXPECT_LT(n, kKeys / 16 * 12 / 10);
  }
  EXPECT_EQ(moved, shares[seeds.back()]);
}

TEST(Rendezvous, ASmallFileIsOneGroupAndALargeOneIsMany) {
  EXPECT_EQ(GroupUnits(100) * store::kUnitBytes, 1u << 20);
  EXPECT_EQ(GroupUnits(1 << 20) * store::kUnitBytes, 1u << 20);
  EXPECT_EQ(GroupUnits((1 << 20) + 1) * store::kUnitBytes, 256u << 10);
  EXPECT_EQ(GroupUnits(2ull << 30) * store::kLargeUnitBytes, 256u << 10);
}

TEST_F(PeerTest, HomeSendsEachUnitOnceHoweverManyReadAtTheSameTime) {
  const auto files = Tree(9'000'000, 40);
  Start(4);
  ReadAllTogether(files);
  EXPECT_EQ(home_.units_sent(), Units(files));
  uint64_t passed = 0;
  for (auto& node : nodes_) {
    EXPECT_GT(node->stats().served_bytes, 0u) << node->name();
    EXPECT_EQ(node->stats().lies, 0u);
    passed += node->stats().fetched_bytes;
  }
  uint64_t bytes = 0;
  for (const auto& file : files) bytes += file.content.size();
  EXPECT_GE(passed, bytes * 2);
}

TEST_F(PeerTest, WhoComesLaterHasItFromTheOthers) {
  const auto files = Tree(3'000'000, 10);
  Start(2);
  ReadAllTogether(files);
  Start(1);
  ReadAll(nodes_.back().get(), files);
  EXPECT_EQ(home_.units_sent(), Units(files));
}

TEST_F(PeerTest, WhatANodeReadAloneItPassesOnOnceHomeHasSignedIt) {
  const auto files = Tree(3'000'000, 10);
  Start(1);
  ReadAll(nodes_[0].get(), files);
  Start(1);
  ReadAll(nodes_[1].get(), files);
  EXPECT_EQ(home_.units_sent(), Units(files));
  EXPECT_GE(home_.statements_sent(), Units(files) / 2);
  EXPECT_LE(home_.statements_sent(), Units(files));
}

TEST_F(PeerTest, WhatAPeerMakesUpIsNeverBelieved) {
  const auto files = Tree(4'000'000, 0);
  Start(1);
  const SigningKey other = *SigningKey::Generate();
  enum { kFlipped, kOtherKey, kOtherFile, kShort, kKinds };
  for (int kind = 0; kind < kKinds; ++kind) {
    const auto file = home_.Add("/f" + std::to_string(kind), Bytes(4'000'000, 50 + static_cast<unsigned>(kind)));
    PeerHome::File told = file;
    told.content = kind == kOtherKey ? std::string(file.content.size(), 'x') : file.content;
    if (kind == kOtherFile) told = files[0];
    OddPeer liar(&home_, authority_, "liar" + std::to_string(kind),
                 [&](const v1::PeerRequest& request, const std::function<void(const v1::PeerReply&)>& say) {
                   const auto& get = request.get_units();
                   const uint64_t at = get.first_unit() * store::kUnitBytes;
                   const uint64_t length = std::min<uint64_t>(get.count() * store::kUnitBytes, told.version.size - at);
                   const v1::Units units = home_.Units(told, at, length, kind == kOtherKey ? other : home_.key());
                   v1::PeerReply reply;
                   std::string digests;
                   for (const auto& piece : units.piece()) digests += piece.digests();
                   auto* statement = reply.mutable_units()->add_statement();
                   statement->set_offset(at);
                   statement->set_digests(digests);
                   statement->set_signature(units.signature());
                   std::string data = told.content.substr(at, length);
                   if (kind == kFlipped) data[length / 2] = static_cast<char>(data[length / 2] ^ 1);
                   if (kind == kShort) data.pop_back();
                   reply.mutable_units()->set_data(data);
                   say(reply);
                 });
    ASSERT_TRUE(nodes_[0]->WaitMates(1));
    const uint64_t lies = nodes_[0]->stats().lies;
    EXPECT_TRUE(nodes_[0]->Read(file) == file.content) << kind;
    EXPECT_GE(liar.asked(), 1);
    EXPECT_GT(nodes_[0]->stats().lies, lies) << kind;
    const int asked = liar.asked();
    const auto more = home_.Add("/more" + std::to_string(kind), Bytes(2'000'000, 70));
    EXPECT_TRUE(nodes_[0]->Read(more) == more.content);
    EXPECT_EQ(liar.asked(), asked) << "it is asked again at once";
    home_.Dismiss("liar" + std::to_string(kind));
    ASSERT_TRUE(nodes_[0]->WaitMates(0));
  }
}

TEST_F(PeerTest, APeerThatStallsCostsAMoment) {
  const auto files = Tree(8'000'000, 20);
  Start(1);
  for (const bool says_waiting : {false, true}) {
    const std::string name = says_waiting ? "waits" : "silent";
    OddPeer peer(&home_, authority_, name,
                 [&](const v1::PeerRequest&, const std::function<void(const v1::PeerReply&)>& say) {
                   v1::PeerReply reply;
                   reply.mutable_waiting();
                   if (says_waiting) say(reply);
                 });
    ASSERT_TRUE(nodes_[0]->WaitMates(1));
    const auto file = home_.Add("/" + name, Bytes(8'000'000, 3));
    const int64_t began = MonotonicMicros();
    EXPECT_TRUE(nodes_[0]->Read(file) == file.content);
    EXPECT_LT(MonotonicMicros() - began, 8'000'000);
    EXPECT_GE(peer.asked(), 1);
    EXPECT_LT(peer.asked(), 31) << "it is left alone after a while";
    EXPECT_GT(nodes_[0]->stats().fallbacks, 0u);
    home_.Dismiss(name);
    ASSERT_TRUE(nodes_[0]->WaitMates(0));
  }
}

// Units with home's signatures.
v1::PeerReply SignedReply(const PeerHome& home, const PeerHome::File& file, const v1::PeerRequest::GetUnits& get) {
  const uint64_t at = get.first_unit() * store::kUnitBytes;
  const uint64_t length = std::min<uint64_t>(get.count() * store::kUnitBytes, file.version.size - at);
  const v1::Units units = home.Units(file, at, length, home.key());
  v1::PeerReply reply;
  auto* statement = reply.mutable_units()->add_statement();
  statement->set_offset(at);
  for (const auto& piece : units.piece()) statement->mutable_digests()->append(piece.digests());
  statement->set_object_id(units.object_id());
  statement->set_signature(units.signature());
  reply.mutable_units()->set_data(file.content.substr(at, length));
  return reply;
}

TEST_F(PeerTest, APeerThatStopsInTheMiddleCostsAboutASecond) {
  // This node joined first, so that it is also asked for what the other node owns.
  const auto file = home_.Add("/large", Bytes(8'000'000, 4));
  std::atomic<int> left{6};
  OddPeer peer(&home_, authority_, "first",
               [&](const v1::PeerRequest& request, const std::function<void(const v1::PeerReply&)>& say) {
                 const int n = left--;
                 if (n > 0) return say(SignedReply(home_, file, request.get_units()));
                 v1::PeerReply reply;
                 reply.mutable_waiting();
                 if (n == 0) say(reply);  // it had begun to answer one of them
               });
  nodes_.push_back(std::make_unique<PeerNode>(&home_, authority_, "n1"));
  nodes_[0]->Join();
  ASSERT_TRUE(nodes_[0]->WaitMates(1));
  const int64_t began = MonotonicMicros();
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) readers.emplace_back([&] { EXPECT_TRUE(nodes_[0]->Read(file) == file.content); });
  for (auto& reader : readers) reader.join();
  EXPECT_LT(MonotonicMicros() - began, 2'500'000);
  EXPECT_LE(left, -1) << "it did stop in the middle";
  EXPECT_GT(nodes_[0]->stats().fallbacks, 0u);
}

TEST_F(PeerTest, APeerThatSaysForEverThatItWaitsIsNotWaitedForForEver) {
  nodes_.push_back(std::make_unique<PeerNode>(&home_, authority_, "n1", kTestHome, 500'000));
  nodes_[0]->Join();
  ASSERT_TRUE(nodes_[0]->WaitMates(0));
  for (const bool to_all : {false, true}) {
    const std::string name = to_all ? "beats" : "answers";
    Mutex mutex;
    std::vector<std::function<void(const v1::PeerReply&)>> asked;
    OddPeer peer(&home_, authority_, name,
                 [&](const v1::PeerRequest&, const std::function<void(const v1::PeerReply&)>& say) {
                   MutexLock lock(mutex);
                   asked.push_back(say);
                 });
    std::atomic<bool> stop{false};
    std::thread waits([&] {
      v1::PeerReply reply;
      reply.mutable_waiting();
      while (!stop) {
        if (to_all) {
          peer.Beat();
        } else {
          MutexLock lock(mutex);
          for (const auto& say : asked) say(reply);
        }
        ::usleep(50'000);
      }
    });
    EXPECT_TRUE(nodes_[0]->WaitMates(1));
    const auto file = home_.Add("/" + name, Bytes(4'000'000, 5));
    const int64_t began = MonotonicMicros();
    EXPECT_TRUE(nodes_[0]->Read(file) == file.content);
    EXPECT_LT(MonotonicMicros() - began, 4'000'000);
    EXPECT_GE(peer.asked(), 1);
    EXPECT_LT(peer.asked(), 16) << "it is left alone after a while";
    EXPECT_GT(nodes_[0]->stats().fallbacks, 0u);
    stop = true;
    waits.join();
    home_.Dismiss(name);
    ASSERT_TRUE(nodes_[0]->WaitMates(0));
  }
}

TEST(PeerPace, AnOwnerMayWaitForAHomeThatKeepsThisNodeWaitingToo) {
  PeerPace pace(300'000, 1'000);
  const int64_t asked = pace.AskHome();
  EXPECT_EQ(pace.MostWait(asked), 1'000);
  EXPECT_EQ(pace.MostWait(asked + 2'000'000), 12'000'000);
  EXPECT_EQ(pace.MostWait(asked + 50'000'000), 30'000'000) << "a reader would be told that home does not answer";
  pace.HomeAnswered(asked, false);
  EXPECT_EQ(pace.MostWait(asked + 2'000'000), 1'000);
  EXPECT_EQ(pace.Patience(), 1'000'000) << "its signs of life do not depend on home";
}

TEST_F(PeerTest, AFullUplinkIsNotAskedForAnythingTwice) {
  const auto files = Tree(5'000'000, 20);
  Start(3);
  // First home is fast, so that patience is short; then an answer takes longer than anybody waits for a silent node.
  ReadAllTogether({files[0]});
  uint64_t units = Units(files);
  for (const bool by_trace : {false, true}) {
    const auto more = home_.Add(by_trace ? "/traced" : "/read", Bytes(4'000'000, 8));
    units += Units({more});
    home_.TablesTogether(3);
    home_.Stall(2'500'000);
    std::vector<std::thread> readers;
    for (auto& node : nodes_) {
      readers.emplace_back([&] {
        if (by_trace) node->RunWithTrace(units);
        EXPECT_TRUE(node->Read(more) == more.content);
      });
    }
    for (auto& reader : readers) reader.join();
  }
  EXPECT_LE(home_.units_sent(), units) << "something went twice";
  for (auto& node : nodes_) EXPECT_EQ(node->stats().fallbacks, 0u) << node->name();
}

TEST_F(PeerTest, APeerThatDiesInTheMiddleCostsNothingButItsShare) {
  const auto files = Tree(12'000'000, 60);
  Start(3);
  std::thread reader([&] { ReadAll(nodes_[0].get(), files); });
  while (nodes_[0]->stats().fetched_bytes < 2'000'000) std::this_thread::yield();
  nodes_[2]->Die();
  reader.join();
  ReadAll(nodes_[1].get(), files);
  // Only what the dead one had fetched is fetched again.
  EXPECT_LE(home_.units_sent(), Units(files) * 3 / 2);
}

TEST(UnitExchange, AWrongQuestionOfOneFailsForThatOneOnly) {
  const UnitPlace right{Sha256("tree"), "/right", {1, 2, 3, 100}}, wrong{Sha256("tree"), "/wrong", {1, 2, 3, 100}};
  std::vector<std::pair<UnitPlace, UnitExchange::Got>> asked;
  UnitExchange exchange([&](const UnitPlace& place, uint64_t, uint64_t, vfs::Urgency,
                            UnitExchange::Got got) { asked.emplace_back(place, std::move(got)); },
                        {});
  std::optional<Result<std::vector<HeldUnit>>> first, second;
  EXPECT_TRUE(exchange.Get(wrong, 0, 1, vfs::Urgency::kDemand, [&](auto units) { first = std::move(units); }));
  EXPECT_FALSE(exchange.Get(right, 0, 1, vfs::Urgency::kDemand, [&](auto units) { second = std::move(units); }));
  ASSERT_EQ(asked.size(), 1u);
  auto got = asked[0].second;  // a copy, because more requests arrive while it runs
  got(Error(Code::kAborted, "changed at home"));
  ASSERT_TRUE(first && !*first);
  EXPECT_FALSE(second);
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[1].first.path, "/right");
  asked[1].second(SignedRange{0, {{Sha256("x"), std::make_shared<const std::string>("x"), nullptr}}});
  ASSERT_TRUE(second && *second);
  EXPECT_EQ(*(**second)[0].data, "x");
}

// Opens a stream to a node under another identity and asks for content that the node has.
class Intruder final : public rpc::Stream::Handler {
 public:
  Intruder(const rpc::Credentials& credentials, const std::string& address)
      : channel_(*rpc::Channel::Dial(address, credentials, "node")),
        stream_(channel_->OpenStream("/vrun.v1.Peer/Exchange", this)) {}
  ~Intruder() override { stream_.reset(); }
  void Say(const v1::PeerRequest& request) { stream_->Send(request.SerializeAsString()); }
  void OnMessage(std::string message) override {
    v1::PeerReply reply;
    VRUN_CHECK(reply.ParseFromString(message));
    ++messages_;
  }
  void OnClosed(Error) override { closed_.set_value(); }
  // True: the stream was closed without content.
  bool SentAway() {
    return closed_.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready && messages_ == 0;
  }

 private:
  std::atomic<int> messages_{0};
  std::promise<void> closed_;
  std::unique_ptr<rpc::Channel> channel_;
  std::unique_ptr<rpc::Stream> stream_;
};

v1::PeerRequest Ask(const PeerHome::File& file) {
  v1::PeerRequest request;
  request.set_id(1);
  auto* get = request.mutable_get_units();
  get->set_tree(std::string(Sha256("tree").view()));
  get->set_path(file.path);
  get->mutable_version()->set_dev(file.version.dev);
  get->mutable_version()->set_ino(file.version.ino);
  get->mutable_version()->set_ctime_ns(file.version.ctime_ns);
  get->mutable_version()->set_size(file.version.size);
  get->set_count(1);
  return request;
}

v1::PeerRequest Hello(const std::string& secret, const std::string& home, const std::string& asker,
                      const std::string& owner) {
  v1::PeerRequest request;
  request.mutable_hello()->set_home_id(home);
  request.mutable_hello()->set_nonce("nonce");
  request.mutable_hello()->set_proof(
      std::string(PeerProof(secret, PeerSide::kAsker, home, asker, owner, "nonce").view()));
  return request;
}

TEST_F(PeerTest, WhoHomeDoesNotServeGetsNothing) {
  const auto files = Tree(2'000'000, 3);
  Start(2);
  ReadAllTogether(files);
  const std::string address = nodes_[0]->address();
  const auto stranger = authority_.Make("node", "stranger");
  {
    Intruder asks_at_once(stranger, address);
    asks_at_once.Say(Ask(files[1]));
    EXPECT_TRUE(asks_at_once.SentAway());
  }
  {
    Intruder not_a_node(authority_.Make("home", "n2"), address);
    not_a_node.Say(Hello(home_.secret(), kTestHome, "n2", "n1"));
    not_a_node.Say(Ask(files[1]));
    EXPECT_TRUE(not_a_node.SentAway());
  }
  // On the list, but without the secret; with the secret of another home's node; with the secret, but not on the list.
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {"n2", *RandomSecret(32), kTestHome}, {"n2", home_.secret(), "x@y"}, {"stranger", home_.secret(), kTestHome}};
  for (const auto& [name, secret, home_id] : cases) {
    Intruder intruder(authority_.Make("node", name), address);
    intruder.Say(Hello(secret, home_id, name, "n1"));
    std::thread tick([&] {
      while (!ticked_) {
        nodes_[0]->Tick(MonotonicMicros() + 6'000'000);
        std::this_thread::yield();
      }
    });
    EXPECT_TRUE(intruder.SentAway()) << name;
    ticked_ = true;
    tick.join();
    ticked_ = false;
  }
}

}  // namespace
}  // namespace vrun::node
