// SPDX-License-Identifier: Apache-2.0
// Brings home, without being asked, what an away job has kept on its nodes (RunSpec.away): finds the nodes, applies
// each series in the order of the attempts, and tells the nodes that they may remove it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "home/kept/kept_call.h"
#include "home/kept/kept_pull.h"

namespace vrun::home {

// Loop thread only, callbacks too; none runs after destruction.
class KeptCarry {
 public:
  struct Events {
    std::function<void(std::string)> on_notice;
    std::function<void(std::string path)> on_conflict;
    // The end. `left`: the operations that failed, whose series stay on their nodes.
    std::function<void(uint64_t left)> on_finished;
  };

  // Only the series of this pod. `node`: of the last attempt; what earlier attempts left on nodes that cannot be asked
  // stays there, and is named. `options`: as for the write-back of a job; attempt and journal are set here.
  // `journal`: where a series is recorded, so that a later home continues with it; "": only in memory.
  KeptCarry(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes, uint64_t job, uint32_t pod,
            std::string node, ApplyOptions options, std::string journal, Events events);
  ~KeptCarry();

 private:
  void Find();
  void Found(KeptFound found);
  void Again(const std::string& why);
  void Next();
  void Pull();
  void Heard(v1::KeptEvent event);
  void Taken(uint64_t bytes);
  void Pulled(Result<uint64_t> failed);
  void Drop();
  const v1::NodeInfo& Node() const;
  template <typename F>
  void Later(F f);

  EventLoop* const loop_;
  ControllerClient* const controller_;
  NodeLinks* const links_;
  const uint64_t job_;
  const uint32_t pod_;
  const std::string node_;
  const ApplyOptions options_;
  const std::string journal_;
  const Events events_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  EventLoop::TimerId again_ = 0;
  std::string told_;  // the last problem
  std::vector<v1::NodeInfo> nodes_;
  std::deque<v1::Kept> todo_;
  std::unique_ptr<KeptCall> call_;
  std::unique_ptr<KeptPull> pull_;
  uint64_t acknowledged_ = 0;
  uint64_t left_ = 0;
};

}  // namespace vrun::home
