// SPDX-License-Identifier: Apache-2.0
// One request about kept writes (proto/kept.proto) to one node, and the combined answer of a job's nodes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "home/links/controller_client.h"
#include "home/links/node_links.h"
#include "proto/kept.pb.h"
#include "proto/local.pb.h"

namespace vrun::home {

// Loop thread only. No callback runs after destruction, which is allowed inside of one.
class KeptCall {
 public:
  // `heard` gets every event. The last event always comes: a list, an end, or an error that names the node. `patient`:
  // no timeout while the connection to the node lives.
  KeptCall(EventLoop* loop, NodeLinks* nodes, v1::NodeInfo node, v1::KeptRequest request, bool patient,
           std::function<void(v1::KeptEvent)> heard);
  ~KeptCall();
  // Call after the first event.
  void Send(const v1::KeptRequest& request);

 private:
  void Open();
  void Heard(v1::KeptEvent event);
  void Fail(const Error& error);

  EventLoop* const loop_;
  NodeLinks* const nodes_;
  const v1::NodeInfo node_;
  v1::KeptRequest request_;
  const bool patient_;
  const std::function<void(v1::KeptEvent)> heard_;
  std::unique_ptr<KeptStream> stream_;
  int address_ = 0;
  bool over_ = false;
  EventLoop::TimerId timer_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// A job's kept writes, and the nodes that have them.
struct KeptFound {
  std::vector<v1::Kept> kept;  // by attempt; those with a `problem` last
  std::vector<v1::NodeInfo> nodes;
};
// Asks every node on which the job had an attempt. `done` is called once, later; an error is the controller's.
void FindKept(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes, const v1::JobInfo& job,
              std::function<void(Result<KeptFound>)> done);

}  // namespace vrun::home
