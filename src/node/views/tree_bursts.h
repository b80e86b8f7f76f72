// SPDX-License-Identifier: Apache-2.0
// The directory objects of a tree that is not known yet, asked of home all in one before anybody looks a name up: a
// *tree burst*. What does not come is no error: it is asked for when it is looked up.
//
// There are two lines of trees, whole ones and those of what lies apart (docs/decisions/0003); of each home is told the
// last tree of which all was here, also before a restart, and leaves out what is the same. Home remembers few trees:
// where it does not know that one, both are gone through from the root down, and only directories that are not here are
// asked for. So what travels is what changed, whatever home remembers.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/hash/digest.h"
#include "base/io/event_loop.h"
#include "base/io/work_queue.h"
#include "base/result.h"

namespace vrun::vfs {
class Backend;
}

namespace vrun::node {

class ContentSource;

class TreeBursts {
 public:
  // None is owned. `directory` is the store's: there it is noted what was here last.
  TreeBursts(EventLoop* loop, ContentSource* home, vfs::Backend* backend, std::string directory);

  // Nothing happens when it is known or under way. Loop thread.
  void Start(const Digest& tree, bool apart);
  // Home has told a live view of this tree, with what is new in it as far as home knew what is here. What is missing
  // all the same is asked for, and the next burst is of what differs from this. Any thread.
  void Told(const Digest& tree);
  // Returns when the burst of this tree is over, if there is one, or after 0.2 s. Any thread.
  void Wait(const Digest& tree);

 private:
  class Burst;

  bool Begin(const Digest& tree, bool apart);
  void Ask(const Digest& tree, bool apart, const Digest& have);
  void Walk(const Digest& tree, bool apart, const Digest& have);  // on the worker
  void Over(const Digest& tree, bool apart, const Status& status);
  void Follow();
  void Done(const Digest& tree, bool apart, const Status& status);
  void Know(const Digest& tree, bool apart);
  std::string NoteOf(bool apart) const;

  EventLoop* const loop_;
  ContentSource* const home_;
  vfs::Backend* const backend_;
  const std::string directory_;
  Digest known_tree_, known_apart_;  // all of its directory objects were here once; zero: none
  Digest told_;                      // the newest that was not looked at yet; zero: none
  int whole_ = 0;                    // bursts of whole trees that are under way
  bool resting_ = false;             // until it is time to look at the next that home tells of
  std::mutex mu_;
  std::map<Digest, std::shared_ptr<Burst>> bursts_;
  WorkQueue worker_{"trees"};
};

}  // namespace vrun::node
