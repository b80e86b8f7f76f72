// SPDX-License-Identifier: Apache-2.0
#include "rpc/acceptor.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <memory>
#include <vector>

namespace vrun::rpc {
namespace {

class AcceptorTest : public ::testing::Test {
 protected:
  void Listen(Acceptor::Bounds bounds, const std::string& address = "127.0.0.1:0") {
    auto acceptor = Acceptor::Listen(address);
    ASSERT_TRUE(acceptor) << acceptor.error().message();
    acceptor_ = *std::move(acceptor);
    acceptor_->Start(bounds, [this](int fd) {
      MutexLock lock(mutex_);
      taken_.emplace_back(fd);
      changed_.notify_all();
    });
  }

  // From 127.0.0.`source`; returns when the acceptor has taken it. The latter's end is at the same index of taken_.
  int Connect(int source = 1) {
    sockaddr_in mine{}, its{};
    mine.sin_family = its.sin_family = AF_INET;
    mine.sin_addr.s_addr = htonl(0x7f000000u + static_cast<uint32_t>(source));
    its.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    its.sin_port = htons(static_cast<uint16_t>(acceptor_->port()));
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&mine), sizeof mine), 0);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&its), sizeof its), 0);
    clients_.push_back(std::move(fd));
    MutexLock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20),
                                  [&]() VRUN_REQUIRES(mutex_) { return taken_.size() == clients_.size(); }));
    return static_cast<int>(clients_.size()) - 1;
  }

  bool Open(int which) {
    pollfd poll{clients_[static_cast<size_t>(which)].get(), POLLIN, 0};
    return ::poll(&poll, 1, 0) == 0;
  }
  std::string OpenOnes() {
    std::string all;
    for (size_t i = 0; i < clients_.size(); ++i) all += Open(static_cast<int>(i)) ? 'o' : '-';
    return all;
  }
  std::string PeerOf(int which) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    EXPECT_EQ(::getsockname(clients_[static_cast<size_t>(which)].get(), reinterpret_cast<sockaddr*>(&address), &size),
              0);
    char text[INET_ADDRSTRLEN];
    return std::string("ipv4:") + ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof text) + ":" +
           std::to_string(ntohs(address.sin_port));
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<UniqueFd> taken_ VRUN_GUARDED_BY(mutex_);
  std::vector<UniqueFd> clients_;
  std::unique_ptr<Acceptor> acceptor_;  // last: its thread uses the others
};

TEST_F(AcceptorTest, TheOldestOfASourceGivesWayToItsNextOne) {
  Listen({.all = 100, .of_source = 3});
  for (int i = 0; i < 3; ++i) Connect();
  for (int i = 0; i < 3; ++i) Connect(2);
  EXPECT_EQ(OpenOnes(), "oooooo");
  Connect();
  EXPECT_EQ(OpenOnes(), "-oooooo");
  Connect();
  Connect(2);
  EXPECT_EQ(OpenOnes(), "--o-ooooo");
}

TEST_F(AcceptorTest, WhenAllPlacesAreTakenTheSourceWithMostGivesOne) {
  Listen({.all = 6, .of_source = 4});
  Connect(2);
  for (int i = 0; i < 4; ++i) Connect(1);
  Connect(3);
  EXPECT_EQ(OpenOnes(), "oooooo");
  for (int source = 4; source < 7; ++source) Connect(source);
  EXPECT_EQ(OpenOnes(), "o---ooooo");
}

TEST_F(AcceptorTest, WhoIsKnownIsNeitherCountedNorClosed) {
  Listen({.all = 4, .of_source = 4});
  for (int i = 0; i < 4; ++i) acceptor_->Known(PeerOf(Connect()));
  acceptor_->Known("ipv4:127.0.0.1:1");
  acceptor_->Known("unix:");
  acceptor_->Known("");
  for (int i = 0; i < 4; ++i) Connect();
  EXPECT_EQ(OpenOnes(), "oooooooo");
  for (int i = 0; i < 40; ++i) Connect();
  EXPECT_EQ(OpenOnes(), "oooo" + std::string(40, '-') + "oooo");
}

TEST_F(AcceptorTest, WhoeverIsOlderThanAHandshakeIsKnown) {
  Listen({.all = 2, .of_source = 2, .micros = 1});
  for (int i = 0; i < 10; ++i) Connect();
  EXPECT_EQ(OpenOnes(), std::string(10, 'o'));
}

// A descriptor's number soon belongs to another file.
TEST_F(AcceptorTest, AClosedConnectionLeavesItsPlaceAndItsNumber) {
  Listen({.all = 3, .of_source = 3});
  for (int i = 0; i < 3; ++i) Connect();
  std::vector<UniqueFd> others;
  int pair[2] = {-1, -1};
  {
    MutexLock lock(mutex_);
    for (UniqueFd& fd : taken_) fd.Reset();
  }
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  others.emplace_back(pair[0]);
  others.emplace_back(pair[1]);
  others.emplace_back(::eventfd(0, EFD_CLOEXEC));
  for (int i = 0; i < 3; ++i) Connect();
  EXPECT_EQ(OpenOnes(), "---ooo");
  Connect();
  EXPECT_EQ(OpenOnes(), "----ooo");
  EXPECT_EQ(::write(pair[0], "x", 1), 1);
  pollfd poll{pair[0], POLLIN, 0};
  EXPECT_EQ(::poll(&poll, 1, 0), 0);
}

TEST_F(AcceptorTest, AnIpv6NetworkIsOneSource) {
  Listen({.all = 2, .of_source = 2}, "[::]:0");
  const auto connect = [&] {
    sockaddr_in6 its{};
    its.sin6_family = AF_INET6;
    its.sin6_addr = in6addr_loopback;
    its.sin6_port = htons(static_cast<uint16_t>(acceptor_->port()));
    UniqueFd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&its), sizeof its) != 0) return std::string();
    socklen_t size = sizeof its;
    EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&its), &size), 0);
    clients_.push_back(std::move(fd));
    MutexLock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20),
                                  [&]() VRUN_REQUIRES(mutex_) { return taken_.size() == clients_.size(); }));
    return "ipv6:%5B::1%5D:" + std::to_string(ntohs(its.sin6_port));
  };
  const std::string first = connect();
  if (first.empty()) GTEST_SKIP() << "needs IPv6 on the loopback device";
  acceptor_->Known(first);
  for (int i = 0; i < 3; ++i) connect();
  EXPECT_EQ(OpenOnes(), "o-oo");
  Connect();  // IPv4 on the same port
  EXPECT_EQ(OpenOnes(), "o--oo");
}

TEST_F(AcceptorTest, AnAddressInUseIsSaid) {
  Listen({});
  const std::string address = "127.0.0.1:" + std::to_string(acceptor_->port());
  const auto again = Acceptor::Listen(address);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), Code::kExists);
  EXPECT_EQ(again.error().message(),
            "listen on " + address + ": Address already in use: stop what uses it or choose another address");
  EXPECT_EQ(Acceptor::Listen("nowhere").error().message(), "listen on nowhere: not an address: write HOST:PORT");
  EXPECT_EQ(Acceptor::Listen("192.0.2.1:0").error().message(),
            "listen on 192.0.2.1:0: Cannot assign requested address: stop what uses it or choose another address");
}

}  // namespace
}  // namespace vrun::rpc
