// SPDX-License-Identifier: Apache-2.0
// Keeps the root's tree current while the TreeBoard has members, and tells them: about a single change after 0.3 ms (so
// that related changes come together), about a burst of changes every few milliseconds, and once a second that nothing
// changed. A ping goes out every second, however long a rescan takes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "base/io/event_loop.h"
#include "home/root/root_tree.h"
#include "home/root/tree_board.h"

namespace vrun::home {

// Loop thread only. The arguments must outlive it.
class TreeFollower {
 public:
  TreeFollower(EventLoop* loop, RootTree* tree, TreeBoard* board);
  ~TreeFollower();

 private:
  void Wanted(bool wanted);
  void Changed();
  void Beat();
  // Refreshes now, or when enough time has passed since the last refresh.
  void Refresh();
  void Refreshed(Result<tree::TreePtr> result, const std::map<uint64_t, uint64_t>& included);

  EventLoop* const loop_;
  RootTree* const tree_;
  TreeBoard* const board_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  bool wanted_ = false;
  bool running_ = false;
  int64_t changed_ = 0;  // monotonic time of the first change since the last refresh began; 0: none
  int64_t began_ = 0;    // start of the last refresh
  int64_t took_ = 0;     // duration of the last refresh
  int64_t rest_ = 0;     // minimum time from began_ to the next refresh after a slow one
  int64_t gap_ = 0;      // minimum microseconds from began_ to the next refresh
  EventLoop::TimerId timer_ = 0;
  bool timer_is_beat_ = false;
  EventLoop::TimerId ping_ = 0;
};

}  // namespace vrun::home
