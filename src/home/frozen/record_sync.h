// SPDX-License-Identifier: Apache-2.0
// Waits for the disk on behalf of many: those who come while it is busy share the next flush.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/io/event_loop.h"
#include "base/io/work_queue.h"
#include "base/result.h"

namespace vrun::home {

// Loop thread, callbacks too; none runs after destruction.
class RecordSync {
 public:
  // `sync` blocks until everything that was written before is on the disk; it runs on a thread of this object, one at a
  // time.
  RecordSync(EventLoop* loop, std::function<Status()> sync) : loop_(loop), sync_(std::move(sync)) {}
  ~RecordSync();

  // Calls `done` when everything that was written before this call is on the disk, or the disk has refused it.
  void Then(std::function<void()> done);

 private:
  void Begin();

  EventLoop* const loop_;
  const std::function<Status()> sync_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::vector<std::function<void()>> waiting_;  // for a flush that has not begun
  bool busy_ = false;
  WorkQueue worker_{"records"};
};

}  // namespace vrun::home
