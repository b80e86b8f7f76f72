// SPDX-License-Identifier: Apache-2.0
// The directory objects of a tree that is not known yet, asked of home all in one before anybody looks a name up: a
// *tree burst*. What does not come is no error: it is asked for when it is looked up.
//
// There are two lines of trees, whole ones and those of what lies apart (docs/decisions/0003); of each home is told the
// last tree of which all was here, also before a restart, and leaves out what is the same.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/digest.h"
#include "base/event_loop.h"
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
  // Returns when the burst of this tree is over, if there is one, or after 0.2 s. Any thread.
  void Wait(const Digest& tree);

 private:
  class Burst;

  void Done(const Digest& tree, bool apart, const Status& status);
  std::string NoteOf(bool apart) const;

  EventLoop* const loop_;
  ContentSource* const home_;
  vfs::Backend* const backend_;
  const std::string directory_;
  Digest known_tree_, known_apart_;  // all of its directory objects were here once; zero: none
  std::mutex mu_;
  std::map<Digest, std::shared_ptr<Burst>> bursts_;
};

}  // namespace vrun::node
