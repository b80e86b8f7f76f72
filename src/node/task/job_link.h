// SPDX-License-Identifier: Apache-2.0
// A task's part in the talk within its job: the job's socket, and the processes that pods start in each other.
//
//   a program's EXEC=POD → the agent of that pod, or this pod itself → the process there → its end → the answer here
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "base/io/event_loop.h"
#include "base/unique_fd.h"
#include "node/gang/job_socket.h"
#include "node/task/pod_processes.h"
#include "proto/supervisor.pb.h"
#include "proto/task.pb.h"
#include "sandbox/sandbox.h"

namespace vrun::node {

class JobLink {
 public:
  struct Events {
    std::function<bool(const v1::TaskDown&)> send;  // to the agent; false: there is none at present
    std::function<void()> on_saved;                 // the program has said so
    // What a new process gets as stdout or stderr.
    std::function<UniqueFd(bool error)> writer;
  };
  JobLink(EventLoop* loop, Events events);

  // The sandbox exists. It must outlive this or the call of End.
  void Begin(const v1::TaskSpec* spec, sandbox::Sandbox* sandbox);
  // The command runs: so may processes of other pods.
  void Started();
  // There is an agent again: it gets the answers that none was there to take.
  void Connected();
  // A process for this pod, or the answer to one that this pod asked for.
  void OnExec(const v1::ExecInPod& exec);
  // The spec that Begin got has other pods now: programs can read who they are.
  void MembersChanged();
  // After Sandbox::ReadControl.
  void OnControl();
  // Reads what programs said before they ended.
  void Drain() { socket_.Drain(); }
  // The sandbox is over.
  void End();

 private:
  void Ask(uint64_t connection, const std::string& pod, v1::ExecInPod exec);
  void Run(const v1::ExecInPod& exec);
  void OnAnswer(const v1::ExecInPod& answer);
  void Deliver(const v1::ExecInPod& answer);
  uint32_t pod() const { return spec_->order().placement().pod(); }

  Events events_;
  JobSocket socket_;
  PodProcesses processes_;
  const v1::TaskSpec* spec_ = nullptr;
  sandbox::Sandbox* sandbox_ = nullptr;
  bool started_ = false;
  std::vector<v1::ExecInPod> early_;    // received before the command runs
  std::map<uint64_t, uint64_t> asked_;  // ExecInPod.id -> connection
  std::vector<v1::TaskDown> unsent_;    // answers
  uint64_t next_id_ = 1;
};

}  // namespace vrun::node
