// SPDX-License-Identifier: Apache-2.0
// Waiting jobs sorted by (rank, arrival); internal to the policies.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <vector>

#include "sim/replay/engine.h"

namespace vrun::sim {

struct Ranked {
  int64_t rank = 0;  // smaller goes first
  JobIndex job = 0;  // in order of arrival, as in the trace
  auto operator<=>(const Ranked&) const = default;
};

class RankedQueue {
 public:
  void Add(Ranked entry) { entries_.insert(std::lower_bound(entries_.begin(), entries_.end(), entry), entry); }
  const std::vector<Ranked>& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }

  // Calls visit(entry) in order; its result decides about the entry.
  enum class Next { kKeep, kTake, kStop };  // kStop: keep this one and all after it
  template <typename Visit>
  void Sweep(Visit visit) {
    size_t to = 0;
    for (size_t from = 0; from < entries_.size(); ++from) {
      const Next next = visit(entries_[from]);
      if (next == Next::kStop) {
        if (to != from) entries_.erase(entries_.begin() + to, entries_.begin() + from);
        return;
      }
      if (next == Next::kKeep) entries_[to++] = entries_[from];
    }
    entries_.resize(to);
  }

 private:
  std::vector<Ranked> entries_;
};

}  // namespace vrun::sim
