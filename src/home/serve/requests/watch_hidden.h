// SPDX-License-Identifier: Apache-2.0
// Tells a node what home hides from jobs (home/serve/hidden_board.h).
#pragma once

#include <cstdint>
#include <utility>

#include "base/thread/mutex.h"
#include "home/serve/hidden_board.h"
#include "home/serve/requests/request.h"

namespace vrun::home {

// One per node. Any thread.
class HiddenWatch {
 public:
  HiddenWatch(HiddenBoard* board, NodeStream* stream) : board_(board), stream_(stream) {}

  // Replaces an earlier one.
  Status Begin(const v1::ContentRequest& request) {
    Leave();
    const uint64_t joined =
        board_->Join([weak = stream_->weak_from_this(), id = request.id()](const v1::Hidden& hidden) {
          const auto stream = weak.lock();
          if (!stream) return;
          v1::ContentReply reply;
          reply.set_id(id);
          *reply.mutable_hidden() = hidden;
          stream->Send(reply);
        });
    {
      MutexLock lock(mutex_);
      id_ = joined;
    }
    if (stream_->closed()) Leave();  // closed in the meantime
    return {};
  }

  void Leave() {
    uint64_t id;
    {
      MutexLock lock(mutex_);
      id = std::exchange(id_, 0);
    }
    // Without our lock: the board calls the stream while it is locked.
    if (id != 0) board_->Leave(id);
  }

 private:
  HiddenBoard* const board_;
  NodeStream* const stream_;
  Mutex mutex_;
  uint64_t id_ VRUN_GUARDED_BY(mutex_) = 0;  // on the board; 0: not on it
};

}  // namespace vrun::home
