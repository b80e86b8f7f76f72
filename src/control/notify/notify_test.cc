// SPDX-License-Identifier: Apache-2.0
// Signatures, headers, URLs and settings.
#include <gtest/gtest.h>

#include "control/notify/mail.h"
#include "control/notify/settings.h"
#include "control/notify/sign.h"
#include "control/notify/url.h"

namespace vrun::control::notify {
namespace {

TEST(SignTest, TheVectorOfStandardWebhooks) {
  const auto key = ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n");
  ASSERT_TRUE(key) << key.error().message();
  EXPECT_EQ(Sign(*key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, "{\"test\": 2432232314}"),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
}

TEST(SignTest, WhatIsNoSecretIsRefusedWithoutShowingIt) {
  for (const char* wrong : {"", "whsec_", "whsec_abc", "hunter2 is secret", "whsec_AAAA", "===="}) {
    const auto key = ParseSecret(wrong);
    ASSERT_FALSE(key) << wrong;
    EXPECT_EQ(key.error().message().find("hunter2"), std::string::npos);
  }
}

TEST(MailTest, NoNameAddsAHeader) {
  const std::string mail = Compose({"vrun@x.org", "a@x.org", "job 1 (x\r\nBcc: b@x.org)", "one\ntwo\n", "msg_1", 0});
  const std::string headers = mail.substr(0, mail.find("\r\n\r\n"));
  EXPECT_EQ(headers.find("\nBcc"), std::string::npos) << headers;
  EXPECT_NE(headers.find("Message-ID: <msg_1@x.org>"), std::string::npos);
  EXPECT_NE(headers.find("Date: Thu, 1 Jan 1970 00:00:00 +0000"), std::string::npos) << headers;
  EXPECT_EQ(mail.substr(mail.find("\r\n\r\n") + 4), "one\r\ntwo\r\n");
}

TEST(MailTest, OtherLettersAreEncodedWords) {
  EXPECT_EQ(EncodeHeader("plain"), "plain");
  EXPECT_EQ(EncodeHeader("caf\xc3\xa9"), "=?UTF-8?B?Y2Fmw6k=?=");
  EXPECT_NE(EncodeHeader("=?UTF-8?B?eA==?="), "=?UTF-8?B?eA==?=") << "it would be shown as another text";
  std::string many;
  for (int i = 0; i < 100; ++i) many += "\xe2\x82\xac";
  const std::string encoded = EncodeHeader(many);
  for (size_t at = 0; at < encoded.size();) {
    const size_t end = std::min(encoded.find("\r\n", at), encoded.size());
    EXPECT_LE(end - at, 76u);
    at = end + 2;
  }
}

TEST(UrlTest, PrefixesAreComparedAsUrls) {
  const auto under = [](const char* url, const char* prefix) {
    const auto a = ParseUrl(url), b = ParseUrl(prefix);
    return a && b && IsUnder(*a, *b);
  };
  EXPECT_TRUE(under("https://h.org/vrun/x?y=1", "https://h.org/vrun/"));
  EXPECT_TRUE(under("https://H.org:443/vrun/x", "https://h.org/vrun"));
  EXPECT_TRUE(under("https://h.org/vrun", "https://h.org/vrun"));
  EXPECT_FALSE(under("https://h.org/vrunner", "https://h.org/vrun"));
  EXPECT_FALSE(under("http://h.org/vrun/x", "https://h.org/vrun/"));
  EXPECT_FALSE(under("https://h.org:8443/vrun/x", "https://h.org/vrun/"));
  EXPECT_FALSE(under("https://h.org.evil.org/vrun/x", "https://h.org/"));
  EXPECT_FALSE(under("https://h.org/vrun/../admin", "https://h.org/vrun/"));
  for (const char* wrong :
       {"ftp://h/", "file:///etc/passwd", "https://h.org@evil.org/", "https://u:p@h.org/", "https://h.org/%2e%2e/x",
        "https://h.org/a%2Fb", "https://h.org/x#y", "https://h.org\\@evil/", "https:///x", "h.org/x",
        "https://h.org/a\r\nb", "gopher://h:25/x"}) {
    EXPECT_FALSE(ParseUrl(wrong)) << wrong;
  }
}

TEST(UrlTest, Addresses) {
  for (const char* right : {"anna@example.org", "a.b+c@x", "a@x-y.org"}) EXPECT_TRUE(IsMailAddress(right)) << right;
  for (const char* wrong :
       {"", "anna", "@x", "a@", "a b@x", "a@x\r\nBcc: b", "a@@x", "a@x>", "a..b@x", "-f@x", "a@.x"}) {
    EXPECT_FALSE(IsMailAddress(wrong)) << wrong;
  }
}

TEST(NotifySettingsTest, TheSectionIsRead) {
  const auto s = ParseNotify(
      "[notify]\nsmtp = \"smtp://mail:25\"\nfrom = \"v@x.org\"\ndomain = \"x.org\"\njob_webhooks = [\"https://h/v/\"]\n"
      "mail_domains = [\"y.org\"]\n[[notify.webhook]]\nurl = \"https://h/c\"\nevents = [\"end\"]\nteams = [\"lab\"]\n",
      "f");
  ASSERT_TRUE(s) << s.error().message();
  EXPECT_TRUE(s->starttls);
  EXPECT_EQ(s->AddressOf("anna@laptop"), "anna@x.org");
  EXPECT_TRUE(s->JobWebhook("https://h/v/1"));
  EXPECT_FALSE(s->JobWebhook("https://h/w"));
  EXPECT_EQ(*s->JobAddresses("anna,ben@y.org"), (std::vector<std::string>{"anna@x.org", "ben@y.org"}));
  EXPECT_FALSE(s->JobAddresses("ben@z.org"));
  ASSERT_EQ(s->webhooks.size(), 1u);
  EXPECT_TRUE(s->webhooks[0].Wants("end") && !s->webhooks[0].Wants("begin"));
  EXPECT_TRUE(s->webhooks[0].Watches("lab") && !s->webhooks[0].Watches(""));
  EXPECT_FALSE(ParseNotify("[notify]\nsmtp = \"smtp://127.0.0.1:25\"\nfrom = \"v@x.org\"\n", "f")->starttls);
  EXPECT_FALSE(ParseNotify("", "f")->JobWebhook("https://h/"));
  for (const char* wrong :
       {"smtp = \"http://x\"", "smtp = \"smtp://mail\"", "soon = 1", "hours = 0", "operators = [\"x\"]",
        "job_webhooks = [\"ftp://x\"]", "user = \"u\"", "webhook = 3", "domain = \"a b\""}) {
    const auto bad = ParseNotify(std::string("\n[notify]\n") + wrong + "\n", "f");
    ASSERT_FALSE(bad) << wrong;
    EXPECT_TRUE(bad.error().message().starts_with("f:")) << bad.error().message();
  }
}

}  // namespace
}  // namespace vrun::control::notify
