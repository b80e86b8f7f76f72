// SPDX-License-Identifier: Apache-2.0
#include "home/runs/gang/merged_streams.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "home/runs/gang/rank_streams.h"
#include "home/testing/test_directory.h"

namespace vrun::home {
namespace {

class MergedStreamsTest : public testing::Test {
 protected:
  // A home: a journal, and what its reader gets.
  struct Home {
    Home(const std::string& path, uint32_t sources, bool label)
        : journal(path, sources),
          merged(&journal, label,
                 {.on_merged =
                      [this](v1::StreamId stream, uint64_t offset, std::string data) {
                        std::string& text = read[stream];
                        ASSERT_LE(offset, text.size() + skipped) << "a gap";
                        const uint64_t known = text.size() + skipped - offset;
                        if (known < data.size()) text += data.substr(known);
                        ++calls;
                      },
                  .on_passed =
                      [this](uint32_t pod, v1::StreamId stream, uint64_t offset) {
                        passed[{pod, stream}] = offset;
                      }}) {}
    MergeJournal journal;
    MergedStreams merged;
    std::map<v1::StreamId, std::string> read;
    std::map<std::pair<uint32_t, v1::StreamId>, uint64_t> passed;
    uint64_t skipped = 0;  // the reader has these from elsewhere
    size_t calls = 0;
  };
  std::unique_ptr<Home> Make(uint32_t sources, bool label = false) {
    return std::make_unique<Home>(directory_ / "merge", sources, label);
  }
  TestDirectory directory_;
};

TEST_F(MergedStreamsTest, LinesOfDifferentRanksAreNotTorn) {
  auto home = Make(2);
  home->merged.BeginAttempt(1, 2, 1);
  home->merged.Add(0, v1::STDOUT, 0, "ab", false);
  home->merged.Add(1, v1::STDOUT, 0, "12\n3", false);
  home->merged.Add(0, v1::STDOUT, 2, "c\nd", false);
  EXPECT_EQ(home->read[v1::STDOUT], "12\nabc\n");
  home->merged.Add(0, v1::STDOUT, 5, "", true);
  home->merged.Add(1, v1::STDOUT, 4, "", true);
  EXPECT_EQ(home->read[v1::STDOUT], "12\nabc\nd3");
}

TEST_F(MergedStreamsTest, AProgressBarIsSeenAtOnce) {
  auto home = Make(1);
  home->merged.BeginAttempt(1, 1, 1);
  home->merged.Add(0, v1::STDERR, 0, "10%\r20%", false);
  EXPECT_EQ(home->read[v1::STDERR], "10%\r");
  // The newline may follow in the next message.
  home->merged.Add(0, v1::STDERR, 7, "\r", false);
  EXPECT_EQ(home->read[v1::STDERR], "10%\r");
  home->merged.Add(0, v1::STDERR, 8, "\n", false);
  EXPECT_EQ(home->read[v1::STDERR], "10%\r20%\r\n");
}

TEST_F(MergedStreamsTest, ALineWithoutAnEndIsPassedOnInPieces) {
  auto home = Make(1);
  home->merged.BeginAttempt(1, 1, 1);
  const std::string half(MergedStreams::kLongestLine / 2, 'x');
  home->merged.Add(0, v1::STDOUT, 0, half, false);
  EXPECT_EQ(home->read[v1::STDOUT].size(), 0u);
  home->merged.Add(0, v1::STDOUT, half.size(), half, false);
  EXPECT_EQ(home->read[v1::STDOUT].size(), MergedStreams::kLongestLine);
}

TEST_F(MergedStreamsTest, LabelsAreAtTheBeginningOfEachLine) {
  auto home = Make(4, true);
  home->merged.BeginAttempt(1, 2, 2);
  home->merged.Add(1, RankStream(1, v1::STDOUT), 0, "a\nb\n", false);
  home->merged.Add(0, v1::STDOUT, 0, "no end", true);
  EXPECT_EQ(home->read[v1::STDOUT], "3: a\n3: b\n0: no end\n");
  home->merged.Passed(v1::STDOUT, home->merged.end(v1::STDOUT));
  EXPECT_EQ((home->passed[{1, RankStream(1, v1::STDOUT)}]), 4u);
  EXPECT_EQ((home->passed[{0, v1::STDOUT}]), 6u);
  EXPECT_TRUE(home->merged.Ended(0, v1::STDOUT));
  EXPECT_FALSE(home->merged.Ended(1, RankStream(1, v1::STDOUT)));
}

TEST_F(MergedStreamsTest, OnlyWhatTheReaderHasIsAcknowledged) {
  auto home = Make(2);
  home->merged.BeginAttempt(1, 2, 1);
  home->merged.Add(0, v1::STDOUT, 0, "one\n", false);
  home->merged.Add(1, v1::STDOUT, 0, "two\n", false);
  home->merged.Passed(v1::STDOUT, 6);
  EXPECT_EQ(home->passed.size(), 1u);
  EXPECT_EQ((home->passed[{0, v1::STDOUT}]), 4u);
  home->merged.Passed(v1::STDOUT, 8);
  EXPECT_EQ((home->passed[{1, v1::STDOUT}]), 4u);
}

// A reader that confirms nothing: the journal is full, then nothing more is merged, then all of it is.
TEST_F(MergedStreamsTest, ASlowReaderStopsTheMerge) {
  auto home = Make(1);
  home->merged.BeginAttempt(1, 1, 1);
  std::string all;
  for (size_t i = 0; i < MergeJournal::kSegments + 10; ++i) {
    const std::string line = std::to_string(i) + "\n";
    home->merged.Add(0, v1::STDOUT, all.size(), line, false);
    all += line;
  }
  EXPECT_EQ(home->calls, MergeJournal::kSegments);
  home->merged.Passed(v1::STDOUT, home->read[v1::STDOUT].size());
  EXPECT_EQ(home->read[v1::STDOUT], all);
}

TEST_F(MergedStreamsTest, ANewReaderContinuesAnywhere) {
  auto home = Make(2);
  home->merged.BeginAttempt(1, 2, 1);
  home->merged.Add(0, v1::STDOUT, 0, "one\n", false);
  home->merged.Add(1, v1::STDOUT, 0, "two\nthr", false);
  home->merged.Add(0, v1::STDOUT, 4, "four\n", false);
  EXPECT_EQ(home->read[v1::STDOUT], "one\ntwo\nfour\n");
  // It has "one\ntw".
  home->read[v1::STDOUT] = "one\ntw";
  home->merged.Repeat(6, 0);
  EXPECT_EQ(home->merged.Wanted(0, v1::STDOUT), 4u);
  EXPECT_EQ(home->merged.Wanted(1, v1::STDOUT), 0u);
  // In another order than before.
  home->merged.Add(0, v1::STDOUT, 4, "four\nfive\n", false);
  EXPECT_EQ(home->read[v1::STDOUT], "one\ntw");
  home->merged.Add(1, v1::STDOUT, 0, "two\nthree\n", false);
  EXPECT_EQ(home->read[v1::STDOUT], "one\ntwo\nfour\nfive\nthree\n");
}

TEST_F(MergedStreamsTest, WhatIsLostWithAPodDoesNotHoldUpTheOthers) {
  auto home = Make(2);
  home->merged.BeginAttempt(1, 2, 1);
  home->merged.Add(0, v1::STDOUT, 0, "lost\n", false);
  home->merged.Add(1, v1::STDOUT, 0, "two\n", false);
  home->skipped = 5;
  home->read[v1::STDOUT] = "";
  home->merged.Repeat(0, 0);
  home->merged.Add(1, v1::STDOUT, 0, "two\n", false);
  EXPECT_EQ(home->read[v1::STDOUT], "");
  home->merged.Drop(0);
  EXPECT_EQ(home->read[v1::STDOUT], "two\n");
}

// Random writes of several ranks, with readers that leave and homes that are killed: the reader gets each line once,
// whole, and the lines of a rank in order.
TEST_F(MergedStreamsTest, RandomRanksReadersAndHomes) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
    constexpr uint32_t kPods = 3, kRanks = 2;
    TestDirectory directory;
    const std::string path = directory / "merge";
    std::map<uint32_t, std::string> written;  // by rank
    for (uint32_t rank = 0; rank < kPods * kRanks; ++rank) {
      for (size_t line = 0; line < 200; ++line) {
        written[rank] += std::to_string(rank) + " " + std::to_string(line) + std::string(below(30), '.') + "\n";
      }
    }
    auto home = std::make_unique<Home>(path, kPods * kRanks, false);
    home->merged.BeginAttempt(1, kPods, kRanks);
    std::string read;
    for (;;) {
      const uint32_t rank = static_cast<uint32_t>(below(kPods * kRanks));
      const v1::StreamId stream = RankStream(rank % kRanks, v1::STDOUT);
      const uint64_t at = home->merged.Wanted(rank / kRanks, stream);
      const std::string& all = written[rank];
      const size_t n = std::min<size_t>(below(60), all.size() - at);
      home->merged.Add(rank / kRanks, stream, at, all.substr(at, n), at + n == all.size());
      read = home->read[v1::STDOUT];
      if (below(4) == 0) home->merged.Passed(v1::STDOUT, below(read.size() + 1));
      if (below(60) == 0) {
        // The reader is exchanged; the next one lacks the end of what this one had, if that was not confirmed.
        home->merged.Repeat(read.size(), 0);
      } else if (below(60) == 0) {
        home.reset();
        home = std::make_unique<Home>(path, kPods * kRanks, false);
        EXPECT_TRUE(home->journal.found());
        home->read[v1::STDOUT] = read;
        home->merged.BeginAttempt(1, kPods, kRanks);
      }
      bool over = true;
      for (uint32_t r = 0; r < kPods * kRanks; ++r) {
        over = over && home->merged.Wanted(r / kRanks, RankStream(r % kRanks, v1::STDOUT)) == written[r].size();
      }
      if (over && read.size() == [&] {
            size_t sum = 0;
            for (const auto& [r, text] : written) sum += text.size();
            return sum;
          }()) {
        break;
      }
    }
    std::map<uint32_t, std::string> by_rank;
    for (size_t at = 0; at < read.size();) {
      const size_t end = read.find('\n', at) + 1;
      by_rank[static_cast<uint32_t>(read[at] - '0')] += read.substr(at, end - at);
      at = end;
    }
    EXPECT_EQ(by_rank, written) << "seed " << seed;
  }
}

}  // namespace
}  // namespace vrun::home
