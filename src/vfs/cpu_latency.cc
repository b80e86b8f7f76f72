// SPDX-License-Identifier: Apache-2.0
#include "vfs/cpu_latency.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "vfs/timer_thread.h"

namespace vrun::vfs {
namespace {

constexpr int32_t kAnyMicros = std::numeric_limits<int32_t>::max();
constexpr int32_t kRealMachineMicros = 10;

}  // namespace

int32_t CpuLatency::BearableMicros() {
  // "hypervisor" is a flag of x86 processors; elsewhere the idle driver of a guest shows it.
  const auto processors = ReadFile("/proc/cpuinfo");
  if (processors && processors->find(" hypervisor") != std::string::npos) return 0;
  const auto driver = ReadFile("/sys/devices/system/cpu/cpuidle/current_driver");
  if (driver && driver->starts_with("haltpoll")) return 0;
  return kRealMachineMicros;
}

std::unique_ptr<CpuLatency> CpuLatency::Open(CpuLatencyOptions options, TimerThread* timers) {
  auto device = OpenFile(options.device, O_RDWR);
  if (!device) {
    LogInfo("cannot keep processors awake between requests: {}", device.error().message());
    return nullptr;
  }
  auto latency = std::unique_ptr<CpuLatency>(new CpuLatency(std::move(options), timers, *std::move(device)));
  // The kernel starts with no limit, and so do we.
  if (!latency->Say(kAnyMicros)) return nullptr;
  return latency;
}

CpuLatency::CpuLatency(CpuLatencyOptions options, TimerThread* timers, UniqueFd device)
    : options_(std::move(options)), timers_(timers), device_(std::move(device)) {}

void CpuLatency::OnRequest() {
  const int64_t now = MonotonicMicros();
  const int64_t before = last_micros_.exchange(now, std::memory_order_relaxed);
  if (held_.load(std::memory_order_relaxed)) return;
  if (now - before > options_.pace_micros) {
    fast_.store(0, std::memory_order_relaxed);
  } else if (fast_.fetch_add(1, std::memory_order_relaxed) + 1 >= options_.fast_requests) {
    Hold(now);
  }
}

void CpuLatency::Hold(int64_t now) {
  MutexLock lock(mutex_);
  fast_.store(0, std::memory_order_relaxed);
  if (held_.load() || now < not_before_ || !Say(options_.bearable_micros)) return;
  held_.store(true);
  held_since_ = now;
  timers_->After(options_.quiet_micros, [this] { Look(); });
}

void CpuLatency::Look() {
  MutexLock lock(mutex_);
  const int64_t now = MonotonicMicros();
  const int64_t quiet_at = last_micros_.load(std::memory_order_relaxed) + options_.quiet_micros;
  const int64_t until = std::min(quiet_at, held_since_ + options_.longest_micros);
  if (now < until) {
    timers_->After(until - now, [this] { Look(); });
    return;
  }
  if (now < quiet_at) not_before_ = now + options_.longest_micros;
  Say(kAnyMicros);
  held_.store(false);
}

bool CpuLatency::Say(int32_t micros) {
  // The device is not a stream: the kernel takes all four bytes of each write, at any offset.
  if (::pwrite(device_.get(), &micros, sizeof micros, 0) == sizeof micros) return true;
  LogWarning("cannot keep processors awake between requests: {}", ErrnoError("write " + options_.device).message());
  return false;
}

}  // namespace vrun::vfs
