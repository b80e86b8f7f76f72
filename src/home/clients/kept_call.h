// SPDX-License-Identifier: Apache-2.0
// One question about kept writes (proto/kept.proto) to one node, and what a job's nodes say together.
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
  // `heard` gets every event; the last one is a list, an end or an error, which names the node, and comes in any case.
  // `patient`: the node may be silent for as long as its connection lives.
  KeptCall(EventLoop* loop, NodeLinks* nodes, v1::NodeInfo node, v1::KeptRequest request, bool patient,
           std::function<void(v1::KeptEvent)> heard);
  ~KeptCall();
  // After the first event.
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

// What was found about a job's writes, and the nodes to ask for them.
struct KeptFound {
  std::vector<v1::Kept> kept;  // by attempt; those with a `problem` last
  std::vector<v1::NodeInfo> nodes;
};
// Asks every node on which the job had an attempt. `done` is called once, later; an error is the controller's.
void FindKept(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes, const v1::JobInfo& job,
              std::function<void(Result<KeptFound>)> done);

}  // namespace vrun::home
