// SPDX-License-Identifier: Apache-2.0
#include "home/frozen/record_sync.h"

#include <utility>

#include "base/log.h"

namespace vrun::home {

RecordSync::~RecordSync() {
  *alive_ = false;
  worker_.Stop();
}

void RecordSync::Then(std::function<void()> done) {
  waiting_.push_back(std::move(done));
  if (!busy_) Begin();
}

void RecordSync::Begin() {
  busy_ = true;
  worker_.Post([this, waiting = std::exchange(waiting_, {})]() mutable {
    if (Status synced = sync_(); !synced) {
      LogWarning("records of jobs may not survive a crash of this machine: {}", synced.error().message());
    }
    loop_->Post([this, alive = alive_, waiting = std::move(waiting)] {
      if (!*alive) return;
      busy_ = false;
      if (!waiting_.empty()) Begin();
      for (const auto& done : waiting) {
        if (*alive) done();
      }
    });
  });
}

}  // namespace vrun::home
