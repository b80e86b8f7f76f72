// SPDX-License-Identifier: Apache-2.0
// Keeps this machine's processors awake while requests come thick and fast.
//
// Whoever asks a view waits for another thread to be woken, and then to be woken itself. A processor that has gone to
// sleep meanwhile adds what it takes to wake up: 100 us and more in a virtual machine that has halted, or in a deep
// idle state of a real one, where the answer takes 3 us. The kernel lets a process say how much of that it bears (PM
// QoS, Documentation/power/pm_qos_interface.rst: CPU latency, for as long as /dev/cpu_dma_latency is open): so this
// says it while an import goes on, and takes it back after. docs/decisions/0027.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/unique_fd.h"

namespace vrun::vfs {

class TimerThread;

struct CpuLatencyOptions {
  std::string device = "/dev/cpu_dma_latency";
  // What a wake-up may take. 0: processors that have nothing to do do not sleep at all.
  int32_t bearable_micros = 0;
  int64_t pace_micros = 4'000;          // requests that follow each other sooner count as fast
  int64_t quiet_micros = 20'000;        // without a request, then it is taken back
  int64_t longest_micros = 10'000'000;  // then processors may sleep for as long again, whatever is asked for
  int fast_requests = 8;                // one after another, then it is said
};

// Thread safety: any thread.
class CpuLatency {
 public:
  // What a wake-up may take here. In a virtual machine 0: its processors have one idle state, whose latency is said to
  // be 1 us and is that of the machine below. On a real one 10: the light idle states are good enough, and no
  // processor is kept spinning.
  static int32_t BearableMicros();

  // Null, with a line in the log: there is no such device (a container), or it may not be opened. `timers` must outlive
  // every call of OnRequest, and be stopped before this ends.
  static std::unique_ptr<CpuLatency> Open(CpuLatencyOptions options, TimerThread* timers);

  // A request has come that somebody waits for.
  void OnRequest();

 private:
  CpuLatency(CpuLatencyOptions options, TimerThread* timers, UniqueFd device);
  void Hold(int64_t now);
  void Look();
  bool Say(int32_t micros);

  const CpuLatencyOptions options_;
  TimerThread* const timers_;
  const UniqueFd device_;
  std::atomic<int64_t> last_micros_{0};
  std::atomic<int> fast_{0};  // requests in a row that followed the one before soon
  std::atomic<bool> held_{false};
  std::mutex mutex_;
  int64_t held_since_ = 0;
  int64_t not_before_ = 0;
};

}  // namespace vrun::vfs
