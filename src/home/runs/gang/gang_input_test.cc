// SPDX-License-Identifier: Apache-2.0
#include "home/runs/gang/gang_input.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "home/runs/gang/rank_streams.h"

namespace vrun::home {
namespace {

class GangInputTest : public testing::Test {
 protected:
  void Make(int32_t rank, uint32_t pods, uint32_t ranks, uint64_t base = 0) {
    input_ = std::make_unique<GangInput>(
        rank, GangInput::Events{.send =
                                    [this](uint32_t pod, v1::StreamId stream, uint64_t offset, std::string_view data,
                                           bool eof, bool) {
                                      std::string& text = got_[{pod, stream}];
                                      EXPECT_EQ(offset, text.size());
                                      text += data;
                                      if (eof) text += "$";
                                    },
                                .wanted = [this](uint64_t offset) { wanted_ = offset; },
                                .acked =
                                    [this](uint64_t offset, bool closed, std::optional<uint64_t> taken) {
                                      acked_ = offset;
                                      closed_ = closed;
                                      taken_ = taken;
                                    },
                                .paused = [this] { ++paused_; }});
    input_->BeginAttempt(pods, ranks, base);
  }
  std::unique_ptr<GangInput> input_;
  std::map<std::pair<uint32_t, v1::StreamId>, std::string> got_;
  std::optional<uint64_t> wanted_;
  uint64_t acked_ = 0;
  bool closed_ = false;
  std::optional<uint64_t> taken_;
  int paused_ = 0;
};

TEST_F(GangInputTest, OneRankGetsItAndTheOthersFindItEmpty) {
  Make(3, 2, 2);
  input_->Wanted(0, v1::STDIN, 0);
  input_->Wanted(0, RankStream(1, v1::STDIN), 0);
  input_->Wanted(1, v1::STDIN, 0);
  EXPECT_FALSE(wanted_);
  input_->Wanted(1, RankStream(1, v1::STDIN), 0);
  EXPECT_EQ(wanted_, 0u);
  input_->Add(0, "hello", true, false);
  EXPECT_EQ((got_[{1, RankStream(1, v1::STDIN)}]), "hello$");
  EXPECT_EQ((got_[{1, v1::STDIN}]), "$");
  EXPECT_EQ((got_[{0, RankStream(1, v1::STDIN)}]), "$");
  input_->Acked(1, RankStream(1, v1::STDIN), 3, true, 2);
  EXPECT_TRUE(closed_);
  EXPECT_EQ(taken_, 2u);
}

TEST_F(GangInputTest, OfAllTheSlowestDecides) {
  Make(GangInput::kAll, 2, 1);
  input_->Wanted(0, v1::STDIN, 0);
  input_->Add(0, "abcdef", false, false);
  input_->Acked(0, v1::STDIN, 6, false, std::nullopt);
  EXPECT_EQ(acked_, 0u) << "the second has nothing yet";
  input_->Wanted(1, v1::STDIN, 0);
  EXPECT_EQ(wanted_, 0u);
  input_->Add(0, "abcdef", false, false);  // from where it is wanted
  EXPECT_EQ((got_[{0, v1::STDIN}]), "abcdef") << "not twice";
  EXPECT_EQ((got_[{1, v1::STDIN}]), "abcdef");
  input_->Acked(1, v1::STDIN, 4, false, std::nullopt);
  EXPECT_EQ(acked_, 4u);
  // One that reads no more holds up nobody.
  input_->Acked(1, v1::STDIN, 4, true, 4);
  EXPECT_FALSE(closed_);
  EXPECT_EQ(acked_, 6u);
  input_->Ended(0);
  EXPECT_TRUE(closed_);
}

TEST_F(GangInputTest, OneThatComesBackGetsWhatItLacks) {
  Make(GangInput::kAll, 2, 1);
  input_->Wanted(0, v1::STDIN, 0);
  input_->Wanted(1, v1::STDIN, 0);
  input_->Add(0, "abc", false, false);
  input_->Disconnected(1);
  EXPECT_EQ(paused_, 1);
  got_[{1, v1::STDIN}] = "a";
  input_->Wanted(1, v1::STDIN, 1);
  EXPECT_EQ(wanted_, 1u);
  input_->Add(1, "bcd", true, false);
  EXPECT_EQ((got_[{0, v1::STDIN}]), "abcd$");
  EXPECT_EQ((got_[{1, v1::STDIN}]), "abcd$");
}

TEST_F(GangInputTest, TheNextAttemptContinues) {
  Make(0, 2, 1);
  input_->Wanted(0, v1::STDIN, 0);
  input_->Add(0, "abc", false, false);
  input_->Acked(0, v1::STDIN, 2, false, std::nullopt);
  got_.clear();
  input_->BeginAttempt(3, 1, input_->acked());
  input_->Wanted(0, v1::STDIN, 0);
  EXPECT_EQ(wanted_, 2u);
  input_->Add(2, "cd", false, false);
  EXPECT_EQ((got_[{0, v1::STDIN}]), "cd");
}

TEST_F(GangInputTest, NobodyGetsIt) {
  Make(-2, 1, 2);
  input_->Wanted(0, v1::STDIN, 0);
  EXPECT_FALSE(wanted_);
  EXPECT_EQ((got_[{0, v1::STDIN}]), "$");
}

}  // namespace
}  // namespace vrun::home
