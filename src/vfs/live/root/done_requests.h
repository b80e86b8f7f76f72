// SPDX-License-Identifier: Apache-2.0
// Requests that changed names, by their unique. A server may die before it has answered one; then the kernel sends it
// again, to the next server, which answers it and does not do it twice.
//
// With the tree's lock held, but for Find.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>

#include "vfs/live/data/live_journal.h"

namespace vrun::vfs {

class DoneRequests {
 public:
  // What the server before has done; before the first request.
  void Restore(const LiveState& state) {
    before_.insert(state.done.begin(), state.done.end());
    lately_ = state.done;  // this one may die before it has answered
  }
  // It made `node` (0: nothing). `frame`: null without a journal, and then it cannot come again.
  void Did(uint64_t unique, uint64_t node, LiveFrame* frame) {
    if (frame == nullptr) return;
    frame->Done(unique & ~kResent, node);
    lately_.emplace_back(unique & ~kResent, node);
    if (lately_.size() > kMostLately) lately_.pop_front();
  }
  // The node that it made, if the server before did it.
  std::optional<uint64_t> Find(uint64_t unique) const {
    if ((unique & kResent) == 0) return std::nullopt;
    const auto it = before_.find(unique & ~kResent);
    return it != before_.end() ? std::optional(it->second) : std::nullopt;
  }
  void AddToCheckpoint(LiveFrame* all) const {
    for (const auto& [unique, node] : lately_) all->Done(unique, node);
  }

 private:
  static constexpr uint64_t kResent = 1ull << 63;  // of a request that another server had (FUSE_UNIQUE_RESEND)
  static constexpr size_t kMostLately = 4096;      // more than are done while one waits to be answered

  std::deque<std::pair<uint64_t, uint64_t>> lately_;
  std::unordered_map<uint64_t, uint64_t> before_;  // const once restored
};

}  // namespace vrun::vfs
