// SPDX-License-Identifier: Apache-2.0
#include "node/agent/controller_link.h"

#include <gtest/gtest.h>

#include <atomic>

#include "rpc/testing.h"

namespace vrun::node {
namespace {

// Answers the second registration only.
struct Forgetful : rpc::Stream::Handler {
  explicit Forgetful(std::unique_ptr<rpc::Stream> stream, bool answers) : stream(std::move(stream)), answers(answers) {}
  void OnMessage(std::string) override {
    if (!answers) return;
    v1::ControllerMessage message;
    message.mutable_registered();
    stream->Send(message.SerializeAsString());
  }
  void OnClosed(Error) override { delete this; }

  std::unique_ptr<rpc::Stream> stream;
  const bool answers;
};

TEST(ControllerLinkTest, ARegistrationThatIsNotAnsweredIsMadeAgain) {
  const rpc::TestAuthority authority;
  std::atomic<int> connections = 0;
  auto server = rpc::Server::Create(authority.Make("controller", "controller"));
  server->Streaming("/vrun.v1.Control/Agent",
                    [&](const rpc::Peer&, std::unique_ptr<rpc::Stream> stream) -> Result<rpc::Stream::Handler*> {
                      return new Forgetful(std::move(stream), ++connections > 1);
                    });
  const auto port = server->Start("127.0.0.1:0");
  ASSERT_TRUE(port) << port.error().message();

  EventLoop loop;
  ControllerLink::Events events;
  events.describe = [] { return v1::Register(); };
  events.on_message = [](const v1::ControllerMessage&) {};
  events.on_registered = [&loop] { loop.Stop(); };
  auto link = ControllerLink::Start(&loop, "127.0.0.1:" + std::to_string(*port), authority.Make("node", "n1"), events);
  ASSERT_TRUE(link) << link.error().message();
  loop.After(60'000'000, [&loop] { loop.Stop(); });
  loop.Run();
  EXPECT_TRUE((*link)->registered());
  EXPECT_EQ(connections, 2);
}

}  // namespace
}  // namespace vrun::node
