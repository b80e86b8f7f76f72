// SPDX-License-Identifier: Apache-2.0
// Tells a node what a board of home says, now and after each change: which other nodes read from it (PeerBoard), what
// it hides from jobs (HiddenBoard).
#pragma once

#include <cstdint>
#include <utility>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "home/serve/hidden_board.h"
#include "home/serve/peer_board.h"
#include "home/serve/requests/request.h"

namespace vrun::home {

// One per node. Any thread. `kPart`: of a reply, what the board tells.
template <typename Board, typename Message, Message* (v1::ContentReply::*kPart)()>
class BoardWatch {
 public:
  BoardWatch(Board* board, NodeStream* stream) : board_(board), stream_(stream) {}

  // Replaces an earlier one. Replies have the number of this request. `as`: what the board wants to know of a member.
  template <typename... As>
  Status Begin(uint64_t request, As&&... as) {
    Leave();
    Result<uint64_t> joined =
        board_->Join(std::forward<As>(as)..., [weak = stream_->weak_from_this(), request](const Message& message) {
          const auto stream = weak.lock();
          if (!stream) return;
          v1::ContentReply reply;
          reply.set_id(request);
          *(reply.*kPart)() = message;
          stream->Send(reply);
        });
    if (!joined) return std::move(joined).error();
    {
      MutexLock lock(mutex_);
      id_ = *joined;
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
  Board* const board_;
  NodeStream* const stream_;
  Mutex mutex_;
  uint64_t id_ VRUN_GUARDED_BY(mutex_) = 0;  // on the board; 0: not on it
};

using PeerWatch = BoardWatch<PeerBoard, v1::Peers, &v1::ContentReply::mutable_peers>;
using HiddenWatch = BoardWatch<HiddenBoard, v1::Hidden, &v1::ContentReply::mutable_hidden>;

}  // namespace vrun::home
