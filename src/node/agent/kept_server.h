// SPDX-License-Identifier: Apache-2.0
// The agent's side of /vrun.v1.Node/Kept: tells a home what is kept of a job of its own, sends it, drops it. The disk
// is read on a thread of its own.
#pragma once

#include <memory>
#include <string>

#include "base/io/event_loop.h"
#include "base/io/work_queue.h"
#include "node/fs/kept_store.h"
#include "node/home_stream.h"
#include "proto/kept.pb.h"

namespace vrun::node {

// Loop thread only.
class KeptServer {
 public:
  // `store` and `loop` outlive it. `node`: the name that is told.
  KeptServer(EventLoop* loop, KeptStore* store, std::string node);
  ~KeptServer();

  // One stream; the caller keeps it for as long as it is open.
  void Serve(const std::shared_ptr<HomeStream>& stream);
  // Something new may be kept: on the disk's thread, what has to go for it goes.
  void Expire();

 private:
  class Sending;
  void Answer(const std::shared_ptr<HomeStream>& stream, const v1::KeptRequest& request);

  EventLoop* const loop_;
  KeptStore* const store_;
  const std::string node_;
  EventLoop::TimerId timer_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  WorkQueue work_{"kept"};
};

}  // namespace vrun::node
