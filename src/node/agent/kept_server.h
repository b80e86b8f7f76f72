// SPDX-License-Identifier: Apache-2.0
// The agent's side of /vrun.v1.Node/Kept: lists, sends and drops the kept writes of a home's own jobs. Reads the disk
// on its own thread.
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
  // `store` and `loop` must outlive it. `node`: the name reported to home.
  KeptServer(EventLoop* loop, KeptStore* store, std::string node);
  ~KeptServer();

  // Serves one stream; the caller keeps it while it is open.
  void Serve(const std::shared_ptr<HomeStream>& stream);
  // Call when the store may have grown: removes expired entries and enforces the limit, on the disk thread.
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
