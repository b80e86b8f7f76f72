// SPDX-License-Identifier: Apache-2.0
#include "node/agent/isolation.h"

#include <gtest/gtest.h>

namespace vrun::node {
namespace {

std::string Shown(const std::string& text) {
  const Result<v1::Isolation::Destination> d = ParseRefused(text);
  if (!d) return "refused";
  return d->address() + " " + std::to_string(d->prefix_bits()) + " " + std::to_string(d->port());
}

TEST(ParseRefused, Forms) {
  EXPECT_EQ("10.0.0.1 0 0", Shown("10.0.0.1"));
  EXPECT_EQ("10.0.0.0 8 0", Shown("10.0.0.0/8"));
  EXPECT_EQ("10.0.0.0 8 443", Shown("10.0.0.0/8:443"));
  EXPECT_EQ(" 0 22", Shown(":22"));
  EXPECT_EQ("fd00::1 0 0", Shown("fd00::1"));
  EXPECT_EQ("fd00:: 8 0", Shown("fd00::/8"));
  EXPECT_EQ("fd00::1 0 443", Shown("[fd00::1]:443"));
  for (const char* bad :
       {"", ":", ":0", ":65536", "10.0.0.1/33", "10.0.0.1/", "host", "10.0.0.1:x", "10.0.0", "[::1]x"}) {
    EXPECT_EQ("refused", Shown(bad)) << bad;
  }
}

TEST(IsolationOf, TheControllerAndOwnPortsAreRefusedToo) {
  const auto it = IsolationOf({.refuse = {"10.0.0.1"}}, "192.0.2.1:7000", {8000, 0});
  ASSERT_TRUE(it);
  ASSERT_EQ(3, it->refused_size());
  EXPECT_EQ("192.0.2.1", it->refused(1).address());
  EXPECT_EQ(7000u, it->refused(1).port());
  EXPECT_EQ("", it->refused(2).address());
  EXPECT_FALSE(IsolationOf({.refuse = {"x"}}, "", {}));
}

TEST(DefaultMemory, IsThePartOfTheMachineThatTheJobHas) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  EXPECT_EQ(16 * kGiB, DefaultMemory(128 * kGiB, 1000, 8, 0, 0));
  EXPECT_EQ(64 * kGiB, DefaultMemory(128 * kGiB, 1000, 8, 4, 8));
  EXPECT_EQ(2 * kGiB, DefaultMemory(128 * kGiB, 1, 128, 0, 8));
  EXPECT_LT(DefaultMemory(128 * kGiB, 8000, 8, 0, 8), 128 * kGiB);
  EXPECT_LT(DefaultMemory(kGiB, 1000, 8, 0, 0), kGiB);
}

}  // namespace
}  // namespace vrun::node
