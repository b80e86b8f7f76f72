// SPDX-License-Identifier: Apache-2.0
#include "http/server.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <deque>
#include <map>
#include <set>
#include <thread>

#include "base/log.h"

namespace vrun::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using tcp = asio::ip::tcp;
using Io = asio::io_context;
using boost::system::error_code;

// Every answer has these: nothing that we send is a page, and no page of another site may read it.
constexpr std::pair<const char*, const char*> kHeaders[] = {
    {"Cache-Control", "no-store"},
    {"Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
};

std::string HttpDate() {
  const time_t now = ::time(nullptr);
  tm parts{};
  ::gmtime_r(&now, &parts);
  char text[64];
  const size_t n = ::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return {text, n};
}

class Connection;

// What all connections share. The server's thread, but for `io`.
struct Shared {
  Io io{1};
  Limits limits;
  Server::Handler handler;
  std::set<std::shared_ptr<Connection>> connections;
  size_t event_streams = 0;
  uint64_t waits = 0;  // for requests, counted
  bool ending = false;
};

// One client. Server's thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  virtual ~Connection() = default;

  virtual void Begin() = 0;
  virtual void Close() = 0;
  virtual const std::string& host() const = 0;  // its address, without the port
  // Since when we wait for a request of it, as a number that grows; 0: we do not.
  virtual uint64_t silent_since() const = 0;
  virtual void Respond(uint64_t request, Response response) = 0;
  virtual void BeginEvents(uint64_t request) = 0;
  virtual void SendEvent(std::string frame) = 0;
  virtual void EndEvents() = 0;

 protected:
  const std::shared_ptr<Shared> shared_;
};

// Runs `work` with the connection on its thread, unless it is gone.
template <typename Work>
void OnConnection(const std::weak_ptr<Connection>& weak, const std::shared_ptr<Shared>& shared, Work work) {
  asio::post(shared->io, [weak, work = std::move(work)]() mutable {
    if (const auto connection = weak.lock()) work(*connection);
  });
}

struct EventState {
  std::atomic<bool> open{true};
  std::atomic<size_t> queued{0};  // bytes
};

class EventsOf : public Events {
 public:
  EventsOf(std::weak_ptr<Connection> connection, std::shared_ptr<Shared> shared, std::shared_ptr<EventState> state)
      : connection_(std::move(connection)), shared_(std::move(shared)), state_(std::move(state)) {}
  ~EventsOf() override {
    OnConnection(connection_, shared_, [](Connection& c) { c.EndEvents(); });
  }
  bool Send(std::string_view event, std::string_view data) override {
    if (!state_->open) return false;
    std::string frame = "event: " + std::string(event) + "\ndata: " + std::string(data) + "\n\n";
    const size_t queued = state_->queued += frame.size();
    if (queued > shared_->limits.event_bytes) {
      state_->open = false;
      OnConnection(connection_, shared_, [](Connection& c) { c.Close(); });
      return false;
    }
    OnConnection(connection_, shared_,
                 [frame = std::move(frame)](Connection& c) mutable { c.SendEvent(std::move(frame)); });
    return true;
  }
  bool open() const override { return state_->open; }

 private:
  const std::weak_ptr<Connection> connection_;
  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<EventState> state_;
};

class ExchangeOf : public Exchange {
 public:
  ExchangeOf(std::weak_ptr<Connection> connection, std::shared_ptr<Shared> shared, uint64_t request,
             std::shared_ptr<EventState> events)
      : connection_(std::move(connection)), shared_(std::move(shared)), request_(request), events_(std::move(events)) {}
  ~ExchangeOf() override {
    if (!answered_) Answer(Problem(500, "the request was dropped: try again"));
  }
  void Answer(Response response) override {
    if (answered_.exchange(true)) return;
    OnConnection(connection_, shared_, [request = request_, response = std::move(response)](Connection& c) mutable {
      c.Respond(request, std::move(response));
    });
  }
  std::shared_ptr<Events> StartEvents() override {
    if (answered_.exchange(true)) return nullptr;
    OnConnection(connection_, shared_, [request = request_](Connection& c) { c.BeginEvents(request); });
    return std::make_shared<EventsOf>(connection_, shared_, events_);
  }

 private:
  const std::weak_ptr<Connection> connection_;
  const std::shared_ptr<Shared> shared_;
  const uint64_t request_;
  const std::shared_ptr<EventState> events_;
  std::atomic<bool> answered_{false};
};

// Stream: beast::tcp_stream, or TLS over it.
template <typename Stream>
class ConnectionOf : public Connection {
 public:
  static constexpr bool kTls = !std::is_same_v<Stream, beast::tcp_stream>;

  template <typename... Arguments>
  ConnectionOf(std::shared_ptr<Shared> shared, std::string address, Arguments&&... arguments)
      : Connection(std::move(shared)),
        address_(std::move(address)),
        host_(address_.substr(0, address_.rfind(':'))),
        stream_(std::forward<Arguments>(arguments)...),
        heartbeat_(shared_->io) {}

  void Begin() override {
    if constexpr (kTls) {
      silent_since_ = ++shared_->waits;
      Expire();
      stream_.async_handshake(asio::ssl::stream_base::server,
                              [this, self = shared_from_this()](error_code failed) { failed ? Close() : Read(); });
    } else {
      Read();
    }
  }

  void Close() override {
    if (closed_) return;
    closed_ = true;
    events_->open = false;
    if (in_events_) --shared_->event_streams;
    heartbeat_.cancel();
    error_code ignored;
    beast::get_lowest_layer(stream_).socket().shutdown(tcp::socket::shutdown_both, ignored);
    beast::get_lowest_layer(stream_).close();
    shared_->connections.erase(shared_from_this());
  }
  const std::string& host() const override { return host_; }
  uint64_t silent_since() const override { return closed_ ? 0 : silent_since_; }

  void Respond(uint64_t request, Response response) override {
    if (closed_ || request != request_ || !waiting_) return;
    waiting_ = false;
    answer_ = {};
    answer_.version(11);
    answer_.result(static_cast<unsigned>(response.status));
    answer_.set("Date", HttpDate());
    answer_.set("Content-Type", response.content_type);
    for (const auto& [name, value] : kHeaders) answer_.set(name, value);
    for (const auto& [name, value] : response.headers) answer_.set(name, value);
    answer_.keep_alive(keep_alive_);
    answer_.content_length(response.body.size());
    if (!head_) answer_.body() = std::move(response.body);
    Expire();
    beast::http::async_write(stream_, answer_, [this, self = shared_from_this()](error_code failed, size_t) {
      if (closed_) return;
      if (failed || !keep_alive_) return Shut();
      Read();
    });
  }

  void BeginEvents(uint64_t request) override {
    if (closed_ || request != request_ || !waiting_) return;
    if (shared_->event_streams >= shared_->limits.event_streams) {
      events_->open = false;
      queue_.clear();
      last_event_ = false;
      return Respond(request, Problem(503, "too many clients watch: try again later"));
    }
    waiting_ = false;
    in_events_ = true;
    ++shared_->event_streams;
    std::string head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\nDate: " + HttpDate() + "\r\n";
    for (const auto& [name, value] : kHeaders) head += std::string(name) + ": " + value + "\r\n";
    events_->queued += head.size() + 2;
    beast::get_lowest_layer(stream_).expires_never();
    queue_.push_front(head + "\r\n");
    WriteNext();
    WatchForEnd();
    Beat();
  }

  void SendEvent(std::string frame) override {
    if (closed_) return;
    queue_.push_back(std::move(frame));
    // What another thread posts may overtake BeginEvents, which this one has posted.
    if (in_events_ && queue_.size() == 1) WriteNext();
  }

  void EndEvents() override {
    if (closed_) return;
    if (in_events_ && queue_.empty()) return Close();
    last_event_ = true;
  }

 private:
  void Expire() {
    beast::get_lowest_layer(stream_).expires_after(std::chrono::seconds(shared_->limits.request_seconds));
  }

  void Read() {
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(shared_->limits.header_bytes));
    parser_->body_limit(shared_->limits.body_bytes);
    silent_since_ = ++shared_->waits;
    Expire();
    beast::http::async_read(stream_, buffer_, *parser_, [this, self = shared_from_this()](error_code failed, size_t) {
      if (closed_) return;
      silent_since_ = 0;
      failed ? OnUnreadable(failed) : OnRequest();
    });
  }

  void OnUnreadable(error_code failed) {
    using beast::http::error;
    keep_alive_ = false;
    head_ = false;
    ++request_;
    waiting_ = true;
    if (failed == error::header_limit) return Respond(request_, Problem(431, "the header is too large"));
    if (failed == error::body_limit) return Respond(request_, Problem(413, "the body is too large"));
    const bool is_http = failed.category() == beast::http::make_error_code(error::bad_method).category();
    if (is_http && failed != error::end_of_stream && failed != error::partial_message) {
      return Respond(request_, Problem(400, "not a request of HTTP/1.1: " + failed.message()));
    }
    Close();
  }

  void OnRequest() {
    auto message = parser_->release();
    keep_alive_ = message.keep_alive();
    head_ = message.method() == beast::http::verb::head;
    Request request;
    request.method = std::string(message.method_string());
    std::string target(message.target());
    // "http://HOST/PATH": what clients say to proxies, and some proxies pass on.
    if (const size_t host = target.find("://"); host != std::string::npos && host < target.find('/')) {
      const size_t path = target.find('/', host + 3);
      target = path == std::string::npos ? "/" : target.substr(path);
    }
    const size_t mark = target.find('?');
    request.path = target.substr(0, mark);
    if (mark != std::string::npos) request.query = target.substr(mark + 1);
    for (const auto& field : message) {
      std::string name(field.name_string());
      for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
      request.headers.emplace(std::move(name), std::string(field.value()));
    }
    request.body = std::move(message.body());
    request.address = address_;
    waiting_ = true;
    ++request_;
    beast::get_lowest_layer(stream_).expires_never();
    shared_->handler(std::move(request), std::make_shared<ExchangeOf>(weak_from_this(), shared_, request_, events_));
  }

  // A client of events has nothing more to say; this only notices that it has gone.
  void WatchForEnd() {
    stream_.async_read_some(asio::buffer(ignored_), [this, self = shared_from_this()](error_code failed, size_t) {
      if (closed_) return;
      failed ? Close() : WatchForEnd();
    });
  }

  void Beat() {
    heartbeat_.expires_after(std::chrono::seconds(shared_->limits.event_heartbeat_seconds));
    heartbeat_.async_wait([this, self = shared_from_this()](error_code failed) {
      if (failed || closed_) return;
      if (queue_.empty()) {
        events_->queued += 3;
        SendEvent(":\n\n");
      }
      Beat();
    });
  }

  void WriteNext() {
    const std::string& frame = queue_.front();
    asio::async_write(stream_, asio::buffer(frame), [this, self = shared_from_this()](error_code failed, size_t) {
      if (closed_) return;
      if (failed) return Close();
      events_->queued -= queue_.front().size();
      queue_.pop_front();
      if (!queue_.empty()) return WriteNext();
      if (last_event_) Close();
    });
  }

  // After all was sent.
  void Shut() {
    if constexpr (kTls) {
      Expire();
      stream_.async_shutdown([this, self = shared_from_this()](error_code) { Close(); });
    } else {
      error_code ignored;
      stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
      stream_.expires_after(std::chrono::seconds(2));
      Linger();
    }
  }

  // Takes what the client still sends: closing a socket with unread bytes takes our answer away from it.
  void Linger() {
    stream_.async_read_some(asio::buffer(ignored_), [this, self = shared_from_this()](error_code failed, size_t) {
      if (closed_) return;
      failed ? Close() : Linger();
    });
  }

  const std::string address_, host_;
  Stream stream_;
  asio::steady_timer heartbeat_;
  beast::flat_buffer buffer_{64u << 10};
  std::optional<beast::http::request_parser<beast::http::string_body>> parser_;
  beast::http::response<beast::http::string_body> answer_;
  std::shared_ptr<EventState> events_ = std::make_shared<EventState>();
  std::deque<std::string> queue_;  // in_events_: the first is being written
  std::array<char, 512> ignored_{};
  uint64_t silent_since_ = 0;
  uint64_t request_ = 0;  // which request the client waits for
  bool waiting_ = false;
  bool keep_alive_ = false;
  bool head_ = false;
  bool in_events_ = false;
  bool last_event_ = false;
  bool closed_ = false;
};

class BeastServer : public Server {
 public:
  BeastServer(const Limits& limits, Handler handler) : shared_(std::make_shared<Shared>()) {
    shared_->limits = limits;
    shared_->handler = std::move(handler);
  }
  ~BeastServer() override {
    asio::post(shared_->io, [this] {
      shared_->ending = true;
      error_code ignored;
      acceptor_.close(ignored);
      retry_.cancel();
      for (const auto& connection : std::set(shared_->connections)) connection->Close();
    });
    if (thread_.joinable()) thread_.join();
    shared_->handler = nullptr;
  }

  Status Listen(const tcp::endpoint& endpoint, const std::optional<Tls>& tls) {
    error_code failed;
    if (tls) {
      context_.emplace(asio::ssl::context::tls_server);
      context_->set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1, failed);
      context_->use_certificate_chain(asio::buffer(tls->certificate), failed);
      if (!failed) context_->use_private_key(asio::buffer(tls->key), asio::ssl::context::pem, failed);
      if (failed) return Error(Code::kInvalid, "certificate of the HTTP server: " + failed.message());
    }
    acceptor_.open(endpoint.protocol(), failed);
    if (!failed) acceptor_.set_option(tcp::acceptor::reuse_address(true), failed);
    if (!failed) acceptor_.bind(endpoint, failed);
    if (!failed) acceptor_.listen(asio::socket_base::max_listen_connections, failed);
    if (failed) return ErrnoError(failed.value(), "listen for HTTP");
    port_ = acceptor_.local_endpoint().port();
    Accept();
    thread_ = std::thread([io = &shared_->io] { io->run(); });
    return {};
  }
  int port() const override { return port_; }

 private:
  void Accept() {
    acceptor_.async_accept([this](error_code failed, tcp::socket socket) {
      if (shared_->ending) return;
      if (failed) {
        // Most likely no descriptors are left.
        retry_.expires_after(std::chrono::milliseconds(100));
        retry_.async_wait([this](error_code cancelled) {
          if (!cancelled) Accept();
        });
        return;
      }
      if (shared_->connections.size() >= shared_->limits.connections) MakeRoom();
      if (shared_->connections.size() < shared_->limits.connections) Open(std::move(socket));
      Accept();
    });
  }

  void MakeRoom() {
    struct Silent {
      size_t count = 0;
      std::shared_ptr<Connection> longest;
    };
    std::map<std::string, Silent> hosts;
    for (const auto& connection : shared_->connections) {
      if (connection->silent_since() == 0) continue;
      Silent& silent = hosts[connection->host()];
      ++silent.count;
      if (!silent.longest || connection->silent_since() < silent.longest->silent_since()) silent.longest = connection;
    }
    const auto most = std::max_element(hosts.begin(), hosts.end(),
                                       [](const auto& a, const auto& b) { return a.second.count < b.second.count; });
    if (most != hosts.end()) most->second.longest->Close();
  }

  void Open(tcp::socket socket) {
    error_code failed;
    const tcp::endpoint peer = socket.remote_endpoint(failed);
    if (failed) return;
    socket.set_option(tcp::no_delay(true), failed);
    std::string address = peer.address().to_string(failed);
    address = (peer.address().is_v6() ? "[" + address + "]" : address) + ":" + std::to_string(peer.port());
    std::shared_ptr<Connection> connection;
    if (context_) {
      using Secure = beast::ssl_stream<beast::tcp_stream>;
      connection = std::make_shared<ConnectionOf<Secure>>(shared_, address, std::move(socket), *context_);
    } else {
      connection = std::make_shared<ConnectionOf<beast::tcp_stream>>(shared_, address, std::move(socket));
    }
    shared_->connections.insert(connection);
    connection->Begin();
  }

  const std::shared_ptr<Shared> shared_;
  std::optional<asio::ssl::context> context_;
  tcp::acceptor acceptor_{shared_->io};
  asio::steady_timer retry_{shared_->io};
  std::thread thread_;
  int port_ = 0;
};

struct HostAndPort {
  std::string host;
  int port = 0;
};
std::optional<HostAndPort> Split(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size() || address.size() - colon > 6) return std::nullopt;
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const std::string port = address.substr(colon + 1);
  if (port.find_first_not_of("0123456789") != std::string::npos || std::stoi(port) > 65535) return std::nullopt;
  return HostAndPort{host == "localhost" ? "127.0.0.1" : host, std::stoi(port)};
}

}  // namespace

bool IsLoopback(const std::string& address) {
  const auto parts = Split(address);
  if (!parts) return false;
  error_code failed;
  const auto ip = asio::ip::make_address(parts->host, failed);
  return !failed && ip.is_loopback();
}

Result<std::unique_ptr<Server>> Server::Start(const std::string& address, const std::optional<Tls>& tls,
                                              const Limits& limits, Handler handler) {
  const auto parts = Split(address);
  error_code failed;
  const auto ip = parts ? asio::ip::make_address(parts->host, failed) : asio::ip::address();
  if (!parts || failed) return Error(Code::kInvalid, "HTTP: " + address + ": write a numeric HOST:PORT");
  auto server = std::make_unique<BeastServer>(limits, std::move(handler));
  VRUN_TRY(server->Listen({ip, static_cast<uint16_t>(parts->port)}, tls));
  return server;
}

}  // namespace vrun::http
