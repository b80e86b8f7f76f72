// SPDX-License-Identifier: Apache-2.0
// Which of a node's processors each attempt uses.
//
// An attempt that was given N thousandths of a core sees N/1000 processors, rounded up. As long as the node does not
// give more than it has, each processor is promised at most once: fractions of a core share one processor until it is
// full, whole cores get processors of their own. What a node offers beyond its processors (`--milli-cpus`) goes to the
// least loaded ones. An attempt that is given as many processors as there are is not limited to any.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "base/cpu_list.h"

namespace vrun::node {

// One thread.
class CpuShares {
 public:
  using Key = std::pair<uint64_t, uint32_t>;  // job, attempt

  explicit CpuShares(const CpuList& cpus);

  // The processors of this attempt until Free; again for the same key: the same ones. Empty: all of the node.
  CpuList Give(Key key, uint32_t milli_cpus);
  // An attempt that an earlier agent gave them to.
  void Restore(Key key, uint32_t milli_cpus, const CpuList& cpus);
  void Free(Key key);

  uint64_t LoadOf(uint32_t cpu) const;  // in thousandths of it

 private:
  struct Share {
    CpuList cpus;
    uint32_t milli_each = 0;
  };
  std::map<uint32_t, uint64_t> loads_;  // of each processor of the node
  std::map<Key, Share> shares_;
};

}  // namespace vrun::node
