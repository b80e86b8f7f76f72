// SPDX-License-Identifier: Apache-2.0
// Who wants to hear of every state of the root: the content sessions of nodes on which live views are in use.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

namespace vrun::home {

// Any thread. Callbacks run with the board's lock held: they must not call it, but for Included.
class TreeBoard {
 public:
  // `tell`: the snapshot table has what is current as of now. `ping`: whoever tells is alive. Returned: its id.
  uint64_t Join(std::function<void()> tell, std::function<void()> ping = nullptr);
  // When it returns `tell` does not run any more. An unknown id is fine.
  void Leave(uint64_t id);
  // `included`: of each live view, the sequence of its writes up to which all are in the tree; from Mark, before the
  // tree was looked at.
  void Tell(std::map<uint64_t, uint64_t> included = {});
  // The table has another tree than was told last, whoever had it made.
  void TellAgain();
  // The table is kept current for the members by now: it was told since the first of them joined.
  bool current() const;
  void Ping();
  // A member waits to be told: the root is looked at now.
  void Look();
  // What was told last; to be asked before the tree is taken from the table. 0: none.
  uint64_t Included(uint64_t view) const;
  // What of each live view's writes is in the root by now.
  std::map<uint64_t, uint64_t> Mark() const;
  void SetMark(std::function<std::map<uint64_t, uint64_t>()> mark);
  // Somebody wants to know (the first has joined), or nobody any more. Called at once with what is. Null: over.
  void SetWanted(std::function<void(bool wanted)> wanted);
  void SetLook(std::function<void()> look);

 private:
  struct Member {
    std::function<void()> tell;
    std::function<void()> ping;
  };
  mutable std::mutex mutex_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Member> members_;
  bool told_ = false;  // since there are members
  std::function<void(bool)> wanted_;
  std::function<void()> look_;

  mutable std::mutex included_mutex_;
  std::function<std::map<uint64_t, uint64_t>()> mark_;
  std::map<uint64_t, uint64_t> included_;
};

}  // namespace vrun::home
