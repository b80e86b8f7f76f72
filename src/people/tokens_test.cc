// SPDX-License-Identifier: Apache-2.0
#include "people/tokens.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/files.h"

namespace vrun::people {
namespace {

class TokensTest : public ::testing::Test {
 protected:
  TokensTest() {
    char name[] = "/tmp/vrun-tokens-XXXXXX";
    directory_ = ::mkdtemp(name);
  }
  ~TokensTest() override { (void)RemoveTree(directory_); }

  static v1::ApiToken For(const std::string& user, const std::string& name, int64_t seconds = 60) {
    v1::ApiToken token;
    token.set_user(user);
    token.set_name(name);
    token.set_write(true);
    token.set_expires_us(WallMicros() + seconds * 1'000'000);
    return token;
  }
  std::string directory_;
};

TEST_F(TokensTest, IsWhoeverItWasMadeForUntilItsEnd) {
  const Tokens tokens(directory_);
  const auto text = tokens.Create(For("anna@laptop", "ci"));
  ASSERT_TRUE(text) << text.error().message();
  const auto known = tokens.Check(*text, WallMicros());
  ASSERT_TRUE(known);
  EXPECT_EQ(known->user(), "anna@laptop");
  EXPECT_TRUE(known->write());
  const auto late = tokens.Check(*text, WallMicros() + 61'000'000);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), Code::kDenied);
  for (std::string wrong : {std::string(), *text + "0", text->substr(0, 44) + "x", "vrun_../../" + text->substr(11)}) {
    EXPECT_FALSE(tokens.Check(wrong, WallMicros())) << wrong;
  }
}

TEST_F(TokensTest, RevokedAtOnceAndOnlyTheOneThatIsMeant) {
  const Tokens tokens(directory_);
  const auto ci = tokens.Create(For("anna@laptop", "ci")), bobs = tokens.Create(For("bob@laptop", "ci"));
  ASSERT_TRUE(ci && bobs);
  EXPECT_EQ(tokens.Create(For("anna@laptop", "ci")).error().code(), Code::kExists);
  EXPECT_EQ(tokens.List()->size(), 2u);
  ASSERT_TRUE(tokens.Revoke("anna@laptop", "ci"));
  EXPECT_FALSE(tokens.Check(*ci, WallMicros()));
  EXPECT_TRUE(tokens.Check(*bobs, WallMicros()));
  EXPECT_EQ(tokens.Revoke("anna@laptop", "ci").error().code(), Code::kNotFound);
}

TEST_F(TokensTest, FilesDoNotGiveItAway) {
  const Tokens tokens(directory_);
  const auto text = tokens.Create(For("anna@laptop", "ci"));
  ASSERT_TRUE(text);
  const std::string place = directory_ + "/tokens";
  DIR* open = ::opendir(place.c_str());
  ASSERT_NE(open, nullptr);
  int files = 0;
  while (const dirent* entry = ::readdir(open)) {
    if (entry->d_name[0] == '.') continue;
    ++files;
    EXPECT_EQ(std::string(entry->d_name).find(text->substr(5)), std::string::npos);
    EXPECT_EQ(ReadFile(place + "/" + entry->d_name)->find(text->substr(5)), std::string::npos);
  }
  ::closedir(open);
  EXPECT_EQ(files, 1);
}

TEST_F(TokensTest, AUserHasSoManyAndNoMore) {
  const Tokens tokens(directory_);
  Status refused;
  int made = 0;
  while (refused && made < 1000) {
    const auto text = tokens.Create(For("anna@laptop", "t" + std::to_string(made)));
    text ? ++made, 0 : (refused = text.error(), 0);
  }
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kExhausted) << refused.error().message();
  EXPECT_EQ(refused.error().message(), "anna@laptop has 200 tokens, which is the limit of each user: revoke some");
  EXPECT_TRUE(tokens.Create(For("bob@laptop", "t")));
  ASSERT_TRUE(tokens.Revoke("anna@laptop", "t7"));
  EXPECT_TRUE(tokens.Create(For("anna@laptop", "t7")));
}

TEST_F(TokensTest, NamesThatAreNone) {
  const Tokens tokens(directory_);
  for (const char* name : {"", "a/b", "a b", "a\tb"}) {
    EXPECT_EQ(tokens.Create(For("anna@laptop", name)).error().code(), Code::kInvalid) << name;
  }
}

}  // namespace
}  // namespace vrun::people
