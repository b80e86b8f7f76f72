// SPDX-License-Identifier: Apache-2.0
// Remembers requests that changed names, by their unique. If a server dies before it has answered such a request, the
// kernel sends it again to the next server, which must answer it without doing it twice.
//
// With the tree's lock held, except for Find.
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
  static constexpr uint64_t kExists = UINT64_MAX;  // for `node`: the answer was EEXIST

  // The same for a request whoever sent it.
  static uint64_t UniqueOf(uint64_t unique) { return unique & ~kResent; }

  // Restores what the previous server has done; call before the first request.
  void Restore(const LiveState& state) {
    before_.insert(state.done.begin(), state.done.end());
    lately_ = state.done;  // this server may die before it has answered, too
  }
  // Records a finished request that made `node` (0: nothing). `frame`: null without a journal; then it cannot be
  // resent.
  void Did(uint64_t unique, uint64_t node, LiveFrame* frame) {
    if (frame == nullptr) return;
    frame->Done(unique & ~kResent, node);
    lately_.emplace_back(unique & ~kResent, node);
    if (lately_.size() > kMostLately) lately_.pop_front();
  }
  // The node that the request made, if the previous server has done it.
  std::optional<uint64_t> Find(uint64_t unique) const {
    if ((unique & kResent) == 0) return std::nullopt;
    const auto it = before_.find(unique & ~kResent);
    return it != before_.end() ? std::optional(it->second) : std::nullopt;
  }
  void AddToCheckpoint(LiveFrame* all) const {
    for (const auto& [unique, node] : lately_) all->Done(unique, node);
  }

 private:
  static constexpr uint64_t kResent = 1ull << 63;  // set on a request that another server has read (FUSE_UNIQUE_RESEND)
  static constexpr size_t kMostLately = 4096;      // more than can be done while one waits for its answer

  std::deque<std::pair<uint64_t, uint64_t>> lately_;
  std::unordered_map<uint64_t, uint64_t> before_;  // const once restored
};

}  // namespace vrun::vfs
