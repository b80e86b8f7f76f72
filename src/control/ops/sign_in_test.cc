// SPDX-License-Identifier: Apache-2.0
// What the controller keeps of people who have logged in by an identity provider.
#include "control/ops/sign_in.h"

#include <gtest/gtest.h>

#include "control/state/scheduler_config.h"
#include "rpc/testing.h"

namespace vrun::control {
namespace {

v1::Person PersonOf(const std::string& user, const std::string& subject, int64_t at_us = 0) {
  v1::Person person;
  person.set_user(user);
  person.set_issuer("https://id.example.org");
  person.set_subject(subject);
  person.add_groups("ml");
  person.set_logged_in_us(at_us);
  return person;
}

TEST(SignInTest, ANameStaysWithItsAccountAndItsGroupsWithItsMachines) {
  const rpc::TestAuthority authority;
  const std::string directory = authority.directory() + "/people";
  {
    people::Persons persons(directory);
    ASSERT_TRUE(persons.LogIn(PersonOf("anna", "1"), "laptop"));
    EXPECT_EQ(persons.LogIn(PersonOf("anna", "2"), "desk").error().code(), Code::kDenied);
  }
  people::Persons persons(directory);  // after a restart
  EXPECT_EQ(persons.LogIn(PersonOf("anna", "2"), "desk").error().code(), Code::kDenied);
  EXPECT_TRUE(persons.InGroup("anna@laptop", "ml"));
  for (const char* name : {"anna", "anna@desk", "@laptop", "", "bob@laptop"})
    EXPECT_FALSE(persons.InGroup(name, "ml")) << name;
  EXPECT_FALSE(persons.InGroup("anna@laptop", "staff"));
  for (int i = 0; i < 99; ++i) ASSERT_TRUE(persons.LogIn(PersonOf("anna", "1"), "m" + std::to_string(i)));
  EXPECT_EQ(persons.LogIn(PersonOf("anna", "1"), "one-more").error().code(), Code::kExhausted);
}

TEST(SignInTest, GroupsStandInListsOfNames) {
  SchedulerConfig config = ParseSchedulerConfig("admins = [\"@ml\"]\n[team.vision]\nusers = [\"@ml\"]\n", "f").value();
  EXPECT_EQ(config.RoleOf("anna@laptop", false), Role::kUser);
  config.in_group = [](const std::string& user, const std::string& group) {
    return user == "anna@laptop" && group == "ml";
  };
  EXPECT_EQ(config.RoleOf("anna@laptop", false), Role::kAdmin);
  EXPECT_EQ(config.RoleOf("anna@desk", true), Role::kUser);
  EXPECT_EQ(config.TeamsOf("anna@laptop"), std::vector<std::string>{"vision"});
  EXPECT_TRUE(config.TeamsOf("ml@x").empty());
}

TEST(SignInTest, ALoginIsGoodForSomeDays) {
  const rpc::TestAuthority authority;
  const people::Members members(authority.directory() + "/people");
  people::Persons persons(authority.directory() + "/people");
  SignIn sign_in(&members, &persons);
  EXPECT_EQ(sign_in.Describe().error().code(), Code::kUnsupported);
  oidc::Settings settings;
  settings.issuer = "https://id.example.org";
  settings.client_id = "vrun";
  settings.login_seconds = 86400;
  sign_in.Use(settings);
  EXPECT_EQ(sign_in.Describe()->client_id(), "vrun");
  ASSERT_TRUE(persons.LogIn(PersonOf("anna", "1", 1'000'000), "laptop"));
  const int64_t day = 86400'000'000;
  EXPECT_TRUE(sign_in.MayRenew("anna@laptop", 1'000'000 + day));
  EXPECT_EQ(sign_in.MayRenew("anna@laptop", 1'000'001 + day).error().code(), Code::kDenied);
  EXPECT_TRUE(sign_in.MayRenew("anna@desk", 1'000'001 + day));  // by a token
}

TEST(SignInTest, SettingsOfAProvider) {
  const auto parse = [](const std::string& text) { return ParseSchedulerConfig("[oidc]\n" + text, "f"); };
  const std::string good = "issuer = \"https://id.example.org\"\nclient_id = \"vrun\"\n";
  EXPECT_EQ(parse(good)->oidc.issuer, "https://id.example.org");
  EXPECT_EQ(parse(good + "login_days = 1\n")->oidc.login_seconds, 86400);
  for (const std::string& bad :
       {std::string("issuer = \"https://id.example.org\"\n"), std::string("client_id = \"x\"\n"),
        std::string("issuer = \"http://id.example.org\"\nclient_id = \"x\"\n"), good + "login_days = -1\n",
        good + "allow_groups = 7\n", good + "secret = \"x\"\n"}) {
    EXPECT_FALSE(parse(bad)) << bad;
  }
}

}  // namespace
}  // namespace vrun::control
