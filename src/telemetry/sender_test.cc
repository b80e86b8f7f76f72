// SPDX-License-Identifier: Apache-2.0
// The sender, and all of the exporter, with a collector behind a socket that answers what it is told to.
#include "telemetry/sender.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>

#include "base/clock.h"
#include "base/files.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"
#include "proto/otlp.pb.h"
#include "telemetry/exporter.h"
#include "telemetry/figures.h"
#include "telemetry/telemetry.h"

namespace vrun::telemetry {
namespace {

constexpr const char* kHangs = "";

class Collector {
 public:
  explicit Collector(std::string answer) : answer_(std::move(answer)) {
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t size = sizeof address;
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    VRUN_CHECK(::bind(listener_.get(), plain, size) == 0 && ::listen(listener_.get(), 8) == 0 &&
               ::getsockname(listener_.get(), plain, &size) == 0);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { Serve(); });
  }
  ~Collector() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  const std::string& url() const { return url_; }
  // What came: heads and bodies.
  std::vector<std::string> requests() {
    MutexLock lock(mutex_);
    return requests_;
  }

 private:
  void Serve() {
    std::vector<UniqueFd> open;
    for (;;) {
      UniqueFd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (peer.get() < 0) return;
      Read(peer.get());
      if (!answer_.empty()) {
        (void)::send(peer.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL);
      } else {
        open.push_back(std::move(peer));
      }
    }
  }
  void Read(int fd) {
    std::string text;
    size_t wanted = SIZE_MAX;
    char buffer[4096];
    while (text.size() < wanted) {
      const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      text.append(buffer, static_cast<size_t>(n));
      const size_t head = text.find("\r\n\r\n"), length = text.find("Content-Length: ");
      if (head != std::string::npos) wanted = head + 4 + static_cast<size_t>(std::stoul(text.substr(length + 16)));
    }
    MutexLock lock(mutex_);
    requests_.push_back(text);
  }

  const std::string answer_;
  std::string url_;
  UniqueFd listener_;
  Mutex mutex_;
  std::vector<std::string> requests_ VRUN_GUARDED_BY(mutex_);
  std::thread thread_;
};

std::string AnswerOf(const std::string& status, const std::string& body = "", const std::string& headers = "") {
  return "HTTP/1.1 " + status + "\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         headers + "\r\n" + body;
}

Answer SendTo(Collector& collector, int64_t timeout_ms = 10'000) {
  Settings settings;
  settings.url = collector.url() + "/v1/traces";
  settings.headers = {{"X-Tenant", "seven"}};
  return MakeHttpSender(settings)->Send("body", timeout_ms, [] { return false; });
}

std::string Http(int64_t unix_seconds) {
  const time_t time = unix_seconds;
  tm parts;
  char text[64];
  ::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", ::gmtime_r(&time, &parts));
  return text;
}

TEST(SenderTest, PostsTheBodyWithItsHeaders) {
  Collector collector(AnswerOf("200 OK"));
  EXPECT_TRUE(SendTo(collector).status);
  ASSERT_EQ(collector.requests().size(), 1u);
  const std::string request = collector.requests()[0];
  EXPECT_TRUE(request.starts_with("POST /v1/traces HTTP/1.1\r\n")) << request;
  EXPECT_NE(request.find("\r\nContent-Type: application/x-protobuf\r\n"), std::string::npos) << request;
  EXPECT_NE(request.find("\r\nX-Tenant: seven\r\n"), std::string::npos) << request;
  EXPECT_EQ(request.find("Expect"), std::string::npos) << request;
  EXPECT_TRUE(request.ends_with("\r\n\r\nbody")) << request;
}

TEST(SenderTest, KnowsWhichAnswersAreWorthAnotherTry) {
  const int64_t now = WallMicros() / 1'000'000;
  const struct {
    std::string answer;
    Code code;
    int64_t least_wait_s = 0, most_wait_s = 0;
  } cases[] = {
      {AnswerOf("200 OK"), Code::kOk},
      {AnswerOf("202 Accepted"), Code::kOk},
      {AnswerOf("200 OK", std::string(1 << 20, 'x')), Code::kOk},
      {AnswerOf("200 OK", "\x1f\x8b\x08\x00", "Content-Encoding: gzip\r\n"), Code::kOk},
      {AnswerOf("400 Bad Request", "no", "Retry-After: 5\r\n"), Code::kInvalid},
      {AnswerOf("401 Unauthorized"), Code::kInvalid},
      {AnswerOf("404 Not Found"), Code::kInvalid},
      {AnswerOf("413 Too Large"), Code::kInvalid},
      {AnswerOf("500 Internal"), Code::kInvalid},
      {AnswerOf("429 Slow Down"), Code::kUnavailable},
      {AnswerOf("429 Slow Down", "", "Retry-After: 7\r\n"), Code::kUnavailable, 7, 7},
      {AnswerOf("503 Away", "", "Retry-After: " + Http(now + 100) + "\r\n"), Code::kUnavailable, 50, 100},
      {AnswerOf("503 Away", "", "Retry-After: " + Http(now - 100) + "\r\n"), Code::kUnavailable},
      {AnswerOf("503 Away", "", "Retry-After: soon\r\n"), Code::kUnavailable},
      {AnswerOf("503 Away", "", "Retry-After: -5\r\n"), Code::kUnavailable},
      {AnswerOf("502 Away", "", "Retry-After: 99999999999999999999\r\n"), Code::kUnavailable, 0, 86'400},
      {AnswerOf("504 Away"), Code::kUnavailable},
      {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", Code::kUnavailable},
      {"SSH-2.0-OpenSSH\r\n", Code::kUnavailable},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.answer.substr(0, 100));
    Collector collector(c.answer);
    const Answer answer = SendTo(collector);
    EXPECT_EQ(answer.status ? Code::kOk : answer.status.error().code(), c.code);
    EXPECT_GE(answer.wait_us, c.least_wait_s * 1'000'000);
    EXPECT_LE(answer.wait_us, c.most_wait_s * 1'000'000);
    EXPECT_EQ(answer.refused, 0u);
    if (!answer.status) {
      EXPECT_EQ(answer.status.error().message().find('\n'), std::string::npos);
    }
  }
}

TEST(SenderTest, FollowsNoRedirect) {
  Collector other(AnswerOf("200 OK"));
  for (const char* status : {"301 Moved", "302 Found", "307 Temporary", "308 Permanent"}) {
    Collector collector(AnswerOf(status, "", "Location: " + other.url() + "/v1/traces\r\n"));
    const Answer answer = SendTo(collector);
    ASSERT_FALSE(answer.status) << status;
    EXPECT_EQ(answer.status.error().code(), Code::kInvalid);
    EXPECT_NE(answer.status.error().message().find("it has moved"), std::string::npos);
  }
  EXPECT_TRUE(other.requests().empty()) << "it would get the headers, which are secret";
}

TEST(SenderTest, TellsWhatWasRefused) {
  otlp::ExportReply reply;
  reply.mutable_partial_success()->set_rejected_spans(2);
  reply.mutable_partial_success()->set_error_message("no room");
  Collector collector(AnswerOf("200 OK", reply.SerializeAsString()));
  const Answer answer = SendTo(collector);
  EXPECT_TRUE(answer.status);
  EXPECT_EQ(answer.refused, 2u);
  EXPECT_EQ(answer.why, "it says: no room");
}

TEST(SenderTest, WaitsNoLongerThanItMay) {
  Collector collector(kHangs);
  const int64_t began = MonotonicMicros();
  const Answer answer = SendTo(collector, 200);
  ASSERT_FALSE(answer.status);
  EXPECT_EQ(answer.status.error().code(), Code::kUnavailable);
  EXPECT_GE(MonotonicMicros() - began, 190'000);
  EXPECT_LT(MonotonicMicros() - began, 3'000'000);
}

// Of the thread that calls: a name server takes questions and answers none. Returns its socket; none: it cannot be had.
UniqueFd SilentNameServer(const std::string& directory) {
  if (::unshare(CLONE_NEWNS | CLONE_NEWNET) != 0) return {};
  const std::string file = directory + "/resolv.conf";
  UniqueFd server(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq up = {};
  std::strncpy(up.ifr_name, "lo", sizeof up.ifr_name);
  up.ifr_flags = IFF_UP;
  sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons(53), .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  const bool fine = ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                    WriteFileAtomic(file, "nameserver 127.0.0.1\n", 0644) &&
                    ::mount(file.c_str(), "/etc/resolv.conf", nullptr, MS_BIND, nullptr) == 0 &&
                    ::ioctl(server.get(), SIOCSIFFLAGS, &up) == 0 &&
                    ::bind(server.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  return fine ? std::move(server) : UniqueFd();
}

TEST(SenderTest, WaitsNoLongerForANameServerEither) {
  char directory[] = "/tmp/vrun-telemetry-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  bool can = false;
  int64_t took = 0;
  std::thread([&] {
    const UniqueFd server = SilentNameServer(directory);
    can = server.get() >= 0;
    if (!can) return;
    Settings settings;
    settings.url = "http://collector.example.org:4318/v1/traces";
    const auto sender = MakeHttpSender(settings);
    const int64_t began = MonotonicMicros();
    const Answer answer = sender->Send("body", 300, [] { return false; });
    EXPECT_FALSE(answer.status);
    // The program ends.
    EXPECT_FALSE(sender->Send("body", 60'000, [&] { return MonotonicMicros() - began > 600'000; }).status);
    took = MonotonicMicros() - began;
  }).join();
  (void)RemoveTree(directory);
  if (!can) GTEST_SKIP() << "needs root, for a name server of its own";
  EXPECT_LT(took, 600'000 + 3'000'000);
}

TEST(SenderTest, ABatchForACollectorThatHangsIsOverInTime) {
  Collector collector(kHangs);
  Settings settings;
  settings.url = collector.url() + "/v1/traces";
  settings.timeout_ms = 150;
  settings.batch_ms = 400;
  settings.pause_ms = 10;
  settings.most_at_once = 1;
  Exporter exporter(settings, {}, MakeHttpSender(settings));
  const int64_t began = MonotonicMicros();
  exporter.Put(Span());
  while (exporter.dropped() == 0) std::this_thread::yield();
  EXPECT_GE(MonotonicMicros() - began, 300'000);
  EXPECT_LT(MonotonicMicros() - began, 400'000 + 2'000'000);
  EXPECT_GE(collector.requests().size(), 2u);
}

// What the pages of controller, node and home say.
std::string Page() {
  http::MetricsPage page;
  AddFigures(&page);
  return page.Take();
}

TEST(FiguresTest, CountWhatWasSentAndWhatWasDropped) {
  EXPECT_NE(Page().find("\nvrun_trace_spans_sent_total 0\n"), std::string::npos) << "also without a collector";
  EXPECT_NE(Page().find("\nvrun_trace_spans_dropped_total 0\n"), std::string::npos);
  for (const auto& [status, figure] : {std::pair("400 Bad Request", "\nvrun_trace_spans_dropped_total 1\n"),
                                       {"200 OK", "\nvrun_trace_spans_sent_total 1\n"}}) {
    Collector collector(AnswerOf(status));
    ::setenv("OTEL_BSP_SCHEDULE_DELAY", "1", 1);
    const auto traces = Export::TryBegin({.endpoint = collector.url(), .headers_file = "", .ratio = ""}, "x", "y", "");
    ::unsetenv("OTEL_BSP_SCHEDULE_DELAY");
    ASSERT_TRUE(traces);
    Emit(Span());
    while (Counted().sent + Counted().dropped == 0) std::this_thread::yield();
    EXPECT_NE(Page().find(figure), std::string::npos) << Page();
  }
}

}  // namespace
}  // namespace vrun::telemetry
