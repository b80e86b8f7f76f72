// SPDX-License-Identifier: Apache-2.0
// What distinguishes the sandboxes of a node: a job may have several attempts and each attempt several pods, also on
// one node.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace vrun::node {

struct AttemptKey {
  uint64_t job = 0;
  uint32_t attempt = 0;
  uint32_t pod = 0;  // index in the gang

  auto operator<=>(const AttemptKey&) const = default;

  // Of any message that has these three fields.
  template <typename Message>
  static AttemptKey Of(const Message& message) {
    return {message.job(), message.attempt(), message.pod()};
  }

  // JOB.ATTEMPT for the first pod, else JOB.ATTEMPT.POD: the name of files and directories.
  std::string Name() const {
    std::string name = std::to_string(job) + "." + std::to_string(attempt);
    if (pod != 0) name += "." + std::to_string(pod);
    return name;
  }
};

}  // namespace vrun::node
