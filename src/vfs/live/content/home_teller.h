// SPDX-License-Identifier: Apache-2.0
// Tells home what has changed in a live view, as operations of its journal, in the order of their history. Without a
// journal nothing is told.
//
// All with a TreeLock, under which the change was made.
#pragma once

#include "vfs/live/tree/journaled_tree.h"

namespace vrun::vfs {

class HomeTeller {
 public:
  using Kind = LiveOperation::Kind;

  explicit HomeTeller(JournaledTree& tree) : tree_(tree) {}  // which must outlive it

  void TellLocked(Kind kind, LiveNode* node, std::string path, std::string from = {}, uint64_t other = 0);
  // It has its first name. Of a regular file home hears when it is published.
  void TellMadeLocked(LiveNode* node);
  // Its attributes or extended attributes.
  void TellMetaLocked(LiveNode* node);
  // `gone`: it was a file's last name.
  void TellRemovedLocked(uint64_t nodeid, const std::string& path, bool gone);
  // Of what kind it may be, with the attributes of now.
  LiveOperation OperationLocked(Kind kind, LiveNode* node) const;

 private:
  JournaledTree& tree_;
};

}  // namespace vrun::vfs
