// SPDX-License-Identifier: Apache-2.0
// Frames of traces between nodes: home does not send again what one node has in any form; a node without it causes no
// delay; false content is not accepted.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "node/testing/peer_testing.h"

namespace vrun::node {
namespace {

TEST_F(PeerTest, ABurstByTraceLeavesHomeOnceForAllNodes) {
  const auto files = Tree(5'000'000, 20);
  Start(3);
  home_.TablesTogether(3);
  std::vector<std::thread> runs;
  for (auto& node : nodes_) {
    runs.emplace_back([&] { EXPECT_TRUE(node->RunWithTrace(Units(files))) << node->name(); });
  }
  for (auto& run : runs) run.join();
  EXPECT_EQ(home_.units_sent(), Units(files));
  for (auto& node : nodes_) {
    EXPECT_GT(node->stats().fetched_bytes, 0u);
    EXPECT_EQ(node->stats().lies, 0u);
  }
  ReadAllTogether(files);
  EXPECT_EQ(home_.units_sent(), Units(files)) << "it is all there";
}

TEST_F(PeerTest, ABurstFromANodeThatRanItAloneCostsHomeNothing) {
  const auto files = Tree(5'000'000, 20);
  Start(1);
  EXPECT_TRUE(nodes_[0]->RunWithTrace(Units(files)));
  Start(1);
  const int64_t began = MonotonicMicros();
  EXPECT_TRUE(nodes_[1]->RunWithTrace(Units(files)));
  EXPECT_LT(MonotonicMicros() - began, 2'000'000);
  EXPECT_EQ(home_.units_sent(), Units(files));
  EXPECT_EQ(nodes_[1]->stats().fallbacks, 0u);
  ReadAllTogether(files);
  EXPECT_EQ(home_.units_sent(), Units(files));
}

TEST_F(PeerTest, ABurstFromANodeThatReadItWithoutATraceCostsHomeNothing) {
  const auto files = Tree(5'000'000, 20);
  Start(1);
  ReadAll(nodes_[0].get(), files);
  Start(1);
  const int64_t began = MonotonicMicros();
  EXPECT_TRUE(nodes_[1]->RunWithTrace(Units(files)));
  EXPECT_LT(MonotonicMicros() - began, 2'000'000);
  EXPECT_EQ(home_.units_sent(), Units(files));
  EXPECT_EQ(nodes_[1]->stats().fallbacks, 0u);
  ReadAllTogether(files);
}

TEST_F(PeerTest, NodesThatDoNotRunItCostABurstNothing) {
  const auto files = Tree(5'000'000, 20);
  Start(4);
  int64_t began = MonotonicMicros();
  EXPECT_TRUE(nodes_[0]->RunWithTrace(Units(files)));
  EXPECT_LT(MonotonicMicros() - began, 2'000'000);
  EXPECT_EQ(home_.units_sent(), Units(files));
  // The next node gets all of it from the first, even what it would own itself.
  began = MonotonicMicros();
  EXPECT_TRUE(nodes_[1]->RunWithTrace(Units(files)));
  EXPECT_LT(MonotonicMicros() - began, 2'000'000);
  EXPECT_EQ(home_.units_sent(), Units(files));
  for (auto& node : nodes_) EXPECT_EQ(node->stats().fallbacks, 0u) << node->name();
}

TEST_F(PeerTest, WhoBeginsALittleLaterHasWhatTheOthersHaveFetched) {
  const auto files = Tree(8'000'000, 20);
  Start(3);
  nodes_[0]->BeginRun();
  while (nodes_[0]->units_fetched() < Units(files) / 8) std::this_thread::yield();
  std::vector<std::thread> runs;
  for (int i : {1, 2}) runs.emplace_back([&, i] { EXPECT_TRUE(nodes_[i]->RunWithTrace(Units(files))); });
  for (auto& run : runs) run.join();
  // What several nodes start to fetch at the same moment may be sent twice.
  EXPECT_LE(home_.units_sent(), Units(files) * 11 / 10);
  ReadAllTogether(files);
}

// Its askers must not each fetch the silent node's content from home: the next owner fetches it for all.
TEST_F(PeerTest, WhatASilentNodeOwnsLeavesHomeOnceToo) {
  const auto files = Tree(8'000'000, 20);
  Start(4);
  OddPeer silent(&home_, authority_, "silent",
                 [](const v1::PeerRequest&, const std::function<void(const v1::PeerReply&)>&) {});
  for (auto& node : nodes_) ASSERT_TRUE(node->WaitMates(4));
  home_.TablesTogether(4);
  const int64_t began = MonotonicMicros();
  std::vector<std::thread> runs;
  for (auto& node : nodes_) {
    runs.emplace_back([&] { EXPECT_TRUE(node->RunWithTrace(Units(files))) << node->name(); });
  }
  for (auto& run : runs) run.join();
  EXPECT_LT(MonotonicMicros() - began, 12'000'000);
  EXPECT_GT(silent.asked(), 0);
  EXPECT_LE(home_.units_sent(), Units(files) * 21 / 20);
  ReadAllTogether(files);
}

TEST(PeerDoubt, TwoQuestionsGoElsewhereAndMoreOnlyWhenThatIsFaster) {
  PeerDoubt doubt;
  EXPECT_TRUE(doubt.Begin());
  EXPECT_TRUE(doubt.Begin());
  EXPECT_FALSE(doubt.Begin());
  doubt.Over(true);  // from now on 4
  EXPECT_TRUE(doubt.Begin());
  EXPECT_TRUE(doubt.Begin());
  EXPECT_TRUE(doubt.Begin());
  EXPECT_FALSE(doubt.Begin());
  doubt.Heard();  // it is alive
  for (int i = 0; i < 2; ++i) {
    doubt.Over(false);
    EXPECT_FALSE(doubt.Begin());
  }
  doubt.Over(false);
  EXPECT_TRUE(doubt.Begin());
}

TEST(PeerPace, WhereTheLivingAreSilentForLongTheSilentAreNotDead) {
  PeerPace pace(300'000, 15'000'000);
  EXPECT_EQ(pace.Silence(), 300'000);
  pace.Spoke(800'000);
  EXPECT_EQ(pace.Silence(), 1'600'000);
  pace.Spoke(10'000);
  EXPECT_EQ(pace.Silence(), 1'600'000);
  pace.Spoke(60'000'000);
  EXPECT_EQ(pace.Silence(), 5'000'000) << "whatever was the matter then";
}

TEST(PeerFrames, AFrameThatAPeerMakesUpIsNeverBelieved) {
  const rpc::TestAuthority authority;
  const SigningKey other = *SigningKey::Generate();
  enum { kData, kDigests, kOtherKey, kOtherFrame, kShort, kNoContent, kNotCompressed, kUnsigned, kKinds };
  for (int kind = 0; kind < kKinds; ++kind) {
    PeerHome home;
    const auto file = home.Add("/f", Bytes(2'000'000, 50));
    const uint64_t units = store::UnitCount(file.version.size);
    OddPeer liar(&home, authority, "liar",
                 [&](const v1::PeerRequest& request, const std::function<void(const v1::PeerReply&)>& say) {
                   v1::PeerReply reply;
                   if (!request.has_get_frame()) {
                     reply.mutable_absent();
                     return say(reply);
                   }
                   uint64_t first = 0;
                   while (PeerHome::FrameName(file, first, std::min(PeerHome::kFrameUnits, units - first)).view() !=
                          request.get_frame().name()) {
                     first += PeerHome::kFrameUnits;
                   }
                   // The same length as the requested one, except the last.
                   if (kind == kOtherFrame) first = first == 0 ? PeerHome::kFrameUnits : 0;
                   v1::TraceFrame& frame = *reply.mutable_frame();
                   frame = PeerHome::Frame(file, first, std::min(PeerHome::kFrameUnits, units - first),
                                           kind == kOtherKey ? other : home.key());
                   char& byte = kind == kDigests ? frame.mutable_digests()->back() : frame.mutable_data()->back();
                   if (kind == kData || kind == kDigests) byte = static_cast<char>(byte ^ 1);
                   if (kind == kShort) frame.mutable_data()->pop_back();
                   if (kind == kNoContent) {
                     frame.clear_data();
                     frame.set_raw_bytes(0);
                   }
                   if (kind == kNotCompressed) frame.set_zstd(true);
                   if (kind == kUnsigned) frame.clear_signature();
                   say(reply);
                 });
    PeerNode node(&home, authority, "n1");
    node.Join();
    ASSERT_TRUE(node.WaitMates(1));
    EXPECT_TRUE(node.RunWithTrace(units)) << kind;
    EXPECT_GT(node.stats().lies, 0u) << kind;
    EXPECT_EQ(node.stats().fetched_bytes, 0u) << kind;
    EXPECT_EQ(home.units_sent(), units) << kind;
    EXPECT_LE(liar.asked(), 32) << "it is asked again at once";
    EXPECT_TRUE(node.Read(file) == file.content) << kind;
  }
}

TEST(PeerFrames, APeerThatSaysThatItHasTheUnitsAndDoesNotCostsAQuestion) {
  const rpc::TestAuthority authority;
  PeerHome home;
  const auto file = home.Add("/f", Bytes(2'000'000, 50));
  OddPeer peer(&home, authority, "liar",
               [&](const v1::PeerRequest& request, const std::function<void(const v1::PeerReply&)>& say) {
                 v1::PeerReply reply;
                 if (request.has_get_frame())
                   reply.mutable_units();
                 else
                   reply.mutable_absent();
                 say(reply);
               });
  PeerNode node(&home, authority, "n1");
  node.Join();
  ASSERT_TRUE(node.WaitMates(1));
  const int64_t began = MonotonicMicros();
  EXPECT_TRUE(node.RunWithTrace(store::UnitCount(file.version.size)));
  EXPECT_LT(MonotonicMicros() - began, 2'000'000);
  EXPECT_TRUE(node.Read(file) == file.content);
}

class FrameExchangeTest : public testing::Test {
 protected:
  FrameExchangeTest() {
    table_->id = Sha256("table");
    table_->files.push_back({"/f", {1, 2, 3, 100}, {}});
    table_->frames = {{{0, 0, 1}}};
  }
  // The state of a question: "" while pending, "n" or "y".
  void Ask(std::string* told, const std::string& asker = {}) {
    frames_.Get(
        FrameNameOf(*table_, 0), [told](const Result<FrameExchange::Frame>& f) { *told = f && *f ? "y" : "n"; }, asker);
  }

  const std::shared_ptr<vfs::TraceTable> table_ = std::make_shared<vfs::TraceTable>();
  FrameExchange frames_{[](const vfs::RunId&, const FrameExchange::TablePtr&, uint32_t,
                           const FrameExchange::Done& done) { done(std::make_shared<const v1::TraceFrame>()); }};
};

TEST_F(FrameExchangeTest, WhoHasNoTableSaysSoAtOnceAndKnowsLaterThatOthersAreAhead) {
  std::string told;
  Ask(&told, "n2");
  EXPECT_EQ(told, "n");
  frames_.Add({7, 1, "secret"}, table_);
  EXPECT_TRUE(frames_.Late(table_->id));
  Ask(&told);
  EXPECT_EQ(told, "y");
}

TEST_F(FrameExchangeTest, WhoWaitsForATableDoesNotSayThatThereIsNone) {
  std::string told, other;
  const uint64_t first = frames_.Expect();
  Ask(&told);
  const uint64_t second = frames_.Expect();
  EXPECT_EQ(told, "");
  // This table does not contain it.
  frames_.CameOrNot(second);
  EXPECT_EQ(told, "");
  frames_.Add({7, 1, "secret"}, table_);
  EXPECT_EQ(told, "y");
  frames_.CameOrNot(first);
}

TEST_F(FrameExchangeTest, OnceTheTablesThatWereExpectedHaveComeItSaysSo) {
  std::string told;
  const uint64_t first = frames_.Expect();
  Ask(&told, "n2");
  const uint64_t second = frames_.Expect();
  frames_.CameOrNot(first);
  EXPECT_EQ(told, "n") << "of a table that was asked for later nobody waits";
  frames_.CameOrNot(second);
  frames_.Add({7, 1, "secret"}, table_);
  EXPECT_TRUE(frames_.Late(table_->id));
}

}  // namespace
}  // namespace vrun::node
