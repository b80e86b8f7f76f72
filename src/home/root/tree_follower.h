// SPDX-License-Identifier: Apache-2.0
// Keeps the root's tree current for as long as somebody on the TreeBoard wants to know, and tells them: a change once
// what belongs to it is there too (0.3 ms), a burst of them every few milliseconds, and once a second that it is still
// so. However long a look at the root takes, they get a ping every second.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "base/io/event_loop.h"
#include "home/root/root_tree.h"
#include "home/root/tree_board.h"

namespace vrun::home {

// Loop thread only. The others must outlive it.
class TreeFollower {
 public:
  TreeFollower(EventLoop* loop, RootTree* tree, TreeBoard* board);
  ~TreeFollower();

 private:
  void Wanted(bool wanted);
  void Changed();
  void Beat();
  // Now, or when the last time is long enough ago.
  void Refresh();
  void Refreshed(Result<tree::SnapshotPtr> result, const std::map<uint64_t, uint64_t>& included);

  EventLoop* const loop_;
  RootTree* const tree_;
  TreeBoard* const board_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  bool wanted_ = false;
  bool running_ = false;
  int64_t changed_ = 0;  // monotonic, the first change since the last one began; 0: none
  int64_t began_ = 0;    // of the last one
  int64_t took_ = 0;     // the last one
  int64_t rest_ = 0;     // from began_ to the next, at least, for those are slow
  int64_t gap_ = 0;      // microseconds from began_ to the next, at least
  EventLoop::TimerId timer_ = 0;
  bool timer_is_beat_ = false;
  EventLoop::TimerId ping_ = 0;
};

}  // namespace vrun::home
