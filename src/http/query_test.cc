// SPDX-License-Identifier: Apache-2.0
#include "http/query.h"

#include <gtest/gtest.h>

#include "http/message.h"

namespace vrun::http {
namespace {

TEST(QueryTest, DecodesWhatClientsSend) {
  const auto query = ParseQuery("user=anna%40laptop&name=a+b&&empty=&flag");
  ASSERT_TRUE(query);
  EXPECT_EQ(*query, (Query{{"user", "anna@laptop"}, {"name", "a b"}, {"empty", ""}, {"flag", ""}}));
  EXPECT_TRUE(ParseQuery("")->empty());
}

TEST(QueryTest, RefusesWhatCouldBeReadInTwoWays) {
  for (const char* text : {"a=%", "a=%4", "a=%zz", "a=%00", "a=1&a=2", "a=1&%61=2"}) {
    const auto query = ParseQuery(text);
    ASSERT_FALSE(query) << text;
    EXPECT_EQ(query.error().code(), Code::kInvalid);
  }
  std::string many;
  for (int i = 0; i < 65; ++i) many += "p" + std::to_string(i) + "=1&";
  EXPECT_FALSE(ParseQuery(many));
}

TEST(PathPatternTest, TakesOneSegmentForAName) {
  const PathPattern why("/jobs/{job}/why");
  EXPECT_EQ(why.Match("/jobs/12/why")->at("job"), "12");
  EXPECT_EQ(why.Match("/jobs/a%2Fb/why")->at("job"), "a/b");
  for (const char* path :
       {"/jobs//why", "/jobs/12", "/jobs/12/why/", "/jobs/1/2/why", "jobs/12/why", "", "/jobs/%/why"}) {
    EXPECT_FALSE(why.Match(path)) << path;
  }
}

TEST(MessageTest, AnyBytesAreAStringOfJson) {
  EXPECT_EQ(JsonQuote("a\"b\\\n\x01"), "\"a\\\"b\\\\\\u000a\\u0001\"");
  EXPECT_EQ(JsonQuote("\xc3\xa9\xff\xc3"), "\"\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\"");
  for (const char* bad : {"\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80"}) EXPECT_FALSE(IsUtf8(bad)) << bad;
  EXPECT_TRUE(IsUtf8("\xf0\x9f\x98\x80 \xe2\x82\xac"));
}

TEST(MessageTest, TheTypeOfABodyHasAnyCase) {
  Request request;
  EXPECT_FALSE(IsJson(request));
  for (const auto& [type, is] :
       {std::pair("application/json", true), std::pair("Application/JSON", true),
        std::pair("application/json ; charset=utf-8", true), std::pair("application/jsonl", false),
        std::pair("text/plain", false), std::pair("", false)}) {
    request.headers["content-type"] = type;
    EXPECT_EQ(IsJson(request), is) << type;
  }
}

}  // namespace
}  // namespace vrun::http
