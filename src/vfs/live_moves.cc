// SPDX-License-Identifier: Apache-2.0
#include "vfs/live_moves.h"

#include <sys/stat.h>

#include <algorithm>

#include "base/clock.h"
#include "vfs/directory_walk.h"
#include "vfs/live_file.h"

namespace vrun::vfs {
namespace {

bool IsInode(const tree::FileVersion& inode, const tree::Entry& is) {
  return inode.ino != 0 && inode.dev == is.dev && inode.ino == is.ino;
}

bool SameType(const LiveNode& node, const tree::Entry& is) {
  return (node.attributes.mode & S_IFMT) == (is.mode & S_IFMT);
}

}  // namespace

const tree::FileVersion& LiveMoves::InodeOf(const LiveNode& node) {
  return node.at_home.ino != 0 && (node.file || node.version.ino == 0) ? node.at_home : node.version;
}

bool LiveMoves::IsUntouched(const LiveNode& node, const tree::Entry& is) {
  const tree::FileVersion& known = InodeOf(node);
  if (!IsInode(known, is) || known.size != is.size || is.mtime_ns > known.ctime_ns) return false;
  if (!node.file) return ToNanos(node.attributes.mtime) == is.mtime_ns;
  struct stat st {};
  return node.file->dirty() || (node.file->Stat(&st) == 0 && ToNanos(st.st_mtim) == is.mtime_ns);
}

bool LiveMoves::IsSame(const LiveNode& node, const tree::Entry& is) const {
  if (!SameType(node, is) || !IsInode(InodeOf(node), is)) return false;
  if (is.is_regular()) return IsUntouched(node, is);
  if (!is.is_directory()) return node.target == is.target && node.attributes.rdev == is.rdev;
  const LiveDirectory& of = *node.directory;
  if ((of.has_lower && of.digest == is.child) || ToNanos(node.attributes.mtime) == is.mtime_ns) return true;
  const LoadedDirectoryPtr next = of.loaded ? object_(is.child) : nullptr;
  bool shared = false;
  if (next != nullptr) {
    WalkBoth(of.loaded.get(), *next->directory, [&](size_t i, size_t j) {
      if (shared || i == kNoEntry || j == kNoEntry) return;
      const tree::Entry was = of.loaded->directory->At(i), now = next->directory->At(j);
      shared = was.dev == now.dev && was.ino == now.ino;
    });
  }
  return shared;
}

std::vector<LiveMove> LiveMoves::Find(LiveNode* root, const tree::Entry& next) {
  std::vector<LiveMove> moves;
  pairs_.push_back({root, next.child});
  while (!pairs_.empty()) {
    while (!pairs_.empty()) {
      const Pair pair = std::move(pairs_.back());
      pairs_.pop_back();
      Compare(pair);
    }
    if (lost_.empty()) return moves;
    while (!unknown_.empty() && searched_ < kMostUnknown) {
      const Unknown unknown = std::move(unknown_.back());
      unknown_.pop_back();
      Search(unknown);
    }
    for (Lost& lost : lost_) {
      if (lost.done) continue;
      const tree::FileVersion& inode = InodeOf(*lost.node);
      const auto [first, last] = found_.equal_range({inode.dev, inode.ino});
      const auto at = std::find_if(first, last, [&](const auto& found) {
        const Place& place = found.second;
        return !LiveTree::IsInside(*place.directory, *lost.node) &&
               IsSame(*lost.node, place.object->directory->At(place.index));
      });
      if (at == last) continue;
      const tree::Entry is = at->second.object->directory->At(at->second.index);
      moves.push_back({lost.node, lost.from, lost.name, at->second.directory, at->second.below, is.name});
      found_.erase(at);
      lost.done = true;
      if (is.is_directory()) pairs_.push_back({lost.node, is.child});
    }
    if (!pairs_.empty()) continue;
    // What is in those that are nowhere may be elsewhere.
    for (Lost& lost : lost_) {
      if (!std::exchange(lost.done, true) && lost.node->is_directory()) pairs_.push_back({lost.node, lost.other});
    }
  }
  return moves;
}

void LiveMoves::Compare(const Pair& pair) {
  LiveNode* directory = pair.directory;
  const LiveDirectory& of = *directory->directory;
  const bool same = pair.next && of.has_lower && of.digest == *pair.next;
  if (same && !of.restored) return;
  if (of.entries.empty() && !of.loaded) {
    if (pair.next && of.has_lower) unknown_.push_back({directory, {}, of.digest, *pair.next});
    return;
  }
  const LoadedDirectoryPtr next = pair.next ? object_(*pair.next) : nullptr;
  if (pair.next && next == nullptr) return;
  const LoadedDirectoryPtr before = same ? next : of.loaded;
  if (next != nullptr && before != nullptr) {
    WalkBoth(before.get(), *next->directory, [&](size_t i, size_t j) {
      const bool both = i != kNoEntry && j != kNoEntry;
      if (both && before->directory->EncodedAt(i) == next->directory->EncodedAt(j)) return;
      std::optional<tree::Entry> was;
      if (i != kNoEntry) was = before->directory->At(i);
      const std::string name(j != kNoEntry ? next->directory->NameAt(j) : before->directory->NameAt(i));
      Differs(directory, name, next, j, was ? &*was : nullptr);
    });
    return;
  }
  for (const auto& [name, entry] : of.entries) {
    Differs(directory, name, next, next ? next->directory->Find(name) : kNoEntry, nullptr);
  }
  for (size_t j = 0; next != nullptr && j < next->directory->size(); ++j) {
    const std::string name(next->directory->NameAt(j));
    if (!of.entries.contains(name)) Differs(directory, name, next, j, nullptr);
  }
}

// `before`: what home had there, if that is known.
void LiveMoves::Differs(LiveNode* directory, const std::string& name, const LoadedDirectoryPtr& next, size_t index,
                        const tree::Entry* before) {
  std::optional<tree::Entry> is;
  if (next != nullptr && index < next->directory->size()) is = next->directory->At(index);
  const auto& entries = directory->directory->entries;
  const auto entry = entries.find(name);
  LiveNode* node = entry != entries.end() ? entry->second.node : nullptr;
  const bool homes = node != nullptr && node->home && entry->second.change <= included_;
  const bool stays = homes && is && SameType(*node, *is) && IsInode(InodeOf(*node), *is);
  if (homes && !stays) {
    std::optional<Digest> other;
    if (is && is->is_directory()) other = is->child;
    lost_.push_back({directory, name, node, other});
  }
  if (!is) return;
  if (stays) {
    if (is->is_directory()) pairs_.push_back({node, is->child});
    return;
  }
  if (before != nullptr && before->dev == is->dev && before->ino == is->ino) {  // nobody knows it, or it is ours
    if (is->is_directory() && before->is_directory()) unknown_.push_back({directory, {name}, before->child, is->child});
    return;
  }
  found_.emplace(Inode(is->dev, is->ino), Place{directory, {}, next, index});
  if (is->is_directory()) unknown_.push_back({directory, {name}, std::nullopt, is->child});
}

void LiveMoves::Search(const Unknown& unknown) {
  const LoadedDirectoryPtr next = object_(unknown.next);
  if (next == nullptr) return;
  const LoadedDirectoryPtr before = unknown.before ? object_(*unknown.before) : nullptr;
  WalkBoth(before.get(), *next->directory, [&](size_t i, size_t j) {
    if (j == kNoEntry) return;
    if (i != kNoEntry && before->directory->EncodedAt(i) == next->directory->EncodedAt(j)) return;
    ++searched_;
    const tree::Entry is = next->directory->At(j);
    std::optional<Digest> was;
    if (i != kNoEntry) {
      const tree::Entry old = before->directory->At(i);
      if (old.is_directory()) was = old.child;
    }
    found_.emplace(Inode(is.dev, is.ino), Place{unknown.directory, unknown.below, next, j});
    if (!is.is_directory()) return;
    std::vector<std::string> below = unknown.below;
    below.push_back(is.name);
    unknown_.push_back({unknown.directory, std::move(below), was, is.child});
  });
}

}  // namespace vrun::vfs
