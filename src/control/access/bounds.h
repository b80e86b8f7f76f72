// SPDX-License-Identifier: Apache-2.0
// How much of the controller one user may take. A user is all certificates with the same name before the @.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/thread/mutex.h"

namespace vrun::control {

// 0: no bound.
struct Bounds {
  uint64_t jobs = 50'000;                      // that have not ended; of an array those that are jobs, and itself
  uint64_t request_bytes = uint64_t{4} << 30;  // of the requests of these jobs: commands, environments, scripts
  uint32_t streams = 20'000;                   // that watch jobs: one for each attached run
  uint32_t requests_per_second = 5'000;        // on average over ten seconds
};

// Refuses a user's calls when there are too many, before anything is read or kept for them. Any thread.
class CallLimiter {
 public:
  explicit CallLimiter(const Bounds& bounds) : shared_(std::make_shared<Shared>()) { Use(bounds); }
  void Use(const Bounds& bounds);

  // For each call. kExhausted. `now_us`: monotonic.
  Status Call(const std::string& user, int64_t now_us);
  // Counts as an open stream until the answer is destroyed. kExhausted.
  Result<std::shared_ptr<void>> OpenStream(const std::string& user);

 private:
  struct User {
    int64_t left_micro = 0;  // calls in millionths
    int64_t at_us = 0;
    uint32_t streams = 0;
  };
  // Outlives the limiter with its open streams.
  struct Shared {
    Mutex mutex;
    Bounds bounds VRUN_GUARDED_BY(mutex);
    std::map<std::string, User> users VRUN_GUARDED_BY(mutex);
  };
  const std::shared_ptr<Shared> shared_;
};

}  // namespace vrun::control
