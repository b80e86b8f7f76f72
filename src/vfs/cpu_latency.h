// SPDX-License-Identifier: Apache-2.0
// Keeps this machine's processors awake while requests come in quick succession.
//
// A program that asks a view waits for another thread to wake up, and then to be woken itself. If the processor has
// gone to sleep meanwhile, its wake-up time is added: 100 us and more in a halted virtual machine or in a deep idle
// state of a real one, where the answer takes 3 us. The kernel lets a process limit this latency (PM QoS,
// Documentation/power/pm_qos_interface.rst: CPU latency, for as long as /dev/cpu_dma_latency is open). This class sets
// the limit while an import runs and removes it afterwards. docs/decisions/0027.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/thread/mutex.h"
#include "base/unique_fd.h"

namespace vrun::vfs {

class TimerThread;

struct CpuLatencyOptions {
  std::string device = "/dev/cpu_dma_latency";
  // The permitted wake-up latency. 0: idle processors do not sleep at all.
  int32_t bearable_micros = 0;
  int64_t pace_micros = 4'000;          // requests closer together than this count as fast
  int64_t quiet_micros = 20'000;        // after this time without a request the limit is removed
  int64_t longest_micros = 10'000'000;  // then the limit is off for as long again, even if requests come
  int fast_requests = 8;                // so many in a row set the limit
};

// Thread safety: any thread.
class CpuLatency {
 public:
  // The latency limit for this machine. In a virtual machine 0: its processors have one idle state, which claims 1 us
  // but takes as long as the machine below. On a real one 10: the light idle states are good enough, and no processor
  // is kept spinning.
  static int32_t BearableMicros();

  // Null, with a line in the log, if there is no such device (a container) or it may not be opened. `timers` must
  // outlive every call of OnRequest, and must be stopped before this object is destroyed.
  static std::unique_ptr<CpuLatency> Open(CpuLatencyOptions options, TimerThread* timers);

  // A request has come for which somebody waits.
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
  std::atomic<int> fast_{0};  // consecutive requests that came soon after the one before
  std::atomic<bool> held_{false};
  Mutex mutex_;
  int64_t held_since_ VRUN_GUARDED_BY(mutex_) = 0;
  int64_t not_before_ VRUN_GUARDED_BY(mutex_) = 0;
};

}  // namespace vrun::vfs
