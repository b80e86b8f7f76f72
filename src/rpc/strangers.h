// SPDX-License-Identifier: Apache-2.0
// How many calls of callers without a certificate may be open at once: each may hold a request of some MiB, and nobody
// knows who they are.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/thread/mutex.h"

namespace vrun::rpc {

// Any thread.
class Strangers {
 public:
  static constexpr int kMost = 16;
  static constexpr int kMostOfHost = 8;
  // A call that takes longer ends when another one needs its place. Long enough for a login that asks an identity
  // provider.
  static constexpr int64_t kMostMicros = 45'000'000;
  static constexpr size_t kMostRequestBytes = 256u << 10;

  // Holds a place until the answer is destroyed, which may be after this object. kExhausted. `address`: HOST:PORT.
  Result<std::shared_ptr<void>> Take(const std::string& address) {
    const std::string host = address.substr(0, address.rfind(':'));
    MutexLock lock(open_->mutex);
    const auto found = open_->of_host.find(host);
    if (open_->all >= kMost || (found != open_->of_host.end() && found->second >= kMostOfHost)) {
      return Error(Code::kExhausted, "too many callers without a certificate at once: try again in a moment");
    }
    ++open_->all;
    ++open_->of_host[host];
    return std::shared_ptr<void>(nullptr, [open = open_, host](void*) {
      MutexLock relock(open->mutex);
      --open->all;
      if (const auto it = open->of_host.find(host); --it->second == 0) open->of_host.erase(it);
    });
  }

 private:
  struct Open {
    Mutex mutex;
    int all VRUN_GUARDED_BY(mutex) = 0;
    std::map<std::string, int> of_host VRUN_GUARDED_BY(mutex);  // those that have some
  };
  const std::shared_ptr<Open> open_ = std::make_shared<Open>();
};

}  // namespace vrun::rpc
