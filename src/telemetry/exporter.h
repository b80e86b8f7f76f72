// SPDX-License-Identifier: Apache-2.0
// Sends spans in batches from a thread of its own. Whoever has a span puts it into a bounded queue and goes on: if the
// collector is slow or away, spans are dropped and counted.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
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

  uint64_t dropped() const { return dropped_; }  // any thread
  uint64_t sent() const { return sent_; }

 private:
  void Run();
  // The batch was sent, or is lost.
  void Deliver(const std::vector<Span>& batch);
  // False: the program ends.
  bool Pause(int64_t micros);
  bool OutOfTime() const;
  void Drop(size_t spans, const std::string& why);

  const Settings settings_;
  const Attributes resource_;
  const std::unique_ptr<Sender> sender_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Span> queue_ VRUN_GUARDED_BY(mutex_);
  bool ending_ VRUN_GUARDED_BY(mutex_) = false;
  std::atomic<int64_t> end_at_ = INT64_MAX;  // monotonic: nothing is sent after it
  std::atomic<uint64_t> dropped_ = 0;
  std::atomic<uint64_t> sent_ = 0;
  bool works_ = true;    // the collector took the last batch; exporter's thread
  int64_t said_us_ = 0;  // when the log was told last that it does not
  std::thread thread_;   // last: uses all of the above
};

}  // namespace vrun::telemetry
