// SPDX-License-Identifier: Apache-2.0
#include "control/ops/join.h"

#include <gtest/gtest.h>

#include <future>

#include "control/ops/audit.h"
#include "rpc/rpc.h"
#include "rpc/testing.h"

namespace vrun::control {
namespace {

class JoinTest : public ::testing::Test {
 protected:
  std::string Invite(const std::string& role, const std::string& name, const std::string& pool = "",
                     int64_t gpus = -1) {
    v1::Invitation invitation;
    invitation.set_role(role);
    invitation.set_name(name);
    invitation.set_pool(pool);
    invitation.set_most_gpus(gpus);
    invitation.set_expires_us(1000);
    return members_.Invite(invitation).value();
  }
  Result<v1::JoinReply> Ask(const std::string& secret, const std::string& name, const std::string& role = "") {
    made_ = rpc::NewRequest().value();
    v1::JoinRequest request;
    request.set_secret(secret);
    request.set_name(name);
    request.set_role(role);
    request.set_request(made_.request);
    return Join(members_, {authority_.directory()}, request, "10.0.0.1:1", 500);
  }

  const rpc::TestAuthority authority_;
  const people::Members members_{authority_.directory() + "/people"};
  rpc::CertificateRequest made_;
};

TEST_F(JoinTest, ATokenBecomesACertificateOfThisCluster) {
  const auto reply = Ask(Invite("home", "anna"), "laptop");
  ASSERT_TRUE(reply) << reply.error().message();
  EXPECT_EQ(reply->name(), "anna@laptop");
  const std::string ca = ReadFile(authority_.directory() + "/ca.pem").value();
  EXPECT_TRUE(rpc::CheckCredentials({ca, reply->certificate(), made_.key}));
  EXPECT_EQ(members_.Find("home", "anna@laptop")->address(), "10.0.0.1:1");
}

TEST_F(JoinTest, ANodeGetsNeitherAnotherNameNorAnothersPlace) {
  ASSERT_TRUE(Ask(Invite("node", ""), "n1"));
  EXPECT_EQ(Ask(Invite("node", ""), "n1").error().code(), Code::kExists);
  EXPECT_EQ(Ask(Invite("node", "n2"), "n3").error().code(), Code::kDenied);
  EXPECT_TRUE(Ask(Invite("node", "n1"), "n1"));  // a token of its own: the machine was set up again
  for (const char* name : {"", "..", "a/b", "n 1", "controller@x/"})
    EXPECT_FALSE(Ask(Invite("node", ""), name)) << name;
  ASSERT_TRUE(members_.Revoke("node", "n9"));
  EXPECT_EQ(Ask(Invite("node", ""), "n9").error().code(), Code::kDenied);
}

// The node that `vctl up` starts, for one.
TEST_F(JoinTest, ATokenForANewNodeIsNoneForAPlaceMadeByHand) {
  EXPECT_TRUE(CheckBounds(members_, "by-hand", "any", 8));
  ASSERT_TRUE(KeepName(members_, "by-hand", 7));
  EXPECT_EQ(Ask(Invite("node", "", "other", 1), "by-hand").error().code(), Code::kExists);
  EXPECT_TRUE(CheckBounds(members_, "by-hand", "any", 8));
  // What a token has bound stays.
  ASSERT_TRUE(Ask(Invite("node", "", "gpu", 2), "n1"));
  ASSERT_TRUE(KeepName(members_, "n1", 9));
  EXPECT_EQ(CheckBounds(members_, "n1", "other", 0).error().code(), Code::kDenied);
}

// Whatever the machine says of itself.
TEST_F(JoinTest, EveryCertificateEndsInADay) {
  const auto reply = Ask(Invite("home", "anna"), "laptop");
  ASSERT_TRUE(reply) << reply.error().message();
  const auto life = rpc::LifetimeOf(reply->certificate());
  EXPECT_LE(life->until_us - life->from_us, 25 * 3600 * int64_t{1'000'000});
}

TEST_F(JoinTest, AUsersTokenMakesNoNode) {
  const std::string secret = Invite("home", "anna");
  EXPECT_EQ(Ask(secret, "n1", "node").error().code(), Code::kInvalid);
  EXPECT_TRUE(Ask(secret, "laptop", "home"));
}

TEST_F(JoinTest, ARequestMustBeOne) {
  const std::string secret = Invite("home", "anna");
  v1::JoinRequest request;
  request.set_secret(secret);
  request.set_name("laptop");
  for (const std::string& bad :
       {std::string(), std::string("-----BEGIN CERTIFICATE REQUEST-----\n"), std::string(100, 'x')}) {
    request.set_request(bad);
    EXPECT_EQ(Join(members_, {authority_.directory()}, request, "", 500).error().code(), Code::kInvalid);
  }
  EXPECT_TRUE(Ask(secret, "laptop"));
}

TEST_F(JoinTest, ANodeOffersNoMoreThanItsTokenAllowed) {
  ASSERT_TRUE(Ask(Invite("node", "", "gpu", 2), "n1"));
  EXPECT_TRUE(CheckBounds(members_, "n1", "gpu", 2));
  EXPECT_EQ(CheckBounds(members_, "n1", "gpu", 3).error().code(), Code::kDenied);
  EXPECT_EQ(CheckBounds(members_, "n1", "other", 0).error().code(), Code::kDenied);
  EXPECT_TRUE(CheckBounds(members_, "by-hand", "any", 8));
}

TEST_F(JoinTest, ACertificateIsRenewedForItsOwnKeyAlone) {
  const auto joined = Ask(Invite("node", "n1"), "n1");
  ASSERT_TRUE(joined);
  const std::string key = made_.key;
  const auto renew = [&](const std::string& certificate, const std::string& of_key, int64_t seconds = 60) {
    v1::RenewRequest request;
    request.set_certificate(certificate);
    request.set_request(rpc::NewRequestFor(of_key).value());
    return Renew(members_, {authority_.directory(), seconds}, request);
  };
  const auto renewed = renew(joined->certificate(), key);
  ASSERT_TRUE(renewed) << renewed.error().message();
  const std::string ca = ReadFile(authority_.directory() + "/ca.pem").value();
  EXPECT_TRUE(rpc::CheckCredentials({ca, renewed->certificate(), key}));
  const auto life = rpc::LifetimeOf(renewed->certificate());
  EXPECT_NEAR(static_cast<double>(life->until_us - life->from_us), 60e6, 2e6);
  // One that has ended is taken too, for a while.
  const auto ended = renew(joined->certificate(), key, -60);
  EXPECT_FALSE(rpc::CheckCredentials({ca, ended->certificate(), key}));
  EXPECT_TRUE(renew(ended->certificate(), key));
  const auto long_ago = renew(joined->certificate(), key, -31 * 24 * 3600);
  EXPECT_EQ(renew(long_ago->certificate(), key).error().code(), Code::kDenied);
  // Who has the certificate has not the key.
  EXPECT_EQ(renew(joined->certificate(), rpc::NewRequest()->key).error().code(), Code::kDenied);
  const rpc::TestAuthority other;
  const rpc::Credentials forged = other.Make("node", "n1");
  EXPECT_EQ(renew(forged.certificate, forged.key).error().code(), Code::kDenied);
  const rpc::Credentials controller = authority_.Make("controller", "controller");
  EXPECT_EQ(renew(controller.certificate, controller.key).error().code(), Code::kDenied);
  EXPECT_EQ(renew("", key).error().code(), Code::kDenied);
  ASSERT_TRUE(members_.Revoke("node", "n1"));
  EXPECT_EQ(renew(joined->certificate(), key).error().code(), Code::kDenied);
}

TEST_F(JoinTest, AStrangerWithTheDigestGetsTheAuthorityAndMayCallWhatIsOpen) {
  auto server = rpc::Server::Create(authority_.Make("controller", "controller"));
  const auto echo = [](const rpc::Peer& peer, std::string text, auto reply) { reply(peer.role + ":" + text); };
  server->Stranger("/vrun.v1.People/Join", echo);
  server->Unary("/vrun.v1.Control/Other", echo);
  server->Admit([](const rpc::Peer& peer) -> Status {
    return peer.name == "bad@h" ? Status(Error(Code::kDenied, "shut out")) : Status();
  });
  const auto port = server->Start("127.0.0.1:0");
  ASSERT_TRUE(port);
  const std::string address = "127.0.0.1:" + std::to_string(*port);
  const std::string ca = ReadFile(authority_.directory() + "/ca.pem").value();
  const auto fetched = rpc::FetchAuthority(address, rpc::AuthorityDigest(ca));
  ASSERT_TRUE(fetched) << fetched.error().message();
  EXPECT_EQ(*fetched, ca);
  EXPECT_EQ(rpc::FetchAuthority(address, Digest{}).error().code(), Code::kDenied);
  EXPECT_EQ(rpc::FetchAuthority("127.0.0.1:1", Digest{}).error().code(), Code::kUnavailable);

  const auto call = [&](const rpc::Credentials& mine, const std::string& method) -> Result<std::string> {
    auto channel = rpc::Channel::Dial(address, mine, "controller");
    if (!channel) return channel.error();
    std::promise<Result<std::string>> answered;
    (*channel)->Call(method, "x", 20'000'000,
                     [&](Result<std::string> answer) { answered.set_value(std::move(answer)); });
    return answered.get_future().get();
  };
  const rpc::Credentials stranger{ca, "", ""};
  EXPECT_EQ(call(stranger, "/vrun.v1.People/Join").value(), ":x");
  EXPECT_EQ(call(stranger, "/vrun.v1.Control/Other").error().code(), Code::kDenied);
  EXPECT_EQ(call(authority_.Make("home", "good@h"), "/vrun.v1.Control/Other").value(), "home:x");
  EXPECT_EQ(call(authority_.Make("home", "bad@h"), "/vrun.v1.Control/Other").error().code(), Code::kDenied);
  const rpc::TestAuthority other;
  EXPECT_FALSE(call(other.Make("home", "good@h"), "/vrun.v1.People/Join"));  // its authority is not the server's
}

TEST(AuditedTest, ALineHasSoManyNamesAndNoMore) {
  v1::ChangeJobs request;
  for (uint64_t id = 1; id <= 100'000; ++id) request.add_jobs()->set_job(id);
  const AuditedAct act = Audited(request, v1::ChangeReply());
  EXPECT_TRUE(act.of.starts_with("job 1,job 2,")) << act.of.substr(0, 100);
  EXPECT_TRUE(act.of.ends_with(",job 100 and 99900 more")) << act.of.substr(act.of.size() - 100);
  v1::DrainNodes drain;
  drain.add_nodes("n1");
  drain.add_nodes("n2");
  EXPECT_EQ(Audited(drain, v1::NodesReply()).of, "node n1,n2");
}

}  // namespace
}  // namespace vrun::control
