// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "home/pack/compression_policy.h"
#include "home/pack/hot_units.h"

namespace vrun::home {
namespace {

constexpr double kGbit = 125e6;
const CompressionPolicy::Cost kOne{400e6, 0.5}, kThree{150e6, 0.45};

TEST(CompressionChoice, ByTheLink) {
  EXPECT_EQ(CompressionPolicy::Choose(0, kOne, kThree, 1), 1) << "level 1 until something is known";
  EXPECT_EQ(CompressionPolicy::Choose(0.5 * kGbit, kOne, kThree, 1), 1);
  EXPECT_EQ(CompressionPolicy::Choose(1 * kGbit, kOne, kThree, 1), 1);
  EXPECT_EQ(CompressionPolicy::Choose(4 * kGbit, kOne, kThree, 1), 0) << "the core would be slower than the link";
  EXPECT_EQ(CompressionPolicy::Choose(10 * kGbit, kOne, kThree, 1), 0);
  EXPECT_EQ(CompressionPolicy::Choose(1 * kGbit, kOne, kThree, 0), 1) << "and back";
  EXPECT_EQ(CompressionPolicy::Choose(0.05 * kGbit, kOne, {150e6, 0.3}, 1), 3) << "a slow link, and it gives more";
}

TEST(CompressionChoice, ByTheContentAndTheMachine) {
  EXPECT_EQ(CompressionPolicy::Choose(1 * kGbit, {400e6, 0.99}, {150e6, 0.99}, 1), 1) << "too little to change for";
  EXPECT_EQ(CompressionPolicy::Choose(1 * kGbit, {60e6, 0.5}, {24e6, 0.45}, 1), 0) << "a slow machine";
  EXPECT_EQ(CompressionPolicy::Choose(2.9 * kGbit, kOne, kThree, 1), 1);
  EXPECT_EQ(CompressionPolicy::Choose(2.9 * kGbit, kOne, kThree, 0), 0) << "no flapping around the edge";
}

// Simulates for `seconds` a stream on a link of `link` bytes a second, from a sender that produces `made` bytes a
// second.
void Play(CompressionPolicy* policy, double link, double made, double seconds, bool waits = true) {
  static int64_t now = 1'000'000;
  static uint64_t sent = 0;
  double queued = 0;
  for (double t = 0; t < seconds;) {
    // One message of 256 KiB, produced unless the queue is too long.
    double took = 262144 / made;
    if (queued > 4e6) took = std::max(took, (queued - 4e6) / link);
    t += took;
    now += static_cast<int64_t>(took * 1e6);
    queued = std::max(0.0, queued - link * took) + 262144;
    sent += 262144;
    policy->Sent(now, sent, static_cast<uint64_t>(queued - (link * took > queued ? 262144 : 0)), waits);
  }
}

TEST(CompressionPolicy, FindsTheSpeedOfASlowLink) {
  CompressionPolicy policy;
  Play(&policy, 0.5 * kGbit, 300e6, 2);
  EXPECT_NEAR(policy.link() / kGbit, 0.5, 0.1);
  EXPECT_EQ(policy.level(), 1);
}

TEST(CompressionPolicy, EndsWhereTheProcessorIsTheBound) {
  CompressionPolicy policy;
  Play(&policy, 20 * kGbit, 250e6, 2);
  EXPECT_EQ(policy.level(), 0);
  // And begins again when the link turns out to be slow.
  Play(&policy, 0.3 * kGbit, 1200e6, 3);
  EXPECT_GT(policy.level(), 0);
}

TEST(CompressionPolicy, APauseSaysNothing) {
  CompressionPolicy policy;
  Play(&policy, 20 * kGbit, 5e6, 2, false);
  EXPECT_EQ(policy.link(), 0);
  EXPECT_EQ(policy.level(), 1);
}

TEST(CompressionPolicy, WhatTheSocketSwallowsSaysNothing) {
  CompressionPolicy policy;
  // Distant readers: a burst that fits into the socket's buffer, then nothing until they have it.
  for (int64_t burst = 0, now = 1'000'000'000, sent = 0; burst < 100; ++burst, now += 60'000) {
    for (int i = 0; i < 12; ++i) policy.Sent(now += 2'000, static_cast<uint64_t>(sent += 262144), 0, i < 11);
  }
  EXPECT_EQ(policy.link(), 0);
  EXPECT_EQ(policy.level(), 1);
}

TEST(Shrinks, TriesNowAndThen) {
  Shrinks shrinks;
  int tried = 0;
  for (int i = 0; i < 1024; ++i) {
    if (!shrinks.Try()) continue;
    ++tried;
    shrinks.Tried(false);
  }
  EXPECT_LT(tried, 24);
  EXPECT_GT(tried, 12);
  while (!shrinks.Try()) {
  }
  shrinks.Tried(true);
  EXPECT_TRUE(shrinks.Try()) << "what shrinks again is tried again";
}

v1::Units SomeUnits(int n, bool zstd = true) {
  v1::Units units;
  for (int i = 0; i < n; ++i) {
    v1::Piece* piece = units.add_piece();
    piece->set_data(std::string(10'000, static_cast<char>('a' + i)));
    piece->set_zstd(zstd);
    piece->set_raw_bytes(static_cast<uint32_t>(store::kUnitBytes));
    piece->set_digests(std::string(sizeof(Digest::bytes), static_cast<char>(i)));
  }
  return units;
}

TEST(HotUnits, GivesAllOrNothingAndKeepsItsBound) {
  HotUnits hot(200'000);
  const tree::FileVersion version{1, 2, 3, 1'000'000};
  const int64_t later = 10'000'000'000;
  hot.Keep(version, 4, SomeUnits(5), later);
  v1::Units out;
  EXPECT_FALSE(hot.Find(version, 4, 6, &out));
  EXPECT_EQ(out.piece_size(), 0);
  ASSERT_TRUE(hot.Find(version, 5, 3, &out));
  ASSERT_EQ(out.piece_size(), 3);
  EXPECT_EQ(out.piece(0).digests()[0], 1);
  EXPECT_EQ(out.piece(2).data()[0], 'd');
  EXPECT_FALSE(hot.Find({1, 2, 4, 1'000'000}, 5, 1, &out)) << "another version";
  hot.Keep(version, 100, SomeUnits(16), later);
  EXPECT_LE(hot.bytes(), 200'000u);
  EXPECT_TRUE(hot.Find(version, 105, 9, &out)) << "the latest stay";
  EXPECT_FALSE(hot.Find(version, 4, 1, &out));
  hot.Keep(version, 200, SomeUnits(1, false), later);
  EXPECT_FALSE(hot.Find(version, 200, 1, &out)) << "plain ones are the page cache's";
}

TEST(HotUnits, NotOfAFileThatHasJustChanged) {
  HotUnits hot;
  const tree::FileVersion version{1, 2, 5'000'000'000, 1'000'000};
  hot.Keep(version, 0, SomeUnits(1), 5'500'000'000);
  v1::Units out;
  EXPECT_FALSE(hot.Find(version, 0, 1, &out));
}

}  // namespace
}  // namespace vrun::home
