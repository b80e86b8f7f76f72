// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>

#include "base/clock.h"
#include "ports/port_relays.h"
#include "ports/published_port.h"

namespace vrun {
namespace {

std::string TextOf(std::string_view text) {
  auto port = ParsePublishedPort(text);
  return port ? PublishedPortText(*port) : "";
}

TEST(PublishedPort, Forms) {
  EXPECT_EQ(TextOf("8888"), "127.0.0.1:8888");
  EXPECT_EQ(TextOf("8888/tcp"), "127.0.0.1:8888");
  EXPECT_EQ(TextOf("8888:80"), "127.0.0.1:8888 -> 80");
  EXPECT_EQ(TextOf("0.0.0.0:8888"), "0.0.0.0:8888");
  EXPECT_EQ(TextOf("localhost:8888:80"), "127.0.0.1:8888 -> 80");
  EXPECT_EQ(TextOf("[::1]:8888"), "[::1]:8888");
  EXPECT_EQ(TextOf("[::1]:1:2"), "[::1]:1 -> 2");
  for (const char* bad : {"", ":", "0", "65536", "70000", "-1", "8888:", ":8888:", "x", "1:2:3:4", "8888/udp", "[::1",
                          "example.com:80", "8888:0", " 8888", "[::1]", "1 2"}) {
    EXPECT_FALSE(ParsePublishedPort(bad)) << bad;
  }
}

TEST(PublishedPort, APoolDoesNotLookLikeOne) {
  for (const char* text : {"8888", "0", "70000", "8888:80", "127.0.0.1:80:80", "8888/udp"}) {
    EXPECT_TRUE(LooksLikePublishedPort(text)) << text;
  }
  for (const char* text : {"", "gpu", "h100", "8gpu", "/tcp"}) EXPECT_FALSE(LooksLikePublishedPort(text)) << text;
}

// Both sides in one process: each frame that one sends is received by the other in a later turn of the loop.
class RelaysTest : public testing::Test {
 protected:
  struct Pair {
    UniqueFd program, relayed;
    Pair() {
      int fds[2];
      VRUN_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
      program.Reset(fds[0]);
      relayed.Reset(fds[1]);
    }
    // false: nothing more will come
    bool ReadInto(std::string* out) const {
      char buffer[1 << 16];
      for (;;) {
        const ssize_t n = ::recv(program.get(), buffer, sizeof buffer, 0);
        if (n < 0 && errno == EAGAIN) return true;
        if (n <= 0) return false;
        out->append(buffer, static_cast<size_t>(n));
      }
    }
  };
  void Open(uint64_t connection, Pair* home, Pair* node) {
    ASSERT_TRUE(home_.Expect(connection));
    ASSERT_TRUE(node_.Expect(connection));
    home_.Begin(connection, std::move(home->relayed));
    node_.Begin(connection, std::move(node->relayed));
  }
  template <typename F>
  bool RunUntil(F done) {
    const int64_t end = MonotonicMicros() + 30'000'000;
    while (!done()) {
      if (MonotonicMicros() > end) return false;
      loop_.RunOnce(10);
    }
    return true;
  }

  EventLoop loop_;
  uint64_t in_flight_ = 0, most_in_flight_ = 0;
  PortRelays home_{&loop_, [this](v1::PortFrame f) {
                     in_flight_ += f.data().size();
                     most_in_flight_ = std::max(most_in_flight_, in_flight_);
                     loop_.Post([this, f] {
                       in_flight_ -= f.data().size();
                       node_.Receive(f);
                     });
                   }};
  PortRelays node_{&loop_, [this](v1::PortFrame f) { loop_.Post([this, f] { home_.Receive(f); }); }};
};

TEST_F(RelaysTest, BytesAndEndsPassInBothDirections) {
  Pair client, server;
  Open(1, &client, &server);
  ASSERT_EQ(::send(client.program.get(), "question", 8, 0), 8);
  ::shutdown(client.program.get(), SHUT_WR);
  std::string asked, answered;
  ASSERT_TRUE(RunUntil([&] { return !server.ReadInto(&asked); }));
  EXPECT_EQ(asked, "question");
  EXPECT_TRUE(home_.Has(1)) << "the other direction is open";
  ASSERT_EQ(::send(server.program.get(), "answer", 6, 0), 6);
  server.program.Reset();
  ASSERT_TRUE(RunUntil([&] { return !client.ReadInto(&answered); }));
  EXPECT_EQ(answered, "answer");
  EXPECT_TRUE(RunUntil([&] { return home_.size() == 0 && node_.size() == 0; }));
}

TEST_F(RelaysTest, AReaderThatDoesNotReadStopsTheSender) {
  Pair client, server;
  Open(1, &client, &server);
  std::string sent, got;
  std::mt19937 random(1);
  const std::string piece(40'000, 'x');
  // What the sockets and the window take, and no more.
  for (int idle = 0; idle < 50;) {
    std::string some = piece;
    some[0] = static_cast<char>(random());
    const ssize_t n = ::send(client.program.get(), some.data(), some.size(), 0);
    if (n > 0) sent.append(some, 0, static_cast<size_t>(n));
    idle = n > 0 ? 0 : idle + 1;
    loop_.RunOnce(1);
    ASSERT_LT(sent.size(), 64u << 20);
  }
  EXPECT_LE(most_in_flight_, SocketRelay::kWindow);
  ::shutdown(client.program.get(), SHUT_WR);
  ASSERT_TRUE(RunUntil([&] { return !server.ReadInto(&got); }));
  EXPECT_EQ(got.size(), sent.size());
  EXPECT_TRUE(got == sent);
}

TEST_F(RelaysTest, WhatComesBeforeTheSocketIsKept) {
  Pair client, server;
  ASSERT_TRUE(home_.Expect(1));
  ASSERT_TRUE(node_.Expect(1));
  home_.Begin(1, std::move(client.relayed));
  ASSERT_EQ(::send(client.program.get(), "early", 5, 0), 5);
  client.program.Reset();
  for (int i = 0; i < 10; ++i) loop_.RunOnce(1);
  node_.Begin(1, std::move(server.relayed));
  std::string got;
  ASSERT_TRUE(RunUntil([&] { return !server.ReadInto(&got); }));
  EXPECT_EQ(got, "early");
}

TEST_F(RelaysTest, ARefusedConnectionEndsOnTheOtherSide) {
  Pair client;
  ASSERT_TRUE(home_.Expect(1));
  ASSERT_TRUE(node_.Expect(1));
  home_.Begin(1, std::move(client.relayed));
  node_.Refuse(1, "nobody listens");
  std::string got;
  EXPECT_TRUE(RunUntil([&] { return !client.ReadInto(&got); }));
  EXPECT_TRUE(RunUntil([&] { return home_.size() == 0 && node_.size() == 0; }));
}

TEST_F(RelaysTest, APeerThatIgnoresTheWindowIsCutOff) {
  Pair server;
  ASSERT_TRUE(node_.Expect(7));
  node_.Begin(7, std::move(server.relayed));
  v1::PortFrame frame;
  frame.set_connection(7);
  frame.set_data(std::string(SocketRelay::kWindow, 'x'));
  for (int i = 0; i < 20 && node_.Has(7); ++i) node_.Receive(frame);  // the socket takes the first ones
  EXPECT_FALSE(node_.Has(7));
}

TEST_F(RelaysTest, FramesOfUnknownConnectionsAndTooManyOfThemDoNoHarm) {
  v1::PortFrame frame;
  frame.set_connection(99);
  frame.set_data("x");
  node_.Receive(frame);
  EXPECT_EQ(node_.size(), 0u);
  for (uint64_t i = 1; i <= PortRelays::kMostConnections; ++i) ASSERT_TRUE(node_.Expect(i));
  EXPECT_FALSE(node_.Expect(100'000));
}

}  // namespace
}  // namespace vrun
