// SPDX-License-Identifier: Apache-2.0
#include "telemetry/exporter.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <iterator>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "telemetry/otlp.h"

namespace vrun::telemetry {
namespace {

constexpr int kTries = 5;  // of a batch: half a minute
constexpr int64_t kFirstPauseMicros = 1'000'000;
constexpr int64_t kSayAgainMicros = 600'000'000;

}  // namespace

Exporter::Exporter(const Settings& settings, Attributes resource, std::unique_ptr<Sender> sender)
    : settings_(settings), resource_(std::move(resource)), sender_(std::move(sender)) {
  // Signals are for the threads of the program.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Exporter::~Exporter() {
  end_at_ = MonotonicMicros() + kFlushMicros;
  {
    MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Exporter::Put(Span span) {
  bool full_batch = false;
  {
    MutexLock lock(mutex_);
    if (queue_.size() >= settings_.most_queued) {
      ++dropped_;
      return;
    }
    queue_.push_back(std::move(span));
    full_batch = queue_.size() == settings_.most_at_once;
  }
  if (full_batch) changed_.notify_all();
}

void Exporter::Run() {
  ::pthread_setname_np(::pthread_self(), "traces");
  const auto delay = std::chrono::milliseconds(settings_.delay_ms);
  for (bool ending = false; !ending;) {
    std::vector<Span> spans;
    {
      MutexLock lock(mutex_);
      changed_.wait_for(lock, delay,
                        [this]() VRUN_REQUIRES(mutex_) { return ending_ || queue_.size() >= settings_.most_at_once; });
      ending = ending_;
      const size_t n = ending ? queue_.size() : std::min(queue_.size(), settings_.most_at_once);
      spans.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(queue_.begin() + n));
      queue_.erase(queue_.begin(), queue_.begin() + n);
    }
    for (size_t at = 0; at < spans.size(); at += settings_.most_at_once) {
      const size_t n = std::min(settings_.most_at_once, spans.size() - at);
      Deliver({std::make_move_iterator(spans.begin() + at), std::make_move_iterator(spans.begin() + at + n)});
    }
  }
  if (dropped_ > 0) LogWarning("traces: {} spans were dropped", dropped_.load());
}

bool Exporter::OutOfTime() const { return MonotonicMicros() >= end_at_; }

bool Exporter::Pause(int64_t micros) {
  MutexLock lock(mutex_);
  return !changed_.wait_for(lock, std::chrono::microseconds(micros),
                            [this]() VRUN_REQUIRES(mutex_) { return ending_; });
}

void Exporter::Deliver(const std::vector<Span>& batch) {
  const std::string body = EncodeOtlp(resource_, batch);
  int64_t pause = kFirstPauseMicros;
  for (int tries = 1;; ++tries, pause *= 2) {
    if (OutOfTime()) return Drop(batch.size(), "not sent before the end of the program");
    const Status sent = sender_->Send(body, [this] { return OutOfTime(); });
    if (sent) {
      sent_ += batch.size();
      if (!std::exchange(works_, true)) LogInfo("traces: the collector takes spans again");
      return;
    }
    const bool again = sent.error().code() == Code::kUnavailable && tries < kTries;
    if (!again || !Pause(pause)) return Drop(batch.size(), sent.error().message());
  }
}

void Exporter::Drop(size_t spans, const std::string& why) {
  dropped_ += spans;
  const int64_t now = MonotonicMicros();
  if (!works_ && now - said_us_ < kSayAgainMicros) return;
  works_ = false;
  said_us_ = now;
  LogWarning("traces: the collector at {} did not take {} spans: {}", Escape(settings_.url), spans, why);
}

}  // namespace vrun::telemetry
