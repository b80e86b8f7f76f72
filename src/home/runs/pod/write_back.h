// SPDX-License-Identifier: Apache-2.0
// Applies one job's writes to the root: a queue in front of the Applier, on a thread that exists only while there is
// something to apply.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/io/work_queue.h"
#include "base/result.h"
#include "home/apply/apply.h"

namespace vrun::home {

// Loop thread, callbacks too; none runs after destruction (which waits for the running operation).
class WriteBack {
 public:
  struct Events {
    // Everything up to here is applied and durable, or has failed and was reported: the node may send more.
    std::function<void(uint64_t sequence)> on_acknowledge;
    // A line for the user: conflicts, failures.
    std::function<void(std::string)> on_notice;
    // Called before on_notice: home had changed this path.
    std::function<void(std::string path)> on_conflict;
    // Stopped because home is full (or a similar reason): nothing after this operation was applied. The series must be
    // sent again from sequence() on, later.
    std::function<void(Error)> on_blocked;
    // The end, with the number of operations that failed for good.
    std::function<void(uint64_t failed)> on_finished;
  };

  // `options.notice` and `options.conflict` are set here. `patient`: a full disk blocks instead of failing.
  WriteBack(EventLoop* loop, ApplyOptions options, Events events);
  ~WriteBack();

  // Where the node shall continue (Attach.write_back_sequence), from the journal that an earlier home may have left.
  uint64_t sequence();

  void Apply(v1::WriteBack message);
  void End();
  // Call after on_blocked: clears the queue and accepts the series again. `patient` false: failures are final now.
  void Restart(bool patient);

 private:
  Status OpenApplier();                         // on the worker, or before it has work
  void ApplyOne(const v1::WriteBack& message);  // on the worker, as all below
  void Failed(uint64_t sequence, const Error& error);
  void SyncAndAcknowledge();
  void FinishAll();
  template <typename F>
  void OnLoop(F f);

  EventLoop* const loop_;
  ApplyOptions options_;
  const Events events_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  EventLoop::TimerId idle_sync_ = 0;

  // Used by the worker only.
  std::unique_ptr<Applier> applier_;
  uint64_t last_ = 0;  // sequence of the last operation seen
  uint64_t failed_ = 0;
  uint64_t failed_file_ = 0;  // the PutFile whose data is to be ignored
  size_t unsynced_ = 0;
  uint64_t unsynced_bytes_ = 0;
  bool patient_ = true;
  bool blocked_ = false;

  std::atomic<uint64_t> generation_{0};  // operations queued before a Restart are stale
  std::atomic<size_t> queued_{0};
  std::unique_ptr<WorkQueue> worker_;
};

}  // namespace vrun::home
