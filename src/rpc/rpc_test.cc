// SPDX-License-Identifier: Apache-2.0
// Both ends over real mTLS on loopback.
#include "rpc/rpc.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/clock.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"
#include "rpc/testing.h"

namespace vrun::rpc {
namespace {

using std::chrono::seconds;

// A handler that records events, and can wait for them.
class Recorder : public Stream::Handler {
 public:
  void OnMessage(std::string message) override {
    std::function<void(const std::string&)> also;
    {
      MutexLock lock(mu_);
      bytes_ += message.size();
      also = on_message_;
      messages_.push_back(message);
      changed_.notify_all();
    }
    if (also) also(message);
  }
  void OnWritable() override {
    MutexLock lock(mu_);
    ++writable_;
    changed_.notify_all();
  }
  void OnClosed(Error reason) override {
    std::function<void()> also;
    {
      MutexLock lock(mu_);
      closed_ = std::move(reason);
      also = on_closed_;
    }
    if (also) also();
    MutexLock lock(mu_);
    announced_ = true;
    changed_.notify_all();
  }

  template <typename Predicate>
  bool Wait(Predicate predicate) {
    MutexLock lock(mu_);
    return changed_.wait_for(lock, seconds(20), predicate);
  }
  bool WaitMessages(size_t n) {
    return Wait([&] { return messages_.size() >= n; });
  }
  bool WaitWritable() {
    return Wait([&] { return writable_ > 0; });
  }
  // The reason of the close.
  Error WaitClosed() {
    if (!Wait([&] { return announced_; })) return Error(Code::kInternal, "never closed");
    return *closed_;
  }
  std::vector<std::string> messages() {
    MutexLock lock(mu_);
    return messages_;
  }
  int writable() {
    MutexLock lock(mu_);
    return writable_;
  }
  void SetOnMessage(std::function<void(const std::string&)> f) {
    MutexLock lock(mu_);
    on_message_ = std::move(f);
  }
  void SetOnClosed(std::function<void()> f) {
    MutexLock lock(mu_);
    on_closed_ = std::move(f);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> messages_;
  size_t bytes_ = 0;
  int writable_ = 0;
  std::optional<Error> closed_;
  bool announced_ = false;
  std::function<void(const std::string&)> on_message_;
  std::function<void()> on_closed_;
};

// Echoes everything; is destroyed when its stream has ended.
class EchoSession : public Stream::Handler {
 public:
  explicit EchoSession(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}
  void OnMessage(std::string message) override { stream_->Send(std::move(message)); }
  void OnClosed(Error) override { delete this; }

 private:
  std::unique_ptr<Stream> stream_;
};

constexpr char kEcho[] = "/vrun.v1.Test/Echo";
constexpr char kStream[] = "/vrun.v1.Test/Stream";
constexpr char kEchoStream[] = "/vrun.v1.Test/EchoStream";

class RpcTest : public ::testing::Test {
 protected:
  void SetUp() override { Serve("127.0.0.1:0"); }

  void Serve(const std::string& address) {
    server_ = Server::Create(authority_.Make("controller", "controller"));
    server_->Unary(kEcho, [this](const Peer& peer, std::string request, auto reply) {
      {
        MutexLock lock(mu_);
        last_peer_ = peer;
      }
      if (request == "fail") return reply(Error(Code::kExhausted, "disk: full: make room"));
      if (request == "drop") return;
      if (request == "keep") {
        MutexLock lock(mu_);
        kept_.push_back(std::move(reply));
        changed_.notify_all();
        return;
      }
      reply(std::move(request));
    });
    server_->Streaming(kStream, [this](const Peer& peer, std::unique_ptr<Stream> stream) -> Result<Stream::Handler*> {
      if (peer.name == "stranger@h") return Error(Code::kDenied, "stranger: not yours: ask");
      MutexLock lock(mu_);
      served_ = std::move(stream);
      changed_.notify_all();
      return &at_server_;
    });
    server_->Streaming(kEchoStream, [](const Peer&, std::unique_ptr<Stream> stream) -> Result<Stream::Handler*> {
      return new EchoSession(std::move(stream));
    });
    auto port = server_->Start(address);
    ASSERT_TRUE(port) << port.error().message();
    address_ = "127.0.0.1:" + std::to_string(*port);
  }

  std::unique_ptr<Channel> Dial(const std::string& name = "anna@host", const std::string& role = "home") {
    auto channel = Channel::Dial(address_, authority_.Make(role, name), "controller");
    VRUN_CHECK(channel.has_value());
    return *std::move(channel);
  }

  static Result<std::string> Call(Channel& channel, const std::string& method, std::string request,
                                  int64_t timeout = 20'000'000) {
    Mutex mu;
    CondVar changed;
    std::optional<Result<std::string>> answer;
    channel.Call(method, std::move(request), timeout, [&](Result<std::string> r) {
      MutexLock lock(mu);
      answer = std::move(r);
      changed.notify_all();
    });
    MutexLock lock(mu);
    changed.wait(lock, [&] { return answer.has_value(); });
    return *std::move(answer);
  }

  static std::string Text(Result<std::string> answer) {
    return answer ? *answer : "error: " + answer.error().message();
  }

  Stream* WaitServed() {
    MutexLock lock(mu_);
    changed_.wait_for(lock, seconds(20), [&] { return served_ != nullptr; });
    return served_.get();
  }

  TestAuthority authority_;
  Mutex mu_;
  CondVar changed_;
  std::vector<std::function<void(Result<std::string>)>> kept_;
  Peer last_peer_;
  Recorder at_server_;
  std::unique_ptr<Stream> served_;
  std::unique_ptr<Server> server_;
  std::string address_;
};

TEST_F(RpcTest, AnAnswerComesBackAndTheServerKnowsWhoAsked) {
  auto channel = Dial("anna@host", "home");
  EXPECT_EQ(Text(Call(*channel, kEcho, "hello")), "hello");
  EXPECT_EQ(Text(Call(*channel, kEcho, "")), "");
  std::string binary(3'000'000, '\0');
  for (size_t i = 0; i < binary.size(); ++i) binary[i] = static_cast<char>(i * 7);
  EXPECT_TRUE(Text(Call(*channel, kEcho, binary)) == binary);
  MutexLock lock(mu_);
  EXPECT_EQ(last_peer_.role, "home");
  EXPECT_EQ(last_peer_.name, "anna@host");
}

TEST_F(RpcTest, ErrorsKeepTheirCodeAndText) {
  auto channel = Dial();
  auto answer = Call(*channel, kEcho, "fail");
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), Code::kExhausted);
  EXPECT_EQ(answer.error().message(), "disk: full: make room");
  EXPECT_EQ(Call(*channel, kEcho, "drop").error().code(), Code::kAborted);
  EXPECT_EQ(Call(*channel, "/vrun.v1.Test/Nothing", "").error().code(), Code::kUnsupported);
  EXPECT_EQ(Call(*channel, kEcho, "keep", 50'000).error().code(), Code::kTimeout);
}

TEST_F(RpcTest, NobodyThereIsSaidAndTheChannelComesBackByItself) {
  auto channel = Dial();
  EXPECT_TRUE(Call(*channel, kEcho, "x"));
  std::string address = address_;
  server_.reset();
  auto answer = Call(*channel, kEcho, "x");
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), Code::kUnavailable);
  EXPECT_NE(answer.error().message().find(address), std::string::npos) << answer.error().message();
  Serve(address);
  int64_t deadline = MonotonicMicros() + 20'000'000;
  Result<std::string> again = Error(Code::kUnavailable, "");
  while (!(again = Call(*channel, kEcho, "x")) && MonotonicMicros() < deadline) {
  }
  EXPECT_TRUE(again);
}

// Urgent messages cannot overtake what is already in the kernel.
TEST_F(RpcTest, TheKernelTakesNoMoreThanItNeeds) {
  const auto queue = [&] {  // of our end of the connection
    for (int fd = 0; fd < 1024; ++fd) {
      sockaddr_in6 peer{};  // the port is at the same place for IPv4
      socklen_t size = sizeof peer;
      int bytes = 0;
      socklen_t of_bytes = sizeof bytes;
      if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 ||
          (peer.sin6_family != AF_INET && peer.sin6_family != AF_INET6)) {
        continue;
      }
      if (!address_.ends_with(":" + std::to_string(ntohs(peer.sin6_port)))) continue;
      if (::getsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, &of_bytes) == 0) return bytes;
    }
    return -1;
  };
  auto channel = Dial();
  ASSERT_TRUE(Call(*channel, kEcho, "x"));
  const int64_t deadline = MonotonicMicros() + 20'000'000;
  while (queue() <= 0 && MonotonicMicros() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(queue(), 256 << 10);
}

TEST_F(RpcTest, StrangersAreRefused) {
  TestAuthority other;
  auto channel = Channel::Dial(address_, other.Make("home", "eve@h"), "controller");
  ASSERT_TRUE(channel);
  auto answer = Call(**channel, kEcho, "x");
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), Code::kUnavailable) << answer.error().message();

  // A certificate of another cluster under our CA's name is refused before any connection.
  Credentials mixed = other.Make("home", "eve@h");
  mixed.ca = authority_.Make("home", "anna@h").ca;
  EXPECT_EQ(Channel::Dial(address_, mixed, "controller").error().code(), Code::kDenied);
}

// In the handshake, and with half of one. The server takes its bounds from what descriptors there are.
TEST_F(RpcTest, ManyWhoOnlyConnectKeepNobodyOut) {
  server_.reset();
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few{256, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  Serve("127.0.0.1:0");
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  auto before = Dial();
  ASSERT_TRUE(Call(*before, kEcho, "x"));
  std::vector<UniqueFd> strangers;
  sockaddr_in server{};
  server.sin_family = AF_INET;
  server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  server.sin_port = htons(static_cast<uint16_t>(std::stoi(address_.substr(address_.rfind(':') + 1))));
  for (int i = 0; i < 100; ++i) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&server), sizeof server), 0);
    if (i % 2 == 0) {
      EXPECT_EQ(::send(fd.get(), "\x16\x03\x01\x01", 4, MSG_NOSIGNAL), 4);
    }
    strangers.push_back(std::move(fd));
  }
  const int64_t began = MonotonicMicros();
  auto after = Dial("ben@host");
  EXPECT_TRUE(Call(*after, kEcho, "x"));
  EXPECT_TRUE(Call(*before, kEcho, "x"));
  const auto open = [&] {
    int all = 0;
    for (const UniqueFd& fd : strangers) {
      pollfd wait{fd.get(), POLLIN, 0};
      if (::poll(&wait, 1, 0) == 0) ++all;
    }
    return all;
  };
  // 32 of one address, without waiting for the handshake's end.
  const int64_t deadline = began + 5'000'000;
  while (open() > 32 && MonotonicMicros() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_LE(open(), 32);
}

TEST_F(RpcTest, TheServerMustHaveTheRoleThatTheClientExpects) {
  auto channel = Channel::Dial(address_, authority_.Make("home", "anna@h"), "node");
  ASSERT_TRUE(channel);
  auto answer = Call(**channel, kEcho, "x");
  ASSERT_FALSE(answer) << "a controller must not pass for a node";
  EXPECT_EQ(answer.error().code(), Code::kUnavailable);
}

TEST_F(RpcTest, AStreamKeepsOrderBothWaysAndEndsAfterEverythingWasSent) {
  auto channel = Dial();
  Recorder at_client;
  at_server_.SetOnMessage([this](const std::string& m) { WaitServed()->Send("re:" + m); });
  auto stream = channel->OpenStream(kStream, &at_client);
  std::vector<std::string> sent, expected;
  for (int i = 0; i < 2000; ++i) {
    sent.push_back(std::to_string(i) + std::string(i % 97, 'x'));
    expected.push_back("re:" + sent.back());
    stream->Send(sent.back());
  }
  ASSERT_TRUE(at_client.WaitMessages(2000));
  stream->Finish();
  EXPECT_EQ(at_client.WaitClosed().code(), Code::kOk);
  EXPECT_EQ(at_server_.WaitClosed().code(), Code::kOk);
  EXPECT_EQ(at_server_.messages(), sent);
  EXPECT_EQ(at_client.messages(), expected);
  stream->Send("too late");
  EXPECT_EQ(stream->queued_bytes(), 0u);
}

TEST_F(RpcTest, WhatWasSentBeforeFinishArrivesEvenWhenTheStreamObjectIsGone) {
  auto channel = Dial();
  Recorder at_client;
  {
    auto stream = channel->OpenStream(kStream, &at_client);
    for (int i = 0; i < 100; ++i) stream->Send(std::string(100'000, 'a'));
    stream->Finish();
  }
  EXPECT_EQ(at_server_.WaitClosed().code(), Code::kOk);
  EXPECT_EQ(at_server_.messages().size(), 100u);
  EXPECT_TRUE(at_client.messages().empty());
}

TEST_F(RpcTest, AServerThatFinishesEndsTheStreamAfterItsLastMessage) {
  auto channel = Dial();
  Recorder at_client;
  auto stream = channel->OpenStream(kStream, &at_client);
  Stream* served = WaitServed();
  ASSERT_NE(served, nullptr);
  for (int i = 0; i < 50; ++i) {
    served->Send(std::string(100'000, 'b'));
    stream->Send("noise");
  }
  served->Finish();
  EXPECT_EQ(at_client.WaitClosed().code(), Code::kOk);
  EXPECT_EQ(at_client.messages().size(), 50u);
  EXPECT_EQ(at_server_.WaitClosed().code(), Code::kOk);
}

TEST_F(RpcTest, ARefusedStreamIsClosedWithTheReason) {
  auto channel = Dial("stranger@h");
  Recorder at_client;
  auto stream = channel->OpenStream(kStream, &at_client);
  stream->Send("hello");
  Error reason = at_client.WaitClosed();
  EXPECT_EQ(reason.code(), Code::kDenied);
  EXPECT_EQ(reason.message(), "stranger: not yours: ask");
}

TEST_F(RpcTest, CancelAtTheServerTellsTheClientWhy) {
  auto channel = Dial();
  Recorder at_client;
  auto stream = channel->OpenStream(kStream, &at_client);
  WaitServed()->Cancel(Error(Code::kAborted, "node n1: another connection took over"));
  Error reason = at_client.WaitClosed();
  EXPECT_EQ(reason.code(), Code::kAborted);
  EXPECT_EQ(reason.message(), "node n1: another connection took over");
  EXPECT_EQ(at_server_.WaitClosed().code(), Code::kAborted);
}

TEST_F(RpcTest, CancelAtTheClientIsNotAnOrderlyEndForTheServer) {
  auto channel = Dial();
  Recorder at_client;
  auto stream = channel->OpenStream(kStream, &at_client);
  stream->Send("x");
  ASSERT_TRUE(at_server_.WaitMessages(1));
  stream->Cancel(Error(Code::kTimeout, "own reason"));
  EXPECT_EQ(at_client.WaitClosed().message(), "own reason");
  EXPECT_EQ(at_server_.WaitClosed().code(), Code::kUnavailable);
}

TEST_F(RpcTest, ASlowReaderShowsAsQueuedBytesAndCanStillBeCancelled) {
  auto channel = Dial();
  Recorder at_client;
  struct Gate {
    Mutex mutex;
    CondVar opened;
    bool open = false;
  };
  const auto gate = std::make_shared<Gate>();           // the last message may still be passing it when this ends
  at_server_.SetOnMessage([gate](const std::string&) {  // blocks one of gRPC's threads: only allowed in a test
    MutexLock lock(gate->mutex);
    gate->opened.wait(lock, [&] { return gate->open; });
  });
  auto stream = channel->OpenStream(kStream, &at_client);
  for (int i = 0; i < 64; ++i) stream->Send(std::string(1 << 20, 'c'));
  ASSERT_TRUE(at_server_.WaitMessages(1));
  EXPECT_GT(stream->queued_bytes(), Stream::kHighWater);
  {
    MutexLock lock(gate->mutex);
    gate->open = true;
    gate->opened.notify_all();
  }
  ASSERT_TRUE(at_server_.WaitMessages(64));
  ASSERT_TRUE(at_client.WaitWritable());
  EXPECT_EQ(at_client.writable(), 1);
  EXPECT_LE(stream->queued_bytes(), Stream::kLowWater);
}

TEST_F(RpcTest, UrgentMessagesOvertakeAndEachKindKeepsItsOrder) {
  auto channel = Dial();
  Recorder at_client;
  Mutex gate;
  CondVar opened;
  bool open = false;
  std::vector<std::string> order;
  at_server_.SetOnMessage([&](const std::string& message) {
    MutexLock lock(gate);
    opened.wait(lock, [&] { return open; });
    order.push_back(message.substr(0, 2));
    opened.notify_all();
  });
  auto stream = channel->OpenStream(kStream, &at_client);
  for (int i = 10; i < 74; ++i) stream->Send(std::to_string(i) + std::string(1 << 20, 'c'));
  ASSERT_TRUE(at_server_.WaitMessages(1));
  stream->SendUrgent("u1");
  stream->SendUrgent("u2");
  MutexLock lock(gate);
  open = true;
  opened.notify_all();
  ASSERT_TRUE(opened.wait_for(lock, seconds(30), [&] { return order.size() == 66; }));
  const auto urgent = std::find(order.begin(), order.end(), "u1");
  ASSERT_LT(urgent, order.end() - 2);
  EXPECT_EQ(*(urgent + 1), "u2");
  order.erase(urgent, urgent + 2);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST_F(RpcTest, AWriteThatIsStuckInAFullWindowDoesNotHoldUpCancelOrDestruction) {
  auto channel = Dial();
  Recorder at_client;
  Mutex gate;
  CondVar opened;
  bool open = false;
  at_client.SetOnMessage([&](const std::string&) {
    MutexLock lock(gate);
    opened.wait(lock, [&] { return open; });
  });
  auto stream = channel->OpenStream(kStream, &at_client);
  Stream* served = WaitServed();
  for (int i = 0; i < 64; ++i) served->Send(std::string(1 << 20, 'd'));
  ASSERT_TRUE(at_client.WaitMessages(1));
  served->Cancel(Error(Code::kAborted, "enough"));
  EXPECT_EQ(at_server_.WaitClosed().message(), "enough");
  {
    MutexLock lock(mu_);
    served_.reset();
  }
  MutexLock lock(gate);
  open = true;
  opened.notify_all();
}

TEST_F(RpcTest, AStreamMayBeDestroyedInItsOwnCallbacks) {
  auto channel = Dial();
  for (int round = 0; round < 20; ++round) {
    Recorder at_client;
    std::unique_ptr<Stream> stream;
    Mutex mu;
    CondVar changed;
    bool gone = false;
    auto destroy = [&] {
      MutexLock lock(mu);
      stream.reset();
      gone = true;
      changed.notify_all();
    };
    if (round % 2 == 0) {
      at_client.SetOnMessage([&](const std::string&) { destroy(); });
    } else {
      at_client.SetOnClosed(destroy);
    }
    {
      MutexLock lock(mu);
      stream = channel->OpenStream(kStream, &at_client);
    }
    Stream* served = WaitServed();
    served->Send("x");
    served->Finish();
    MutexLock lock(mu);
    ASSERT_TRUE(changed.wait_for(lock, seconds(20), [&] { return gone; }));
    lock.unlock();
    MutexLock server_lock(mu_);
    served_.reset();
  }
}

TEST_F(RpcTest, NoCallbackAfterTheDestructor) {
  auto channel = Dial();
  for (int round = 0; round < 50; ++round) {
    auto at_client = std::make_unique<Recorder>();
    auto stream = channel->OpenStream(kEchoStream, at_client.get());
    for (int i = 0; i < 20; ++i) stream->Send("ping");
    if (round % 3 == 0) at_client->WaitMessages(1);
    stream.reset();
    at_client.reset();  // sanitizers would detect a late callback
  }
}

TEST_F(RpcTest, AServerStopsWithOpenStreamsAndUnansweredCalls) {
  auto channel = Dial();
  Recorder at_client;
  auto stream = channel->OpenStream(kStream, &at_client);
  stream->Send("x");
  ASSERT_TRUE(at_server_.WaitMessages(1));
  Mutex mu;
  CondVar changed;
  std::optional<Result<std::string>> answer;
  channel->Call(kEcho, "keep", 0, [&](Result<std::string> r) {
    MutexLock lock(mu);
    answer = std::move(r);
    changed.notify_all();
  });
  {
    MutexLock lock(mu_);
    ASSERT_TRUE(changed_.wait_for(lock, seconds(20), [&] { return kept_.size() == 1; }));
  }
  server_.reset();
  EXPECT_NE(at_server_.WaitClosed().code(), Code::kOk);
  EXPECT_NE(at_client.WaitClosed().code(), Code::kOk);
  {
    MutexLock lock(mu);
    ASSERT_TRUE(changed.wait_for(lock, seconds(20), [&] { return answer.has_value(); }));
    EXPECT_FALSE(*answer);
  }
  kept_[0]("too late");
  served_->Send("too late");
  served_.reset();
}

TEST_F(RpcTest, AChannelAnswersItsOpenCallsBeforeItGoes) {
  auto channel = Dial();
  std::atomic<int> answered = 0;
  for (int i = 0; i < 20; ++i) {
    channel->Call(kEcho, "keep", 0, [&](Result<std::string> r) {
      EXPECT_EQ(r.error().code(), Code::kAborted);
      ++answered;
    });
  }
  channel.reset();
  EXPECT_EQ(answered, 20);
}

TEST_F(RpcTest, AChannelClosesItsStreamsBeforeItGoes) {
  auto channel = Dial();
  Recorder at_client;
  auto stream = channel->OpenStream(kStream, &at_client);
  stream->Send("x");
  ASSERT_TRUE(at_server_.WaitMessages(1));
  channel.reset();
  EXPECT_EQ(at_client.WaitClosed().code(), Code::kAborted);
  stream->Send("too late");
  stream.reset();
  EXPECT_EQ(at_server_.WaitClosed().code(), Code::kUnavailable);
}

TEST_F(RpcTest, NothingButTheConnectionMovesWhileNobodyCalls) {
  // An unused channel answers the server's keepalive and stays connected.
  auto channel = Dial();
  ASSERT_TRUE(Call(*channel, kEcho, "x"));
  Mutex mu;
  CondVar never;
  MutexLock lock(mu);
  never.wait_for(lock, seconds(13));
  int64_t begin = MonotonicMicros();
  auto answer = Call(*channel, kEcho, "x");
  EXPECT_TRUE(answer) << answer.error().message();
  EXPECT_LT(MonotonicMicros() - begin, 30'000);
}

// A way to a server that stops as a process does that gets SIGSTOP: what comes is taken by the kernel, and nobody
// answers.
class StoppableWay {
 public:
  explicit StoppableWay(const std::string& to) : to_(static_cast<uint16_t>(std::stoi(to.substr(to.rfind(':') + 1)))) {
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in here = Loopback(0);
    socklen_t size = sizeof here;
    VRUN_CHECK(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&here), sizeof here) == 0);
    VRUN_CHECK(::listen(listener_.get(), 16) == 0);
    VRUN_CHECK(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&here), &size) == 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(here.sin_port));
    thread_ = std::thread([this] { Carry(); });
  }
  ~StoppableWay() {
    ended_ = true;
    thread_.join();
  }
  const std::string& address() const { return address_; }
  void Stop() { stopped_ = true; }

 private:
  static sockaddr_in Loopback(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  void Carry() {
    std::vector<std::pair<UniqueFd, UniqueFd>> pairs;
    while (!ended_) {
      std::vector<pollfd> waits{{listener_.get(), POLLIN, 0}};
      for (const auto& [near, far] : pairs) {
        waits.push_back({near.get(), POLLIN, 0});
        waits.push_back({far.get(), POLLIN, 0});
      }
      if (stopped_) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        continue;
      }
      ::poll(waits.data(), waits.size(), 20);
      for (size_t i = 0; i < pairs.size(); ++i) {
        const int ends[] = {pairs[i].first.get(), pairs[i].second.get()};
        for (int side = 0; side < 2; ++side) {
          if (waits[1 + 2 * i + static_cast<size_t>(side)].revents == 0) continue;
          char bytes[65536];
          const ssize_t n = ::recv(ends[side], bytes, sizeof bytes, MSG_DONTWAIT);
          if (n > 0) (void)::send(ends[1 - side], bytes, static_cast<size_t>(n), MSG_NOSIGNAL);
          if (n == 0) (void)::shutdown(ends[1 - side], SHUT_WR);
        }
      }
      if (waits[0].revents == 0) continue;
      UniqueFd near(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      UniqueFd far(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const sockaddr_in there = Loopback(to_);
      if (::connect(far.get(), reinterpret_cast<const sockaddr*>(&there), sizeof there) != 0) continue;
      pairs.emplace_back(std::move(near), std::move(far));
    }
  }

  const uint16_t to_;
  UniqueFd listener_;
  std::string address_;
  std::atomic<bool> stopped_ = false, ended_ = false;
  std::thread thread_;
};

TEST_F(RpcTest, OfTwoAddressesTheOtherOneIsThereSoonWhenOneIsSilent) {
  const std::unique_ptr<Server> first = std::move(server_);
  StoppableWay way(address_);
  Serve("127.0.0.1:0");
  auto channel = Channel::Dial(way.address() + "," + address_, authority_.Make("home", "anna@host"), "controller");
  ASSERT_TRUE(channel) << channel.error().message();
  Recorder recorder;
  auto stream = (*channel)->OpenStream(kEchoStream, &recorder);
  stream->Send("x");
  ASSERT_TRUE(recorder.WaitMessages(1));
  // Longer than it takes to give up: who answers is kept.
  std::this_thread::sleep_for(seconds(4));
  stream->Send("y");
  ASSERT_TRUE(recorder.WaitMessages(2));

  const int64_t began = MonotonicMicros();
  way.Stop();
  EXPECT_EQ(recorder.WaitClosed().code(), Code::kUnavailable);
  Result<std::string> again = Error(Code::kUnavailable, "");
  while (!(again = Call(**channel, kEcho, "z")) && MonotonicMicros() - began < 20'000'000) {
  }
  EXPECT_TRUE(again);
  EXPECT_LT(MonotonicMicros() - began, 4'800'000);
}

// Its kernel takes the connection.
TEST_F(RpcTest, OfTwoAddressesOneThatNeverAnswersIsPassedOver) {
  StoppableWay way(address_);
  way.Stop();
  const int64_t began = MonotonicMicros();
  auto channel = Channel::Dial(way.address() + "," + address_, authority_.Make("home", "anna@host"), "controller");
  ASSERT_TRUE(channel) << channel.error().message();
  EXPECT_EQ(Text(Call(**channel, kEcho, "x")), "x");
  EXPECT_LT(MonotonicMicros() - began, 3'000'000);
}

TEST_F(RpcTest, APortInUseIsAClearError) {
  auto second = Server::Create(authority_.Make("controller", "controller"));
  auto port = second->Start(address_);
  ASSERT_FALSE(port);
  EXPECT_EQ(port.error().code(), Code::kExists);
  EXPECT_EQ(port.error().message(),
            "listen on " + address_ + ": Address already in use: stop what uses it or choose another address");
  EXPECT_EQ(second->Start("nonsense").error().code(), Code::kInvalid);
}

TEST_F(RpcTest, ProxiesOfTheEnvironmentAreIgnored) {
  setenv("http_proxy", "http://127.0.0.1:1", 1);
  setenv("https_proxy", "http://127.0.0.1:1", 1);
  auto channel = Dial();
  EXPECT_TRUE(Call(*channel, kEcho, "x"));
  unsetenv("http_proxy");
  unsetenv("https_proxy");
}

// A thread that was about to write or to end the call found it deleted when the other side had cancelled meanwhile.
TEST_F(RpcTest, BothSidesMayEndACallAtOnce) {
  auto channel = Dial();
  for (int round = 0; round < 300; ++round) {
    Recorder at_client;
    auto stream = channel->OpenStream(kStream, &at_client);
    Stream* served = WaitServed();
    ASSERT_NE(served, nullptr);
    std::thread server([&] {
      for (int i = 0; i < 3; ++i) served->Send("late");
      served->Cancel(Error(Code::kAborted, "the server ends it"));
    });
    for (int i = 0; i < 3; ++i) stream->Send("late");
    stream->Cancel(Error(Code::kAborted, "the client ends it"));
    server.join();
    {
      MutexLock lock(mu_);
      served_.reset();
    }
    stream.reset();
  }
}

TEST_F(RpcTest, ManyThreadsMaySendOnOneStream) {
  auto channel = Dial();
  Recorder at_client;
  auto stream = channel->OpenStream(kEchoStream, &at_client);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) stream->Send(std::string(100, 'x'));
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_TRUE(at_client.WaitMessages(2000));
}

}  // namespace
}  // namespace vrun::rpc
