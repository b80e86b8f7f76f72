// SPDX-License-Identifier: Apache-2.0
// The pods of a job's attempt and their ranks, as one of the pods sees them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/control.pb.h"

namespace vrun::node {

class Gang {
 public:
  struct Pod {
    uint32_t number = 0;
    std::string name;  // ROLE-NUMBER, numbered within its role
    std::string
        host_name;  // what its processes see as the host's name: the node's, unless several pods are on one node
    std::string role, node;
    std::string address;  // where the other pods reach it; "": unknown
    uint32_t first_rank = 0, ranks = 1, gpus = 0;
  };

  // `node`: the node of this pod. A job of one pod needs no list of pods.
  Gang(const v1::StartAttempt& order, const std::string& node);

  // Several pods or several ranks: the processes get the environment of a distributed job.
  static bool Is(const v1::StartAttempt& order);
  // The processes that the supervisor starts in this pod. 0: none; another pod starts them.
  static uint32_t ProcessesHere(const v1::StartAttempt& order);

  // In order of their numbers, which have gaps where pods have left the job.
  const std::vector<Pod>& pods() const { return pods_; }
  // The number of this pod.
  uint32_t pod() const { return here().number; }
  // Its place in pods().
  size_t index() const { return index_; }
  const Pod& here() const { return pods_[index_]; }
  uint32_t world_size() const { return world_size_; }

  // The number of a pod, by that number, its name, or the name of its node, with or without a domain.
  std::optional<uint32_t> Find(std::string_view name) const;

  // Lines for /etc/hosts: all names of all pods whose address is known.
  std::string HostsLines() const;
  // For programs: {"job", "attempt", "pod", "pods": [{"pod", "name", "role", "node", "host", "first_rank", "ranks",
  // "gpus"}]}, on one line.
  std::string MembersJson() const;

 private:
  uint64_t job_;
  uint32_t attempt_, world_size_ = 0;
  size_t index_ = 0;
  bool left_ = false;  // this pod is not among those that the job has now
  std::vector<Pod> pods_;
};

// The beginning of an answer: whose it is and that the process is over.
v1::ExecInPod AnswerTo(const v1::ExecInPod& exec);

}  // namespace vrun::node
