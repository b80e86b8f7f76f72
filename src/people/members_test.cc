// SPDX-License-Identifier: Apache-2.0
#include "people/members.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <thread>

#include "base/files.h"

namespace vrun::people {
namespace {

class MembersTest : public ::testing::Test {
 protected:
  ~MembersTest() override { (void)RemoveTree(directory_); }

  static v1::Invitation ForUser(const std::string& name, int64_t expires = 1000) {
    v1::Invitation invitation;
    invitation.set_role("home");
    invitation.set_name(name);
    invitation.set_expires_us(expires);
    return invitation;
  }
  static Status Fine(const v1::Invitation&) { return {}; }

  static std::string NewDirectory() {
    std::string directory = ::testing::TempDir() + "/members-XXXXXX";
    VRUN_CHECK(::mkdtemp(directory.data()) != nullptr);
    return directory;
  }

  const std::string directory_ = NewDirectory();
  Members members_{directory_ + "/people"};
};

TEST_F(MembersTest, ATokenIsGoodOnceAndUntilItsEnd) {
  const auto secret = members_.Invite(ForUser("anna"));
  ASSERT_TRUE(secret);
  const auto taken = members_.Take(*secret, 999, Fine);
  ASSERT_TRUE(taken) << taken.error().message();
  EXPECT_EQ(taken->name(), "anna");
  EXPECT_EQ(members_.Take(*secret, 999, Fine).error().code(), Code::kDenied);

  const auto late = members_.Invite(ForUser("anna"));
  EXPECT_EQ(members_.Take(*late, 1000, Fine).error().code(), Code::kDenied);
  for (const std::string& wrong :
       {std::string(), std::string("../members"), std::string(32, 'a'), std::string(32, '/')}) {
    EXPECT_FALSE(members_.Take(wrong, 0, Fine)) << wrong;
  }
}

TEST_F(MembersTest, WhatHasEndedOrWasWithdrawnIsGone) {
  const auto secret = members_.Invite(ForUser("anna", INT64_MAX));
  ASSERT_TRUE(members_.Invite(ForUser("ended")));
  ASSERT_TRUE(members_.Invite(ForUser("bob", INT64_MAX)));
  members_.Withdraw(*secret);
  EXPECT_FALSE(members_.Take(*secret, 0, Fine));
  int left = 0;
  for (const auto& file : std::filesystem::directory_iterator(directory_ + "/people/invitations")) {
    left += file.is_regular_file();
  }
  EXPECT_EQ(left, 1);
}

TEST_F(MembersTest, ARefusedRequestDoesNotUseTheTokenUp) {
  const auto secret = members_.Invite(ForUser("anna"));
  const auto refuse = [](const v1::Invitation&) -> Status { return Error(Code::kExists, "the name is taken"); };
  EXPECT_EQ(members_.Take(*secret, 0, refuse).error().code(), Code::kExists);
  EXPECT_TRUE(members_.Take(*secret, 0, Fine));
}

TEST_F(MembersTest, OfManyAtOnceOneGetsIn) {
  for (int round = 0; round < 20; ++round) {
    const auto secret = members_.Invite(ForUser("anna"));
    std::atomic<int> in = 0;
    std::vector<std::thread> all;
    for (int i = 0; i < 4; ++i) {
      all.emplace_back([&] { in += members_.Take(*secret, 0, Fine).has_value(); });
    }
    for (auto& one : all) one.join();
    EXPECT_EQ(in, 1);
  }
}

TEST_F(MembersTest, TheDirectoryGivesNoTokenAwayAndIsPrivate) {
  const auto secret = members_.Invite(ForUser("anna"));
  struct stat st {};
  ASSERT_EQ(::stat((directory_ + "/people/invitations").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 077, 0u);
  EXPECT_FALSE(PathExists(directory_ + "/people/invitations/" + *secret));
}

TEST_F(MembersTest, WhoIsShutOutStaysOut) {
  EXPECT_TRUE(members_.Admit("home", "anna@laptop"));
  ASSERT_TRUE(members_.Revoke("home", "anna@laptop"));
  EXPECT_EQ(members_.Admit("home", "anna@laptop").error().code(), Code::kDenied);
  EXPECT_TRUE(members_.Admit("home", "anna@desk"));
  EXPECT_TRUE(members_.Admit("node", "anna@laptop"));
  ASSERT_TRUE(members_.Revoke("home", "anna"));
  EXPECT_FALSE(members_.Admit("home", "anna@desk"));
  EXPECT_TRUE(members_.Admit("home", "annabel@desk"));
  for (const char* name : {"", "..", "a/b", "../x"}) {
    EXPECT_FALSE(members_.Admit("home", name)) << name;
    EXPECT_FALSE(members_.Revoke("home", name)) << name;
  }
}

TEST_F(MembersTest, AnotherMachineFollowsTheListOfThoseWhoWereShutOut) {
  const Members there(::testing::TempDir() + "/follows-" + std::to_string(::getpid()));
  ASSERT_TRUE(members_.Revoke("home", "anna@laptop"));
  ASSERT_TRUE(members_.Revoke("node", "n1"));
  EXPECT_TRUE(there.Follow(*members_.ShutOutList()).value());
  EXPECT_FALSE(there.Follow(*members_.ShutOutList()).value());
  EXPECT_TRUE(there.IsRevoked("home", "anna@laptop"));
  EXPECT_TRUE(there.IsRevoked("node", "n1"));
  v1::ShutOut evil;
  evil.add_nodes("../../x");
  EXPECT_FALSE(there.Follow(evil));
  EXPECT_TRUE(there.Follow({}).value());
  EXPECT_FALSE(there.IsRevoked("node", "n1"));
}

TEST_F(MembersTest, MembersAreListed) {
  EXPECT_TRUE(members_.List()->empty());
  for (const char* name : {"n2", "n1"}) {
    v1::Member member;
    member.set_role("node");
    member.set_name(name);
    ASSERT_TRUE(members_.Add(member));
  }
  ASSERT_EQ(members_.List()->size(), 2u);
  EXPECT_EQ(members_.List()->front().name(), "n1");
  EXPECT_TRUE(members_.Find("node", "n2"));
  EXPECT_FALSE(members_.Find("node", "../node/n2"));
}

TEST(TokenTest, ItsTextIsReadAsItIsWritten) {
  const Token token{"[::1]:7420", std::string(64, 'a'), std::string(32, '0')};
  const auto read = ParseToken(token.Text());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->controller, token.controller);
  EXPECT_EQ(read->authority, token.authority);
  EXPECT_EQ(read->secret, token.secret);
  const std::string text = token.Text();
  for (size_t n = 0; n < text.size(); ++n) EXPECT_FALSE(ParseToken(text.substr(0, n))) << n;
  for (const char* bad : {"", "/", ":/", "host/x.y", "a:1/b"}) EXPECT_FALSE(ParseToken(bad)) << bad;
}

}  // namespace
}  // namespace vrun::people
