// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <future>

#include "base/clock.h"
#include "base/files.h"
#include "base/hash/blake3.h"
#include "s3/answer.h"
#include "s3/breaker.h"
#include "s3/bucket.h"
#include "s3/client.h"
#include "s3/extent.h"
#include "s3/s3_testing.h"
#include "s3/sigv4.h"

namespace vrun::s3 {
namespace {

using testing::HasSubstr;

// --- signatures: test vectors from AWS and the RFC ---

TEST(SigV4, HmacOfTheRfc) {
  EXPECT_EQ(Hex(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(SigV4, SigningKeyOfTheDocumentation) {
  const std::string secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
  EXPECT_EQ(Hex(SigningKey(secret, "20120215", "us-east-1", "iam")),
            "f4780e2d9f65fa895f9c67b32ce1baf0b0d8a43505a000a1a9e090d414db404d");
  EXPECT_EQ(Hex(SigningKey(secret, "20150830", "us-east-1", "iam")),
            "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9");
}

TEST(SigV4, PresignedGetOfTheDocumentation) {
  const Keys keys{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
  const int64_t friday = 1369353600ll * 1'000'000;  // 2013-05-24T00:00:00Z
  const Presigner presigner(keys, "examplebucket.s3.amazonaws.com", "us-east-1", friday, 86400);
  EXPECT_EQ(presigner.query(),
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2F"
            "aws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host");
  EXPECT_EQ(presigner.Sign("GET", "/test.txt"), "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404");
}

TEST(SigV4, EncodesAsAwsWants) {
  EXPECT_EQ(UriEncode("a b/c~d+e=\xc3\xa9", true), "a%20b/c~d%2Be%3D%C3%A9");
  EXPECT_EQ(UriEncode("a/b", false), "a%2Fb");
}

// --- where and who ---

TEST(Bucket, StylesAndPorts) {
  Bucket path{.endpoint = "HTTP://Store.Example:9000/", .name = "my-bucket"};
  ASSERT_TRUE(Normalize(&path));
  EXPECT_EQ(path.base() + path.PathOf("k"), "http://store.example:9000/my-bucket/vrun/k");
  Bucket host{.endpoint = "https://s3.example:443", .name = "my-bucket", .path_style = false};
  ASSERT_TRUE(Normalize(&host));
  EXPECT_EQ(host.base() + host.PathOf("k"), "https://my-bucket.s3.example/vrun/k");
  Bucket aws{.name = "my-bucket", .region = "eu-central-1"};
  ASSERT_TRUE(Normalize(&aws));
  EXPECT_EQ(aws.host(), "my-bucket.s3.eu-central-1.amazonaws.com");
  Bucket v6{.endpoint = "http://[::1]:9000", .name = "my-bucket"};
  ASSERT_TRUE(Normalize(&v6));
  EXPECT_EQ(v6.host(), "[::1]:9000");
}

TEST(Bucket, SaysWhatIsWrong) {
  for (const char* endpoint : {"store", "ftp://x", "http://", "http://a/b", "http://u@a", "http://a:0", "http://a b"}) {
    Bucket b{.endpoint = endpoint, .name = "bucket"};
    const Status status = Normalize(&b);
    ASSERT_FALSE(status) << endpoint;
    EXPECT_THAT(status.error().message(), HasSubstr("s3_endpoint")) << endpoint;
  }
  for (const char* name : {"", "ab", "A-B", "a/b", "-abc"}) {
    Bucket b{.endpoint = "http://a", .name = name};
    EXPECT_FALSE(Normalize(&b)) << name;
  }
}

TEST(KeysFile, MustBeThePersonsOwn) {
  char directory[] = "/tmp/vrun-keys-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  const std::string file = std::string(directory) + "/credentials";
  const std::string text =
      "[default]\naws_access_key_id = A\r\naws_secret_access_key=b/c=\n[other]\naws_access_key_id=X\n";
  ASSERT_TRUE(WriteFileAtomic(file, text, 0644));
  auto open = ReadKeys(file);
  ASSERT_FALSE(open);
  EXPECT_EQ(open.error().code(), Code::kDenied);
  EXPECT_THAT(open.error().message(), HasSubstr("chmod 600"));
  ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
  auto keys = ReadKeys(file);
  ASSERT_TRUE(keys) << keys.error().message();
  EXPECT_EQ(keys->access_key, "A");
  EXPECT_EQ(keys->secret_key, "b/c=");
  ASSERT_TRUE(WriteFileAtomic(file, "nothing", 0600));
  EXPECT_FALSE(ReadKeys(file));
  ASSERT_TRUE(RemoveTree(directory));
  EXPECT_EQ(ReadKeys(file).error().code(), Code::kNotFound);
}

// --- what answers mean ---

TEST(Answer, OneLineWithWhatToDo) {
  struct Case {
    long status;
    const char* code;
    Code meaning;
    const char* says;
  };
  for (const Case& c :
       {Case{404, "NoSuchKey", Code::kNotFound, "not there"}, Case{416, "InvalidRange", Code::kCorrupt, "too short"},
        Case{404, "NoSuchBucket", Code::kInvalid, "s3_bucket"},
        Case{403, "RequestTimeTooSkewed", Code::kDenied, "clock"},
        Case{403, "SignatureDoesNotMatch", Code::kDenied, "s3_credentials"},
        Case{403, "InvalidAccessKeyId", Code::kDenied, "s3_credentials"},
        Case{403, "AccessDenied", Code::kDenied, "s3:GetObject"},
        Case{400, "AuthorizationHeaderMalformed", Code::kInvalid, "s3_region"},
        Case{301, "PermanentRedirect", Code::kInvalid, "s3_endpoint"},
        Case{503, "SlowDown", Code::kUnavailable, "busy"}, Case{429, "", Code::kUnavailable, "429"}}) {
    const Error error = FromAnswer(c.status, std::string("<Error><Code>") + c.code + "</Code></Error>", "get");
    EXPECT_EQ(error.code(), c.meaning) << c.code;
    EXPECT_THAT(error.message(), HasSubstr(c.says));
    EXPECT_EQ(error.message().find('\n'), std::string::npos);
  }
  EXPECT_EQ(ErrorCode("<Code>\x1b[2J</Code>").find('\x1b'), std::string::npos);
  EXPECT_EQ(ErrorCode("</Code><Code>"), "");
}

TEST(Breaker, LeavesADeadStoreAlone) {
  Breaker breaker;
  int64_t now = 1'000'000;
  for (int i = 0; i < Breaker::kFailures; ++i) {
    EXPECT_TRUE(breaker.Allow(now));
    breaker.Failed(now);
  }
  EXPECT_FALSE(breaker.Allow(now));
  now += Breaker::kFirstPauseMicros;
  EXPECT_TRUE(breaker.Allow(now)) << "one probe";
  EXPECT_FALSE(breaker.Allow(now));
  breaker.Failed(now);
  now += Breaker::kFirstPauseMicros;
  EXPECT_FALSE(breaker.Allow(now)) << "longer each time";
  now += Breaker::kFirstPauseMicros;
  ASSERT_TRUE(breaker.Allow(now));
  breaker.Succeeded();
  EXPECT_TRUE(breaker.Allow(now));
  EXPECT_TRUE(breaker.Allow(now));
}

TEST(Breaker, LateAnswersOpenItAndAProbeThatHangsIsTheOnlyOne) {
  Breaker breaker;
  int64_t now = 1'000'000;
  for (int i = 0; i < Breaker::kFailures; ++i) {
    ASSERT_TRUE(breaker.Allow(now));
    breaker.Late(now);
  }
  EXPECT_TRUE(breaker.open(now)) << "though none of them has ended";
  for (int i = 0; i < Breaker::kFailures; ++i) breaker.Dropped();
  now += Breaker::kFirstPauseMicros;
  ASSERT_TRUE(breaker.Allow(now));
  breaker.Late(now);
  now += Breaker::kLongestPauseMicros;
  EXPECT_TRUE(breaker.open(now)) << "it may still answer";
  EXPECT_FALSE(breaker.Allow(now));
  breaker.Dropped();
  EXPECT_TRUE(breaker.Allow(now));
}

// --- extents ---

struct Content {
  std::vector<std::string> data;
  std::vector<std::optional<ExtentUnit>> units;
};

Content SomeUnits(size_t n) {
  Content c;
  unsigned seed = 7;
  for (size_t i = 0; i < n; ++i) {
    std::string unit(65536 - (i + 1 == n ? 100 : 0), 'a');
    // Every second unit is incompressible.
    for (char& b : unit) b = i % 2 ? static_cast<char>(::rand_r(&seed)) : static_cast<char>('a' + i);
    c.data.push_back(std::move(unit));
  }
  for (size_t i = 0; i < n; ++i) {
    if (i == 3)
      c.units.emplace_back(std::nullopt);
    else
      c.units.push_back(ExtentUnit{Blake3(c.data[i]), c.data[i]});
  }
  return c;
}

TEST(Extent, RoundTripOfEachUnitByItsRange) {
  const Content c = SomeUnits(9);
  const std::string object = SealExtent("key", "name", c.units);
  EXPECT_LT(object.size(), 5 * 65536 + 9 * 1000) << "compressed";
  const std::string header = object.substr(0, ExtentHeaderBytes(9));
  auto table = ExtentTable::Open("key", "name", 9, header);
  ASSERT_TRUE(table) << table.error().message();
  EXPECT_EQ(table->OffsetOf(9), object.size());
  for (size_t i = 0; i < 9; ++i) {
    ASSERT_EQ(table->Has(i), i != 3);
    if (i == 3) continue;
    auto unit = table->OpenUnit(i, object.substr(table->OffsetOf(i), table->BytesOf(i)), c.data[i].size());
    ASSERT_TRUE(unit) << unit.error().message();
    EXPECT_EQ(*unit, c.data[i]);
    EXPECT_EQ(table->digest(i), Blake3(c.data[i]));
  }
  EXPECT_EQ(object.find(std::string(64, 'a')), std::string::npos) << "nothing of it can be read in the bucket";
}

TEST(Extent, NothingThatWasTouchedOpens) {
  const Content c = SomeUnits(5);
  const std::string object = SealExtent("key", "name", c.units);
  const uint64_t header = ExtentHeaderBytes(5);
  EXPECT_FALSE(ExtentTable::Open("other", "name", 5, object)) << "another tenant's key";
  EXPECT_FALSE(ExtentTable::Open("key", "name2", 5, object)) << "moved to another name";
  EXPECT_FALSE(ExtentTable::Open("key", "name", 4, object));
  EXPECT_FALSE(ExtentTable::Open("key", "name", 5, std::string_view(object).substr(0, header - 1)));
  for (size_t at = 0; at < header; at += 5) {
    std::string bad = object;
    bad[at] = static_cast<char>(bad[at] ^ 0x20);
    EXPECT_FALSE(ExtentTable::Open("key", "name", 5, bad)) << at;
  }
  auto table = ExtentTable::Open("key", "name", 5, object);
  ASSERT_TRUE(table);
  const auto stored = [&](uint64_t i) { return object.substr(table->OffsetOf(i), table->BytesOf(i)); };
  for (const uint64_t unit : {0u, 1u}) {
    std::string bad = stored(unit);
    bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 1);
    EXPECT_FALSE(table->OpenUnit(unit, bad, 65536));
    EXPECT_FALSE(table->OpenUnit(unit, stored(unit).substr(1), 65536));
    EXPECT_FALSE(table->OpenUnit(unit, stored(unit), 65535));
  }
  EXPECT_FALSE(table->OpenUnit(0, stored(2), 65536)) << "two units exchanged";
  EXPECT_FALSE(table->OpenUnit(3, "", 65536)) << "not there";
}

// --- the client and a real server ---

class WithServer : public testing::Test {
 protected:
  void SetUp() override {
    server_ = TestServer::Start();
    if (!server_) GTEST_SKIP() << "no S3 server: tools/install-deps --test installs node and its packages";
  }
  static Result<std::string> Do(Client& client, Request request) {
    std::promise<Result<std::string>> promise;
    if (request.what.empty()) request.what = "test";
    client.Start(std::move(request), [&](Result<std::string> r) { promise.set_value(std::move(r)); });
    return promise.get_future().get();
  }
  static std::string Presigned(const Bucket& b, const std::string& method, const std::string& key,
                               const Keys& keys = TestServer::keys(), int64_t now = WallMicros()) {
    const Presigner p(keys, b.host(), b.region, now, 600);
    const std::string path = b.PathOf(key);
    return b.base() + UriEncode(path, true) + "?" + p.query() + "&X-Amz-Signature=" + p.Sign(method, path);
  }
  static std::shared_ptr<const std::string> Body(std::string text) {
    return std::make_shared<const std::string>(std::move(text));
  }
  std::unique_ptr<TestServer> server_;
};

TEST_F(WithServer, PresignedUrlsDoEverything) {
  Client client({});
  const Bucket b = server_->bucket();
  const std::string text(300'000, 'x');
  ASSERT_TRUE(Do(client, {.method = Method::kPut, .url = Presigned(b, "PUT", "a/b c+d"), .body = Body(text)}));
  auto got = Do(client, {.url = Presigned(b, "GET", "a/b c+d")});
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_EQ(*got, text);
  auto range = Do(client, {.url = Presigned(b, "GET", "a/b c+d"), .first = 299'990, .bytes = 5});
  ASSERT_TRUE(range) << range.error().message();
  EXPECT_EQ(*range, "xxxxx");
  EXPECT_TRUE(Do(client, {.method = Method::kHead, .url = Presigned(b, "HEAD", "a/b c+d")}));
  EXPECT_TRUE(Do(client, {.method = Method::kDelete, .url = Presigned(b, "DELETE", "a/b c+d")}));
  auto gone = Do(client, {.url = Presigned(b, "GET", "a/b c+d")});
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code(), Code::kNotFound);
  EXPECT_LE(client.stats().connections, 2u) << "connections are kept";
}

TEST_F(WithServer, UrlsAreGoodForOneThingOnly) {
  Client client({});
  const Bucket b = server_->bucket();
  ASSERT_TRUE(Do(client, {.method = Method::kPut, .url = Presigned(b, "PUT", "k"), .body = Body("v")}));
  const auto denied = [&](const std::string& url) {
    auto result = Do(client, {.url = url});
    return !result && result.error().code() == Code::kDenied;
  };
  EXPECT_TRUE(denied(Presigned(b, "PUT", "k")));
  std::string other = Presigned(b, "GET", "k");
  other.replace(other.find("/k?"), 3, "/j?");
  EXPECT_TRUE(denied(other));
  EXPECT_TRUE(denied(Presigned(b, "GET", "k", {"TESTACCESS", "wrong", ""})));
  EXPECT_TRUE(denied(Presigned(b, "GET", "k", {"WRONG", "wrong", ""})));
  EXPECT_TRUE(denied(Presigned(b, "GET", "k", TestServer::keys(), WallMicros() - 660ll * 1'000'000))) << "expired";
  EXPECT_TRUE(denied(Presigned(b, "GET", "k", TestServer::keys(), WallMicros() + 3600ll * 1'000'000))) << "clock";
}

TEST_F(WithServer, TheControllersOwnCallsAreSignedByCurl) {
  const Bucket b = server_->bucket();
  Client client({.keys = TestServer::keys(), .region = b.region});
  const std::string url = b.base() + b.PathOf("check");
  auto put = Do(client, {.method = Method::kPut, .url = url, .body = Body("hello")});
  ASSERT_TRUE(put) << put.error().message();
  auto got = Do(client, {.url = url});
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_EQ(*got, "hello");
  ASSERT_TRUE(Do(client, {.method = Method::kDelete, .url = url}));
  Client wrong({.keys = Keys{"TESTACCESS", "no", ""}, .region = b.region});
  auto refused = Do(wrong, {.url = url});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kDenied);
  EXPECT_THAT(refused.error().message(), HasSubstr("s3_credentials"));
}

TEST_F(WithServer, HostStyle) {
  auto server = TestServer::Start({"--host-style", "localhost"});
  ASSERT_TRUE(server);
  Bucket b = server->bucket();
  b.endpoint = "http://s3.localhost:" + std::to_string(server->port());
  b.path_style = false;
  Client client({});
  // "testbucket.s3.localhost" is loopback for libcurl, as for every resolver that follows RFC 6761.
  auto put = Do(client, {.method = Method::kPut, .url = Presigned(b, "PUT", "k"), .body = Body("v")});
  ASSERT_TRUE(put) << put.error().message();
  auto got = Do(client, {.url = Presigned(b, "GET", "k")});
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_EQ(*got, "v");
}

TEST_F(WithServer, OverTlsWithItsOwnAuthority) {
  const std::string directory = server_->directory();
  const std::string make =
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=s3 "
      "-addext subjectAltName=IP:127.0.0.1 -keyout " +
      directory + "/key -out " + directory + "/cert 2>/dev/null";
  if (::system(make.c_str()) != 0) GTEST_SKIP() << "no openssl command";
  auto server = TestServer::Start({"--tls-key", directory + "/key", "--tls-cert", directory + "/cert"});
  ASSERT_TRUE(server);
  Bucket b = server->bucket();
  b.endpoint.replace(0, 4, "https");
  Client unknown({.tries = 1});
  auto refused = Do(unknown, {.url = Presigned(b, "GET", "k")});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kDenied);
  EXPECT_THAT(refused.error().message(), HasSubstr("s3_ca"));
  Client client({.ca_pem = ReadFile(directory + "/cert").value_or("")});
  auto put = Do(client, {.method = Method::kPut, .url = Presigned(b, "PUT", "k"), .body = Body("v")});
  ASSERT_TRUE(put) << put.error().message();
  auto got = Do(client, {.url = Presigned(b, "GET", "k")});
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_EQ(*got, "v");
}

TEST_F(WithServer, ManyAtATimeAndBounded) {
  Client client({.concurrency = 6});
  const Bucket b = server_->bucket();
  std::atomic<int> fine{0};
  std::promise<void> all;
  std::atomic<int> left{60};
  for (int i = 0; i < 60; ++i) {
    client.Start({.method = Method::kPut,
                  .url = Presigned(b, "PUT", "m" + std::to_string(i)),
                  .body = Body(std::string(20'000, 'm')),
                  .what = "put"},
                 [&](Result<std::string> r) {
                   fine += r.has_value();
                   if (--left == 0) all.set_value();
                 });
  }
  all.get_future().get();
  EXPECT_EQ(fine, 60);
  EXPECT_LE(client.stats().connections, 6u);
  auto large = Do(client, {.url = Presigned(b, "GET", "m0"), .max_bytes = 1000});
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code(), Code::kCorrupt);
}

TEST_F(WithServer, AServerThatDiesAndComesBack) {
  Client client({.tries = 8, .pause_micros = 50'000});
  const Bucket b = server_->bucket();
  ASSERT_TRUE(Do(client, {.method = Method::kPut, .url = Presigned(b, "PUT", "k"), .body = Body("v")}));
  const int port = server_->port();
  server_->Stop();
  auto away = Do(client, {.url = Presigned(b, "GET", "k"), .tries = 2});
  ASSERT_FALSE(away);
  EXPECT_EQ(away.error().code(), Code::kUnavailable);
  EXPECT_THAT(away.error().message(), HasSubstr("s3_endpoint"));
  EXPECT_GE(client.stats().retries, 1u);
  auto again = TestServer::Start({}, port);
  ASSERT_TRUE(again);
  EXPECT_TRUE(Do(client, {.method = Method::kPut, .url = Presigned(b, "PUT", "k"), .body = Body("v")}));
}

TEST(Client, WhatNobodyWaitsForAnyMoreNeverBegins) {
  const SilentServer silent;
  Client client({.concurrency = 1, .transfer_micros = 200'000, .tries = 1});
  const std::string url = silent.bucket().base() + "/x";
  std::promise<Code> first, second;
  const auto given_up = std::make_shared<std::atomic<bool>>(false);
  client.Start({.url = url, .what = "get"}, [&](Result<std::string> r) { first.set_value(r.error().code()); });
  client.Start({.url = url, .what = "get", .given_up = given_up},
               [&](Result<std::string> r) { second.set_value(r.error().code()); });
  *given_up = true;
  EXPECT_EQ(first.get_future().get(), Code::kTimeout);
  EXPECT_EQ(second.get_future().get(), Code::kAborted);
  EXPECT_EQ(client.stats().requests, 1u);
}

TEST(Client, WhatIsUnderWayEndsWithIt) {
  std::promise<Code> ended;
  {
    Client client({.tries = 1000, .pause_micros = 60'000'000});
    client.Start({.url = "http://127.0.0.1:1/x", .what = "get"},
                 [&](Result<std::string> r) { ended.set_value(r.error().code()); });
  }
  EXPECT_EQ(ended.get_future().get(), Code::kAborted);
}

}  // namespace
}  // namespace vrun::s3
