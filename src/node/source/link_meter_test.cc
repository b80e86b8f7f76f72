// SPDX-License-Identifier: Apache-2.0
#include "node/source/link_meter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace vrun::node {
namespace {

constexpr double kMbit = 0.125;  // bytes per microsecond
constexpr int64_t kSecond = 1'000'000;
constexpr uint64_t kMessage = 1 << 20;

// Sends messages over a link of this rate until `end`, back to back except that `idle` returns the start of the next
// one. Returns the busy share in percent.
double Share(double rate, uint64_t bytes, int64_t end, const std::function<double(double)>& idle = nullptr) {
  LinkMeter meter;
  for (double at = 0; at < static_cast<double>(end);) {
    if (idle) at = idle(at);
    at += static_cast<double>(bytes) / rate;
    if (at < static_cast<double>(end)) meter.Arrived(static_cast<int64_t>(at), bytes);
  }
  return static_cast<double>(meter.busy_micros()) * 100 / static_cast<double>(end);
}

// Sends nothing in the second half of every `period`.
std::function<double(double)> HalfOf(double period) {
  return [period](double at) {
    const double begin = static_cast<double>(static_cast<int64_t>(at / period)) * period;
    return at - begin < period / 2 ? at : begin + period;
  };
}

TEST(LinkMeterTest, AFullLinkIsBusyAndOneThatIsIdleHalfOfTheTimeHalf) {
  for (const double mbit : {10, 100, 500, 1000, 10'000}) {
    for (const uint64_t bytes : {kMessage, kMessage / 16}) {
      const double full = Share(mbit * kMbit, bytes, 60 * kSecond);
      EXPECT_GE(full, 90) << mbit << " Mbit/s, " << bytes;
      EXPECT_LE(full, 100) << mbit << " Mbit/s, " << bytes;
      const double half = Share(mbit * kMbit, bytes, 60 * kSecond, HalfOf(20 * kSecond));
      EXPECT_GE(half, 40) << mbit << " Mbit/s, " << bytes;
      EXPECT_LE(half, 60) << mbit << " Mbit/s, " << bytes;
    }
  }
  const double half = Share(100 * kMbit, kMessage, 60 * kSecond, HalfOf(2 * kSecond));
  EXPECT_GE(half, 45);
  EXPECT_LE(half, 55);
}

TEST(LinkMeterTest, SmallMessagesFillALinkAsWell) {
  EXPECT_GE(Share(100 * kMbit, 1000, 5 * kSecond), 90);
  // Messages arrive in batches, as from a network card and a socket.
  LinkMeter meter;
  for (int64_t at = 0; at < 5 * kSecond; at += 2000) {
    for (int i = 0; i < 25; ++i) meter.Arrived(at, 1000);
  }
  EXPECT_GE(meter.busy_micros(), 5 * kSecond * 9 / 10);
}

TEST(LinkMeterTest, WhatWaitedForUsDoesNotMakeTheLinkSeemFaster) {
  // 500 Mbit/s; sometimes this process is not scheduled for a while.
  LinkMeter meter;
  double came = 0, read = 0;
  for (int i = 1; read < 20e6; ++i) {
    came += static_cast<double>(kMessage) / (500 * kMbit);
    read = std::max(read + 300, came);
    if (i % 47 == 0) read += 100'000;
    meter.Arrived(static_cast<int64_t>(read), kMessage);
  }
  EXPECT_GE(meter.busy_micros(), 20 * kSecond * 8 / 10);
}

TEST(LinkMeterTest, OneMessageIsNothingAndSignsOfLifeAreNearlyNothing) {
  LinkMeter meter;
  EXPECT_EQ(meter.busy_micros(), 0);
  meter.Arrived(5, kMessage);
  EXPECT_EQ(meter.busy_micros(), 0);
  LinkMeter pings;
  for (int64_t second = 0; second < 100; ++second) pings.Arrived(second * kSecond, 100);
  EXPECT_LE(pings.busy_micros(), kSecond);
}

TEST(LinkMeterTest, QuestionsOneAtATimeDoNotFillALinkThatHasShownMore) {
  LinkMeter meter;
  int64_t now = 0;
  for (int i = 0; i < 60; ++i) meter.Arrived(now += 16'777, kMessage);  // 500 Mbit/s
  const int64_t before = meter.busy_micros();
  for (int i = 0; i < 200; ++i) meter.Arrived(now += 20'000, 16 << 10);  // then one per round trip
  EXPECT_LE(meter.busy_micros() - before, 4 * kSecond / 20);
}

TEST(LinkMeterTest, AHomeThatHasMovedToASlowerLinkFillsThat) {
  LinkMeter meter;
  int64_t now = 0;
  for (int i = 0; i < 5000; ++i) meter.Arrived(now += 839, kMessage);  // 10 Gbit/s
  now += 180 * kSecond;
  const int64_t began = now, before = meter.busy_micros();
  for (int i = 0; i < 60; ++i) meter.Arrived(now += 420'000, kMessage);  // 20 Mbit/s
  EXPECT_GE(meter.busy_micros() - before, (now - began) * 9 / 10);
}

}  // namespace
}  // namespace vrun::node
