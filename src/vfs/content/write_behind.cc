// SPDX-License-Identifier: Apache-2.0
#include "vfs/content/write_behind.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>

#include "base/clock.h"

namespace vrun::vfs {
namespace {

constexpr int64_t kQuietMicros = 50'000;

}  // namespace

WriteBehind::~WriteBehind() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool WriteBehind::Post(uint64_t bytes, std::function<void()> write) {
  MutexLock lock(mutex_);
  if (stopping_ || bytes_ + bytes > limit_bytes_) return false;
  bytes_ += bytes;
  posted_ = MonotonicMicros();
  waiting_.emplace_back(bytes, std::move(write));
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  if (waiting_.size() == 1 || bytes_ > limit_bytes_ / 2) wake_.notify_one();
  return true;
}

void WriteBehind::Run() {
  ::pthread_setname_np(::pthread_self(), "write-behind");
  // For this thread only. Not idle priority: waiting pieces use memory.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 10);
  MutexLock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this]() VRUN_REQUIRES(mutex_) { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    for (int64_t left = 1; !stopping_ && left > 0 && bytes_ <= limit_bytes_ / 2;) {
      left = posted_ + kQuietMicros - MonotonicMicros();
      if (left > 0) wake_.wait_for(lock, std::chrono::microseconds(left));
    }
    auto [bytes, write] = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    write();
    write = nullptr;
    lock.lock();
    bytes_ -= bytes;
  }
}

}  // namespace vrun::vfs
