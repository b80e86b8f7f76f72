// SPDX-License-Identifier: Apache-2.0
#include "telemetry/exporter.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "telemetry/otlp.h"

namespace vrun::telemetry {
namespace {

constexpr int64_t kLongestPauseMicros = 5'000'000;
constexpr int64_t kLongestAloneMicros = 300'000'000;  // whatever the collector asks for
constexpr int64_t kWarnAgainMicros = 600'000'000;

}  // namespace

Exporter::Exporter(const Settings& settings, Attributes resource, std::unique_ptr<Sender> sender)
    : settings_(settings),
      resource_(std::move(resource)),
      sender_(std::move(sender)),
      warned_us_(MonotonicMicros() - kWarnAgainMicros),
      random_(static_cast<unsigned>(WallMicros() ^ ::getpid())) {
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

bool Exporter::HasBatchLocked() const {
  return queue_.size() >= settings_.most_at_once || queued_bytes_ >= settings_.most_at_once_bytes;
}

void Exporter::Put(Span span) {
  const size_t bytes = BytesOf(span);
  bool notify = false;
  {
    MutexLock lock(mutex_);
    if (queue_.size() >= settings_.most_queued || queued_bytes_ + bytes > settings_.most_queued_bytes) {
      ++dropped_;
      ++turned_away_;
      return;
    }
    const bool had_batch = HasBatchLocked();
    queue_.push_back(std::move(span));
    queued_bytes_ += bytes;
    notify = !had_batch && HasBatchLocked();
  }
  if (notify) changed_.notify_all();
}

std::vector<Span> Exporter::TakeBatchLocked() {
  std::vector<Span> batch;
  for (size_t bytes = 0; !queue_.empty() && batch.size() < settings_.most_at_once;) {
    const size_t next = BytesOf(queue_.front());
    bytes += next;
    if (!batch.empty() && bytes > settings_.most_at_once_bytes) break;
    batch.push_back(std::move(queue_.front()));
    queue_.pop_front();
    queued_bytes_ -= next;
  }
  return batch;
}

void Exporter::Run() {
  ::pthread_setname_np(::pthread_self(), "traces");
  for (;;) {
    std::vector<Span> batch;
    size_t turned_away = 0;
    bool ending = false;
    {
      MutexLock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(settings_.delay_ms),
                        [this]() VRUN_REQUIRES(mutex_) { return ending_ || HasBatchLocked(); });
      ending = ending_;
      batch = TakeBatchLocked();
      turned_away = std::exchange(turned_away_, 0);
    }
    if (turned_away > 0) Warn(turned_away, "too many wait for it");
    if (!batch.empty()) {
      Deliver(batch);
    } else if (ending) {
      break;
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
  (void)Pause(leave_alone_us_ - MonotonicMicros());  // not a part of this batch's time
  const std::string body = EncodeOtlp(resource_, batch);
  const int64_t until = MonotonicMicros() + settings_.batch_ms * 1000;
  for (int64_t pause = settings_.pause_ms * 1000;; pause = std::min(2 * pause, kLongestPauseMicros)) {
    if (OutOfTime()) return Drop(batch.size(), "not sent before the end of the program");
    const int64_t left_ms = std::max<int64_t>((until - MonotonicMicros()) / 1000, 1);
    const Answer answer = sender_->Send(body, std::min(settings_.timeout_ms, left_ms), [this] { return OutOfTime(); });
    if (answer.status) {
      const size_t refused = std::min<size_t>(answer.refused, batch.size());
      sent_ += batch.size() - refused;
      if (refused > 0) return Drop(refused, answer.why);
      if (!std::exchange(works_, true)) LogInfo("traces: the collector takes spans again");
      return;
    }
    const int64_t now = MonotonicMicros();
    leave_alone_us_ = now + std::min(answer.wait_us, kLongestAloneMicros);
    // With jitter, so that daemons do not all come at once to a collector that is back.
    const int64_t jittered = pause / 2 + static_cast<int64_t>(random_() % static_cast<uint64_t>(pause / 2 + 1));
    const int64_t next = std::max(now + jittered, leave_alone_us_);
    const bool again = answer.status.error().code() == Code::kUnavailable && next < until;
    if (!again || !Pause(next - now)) return Drop(batch.size(), answer.status.error().message());
  }
}

void Exporter::Drop(size_t spans, const std::string& why) {
  dropped_ += spans;
  Warn(spans, why);
}

void Exporter::Warn(size_t spans, const std::string& why) {
  const int64_t now = MonotonicMicros();
  if (now - warned_us_ < kWarnAgainMicros) return;
  works_ = false;
  warned_us_ = now;
  LogWarning("traces: the collector at {} did not take {} spans ({} until now): {}", Escape(settings_.url), spans,
             dropped_.load(), why);
}

}  // namespace vrun::telemetry
