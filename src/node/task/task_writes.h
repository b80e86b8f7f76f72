// SPDX-License-Identifier: Apache-2.0
// Sends the command's writes home, with a bounded number unacknowledged. Loop thread only.
//
// Home acknowledges only what is durable there, and never part of a file. So the window is checked only between
// operations, and the connection's own back-pressure bounds a large file. The window is wide, so that home can sync
// rarely.
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
  static constexpr size_t kOperations = 4096;  // maximum unacknowledged
  static constexpr uint64_t kBytes = 64u << 20;

  // Nothing is sent until this is called. It may be repeated after a failure. No options: there are no writes or they
  // are discarded, and only the end is sent.
  Status Begin(std::optional<CarryOptions> options);
  // For writes kept on this node: only this end is sent.
  void BeginKept(v1::WriteBackEnd end);
  bool begun() const { return begun_; }
  // A new receiver has applied everything up to `sequence`; the rest is sent again.
  Status Resume(uint64_t sequence);
  void Acknowledge(uint64_t sequence);

  // The next message, if there is one and the window is open. kUnavailable: the root cannot be read now; call Retry
  // later.
  Result<std::optional<v1::TaskDown>> Next();
  // Continues from the first unacknowledged message.
  Status Retry();

 private:
  struct Flying {
    uint64_t sequence;
    uint64_t bytes;
  };
  bool begun_ = false, all_sent_ = false, end_sent_ = false;
  bool in_file_ = false;  // a PutFile was sent, but not its last FileData
  std::unique_ptr<Carry> carry_;
  v1::WriteBackEnd kept_end_;
  uint64_t acknowledged_ = 0;
  std::deque<Flying> flying_;
  uint64_t flying_bytes_ = 0;
};

}  // namespace vrun::node
