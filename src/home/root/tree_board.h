// SPDX-License-Identifier: Apache-2.0
// The subscribers to every state of the root: content sessions of nodes with live views in use.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "base/thread/mutex.h"

namespace vrun::home {

// Any thread. Callbacks run with the board's lock held: they must not call the board, except Included.
class TreeBoard {
 public:
  // `tell`: the snapshot table is current as of now. `ping`: the teller is alive. Returns an id.
  uint64_t Join(std::function<void()> tell, std::function<void()> ping = nullptr);
  // `tell` does not run after the return. An unknown id is ignored.
  void Leave(uint64_t id);
  // `included`: for each live view, the sequence up to which its writes are in the tree. It comes from Mark, called
  // before the tree was examined.
  void Tell(std::map<uint64_t, uint64_t> included = {});
  // The table has a newer tree than was last told, whatever caused it.
  void TellAgain();
  // True if the table was told since the first member joined, so it is kept current.
  bool current() const;
  void Ping();
  // A member is waiting: examine the root now.
  void Look();
  // What was last told; read it before taking the tree from the table. 0: none.
  uint64_t Included(uint64_t view) const;
  // For each live view, the sequence up to which its writes are in the root now.
  std::map<uint64_t, uint64_t> Mark() const;
  void SetMark(std::function<std::map<uint64_t, uint64_t>()> mark);
  // `wanted` is called when the first member joins and when the last one leaves, and at once with the present state.
  // Null: unset.
  void SetWanted(std::function<void(bool wanted)> wanted);
  void SetLook(std::function<void()> look);

 private:
  struct Member {
    std::function<void()> tell;
    std::function<void()> ping;
  };
  mutable Mutex mutex_;
  uint64_t next_id_ VRUN_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Member> members_ VRUN_GUARDED_BY(mutex_);
  bool told_ VRUN_GUARDED_BY(mutex_) = false;  // since the first member joined
  std::function<void(bool)> wanted_ VRUN_GUARDED_BY(mutex_);
  std::function<void()> look_ VRUN_GUARDED_BY(mutex_);

  mutable Mutex included_mutex_;
  std::function<std::map<uint64_t, uint64_t>()> mark_ VRUN_GUARDED_BY(included_mutex_);
  std::map<uint64_t, uint64_t> included_ VRUN_GUARDED_BY(included_mutex_);
};

}  // namespace vrun::home
