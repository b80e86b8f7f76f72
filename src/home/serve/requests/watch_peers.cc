// SPDX-License-Identifier: Apache-2.0
#include "home/serve/requests/watch_peers.h"

#include <utility>

namespace vrun::home {

Status PeerWatch::Begin(const v1::ContentRequest& request) {
  const auto& watch = request.watch_peers();
  if (watch.name().empty() || watch.addresses_size() == 0) {
    return Error(Code::kInvalid, "malformed request for peers");
  }
  Leave();
  VRUN_ASSIGN(const uint64_t joined,
              board_->Join({watch.name(), watch.addresses(0), watch.pool()},
                           [weak = stream_->weak_from_this(), id = request.id()](const v1::Peers& peers) {
                             const auto stream = weak.lock();
                             if (!stream) return;
                             v1::ContentReply reply;
                             reply.set_id(id);
                             *reply.mutable_peers() = peers;
                             stream->Send(reply);
                           }));
  {
    MutexLock lock(mutex_);
    id_ = joined;
  }
  if (stream_->closed()) Leave();  // closed in the meantime
  return {};
}

void PeerWatch::Leave() {
  uint64_t id;
  {
    MutexLock lock(mutex_);
    id = std::exchange(id_, 0);
  }
  // Without our lock: the board calls us while we are on it.
  if (id != 0) board_->Leave(id);
}

}  // namespace vrun::home
