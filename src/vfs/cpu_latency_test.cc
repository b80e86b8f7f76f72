// SPDX-License-Identifier: Apache-2.0
#include "vfs/cpu_latency.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "vfs/testing/vfs_testing.h"
#include "vfs/timer_thread.h"

namespace vrun::vfs {
namespace {

constexpr int32_t kAny = 0x7fffffff;

// A file in place of the device, whose value in the kernel combines the requests of all processes.
class CpuLatencyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.device = directory_.path() + "/cpu_dma_latency";
    ASSERT_TRUE(WriteFileAtomic(options_.device, std::string(4, 0), 0600));
    options_.bearable_micros = 7;
    options_.pace_micros = 1'000'000;  // this machine may be busy
  }
  void TearDown() override { timers_.Stop(); }

  int32_t Said() const {
    int32_t micros = -1;
    const auto bytes = ReadFile(options_.device, sizeof micros);
    if (bytes && bytes->size() == sizeof micros) std::memcpy(&micros, bytes->data(), sizeof micros);
    return micros;
  }
  bool Becomes(int32_t micros) const {
    for (const int64_t end = MonotonicMicros() + 10'000'000; MonotonicMicros() < end; ::usleep(1000)) {
      if (Said() == micros) return true;
    }
    return false;
  }
  void Requests(int count) {
    for (int i = 0; i < count; ++i) latency_->OnRequest();
  }
  void Open() {
    latency_ = CpuLatency::Open(options_, &timers_);
    ASSERT_NE(latency_, nullptr);
    EXPECT_EQ(Said(), kAny);
  }

  TestDirectory directory_;
  TimerThread timers_;
  CpuLatencyOptions options_;
  std::unique_ptr<CpuLatency> latency_;
};

TEST_F(CpuLatencyTest, IsSaidWhileRequestsComeFastAndTakenBackAfter) {
  Open();
  Requests(options_.fast_requests);  // the first one follows no other
  EXPECT_EQ(Said(), kAny);
  Requests(1);
  EXPECT_EQ(Said(), 7);
  EXPECT_TRUE(Becomes(kAny));
  Requests(options_.fast_requests + 1);
  EXPECT_EQ(Said(), 7);
}

TEST_F(CpuLatencyTest, LastsAsLongAsRequestsCome) {
  options_.quiet_micros = 300'000;
  Open();
  Requests(options_.fast_requests + 1);
  for (const int64_t end = MonotonicMicros() + 1'000'000; MonotonicMicros() < end; ::usleep(1000)) {
    Requests(1);
    ASSERT_EQ(Said(), 7);
  }
  EXPECT_TRUE(Becomes(kAny));
}

TEST_F(CpuLatencyTest, SlowRequestsLetProcessorsSleep) {
  options_.pace_micros = 500;
  Open();
  for (int i = 0; i < 50; ++i) {
    Requests(1);
    ::usleep(1000);
  }
  EXPECT_EQ(Said(), kAny);
}

TEST_F(CpuLatencyTest, ProcessorsSleepAgainAfterAWhileWhateverIsAskedFor) {
  options_.quiet_micros = 300'000;
  options_.longest_micros = 500'000;
  Open();
  Requests(options_.fast_requests + 1);
  int64_t changed_at[2] = {0, 0};
  int32_t now = 7;
  for (int64_t& at : changed_at) {  // released and set again
    for (const int64_t end = MonotonicMicros() + 10'000'000; Said() == now && MonotonicMicros() < end; ::usleep(1000)) {
      Requests(1);
    }
    at = MonotonicMicros();
    now = Said();
  }
  EXPECT_EQ(now, 7);
  EXPECT_GE(changed_at[1] - changed_at[0], 450'000);
}

TEST_F(CpuLatencyTest, ManyThreadsAtOnce) {
  options_.quiet_micros = 2'000;
  options_.longest_micros = 5'000;
  Open();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back([this] { Requests(100'000); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Becomes(kAny));
}

TEST_F(CpuLatencyTest, WithoutTheDeviceThereIsNone) {
  options_.device += "-not-here";
  EXPECT_EQ(CpuLatency::Open(options_, &timers_), nullptr);
}

TEST_F(CpuLatencyTest, TheKernelTakesIt) {
  options_ = {};
  if (::access(options_.device.c_str(), R_OK | W_OK) != 0) GTEST_SKIP() << "SKIP: needs root and " << options_.device;
  options_.bearable_micros = 3;
  latency_ = CpuLatency::Open(options_, &timers_);
  ASSERT_NE(latency_, nullptr);
  Requests(options_.fast_requests + 1);
  UniqueFd device = *OpenFile(options_.device, O_RDONLY);
  int32_t wanted = -1;  // the strictest request
  ASSERT_EQ(::read(device.get(), &wanted, sizeof wanted), 4);
  EXPECT_LE(wanted, 3);
}

}  // namespace
}  // namespace vrun::vfs
