// SPDX-License-Identifier: Apache-2.0
#include "control/access/access.h"

#include <gtest/gtest.h>

#include "control/access/bounds.h"

namespace vrun::control {
namespace {

TEST(AccessTest, NobodyGetsMoreForAnothersJobThanForHisOwn) {
  for (const CallRule& rule : CallRules()) {
    EXPECT_NE(rule.certificates, 0) << rule.call;
    EXPECT_LE(rule.own, rule.team) << rule.call;
    EXPECT_LE(rule.team, rule.other) << rule.call;
    // Who leads a team leads nothing of others.
    EXPECT_NE(rule.other, Role::kLead) << rule.call;
  }
}

TEST(AccessTest, ReplaysAreSeenByLeadsAndStartedByOperators) {
  constexpr char kSee[] = "/vrun.v1.Control/Accounts#replay", kStart[] = "/vrun.v1.Control/Accounts#replay-start";
  for (const Role role : {Role::kUser, Role::kLead, Role::kOperator, Role::kAdmin}) {
    EXPECT_EQ(MayCall(kSee, role).has_value(), role >= Role::kLead) << RoleName(role);
    EXPECT_EQ(MayCall(kStart, role).has_value(), role >= Role::kOperator) << RoleName(role);
  }
}

TEST(AccessTest, ACallWithoutARowIsForNobody) {
  EXPECT_EQ(MayCall("/vrun.v1.Control/Reboot", "home").error().code(), Code::kUnsupported);
  EXPECT_EQ(MayCall("/vrun.v1.Control/Reboot", Role::kAdmin).error().code(), Code::kUnsupported);
  EXPECT_EQ(MayTouch("/vrun.v1.Control/Reboot", Role::kAdmin, Whose::kOwn, "job 1").error().code(), Code::kUnsupported);
}

TEST(AccessTest, ACertificateOfAnotherRoleIsRefusedWithTheOnesThatAreNot) {
  EXPECT_EQ(MayCall("/vrun.v1.Control/Submit", "node").error().message(), "Submit: only homes may call this");
  EXPECT_EQ(MayCall("/vrun.v1.Control/Get", "node").error().message(),
            "Get: only homes and the snapshot store may call this");
  for (const char* nobody : {"", "controller", "Home", "admin"}) {
    EXPECT_EQ(MayCall("/vrun.v1.Control/Submit", nobody).error().code(), Code::kDenied) << nobody;
  }
}

TEST(BoundsTest, CallsAreSavedUpForTenSecondsAndNoLonger) {
  CallLimiter limiter({.requests_per_second = 2});
  int64_t now = 1'000'000'000;
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(limiter.Call("anna", now)) << i;
  const Status refused = limiter.Call("anna", now);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kExhausted);
  EXPECT_EQ(refused.error().message(),
            "user anna: more than 2 requests a second, which is the limit of each user: ask less often");
  EXPECT_TRUE(limiter.Call("bob", now));
  now += 1'000'000;
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(limiter.Call("anna", now));
  EXPECT_FALSE(limiter.Call("anna", now));
  now += 3600'000'000LL;
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(limiter.Call("anna", now)) << i;
  EXPECT_FALSE(limiter.Call("anna", now));
  limiter.Use({.requests_per_second = 0});
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(limiter.Call("anna", now));
}

TEST(BoundsTest, AStreamThatEndsMakesRoom) {
  CallLimiter limiter({.streams = 2});
  auto one = limiter.OpenStream("anna"), two = limiter.OpenStream("anna");
  ASSERT_TRUE(one && two);
  EXPECT_EQ(limiter.OpenStream("anna").error().code(), Code::kExhausted);
  EXPECT_TRUE(limiter.OpenStream("bob"));
  one->reset();
  EXPECT_TRUE(limiter.OpenStream("anna"));
}

}  // namespace
}  // namespace vrun::control
