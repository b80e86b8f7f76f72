// SPDX-License-Identifier: Apache-2.0
#include "control/dashboard/log_relay.h"

#include <fcntl.h>

#include <deque>
#include <optional>
#include <vector>

#include "base/io/message_socket.h"
#include "base/unique_fd.h"
#include "proto/local.pb.h"

namespace vrun::control {
namespace {

constexpr size_t kMostStreams = 64;
constexpr size_t kMostPending = 256u << 10;  // bytes between two messages to a client
constexpr int64_t kTellMicros = 150'000;
constexpr int64_t kCheckMicros = 5'000'000;

std::string Problem(const std::string& detail) { return "{\"detail\":" + http::JsonQuote(detail) + "}"; }

// How many bytes at the end begin a character of UTF-8 that is not there yet.
size_t Unfinished(const std::string& text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto c = static_cast<unsigned char>(text[text.size() - back]);
    if (c < 0x80) return 0;
    if (c < 0xc0) continue;  // in the middle of one
    const size_t length = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    return length > back ? back : 0;
  }
  return 0;
}

}  // namespace

// One client. Loop's thread.
class LogRelay::Stream {
 public:
  Stream(EventLoop* loop, UniqueFd home, std::shared_ptr<http::Events> events, std::function<bool()> may_go_on)
      : loop_(loop), home_(std::move(home)), events_(std::move(events)), may_go_on_(std::move(may_go_on)) {}
  ~Stream() {
    loop_->Remove(home_.get());
    loop_->Cancel(tell_);
  }

  Status Begin() {
    return loop_->Add(home_.get(), EPOLLIN, [this](uint32_t) { OnReadable(); });
  }
  bool open() const { return !over_ && events_->open() && may_go_on_(); }

 private:
  void OnReadable() {
    const auto more = reader_.ReadAvailable(home_.get(), [this](Frame frame) { OnFrame(frame.bytes); });
    if (!more || !*more) End(over_ ? "" : "home ended: is it running?");
  }

  void OnFrame(const std::string& bytes) {
    v1::HomeMessage message;
    if (over_) return;
    if (!message.ParseFromString(bytes)) return End("home said something that the controller does not understand");
    if (message.has_error()) return End(message.error().message());
    if (message.has_done()) return End("");
    if (!message.has_log()) return;
    Add(message.log().is_stderr(), message.log().data());
  }

  void Add(bool is_stderr, const std::string& data) {
    if (pending_.empty() || pending_.back().first != is_stderr) pending_.emplace_back(is_stderr, "");
    pending_.back().second += data;
    bytes_ += data.size();
    while (bytes_ > kMostPending) {
      std::string& first = pending_.front().second;
      const size_t drop = std::min(first.size(), bytes_ - kMostPending);
      first.erase(0, drop);
      bytes_ -= drop;
      skipped_ = true;
      if (first.empty()) pending_.pop_front();
    }
    if (tell_ != 0) return;
    tell_ = loop_->After(kTellMicros, [this] {
      tell_ = 0;
      Tell(false);
    });
  }

  void Tell(bool last) {
    if (skipped_) (void)events_->Send("skipped", "{}");
    skipped_ = false;
    std::optional<std::pair<bool, std::string>> kept;
    while (!pending_.empty()) {
      auto [is_stderr, text] = std::move(pending_.front());
      pending_.pop_front();
      if (const size_t tail = pending_.empty() && !last ? Unfinished(text) : 0; tail > 0) {
        kept.emplace(is_stderr, text.substr(text.size() - tail));
        text.resize(text.size() - tail);
      }
      if (text.empty()) continue;
      (void)events_->Send("output",
                          "{\"text\":" + http::JsonQuote(text) + ",\"stderr\":" + (is_stderr ? "true}" : "false}"));
    }
    bytes_ = 0;
    if (!kept) return;
    bytes_ = kept->second.size();
    pending_.push_back(*std::move(kept));
  }

  // The relay lets it go at its next check: this may be called by the loop about our own descriptor.
  void End(const std::string& problem) {
    if (over_) return;
    over_ = true;
    loop_->Remove(home_.get());
    Tell(true);
    (void)(problem.empty() ? events_->Send("end", "{}") : events_->Send("problem", Problem(problem)));
  }

  EventLoop* const loop_;
  const UniqueFd home_;
  const std::shared_ptr<http::Events> events_;
  const std::function<bool()> may_go_on_;
  FrameReader reader_;
  std::deque<std::pair<bool, std::string>> pending_;  // is it stderr, and what
  size_t bytes_ = 0;                                  // in pending_
  bool skipped_ = false;
  bool over_ = false;
  EventLoop::TimerId tell_ = 0;
};

LogRelay::LogRelay(std::string home_socket) : home_socket_(std::move(home_socket)) {
  if (possible()) thread_ = std::thread([this] { loop_.Run(); });
}

LogRelay::~LogRelay() {
  if (!thread_.joinable()) return;
  loop_.Post([this] {
    streams_.clear();
    loop_.Stop();
  });
  thread_.join();
}

void LogRelay::Start(uint64_t job, std::shared_ptr<http::Events> events, std::function<bool()> may_go_on) {
  loop_.Post([this, job, events = std::move(events), may_go_on = std::move(may_go_on)]() mutable {
    Open(job, std::move(events), std::move(may_go_on));
  });
}

void LogRelay::Open(uint64_t job, std::shared_ptr<http::Events> events, std::function<bool()> may_go_on) {
  if (streams_.size() >= kMostStreams) {
    (void)events->Send("problem", Problem("too many logs are open: close some of them"));
    return;
  }
  auto home = ConnectUnix(home_socket_);
  v1::ClientMessage message;
  message.mutable_query()->mutable_read_log()->set_job(job);
  message.mutable_query()->mutable_read_log()->set_follow(true);
  Status sent;
  if (home) sent = SendFrame(home->get(), message.SerializeAsString());
  if (!home || !sent) {
    (void)events->Send("problem", Problem("home does not run here: `vctl logs` starts it"));
    return;
  }
  ::fcntl(home->get(), F_SETFL, ::fcntl(home->get(), F_GETFL) | O_NONBLOCK);
  auto stream = std::make_shared<Stream>(&loop_, *std::move(home), std::move(events), std::move(may_go_on));
  if (!stream->Begin()) return;
  streams_[++last_] = std::move(stream);
  if (checks_) return;
  checks_ = true;
  loop_.After(kCheckMicros, [this] { Check(); });
}

void LogRelay::Check() {
  std::erase_if(streams_, [](const auto& one) { return !one.second->open(); });
  checks_ = !streams_.empty();
  if (checks_) loop_.After(kCheckMicros, [this] { Check(); });
}

}  // namespace vrun::control
