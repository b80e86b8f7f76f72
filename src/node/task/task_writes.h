// SPDX-License-Identifier: Apache-2.0
// Sends home what the command wrote, with at most so much on its way. Loop thread only.
//
// Home acknowledges what is durable there, never the half of a file. So the window is looked at between operations
// only, the connection's own back-pressure bounds a large file, and the window is wide enough that home may sync
// seldom.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "base/result.h"
#include "node/carry/carry.h"
#include "proto/task.pb.h"

namespace vrun::node {

class TaskWrites {
 public:
  static constexpr size_t kOperations = 4096;  // unacknowledged at most
  static constexpr uint64_t kBytes = 64u << 20;

  // Nothing is sent before; may be tried again after a failure. No options: the writes are discarded (or there are
  // none), and only the end is sent.
  Status Begin(std::optional<CarryOptions> options);
  // The same, but they stay on this node: only this end is sent.
  void BeginKept(v1::WriteBackEnd end);
  bool begun() const { return begun_; }
  // A new receiver has applied everything up to `sequence`; the rest is sent again.
  Status Resume(uint64_t sequence);
  void Acknowledge(uint64_t sequence);

  // The next message, when there is one and the window is open. kUnavailable: the root cannot be read for now; Retry
  // later.
  Result<std::optional<v1::TaskDown>> Next();
  // From the first that was not acknowledged on.
  Status Retry();

 private:
  struct Flying {
    uint64_t sequence;
    uint64_t bytes;
  };
  bool begun_ = false, all_sent_ = false, end_sent_ = false;
  bool in_file_ = false;  // a PutFile was sent, its last FileData was not
  std::unique_ptr<Carry> carry_;
  v1::WriteBackEnd kept_end_;
  uint64_t acknowledged_ = 0;
  std::deque<Flying> flying_;
  uint64_t flying_bytes_ = 0;
};

}  // namespace vrun::node
