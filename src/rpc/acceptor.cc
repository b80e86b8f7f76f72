// SPDX-License-Identifier: Apache-2.0
#include "rpc/acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "rpc/internal.h"

namespace vrun::rpc {
namespace {

constexpr int kPauseMillis = 100;            // at most, when there are no descriptors
constexpr size_t kMostLeavers = 64;          // then new connections wait for gRPC
constexpr int64_t kTellMicros = 60'000'000;  // between two lines of the log

constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool IsFour(const std::array<uint8_t, 16>& address) {
  return std::equal(kMapped.begin(), kMapped.end(), address.begin());
}

uint64_t CookieOf(int fd) {
  uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return ::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

// Whether the number is still this socket.
bool Is(int fd, uint64_t cookie) { return cookie != 0 && CookieOf(fd) == cookie; }

struct Bound {
  UniqueFd fd;
  int port = 0;
};

Result<Bound> Bind(sockaddr_storage address, socklen_t size, int port, bool both) {
  auto* four = reinterpret_cast<sockaddr_in*>(&address);
  auto* six = reinterpret_cast<sockaddr_in6*>(&address);
  (address.ss_family == AF_INET6 ? six->sin6_port : four->sin_port) = htons(static_cast<uint16_t>(port));
  Bound bound;
  bound.fd.Reset(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!bound.fd) return ErrnoError("socket");
  const int on = 1;
  const int only = both ? 0 : 1;
  // What connections inherit, as of a listener of gRPC.
  const int patience = kKeepaliveMillis;
  (void)::setsockopt(bound.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  (void)::setsockopt(bound.fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  (void)::setsockopt(bound.fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof patience);
  if (address.ss_family == AF_INET6) {
    (void)::setsockopt(bound.fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
  }
  if (::bind(bound.fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(bound.fd.get(), SOMAXCONN) != 0 ||
      ::getsockname(bound.fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return ErrnoError("bind");
  }
  bound.port = ntohs(address.ss_family == AF_INET6 ? six->sin6_port : four->sin_port);
  return bound;
}

}  // namespace

Acceptor::Bounds Acceptor::Bounds::OfProcess(int64_t micros) {
  Bounds bounds;
  bounds.micros = micros;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    bounds.all =
        std::clamp<size_t>(static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur / 4, bounds.all)), 16, bounds.all);
    bounds.of_source = bounds.all / 2;
  }
  return bounds;
}

Result<std::unique_ptr<Acceptor>> Acceptor::Listen(const std::string& address) {
  const std::string what = "listen on " + Escape(address);
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return Error(Code::kInvalid, what + ": not an address: write HOST:PORT");
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host == "0.0.0.0") host = "::";
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (int e = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found); e != 0) {
    return Error(Code::kInvalid, what + ": " + gai_strerror(e) + ": write HOST:PORT");
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::unique_ptr<Acceptor> acceptor(new Acceptor);
  std::optional<Error> failed;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    sockaddr_storage storage{};
    std::memcpy(&storage, one->ai_addr, one->ai_addrlen);
    int port = acceptor->port_;
    if (port == 0 && one->ai_family == AF_INET) port = ntohs(reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
    if (port == 0 && one->ai_family == AF_INET6) port = ntohs(reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port);
    Result<Bound> bound = Bind(storage, one->ai_addrlen, port, host == "::");
    if (!bound && host == "::" && bound.error().error_number() != EADDRINUSE) {  // a machine without IPv6
      storage = {};
      storage.ss_family = AF_INET;
      bound = Bind(storage, sizeof(sockaddr_in), port, false);
    }
    if (!bound) {
      // Of several addresses, as of localhost, this machine may have only some.
      if (!failed || bound.error().error_number() == EADDRINUSE) failed = std::move(bound).error();
      continue;
    }
    acceptor->port_ = bound->port;
    acceptor->listeners_.push_back(std::move(bound->fd));
  }
  if (failed && (acceptor->listeners_.empty() || failed->error_number() == EADDRINUSE)) {
    const int e = failed->error_number();
    return Error(e == EADDRINUSE ? Code::kExists : failed->code(),
                 what + ": " + std::strerror(e) + ": stop what uses it or choose another address");
  }
  return acceptor;
}

void Acceptor::Stop() {
  if (!thread_.joinable()) return;
  (void)::eventfd_write(stop_.get(), 1);
  thread_.join();
  listeners_.clear();
}

void Acceptor::Start(Bounds bounds, std::function<void(int fd)> take) {
  VRUN_CHECK(!thread_.joinable());
  bounds_ = bounds;
  take_ = std::move(take);
  stop_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  VRUN_CHECK(stop_);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "rpc-accept");
    Run();
  });
}

void Acceptor::Run() {
  std::vector<pollfd> waits;
  for (const UniqueFd& listener : listeners_) waits.push_back({listener.get(), POLLIN, 0});
  waits.push_back({stop_.get(), POLLIN, 0});
  for (;;) {
    if (::poll(waits.data(), waits.size(), -1) < 0) continue;
    if (waits.back().revents != 0) return;
    for (const pollfd& wait : waits) {
      if (wait.revents != 0) Accept(wait.fd);
    }
  }
}

void Acceptor::Accept(int listener) {
  AwaitLeavers();
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  UniqueFd fd(::accept4(listener, reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
    const int e = errno;
    if (const int64_t now = MonotonicMicros(); now - told_us_ > kTellMicros || told_us_ == 0) {
      told_us_ = now;
      LogWarning("cannot take a connection: {}: allow this process more open files", std::strerror(e));
    }
    pollfd stop{stop_.get(), POLLIN, 0};
    (void)::poll(&stop, 1, kPauseMillis);
    return;
  }
  Origin origin;
  if (address.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    std::memcpy(origin.address.data(), &six.sin6_addr, 16);
    origin.port = ntohs(six.sin6_port);
  } else {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    std::copy(kMapped.begin(), kMapped.end(), origin.address.begin());
    std::memcpy(origin.address.data() + kMapped.size(), &four.sin_addr, 4);
    origin.port = ntohs(four.sin_port);
  }
  // First: a call may come on it at once.
  Add(fd.get(), origin);
  take_(fd.Release());
}

// gRPC soon closes the descriptors of those that gave way; until then nobody else can have them. It has nothing to wait
// for then, but should it ever, that must not keep others out for good.
void Acceptor::AwaitLeavers() {
  for (int i = 0; i < kPauseMillis; ++i) {
    if (leavers_.size() < kMostLeavers) return;
    std::erase_if(leavers_, [](const auto& one) { return !Is(one.first, one.second); });
    if (leavers_.size() < kMostLeavers) return;
    pollfd stop{stop_.get(), POLLIN, 0};
    if (::poll(&stop, 1, 1) > 0) return;
  }
  leavers_.clear();
}

void Acceptor::Add(int fd, const Origin& origin) {
  MutexLock lock(mutex_);
  const Source source = origin.Source();
  // Of an earlier connection, which is closed.
  if (const auto it = by_origin_.find(origin); it != by_origin_.end()) Forget(strangers_.find(it->second));
  MakeRoom(source);
  const uint64_t number = ++arrivals_;
  strangers_[number] = Connection{origin, source, fd, CookieOf(fd), MonotonicMicros()};
  by_origin_[origin] = number;
  ++of_source_[source];
  count_.store(strangers_.size(), std::memory_order_relaxed);
}

void Acceptor::MakeRoom(const Source& source) {
  const auto full = [&]() VRUN_REQUIRES(mutex_) {
    const auto its = of_source_.find(source);
    return strangers_.size() >= bounds_.all || (its != of_source_.end() && its->second >= bounds_.of_source);
  };
  if (!full()) return;
  ForgetOthers();
  if (!full()) return;
  Source of = source;
  if (const auto its = of_source_.find(source); its == of_source_.end() || its->second < bounds_.of_source) {
    size_t most = 0;
    for (const auto& [one, connection] : strangers_) {  // from the oldest one
      if (const size_t has = of_source_[connection.source]; has > most) most = has, of = connection.source;
    }
  }
  const auto oldest =
      std::find_if(strangers_.begin(), strangers_.end(), [&](const auto& one) { return one.second.source == of; });
  if (oldest != strangers_.end()) Evict(oldest);
}

// Those that are closed, and those whom TLS has let in.
void Acceptor::ForgetOthers() {
  const int64_t now = MonotonicMicros();
  for (auto it = strangers_.begin(); it != strangers_.end();) {
    const Connection& one = it->second;
    const bool let_in = bounds_.micros != 0 && now - one.since_us > bounds_.micros;
    it = let_in || !Is(one.fd, one.cookie) ? Forget(it) : std::next(it);
  }
}

void Acceptor::Evict(Connections::iterator which) {
  const Connection& one = which->second;
  // A descriptor of our own, because gRPC may close its own now and another file get the number.
  const UniqueFd fd(::fcntl(one.fd, F_DUPFD_CLOEXEC, 0));
  if (fd && Is(fd.get(), one.cookie)) {
    (void)::shutdown(fd.get(), SHUT_RDWR);
    leavers_.emplace_back(one.fd, one.cookie);
    if (const int64_t now = MonotonicMicros(); now - told_us_ > kTellMicros || told_us_ == 0) {
      told_us_ = now;
      char text[INET6_ADDRSTRLEN] = "";
      const bool four = IsFour(one.origin.address);
      (void)::inet_ntop(four ? AF_INET : AF_INET6, one.origin.address.data() + (four ? kMapped.size() : 0), text,
                        sizeof text);
      LogWarning("{} connections without a certificate: the oldest one of {} was closed", strangers_.size(), text);
    }
  }
  Forget(which);
}

Acceptor::Connections::iterator Acceptor::Forget(Connections::iterator which) {
  const Connection& one = which->second;
  by_origin_.erase(one.origin);
  if (const auto it = of_source_.find(one.source); --it->second == 0) of_source_.erase(it);
  which = strangers_.erase(which);
  count_.store(strangers_.size(), std::memory_order_relaxed);
  return which;
}

void Acceptor::Known(const std::string& peer) {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  const auto origin = Parse(peer);
  if (!origin) return;
  MutexLock lock(mutex_);
  if (const auto it = by_origin_.find(*origin); it != by_origin_.end()) Forget(strangers_.find(it->second));
}

Acceptor::Source Acceptor::Origin::Source() const {
  Acceptor::Source source = address;
  if (!IsFour(address)) std::fill(source.begin() + 8, source.end(), 0);
  return source;
}

std::optional<Acceptor::Origin> Acceptor::Parse(std::string_view peer) {
  const size_t scheme = peer.find(':');
  const size_t colon = peer.rfind(':');
  if (scheme == std::string_view::npos || scheme == colon) return std::nullopt;
  std::string host(peer.substr(scheme + 1, colon - scheme - 1));
  const bool six = peer.substr(0, scheme) == "ipv6";
  Origin origin;
  const char* end = peer.data() + peer.size();
  if (std::from_chars(peer.data() + colon + 1, end, origin.port).ptr != end) return std::nullopt;
  if (!six) {
    std::copy(kMapped.begin(), kMapped.end(), origin.address.begin());
    if (::inet_pton(AF_INET, host.c_str(), origin.address.data() + kMapped.size()) != 1) return std::nullopt;
    return origin;
  }
  // In brackets, which may be %5B and %5D; a scope ("%25eth0") may follow the address.
  if (host.starts_with("%5B")) host.erase(0, 3);
  if (host.starts_with("[")) host.erase(0, 1);
  host.resize(std::min(host.size(), host.find_first_of("%]")));
  if (::inet_pton(AF_INET6, host.c_str(), origin.address.data()) != 1) return std::nullopt;
  return origin;
}

}  // namespace vrun::rpc
