// SPDX-License-Identifier: Apache-2.0
// Certificates that are replaced while both ends run, and other sides that are not let in.
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <thread>

#include "base/clock.h"
#include "base/thread/mutex.h"
#include "rpc/rpc.h"
#include "rpc/testing.h"

namespace vrun::rpc {
namespace {

constexpr char kEcho[] = "/vrun.v1.Test/Echo";
constexpr char kListen[] = "/vrun.v1.Test/Listen";

// Keeps what it is given open, and says when it ends.
struct Open : Stream::Handler {
  void OnMessage(std::string) override {}
  void OnClosed(Error reason) override { ended.set_value(std::move(reason)); }
  std::unique_ptr<Stream> stream;
  std::promise<Error> ended;
};

class TlsTest : public ::testing::Test {
 protected:
  void Issue(const std::string& role, const std::string& name, const CertificateRequest& made, int64_t life) {
    const auto certificate = SignRequest(authority_.directory(), made.request, role, name, life);
    ASSERT_TRUE(certificate) << certificate.error().message();
    const std::string ca = ReadFile(authority_.directory() + "/ca.pem").value();
    ASSERT_TRUE(SaveCredentials(authority_.directory() + "/own", name, {ca, *certificate, made.key}));
  }
  Credentials Load(const std::string& name) { return LoadCredentials(authority_.directory() + "/own", name).value(); }
  void Serve(const Credentials& mine) {
    server_ = Server::Create(mine);
    server_->Unary(kEcho, [](const Peer& peer, std::string text, auto reply) { reply(peer.name + ":" + text); });
    server_->Streaming(kListen, [this](const Peer& peer, std::unique_ptr<Stream> stream) -> Result<Stream::Handler*> {
      MutexLock lock(mutex_);
      Open& open = open_[peer.name];
      open.stream = std::move(stream);
      return &open;
    });
    const auto port = server_->Start("127.0.0.1:0");
    ASSERT_TRUE(port) << port.error().message();
    address_ = "127.0.0.1:" + std::to_string(*port);
  }
  Result<std::string> Ask(const Credentials& mine, std::function<bool(const Peer&)> admit = nullptr) {
    auto channel = Channel::Dial(address_, mine, "node", std::move(admit));
    if (!channel) return channel.error();
    std::promise<Result<std::string>> answered;
    (*channel)->Call(kEcho, "x", 20'000'000,
                     [&](Result<std::string> answer) { answered.set_value(std::move(answer)); });
    return answered.get_future().get();
  }

  const TestAuthority authority_;
  Mutex mutex_;
  std::map<std::string, Open> open_;
  std::unique_ptr<Server> server_;
  std::string address_;
};

TEST_F(TlsTest, BothEndsUseWhatIsThereWhenTheyConnect) {
  const CertificateRequest of_node = NewRequest().value(), of_home = NewRequest().value();
  Issue("node", "n1", of_node, 4);
  Issue("home", "a@h", of_home, 4);
  const Credentials mine = Load("a@h");
  Serve(Load("n1"));
  EXPECT_EQ(Ask(mine).value(), "a@h:x");
  const auto end = LifetimeOf(mine.certificate)->until_us;
  Issue("node", "n1", of_node, 600);
  Issue("home", "a@h", of_home, 600);
  while (WallMicros() < end + 500'000) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto answer = Ask(mine);
  ASSERT_TRUE(answer) << answer.error().message();
  EXPECT_EQ(*answer, "a@h:x");
  // Without a new one it is over.
  Issue("home", "a@h", of_home, -1);
  EXPECT_EQ(Ask(mine).error().code(), Code::kDenied);
}

TEST_F(TlsTest, TheOtherSideIsAskedForAndRefused) {
  Serve(authority_.Make("node", "n1"));
  std::string met;
  EXPECT_TRUE(Ask(authority_.Make("home", "a@h"), [&](const Peer& peer) {
    met = peer.role + " " + peer.name;
    return true;
  }));
  EXPECT_EQ(met, "node n1");
  const auto refused = Ask(authority_.Make("home", "a@h"), [](const Peer&) { return false; });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnavailable);
  EXPECT_NE(refused.error().message().find("was shut out"), std::string::npos) << refused.error().message();
}

TEST_F(TlsTest, OpenCallsOfOneCallerEnd) {
  Serve(authority_.Make("node", "n1"));
  Open a, b;
  auto ends = a.ended.get_future(), stays = b.ended.get_future();
  const auto to_a = Channel::Dial(address_, authority_.Make("home", "a@h"), "node");
  const auto to_b = Channel::Dial(address_, authority_.Make("home", "b@h"), "node");
  ASSERT_TRUE(to_a && to_b);
  a.stream = (*to_a)->OpenStream(kListen, &a);
  b.stream = (*to_b)->OpenStream(kListen, &b);
  EXPECT_TRUE(Ask(authority_.Make("home", "c@h")));
  // Until the stream has begun there is nothing to end.
  for (int i = 0; i < 400 && ends.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready; ++i) {
    server_->EndCalls([](const Peer& peer) { return peer.name == "a@h"; });
  }
  EXPECT_EQ(ends.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  EXPECT_EQ(stays.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  a.stream.reset();
  b.stream.reset();
  server_.reset();
}

}  // namespace
}  // namespace vrun::rpc
