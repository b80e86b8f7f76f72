// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/content/home_teller.h"

#include <sys/stat.h>

#include <utility>

#include "vfs/fuse/attributes.h"
#include "vfs/live/tree/node_attributes.h"

namespace vrun::vfs {

LiveOperation HomeTeller::OperationLocked(Kind kind, LiveNode* node) const {
  LiveOperation op;
  op.kind = kind;
  op.node = node->nodeid;
  const LiveAttributes now = CurrentAttributes(*node);
  op.attributes = node->attributes;
  op.attributes.uid = tree_.ids().ToHome(now.uid);
  op.attributes.gid = tree_.ids().ToHome(now.gid);
  op.attributes.mtime = now.mtime;
  op.attributes.atime = now.atime;
  for (const auto& [name, value] : node->xattrs) {
    op.xattrs.emplace_back(name, HomeXattr(name, value, tree_.ids()));
  }
  op.target = node->target;
  return op;
}

void HomeTeller::TellLocked(Kind kind, LiveNode* node, std::string path, std::string from, uint64_t other) {
  if (!tree_.journaled()) return;
  LiveOperation op = OperationLocked(kind, node);
  op.path = std::move(path);
  op.from = std::move(from);
  op.other = other;
  op.born = !node->named_at_home();
  node->SetNamedAtHome();
  tree_.Touch(node);
  tree_.AddLocked(std::move(op));
}

uint64_t HomeTeller::ClaimLocked(Kind kind, LiveNode* node, std::string path, std::string from) {
  LiveOperation op = OperationLocked(kind, node);
  op.path = std::move(path);
  op.from = std::move(from);
  op.exclusive = true;
  tree_.AddLocked(std::move(op));
  return tree_.stream().last();
}

void HomeTeller::TellMadeLocked(LiveNode* node) {
  if (!tree_.journaled()) return;
  const uint32_t type = node->attributes.mode & S_IFMT;
  const std::string path = tree_.PathOf(*node);
  if (type == S_IFDIR) TellLocked(Kind::kDirectory, node, path);
  if (type == S_IFLNK) TellLocked(Kind::kSymlink, node, path);
  if (type == S_IFIFO || type == S_IFSOCK) TellLocked(Kind::kSpecial, node, path);
  // A regular file is told when it is published. A device is never told: only root could make it at home, and should
  // not.
}

void HomeTeller::TellMetaLocked(LiveNode* node) {
  if (!tree_.journaled()) return;
  tree_.Touch(node);
  // Something that home has not heard of is later told with all its attributes.
  if (!node->named_at_home() || (node->names.empty() && node->nodeid != LiveTree::kRootId)) return;
  TellLocked(Kind::kMeta, node, tree_.PathOf(*node));
}

void HomeTeller::TellRemovedLocked(uint64_t nodeid, const std::string& path, bool gone) {
  if (!tree_.journaled()) return;
  if (gone && tree_.TakeBackOperationsLocked(nodeid)) return;
  LiveOperation op;
  op.kind = Kind::kRemove;
  op.node = nodeid;
  op.path = path;
  tree_.AddLocked(std::move(op));
}

}  // namespace vrun::vfs
