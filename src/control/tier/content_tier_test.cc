// SPDX-License-Identifier: Apache-2.0
#include "control/tier/content_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <set>

#include "control/testing/testing.h"
#include "s3/s3_testing.h"

namespace vrun::control {
namespace {

using testing::HasSubstr;

class ContentTierTest : public testing::Test {
 protected:
  ContentTierOptions Options(const std::string& secret = "test/secret+key") {
    ContentTierOptions options;
    options.bucket.name = "testbucket";
    options.bucket.endpoint = "http://127.0.0.1:1";
    options.credentials_file = directory_.path() + "/credentials";
    VRUN_CHECK(WriteFileAtomic(options.credentials_file,
                               "aws_access_key_id=TESTACCESS\naws_secret_access_key=" + secret + "\n", 0600)
                   .has_value());
    return options;
  }
  std::unique_ptr<ContentTier> Make(const ContentTierOptions& options) {
    return std::make_unique<ContentTier>(options, directory_.path(), &loop_, &clock_);
  }
  JobRow Job(const std::string& user = "anna", const std::string& home = "home-1") {
    JobRow job;
    job.id = 7;
    job.user = user;
    job.home_id = home;
    job.pods.emplace_back().node = "n1";
    return job;
  }
  static v1::PresignRequest Ask(std::vector<std::string> names, bool put = false) {
    v1::PresignRequest request;
    request.set_id(3);
    request.set_job(7);
    request.set_put(put);
    for (auto& name : names) request.add_name(name);
    return request;
  }
  v1::S3State Checked(ContentTier& tier) {
    while (tier.state().checked_us() == 0) loop_.RunOnce(1000);
    return tier.state();
  }
  TestDirectory directory_;
  EventLoop loop_;
  FakeClock clock_;
};

TEST_F(ContentTierTest, KeysAreOfATenantAndSecret) {
  auto tier = Make(Options());
  std::set<std::string> bases, keys, seals;
  for (const JobRow& job : {Job("anna", "h1"), Job("anna", "h2"), Job("bert", "h1"), Job("annah", "1")}) {
    const v1::PresignReply reply = tier->Presign("n1", job, Ask({"digest"}));
    ASSERT_FALSE(reply.has_error()) << reply.error().message();
    EXPECT_EQ(reply.id(), 3u);
    bases.insert(reply.base());
    keys.insert(reply.key(0));
    seals.insert(reply.seal());
    const std::string all = reply.SerializeAsString();
    EXPECT_EQ(all.find("test/secret+key"), std::string::npos) << "the secret key stays here";
    EXPECT_EQ(all.find("digest"), std::string::npos) << "nor does a URL tell what it is of";
  }
  EXPECT_EQ(bases.size(), 4u);
  EXPECT_EQ(keys.size(), 4u);
  EXPECT_EQ(seals.size(), 4u);
  // The keys are the same after a restart, and different under another controller.
  const std::string key = tier->Presign("n1", Job(), Ask({"digest"})).key(0);
  tier = Make(Options());
  EXPECT_EQ(tier->Presign("n1", Job(), Ask({"digest"})).key(0), key);
  struct stat st;
  ASSERT_EQ(::stat((directory_.path() + "/content-secret").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  ASSERT_EQ(::unlink((directory_.path() + "/content-secret").c_str()), 0);
  tier = Make(Options());
  EXPECT_NE(tier->Presign("n1", Job(), Ask({"digest"})).key(0), key);
}

TEST_F(ContentTierTest, OnlyForTheNodeOfTheJob) {
  auto tier = Make(Options());
  const auto code = [&](const std::string& node, const Result<JobRow>& job, const v1::PresignRequest& request) {
    return static_cast<Code>(tier->Presign(node, job, request).error().code());
  };
  EXPECT_EQ(code("n1", Job(), Ask({})), Code::kOk);
  EXPECT_EQ(code("n2", Job(), Ask({"x"})), Code::kDenied);
  EXPECT_EQ(code("n1", Error(Code::kNotFound, "no job"), Ask({"x"})), Code::kDenied);
  JobRow ended = Job();
  ended.ended_us = clock_.Wall();
  EXPECT_EQ(code("n1", ended, Ask({"x"})), Code::kOk) << "what it fetched is still being written";
  clock_.AdvanceSeconds(16 * 60);
  EXPECT_EQ(code("n1", ended, Ask({"x"})), Code::kDenied);
  EXPECT_EQ(code("n1", Job(), Ask({std::string(65, 'x')})), Code::kInvalid);
  EXPECT_EQ(code("n1", Job(), Ask(std::vector<std::string>(1001, "x"))), Code::kInvalid);
  const v1::PresignReply refused = tier->Presign("n2", Job(), Ask({"x"}));
  EXPECT_EQ(refused.signature_size() + refused.seal().size(), 0u);
}

TEST_F(ContentTierTest, WhatIsWrongIsOneLine) {
  EXPECT_TRUE(Make({})->state().bucket().empty());
  ContentTierOptions open = Options();
  ASSERT_EQ(::chmod(open.credentials_file.c_str(), 0644), 0);
  EXPECT_THAT(Make(open)->state().problem(), HasSubstr("chmod 600"));
  ContentTierOptions endpoint = Options();
  endpoint.bucket.endpoint = "nowhere";
  EXPECT_THAT(Make(endpoint)->state().problem(), HasSubstr("https://HOST"));
  auto dead = Make(Options());
  EXPECT_THAT(Checked(*dead).problem(), HasSubstr("s3_endpoint"));
  ASSERT_EQ(::chmod(open.credentials_file.c_str(), 0644), 0);
  EXPECT_EQ(static_cast<Code>(Make(open)->Presign("n1", Job(), Ask({"x"})).error().code()), Code::kUnavailable);
}

TEST_F(ContentTierTest, TriesTheRealStore) {
  auto server = s3::TestServer::Start();
  if (!server) GTEST_SKIP() << "no S3 server: tools/install-deps --test installs node and its packages";
  ContentTierOptions options = Options();
  options.bucket = server->bucket();
  auto tier = Make(options);
  EXPECT_EQ(Checked(*tier).problem(), "");
  options.bucket.name = "otherbucket";
  tier = Make(options);
  EXPECT_THAT(Checked(*tier).problem(), HasSubstr("s3_bucket"));
  options = Options("wrong");
  options.bucket = server->bucket();
  tier = Make(options);
  EXPECT_THAT(Checked(*tier).problem(), HasSubstr("s3_credentials"));
}

TEST_F(ContentTierTest, SnapshotsAreTheirOwnersAndOneStoreWrites) {
  auto tier = Make(Options());
  const auto ask = [&](const std::string& owner, const std::string& store, v1::VaultPresign::Method method) {
    v1::VaultPresign request;
    request.set_owner(owner);
    request.set_store(store);
    request.set_method(method);
    request.add_name("catalog");
    return tier->PresignVault(request);
  };
  const v1::PresignReply anna = ask("anna@a", "s1", v1::VaultPresign::PUT),
                         bert = ask("bert@b", "s1", v1::VaultPresign::PUT);
  ASSERT_FALSE(anna.has_error()) << anna.error().message();
  EXPECT_NE(anna.base(), bert.base());
  EXPECT_NE(anna.key(0), bert.key(0));
  EXPECT_NE(anna.seal(), bert.seal());
  EXPECT_THAT(anna.base(), HasSubstr("/snapshots/v1/")) << "where a rule that expires what is cached finds nothing";
  EXPECT_EQ(anna.SerializeAsString().find("test/secret+key"), std::string::npos);
  // Each signature is for one method.
  const v1::PresignReply read = ask("anna@a", "s1", v1::VaultPresign::GET);
  EXPECT_EQ(read.base() + read.key(0), anna.base() + anna.key(0));
  EXPECT_NE(read.signature(0), anna.signature(0));
  EXPECT_NE(ask("anna@a", "s1", v1::VaultPresign::DELETE).signature(0), anna.signature(0));
  EXPECT_TRUE(ask("anna@a", "s1", v1::VaultPresign::METHOD_UNSPECIFIED).has_error());
  // Another store may read. It may write only when no old URL is valid any more.
  EXPECT_FALSE(ask("anna@a", "s2", v1::VaultPresign::GET).has_error());
  const v1::PresignReply refused = ask("anna@a", "s2", v1::VaultPresign::PUT);
  EXPECT_THAT(refused.error().message(), HasSubstr("another snapshot store writes"));
  EXPECT_EQ(refused.signature_size(), 0);
  EXPECT_TRUE(ask("anna@a", "s2", v1::VaultPresign::DELETE).has_error());
  clock_.AdvanceSeconds(ContentTier::kWriterSeconds + 1);
  EXPECT_FALSE(ask("anna@a", "s2", v1::VaultPresign::PUT).has_error());
  EXPECT_TRUE(ask("anna@a", "s1", v1::VaultPresign::PUT).has_error());
}

}  // namespace
}  // namespace vrun::control
