// SPDX-License-Identifier: Apache-2.0
// Tells a node which other nodes read from this home.
#pragma once

#include <cstdint>

#include "base/thread/mutex.h"
#include "home/serve/peer_board.h"
#include "home/serve/requests/request.h"

namespace vrun::home {

// One per node. Any thread.
class PeerWatch {
 public:
  PeerWatch(PeerBoard* board, NodeStream* stream) : board_(board), stream_(stream) {}
  // Replaces an earlier one.
  Status Begin(const v1::ContentRequest& request);
  void Leave();

 private:
  PeerBoard* const board_;
  NodeStream* const stream_;
  Mutex mutex_;
  uint64_t id_ VRUN_GUARDED_BY(mutex_) = 0;  // on the board; 0: not on it
};

}  // namespace vrun::home
