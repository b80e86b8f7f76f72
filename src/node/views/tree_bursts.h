// SPDX-License-Identifier: Apache-2.0
// A *tree burst* fetches all directory objects of an unknown tree from home at once, before any name is looked up. A
// missing object is not an error: it is fetched when it is looked up.
//
// There are two series of trees: whole trees and apart trees (docs/decisions/0003). For each, home is told the last
// tree that was completely here, even before a restart, and omits what is unchanged. Home remembers only few trees. If
// it does not know that tree, the worker walks both from the root and asks only for directories that are not here. So
// only changes are sent, whatever home remembers.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/hash/digest.h"
#include "base/io/event_loop.h"
#include "base/io/work_queue.h"
#include "base/result.h"
#include "base/thread/mutex.h"

namespace vrun::vfs {
class Backend;
}

namespace vrun::node {

class ContentSource;

class TreeBursts {
 public:
  // Owns none of them. `directory` is the store's; the last complete tree is recorded there.
  TreeBursts(EventLoop* loop, ContentSource* home, vfs::Backend* backend, std::string directory);

  // Does nothing when the tree is known or in progress. Loop thread.
  void Start(const Digest& tree, bool apart);
  // Home has sent a live view this tree, with its new directories as far as home knew what is here. Fetches what is
  // still missing; the next burst is based on this tree. Any thread.
  void Told(const Digest& tree);
  // Waits until this tree's burst is over, if there is one, but at most 0.2 s. Any thread.
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
  Digest known_tree_, known_apart_;  // the last trees whose directory objects were all here; zero: none
  Digest told_;                      // the newest tree not processed yet; zero: none
  int whole_ = 0;                    // bursts of whole trees in progress
  bool resting_ = false;             // pausing before the next tree from home
  Mutex mu_;
  std::map<Digest, std::shared_ptr<Burst>> bursts_ VRUN_GUARDED_BY(mu_);
  WorkQueue worker_{"trees"};
};

}  // namespace vrun::node
