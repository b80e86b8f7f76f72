// SPDX-License-Identifier: Apache-2.0
// The processes that other pods of the job start in this one (ExecInPod), from the request to the answer. Loop thread
// only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/unique_fd.h"
#include "proto/common.pb.h"
#include "sandbox/sandbox.h"

namespace vrun::node {

class PodProcesses {
 public:
  // `answer`: called once for each process.
  PodProcesses(EventLoop* loop, std::function<void(const v1::ExecInPod& answer)> answer)
      : loop_(loop), answer_(std::move(answer)) {}
  ~PodProcesses();

  // `environment`: of the pod's command. `output`, `error`: what the process gets as stdout and stderr.
  void Start(sandbox::Sandbox* sandbox, const v1::ExecInPod& exec, const std::vector<std::string>& environment,
             UniqueFd output, UniqueFd error);
  // From Sandbox::TakeExecEnds.
  void OnEnd(const sandbox::Sandbox& sandbox, const sandbox::ProcessEnd& end);
  // The sandbox is gone, and everything inside with it.
  void EndAll(const std::string& problem);

 private:
  struct Process {
    v1::ExecInPod answer;
    std::string name;
    UniqueFd start;
    bool waits = false;  // `start` is watched
  };
  void OnStart(const sandbox::Sandbox& sandbox, int32_t number);
  void Answer(int32_t number);
  void Unwatch(Process* process);

  EventLoop* loop_;
  std::function<void(const v1::ExecInPod&)> answer_;
  std::map<int32_t, Process> processes_;
  int32_t next_ = 1;
};

}  // namespace vrun::node
