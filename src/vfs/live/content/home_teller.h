// SPDX-License-Identifier: Apache-2.0
// Tells home what has changed in a live view, as operations of its journal, in the order in which they happened.
// Without a journal it does nothing.
//
// All methods need the TreeLock under which the change was made.
#pragma once

#include "vfs/live/tree/journaled_tree.h"

namespace vrun::vfs {

class HomeTeller {
 public:
  using Kind = LiveOperation::Kind;

  explicit HomeTeller(JournaledTree& tree) : tree_(tree) {}  // `tree` must outlive it

  void TellLocked(Kind kind, LiveNode* node, std::string path, std::string from = {}, uint64_t other = 0);
  // The node has its first name. Home hears of a regular file only when it is published.
  void TellMadeLocked(LiveNode* node);
  // Its attributes or extended attributes have changed.
  void TellMetaLocked(LiveNode* node);
  // `gone`: it was a file's last name.
  void TellRemovedLocked(uint64_t nodeid, const std::string& path, bool gone);
  // Asks home to make `path` as `node` is, if nobody has that name there. For a link, `from` is a name of the node, and
  // otherwise the node has no name. Returns the operation's number.
  uint64_t ClaimLocked(Kind kind, LiveNode* node, std::string path, std::string from);
  // An operation of this kind with the current attributes; the kind depends on what home knows of the node.
  LiveOperation OperationLocked(Kind kind, LiveNode* node) const;

 private:
  JournaledTree& tree_;
};

}  // namespace vrun::vfs
