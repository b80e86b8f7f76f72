// SPDX-License-Identifier: Apache-2.0
// Assigns a node's processors to attempts.
//
// An attempt with N thousandths of a core gets N/1000 processors, rounded up. While the node is not overcommitted, no
// processor is promised twice: fractions of a core share one processor until it is full, whole cores get their own.
// Capacity beyond the real processors (`--milli-cpus`) goes to the least loaded ones. An attempt that gets as many
// processors as the node has is not restricted.
#pragma once

#include <cstdint>
#include <map>

#include "base/cpu_list.h"
#include "node/attempt_key.h"

namespace vrun::node {

// Single-threaded.
class CpuShares {
 public:
  using Key = AttemptKey;

  explicit CpuShares(const CpuList& cpus);

  // Assigns processors until Free. Repeated calls for one key return the same list. Empty: all processors of the node.
  CpuList Give(Key key, uint32_t milli_cpus);
  // Restores an assignment made by an earlier agent.
  void Restore(Key key, uint32_t milli_cpus, const CpuList& cpus);
  void Free(Key key);

  uint64_t LoadOf(uint32_t cpu) const;  // in thousandths of a processor

 private:
  struct Share {
    CpuList cpus;
    uint32_t milli_each = 0;
  };
  std::map<uint32_t, uint64_t> loads_;  // load of each processor of the node
  std::map<Key, Share> shares_;
};

}  // namespace vrun::node
