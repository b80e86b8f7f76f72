// SPDX-License-Identifier: Apache-2.0
// The server over real sockets, with clients that misbehave.
#include "http/server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "base/files.h"
#include "base/thread/mutex.h"
#include "http/router.h"

namespace vrun::http {
namespace {

class Client {
 public:
  explicit Client(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{20, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  void Send(std::string_view text) { EXPECT_TRUE(WriteAll(fd_.get(), text)); }
  // What comes until `end` was seen, or the server closes.
  std::string Until(std::string_view end) {
    while (received_.find(end) == std::string::npos || end.empty()) {
      char buffer[4096];
      const ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, 0);
      if (n <= 0) return std::exchange(received_, "");
      received_.append(buffer, static_cast<size_t>(n));
    }
    const size_t at = received_.find(end) + end.size();
    std::string text = received_.substr(0, at);
    received_.erase(0, at);
    return text;
  }
  std::string Rest() { return Until(""); }

 private:
  UniqueFd fd_;
  std::string received_;
};

class ServerTest : public ::testing::Test {
 protected:
  void Start(const Limits& limits = {}) {
    router_.Add({"GET", "/hello/{name}", [](Call call, auto exchange) {
                   exchange->Answer({200, JsonQuote(call.path["name"] + "|" + call.request.body)});
                 }});
    router_.Add({"POST", "/hello/{name}", [](Call call, auto exchange) {
                   exchange->Answer({200, call.request.body});
                 }});
    router_.Add({"GET", "/hello/all", [](const Call&, auto exchange) { exchange->Answer({200, "\"all\""}); }});
    router_.Add({"GET", "/dropped", [](const Call&, auto) {}});
    router_.Add({"GET", "/events", [this](const Call&, auto exchange) {
                   MutexLock lock(mutex_);
                   events_ = exchange->StartEvents();
                   changed_.notify_all();
                 }});
    auto server = Server::Start("127.0.0.1:0", std::nullopt, limits, [this](Request request, auto exchange) {
      router_.Handle(std::move(request), std::move(exchange));
    });
    ASSERT_TRUE(server) << server.error().message();
    server_ = *std::move(server);
  }
  std::shared_ptr<Events> WaitForEvents() {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this] { return events_ != nullptr; });
    return events_;
  }

  Router router_;
  Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<Events> events_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, OneConnectionServesManyRequests) {
  Start();
  Client client(server_->port());
  client.Send("GET /hello/anna HTTP/1.1\r\nHost: x\r\n\r\nGET /hello/all HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(client.Until("\"anna|\"").find("200 OK"), std::string::npos);
  EXPECT_NE(client.Until("\"all\"").find("X-Content-Type-Options: nosniff"), std::string::npos);
  client.Send("POST /hello/a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody");
  client.Until("body");
  client.Send("HEAD /hello/anna HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string head = client.Rest();
  EXPECT_NE(head.find("Content-Length: 7"), std::string::npos) << head;
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
}

TEST_F(ServerTest, ErrorsAreProblems) {
  Limits limits;
  limits.body_bytes = 100;
  Start(limits);
  for (const auto& [request, status] : std::vector<std::pair<std::string, std::string>>{
           {"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "404 Not Found"},
           {"PUT /hello/anna HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "405 Method Not Allowed"},
           {"GET /hello/anna?a=%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "400 Bad Request"},
           {"GET /dropped HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "500 Internal Server Error"},
           {"POST /hello/anna HTTP/1.1\r\nContent-Length: 101\r\n\r\n", "413"},
           {"GET /hello/anna HTTP/1.1\r\nX: " + std::string(40000, 'x') + "\r\n\r\n", "431"},
           {"this is no HTTP\r\n\r\n", "400 Bad Request"},
           {"GET /hello/anna HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "400 Bad Request"}}) {
    Client client(server_->port());
    client.Send(request);
    const std::string answer = client.Rest();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 " + status)) << request.substr(0, 60) << answer;
    EXPECT_NE(answer.find("application/problem+json"), std::string::npos) << answer;
    if (status.starts_with("405")) EXPECT_NE(answer.find("Allow: GET, HEAD, POST"), std::string::npos) << answer;
  }
}

TEST_F(ServerTest, SlowAndSilentClientsAreCutOff) {
  Limits limits;
  limits.request_seconds = 1;
  Start(limits);
  Client half(server_->port()), silent(server_->port());
  half.Send("GET /hello/anna HT");
  EXPECT_EQ(half.Rest(), "");
  EXPECT_EQ(silent.Rest(), "");
}

TEST_F(ServerTest, TheAddressMayBeWhole) {
  Start();
  Client client(server_->port());
  client.Send("GET http://x:1/hello/all?a=b HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(client.Until("\"all\""), "");
}

TEST_F(ServerTest, AboveTheLimitTheLongestSilentClientIsCutOff) {
  Limits limits;
  limits.connections = 2;
  Start(limits);
  Client first(server_->port()), second(server_->port());
  first.Send("GET /hello/anna HT");
  second.Send("GET /hello/all HTTP/1.1\r\nHost: x\r\n\r\n");
  second.Until("\"all\"");
  Client third(server_->port());
  third.Send("GET /hello/all HTTP/1.1\r\nHost: x\r\n\r\n");
  third.Until("\"all\"");
  EXPECT_EQ(first.Rest(), "");
  second.Send("GET /hello/all HTTP/1.1\r\nHost: x\r\n\r\n");
  second.Until("\"all\"");
}

TEST_F(ServerTest, ClientsThatAreServedMakeNoRoom) {
  Limits limits;
  limits.connections = 1;
  Start(limits);
  Client first(server_->port());
  first.Send("GET /events HTTP/1.1\r\nHost: x\r\n\r\n");
  first.Until("text/event-stream");
  Client second(server_->port());
  EXPECT_EQ(second.Rest(), "");
  ASSERT_TRUE(WaitForEvents()->Send("one", "{}"));
  first.Until("event: one");
}

TEST_F(ServerTest, EventsArriveInOrderUntilEitherSideEnds) {
  Start();
  Client client(server_->port());
  client.Send("GET /events HTTP/1.1\r\nHost: x\r\n\r\n");
  auto events = WaitForEvents();
  EXPECT_TRUE(events->Send("job", "{\"n\":1}"));
  EXPECT_TRUE(events->Send("job", "{\"n\":2}"));
  const std::string text = client.Until("{\"n\":2}\n\n");
  EXPECT_NE(text.find("text/event-stream"), std::string::npos);
  EXPECT_NE(text.find("\r\n\r\nevent: job\ndata: {\"n\":1}\n\nevent: job\ndata: {\"n\":2}\n\n"), std::string::npos)
      << text;
  {
    MutexLock lock(mutex_);
    events_.reset();
  }
  events.reset();
  EXPECT_EQ(client.Rest(), "");
}

TEST_F(ServerTest, ASlowReaderOfEventsIsCutOff) {
  Limits limits;
  limits.event_bytes = 100'000;
  Start(limits);
  Client client(server_->port());
  client.Send("GET /events HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto events = WaitForEvents();
  const std::string data(50'000, 'x');
  bool sent = true;
  for (int i = 0; i < 1000 && sent; ++i) sent = events->Send("job", data);
  EXPECT_FALSE(sent);
  EXPECT_FALSE(events->open());
}

TEST_F(ServerTest, WhatIsLeftOfAServerDoesNothing) {
  Start();
  Client client(server_->port());
  client.Send("GET /events HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto events = WaitForEvents();
  client.Until("\r\n\r\n");
  server_.reset();
  EXPECT_EQ(client.Rest(), "");
  EXPECT_FALSE(events->Send("job", "{}"));
}

TEST(ServerAddressTest, OnlyNumericAddresses) {
  EXPECT_TRUE(IsLoopback("127.0.0.1:80"));
  EXPECT_TRUE(IsLoopback("[::1]:80"));
  EXPECT_TRUE(IsLoopback("localhost:80"));
  EXPECT_FALSE(IsLoopback("0.0.0.0:80"));
  EXPECT_FALSE(IsLoopback("[::]:80"));
  for (const char* bad : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999", "example.org:80"}) {
    EXPECT_FALSE(Server::Start(bad, std::nullopt, {}, [](Request, auto) {})) << bad;
  }
}

}  // namespace
}  // namespace vrun::http
