// SPDX-License-Identifier: Apache-2.0
// Sends spans in batches from a thread of its own. Whoever has a span puts it into a bounded queue and goes on. If the
// collector is slow or away, spans are dropped and counted: those of a batch that was tried for Settings::batch_ms, and
// those for which the queue had no room.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/thread/mutex.h"
#include "telemetry/sender.h"
#include "telemetry/settings.h"
#include "telemetry/span.h"

namespace vrun::telemetry {

class Exporter {
 public:
  // `resource`: who sends.
  Exporter(const Settings& settings, Attributes resource, std::unique_ptr<Sender> sender);
  // Sends what is queued, for at most kFlushMicros.
  ~Exporter();
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  static constexpr int64_t kFlushMicros = 1'000'000;

  // Any thread. Holds a lock only to put it into the queue.
  void Put(Span span);

  // Any thread. Spans that the collector took, and that it never will.
  uint64_t sent() const { return sent_; }
  uint64_t dropped() const { return dropped_; }

 private:
  void Run();
  bool HasBatchLocked() const VRUN_REQUIRES(mutex_);
  std::vector<Span> TakeBatchLocked() VRUN_REQUIRES(mutex_);
  // The batch was sent, or is lost.
  void Deliver(const std::vector<Span>& batch);
  // False: the program ends.
  bool Pause(int64_t micros);
  bool OutOfTime() const;
  void Drop(size_t spans, const std::string& why);
  void Warn(size_t spans, const std::string& why);

  const Settings settings_;
  const Attributes resource_;
  const std::unique_ptr<Sender> sender_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Span> queue_ VRUN_GUARDED_BY(mutex_);
  size_t queued_bytes_ VRUN_GUARDED_BY(mutex_) = 0;
  size_t turned_away_ VRUN_GUARDED_BY(mutex_) = 0;  // of dropped_: the log was not told yet
  bool ending_ VRUN_GUARDED_BY(mutex_) = false;
  std::atomic<int64_t> end_at_ = INT64_MAX;  // monotonic: nothing is sent after it
  std::atomic<uint64_t> dropped_ = 0;
  std::atomic<uint64_t> sent_ = 0;
  // The exporter's thread.
  bool works_ = true;           // as far as the log was told
  int64_t warned_us_;           // when it was told last that the collector does not
  int64_t leave_alone_us_ = 0;  // until then, as the collector asked
  std::minstd_rand random_;
  std::thread thread_;  // last: uses all of the above
};

}  // namespace vrun::telemetry
