// SPDX-License-Identifier: Apache-2.0
// Passes what jobs write in the live views of a node to LiveWrites.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/thread/mutex.h"
#include "home/serve/lent_files.h"
#include "home/serve/live_writes.h"
#include "home/serve/requests/request.h"

namespace vrun::home {

// One per node. Any thread.
class LiveStreams {
 public:
  // `writes`: null if writes are not accepted.
  LiveStreams(LiveWrites* writes, LentFiles* lent, NodeStream* stream)
      : writes_(writes), lent_(lent), stream_(stream) {}
  Status Begin(const v1::ContentRequest& request);
  void Write(v1::ContentRequest::LiveWrite* write);
  // ContentSession::SetTakesWrites, SetNode.
  void SetTakes(bool takes);
  void SetNode(const std::string& node) { node_ = node; }
  // The view has ended. Blocks.
  Status End(const v1::ContentRequest& request);
  void Leave();

 private:
  LiveWrites* const writes_;
  LentFiles* const lent_;
  NodeStream* const stream_;
  std::string node_;
  Mutex mutex_;
  bool takes_ VRUN_GUARDED_BY(mutex_) = true;
  std::map<uint64_t, uint64_t> joined_ VRUN_GUARDED_BY(mutex_);  // view -> result of LiveWrites::Join
};

}  // namespace vrun::home
