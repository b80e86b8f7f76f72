// SPDX-License-Identifier: Apache-2.0
// LiveRoot: content that was written here and is home's by now leaves this node's disk. decisions/0019.
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "vfs/live_root.h"

namespace vrun::vfs {

bool LiveRoot::IsHomes(const LiveNode& node) {
  if (!node.file || !node.home || node.change != 0 || node.names.empty() || node.home_path) return false;
  if (node.file->dirty() || node.writers > 0) return false;
  if (node.at_home.ino == 0 || node.at_home != node.version) return false;
  return std::all_of(node.names.begin(), node.names.end(), [](const LiveName& link) {
    return link.parent->directory->entries.find(link.name)->second.change == 0;
  });
}

uint64_t LiveRoot::DropWritten(uint64_t keep_bytes) {
  struct Candidate {
    timespec mtime;
    uint64_t bytes;
    uint64_t nodeid;
  };
  std::vector<Candidate> candidates;
  uint64_t total = 0;
  {
    const TreeLock lock(*this);
    tree_.ForEach([&](const LiveNode& node) {
      struct stat st {};
      if (!IsHomes(node) || node.file->Stat(&st) != 0) return;
      const auto bytes = static_cast<uint64_t>(st.st_blocks) * 512;
      candidates.push_back({st.st_mtim, bytes, node.nodeid});
      total += bytes;
    });
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.mtime.tv_sec, a.mtime.tv_nsec) < std::pair(b.mtime.tv_sec, b.mtime.tv_nsec);
  });
  uint64_t dropped = 0;
  for (const Candidate& one : candidates) {
    if (total - dropped <= keep_bytes) break;
    std::shared_ptr<LiveFile> file;  // goes after the lock
    const TreeLock lock(*this);
    LiveNode* node = tree_.Find(one.nodeid);
    if (node == nullptr || !IsHomes(*node)) continue;
    uint64_t valid = 0;
    const fuse_attr attr = AttrLocked(*node, &valid);
    LiveAttributes& a = node->attributes;
    a.size = attr.size;
    a.blocks = attr.blocks;
    a.atime = {static_cast<time_t>(attr.atime), static_cast<long>(attr.atimensec)};
    a.mtime = {static_cast<time_t>(attr.mtime), static_cast<long>(attr.mtimensec)};
    a.ctime = {static_cast<time_t>(attr.ctime), static_cast<long>(attr.ctimensec)};
    node->opened = true;  // the kernel may have content
    file = std::exchange(node->file, nullptr);
    tree_.Touch(node);
    dropped += one.bytes;
  }
  return dropped;
}

}  // namespace vrun::vfs
