// SPDX-License-Identifier: Apache-2.0
#include "home/serve/requests/live_streams.h"

#include <utility>

namespace vrun::home {

Status LiveStreams::Begin(const v1::ContentRequest& request) {
  if (writes_ == nullptr) return Error(Code::kUnsupported, "this server does not accept writes");
  const uint64_t view = request.begin_writes().view();
  VRUN_TRY(writes_->Bind(view, node_));
  {
    // The node may write as soon as Join has told it so.
    MutexLock lock(mutex_);
    joined_.try_emplace(view, 0);
  }
  const uint64_t joined =
      writes_->Join(view, [weak = stream_->weak_from_this(), id = request.id()](const v1::LiveAck& ack) {
        const auto stream = weak.lock();
        if (!stream) return;
        v1::ContentReply reply;
        reply.set_id(id);
        *reply.mutable_live_ack() = ack;
        stream->Send(reply);
      });
  {
    MutexLock lock(mutex_);
    joined_[view] = joined;
    writes_->Rest(view, !takes_);
  }
  if (stream_->closed()) Leave();  // closed in the meantime
  return {};
}

void LiveStreams::Write(v1::ContentRequest::LiveWrite* write) {
  if (writes_ == nullptr) return;
  {
    // Only into views that were bound to this stream's node.
    MutexLock lock(mutex_);
    if (!joined_.contains(write->view())) return;
  }
  writes_->Write(write->view(), write->begin(), std::move(*write->mutable_write()));
}

void LiveStreams::SetTakes(bool takes) {
  if (writes_ == nullptr) return;
  MutexLock lock(mutex_);
  takes_ = takes;
  for (const auto& [view, joined] : joined_) writes_->Rest(view, !takes);
}

Status LiveStreams::End(const v1::ContentRequest& request) {
  const uint64_t view = request.end_writes().view();
  lent_->Drop(view);
  {
    MutexLock lock(mutex_);
    if (joined_.erase(view) == 0) return {};  // belongs to another stream
  }
  writes_->End(view);
  return {};
}

void LiveStreams::Leave() {
  std::map<uint64_t, uint64_t> joined;
  {
    MutexLock lock(mutex_);
    joined.swap(joined_);
  }
  for (const auto& [view, id] : joined) writes_->Leave(view, id);
}

}  // namespace vrun::home
