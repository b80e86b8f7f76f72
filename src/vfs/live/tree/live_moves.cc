// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/tree/live_moves.h"

#include <sys/stat.h>

#include <algorithm>

#include "base/clock.h"
#include "vfs/live/data/live_file.h"
#include "vfs/live/tree/directory_walk.h"

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
  const tree::FileVersion& inode = InodeOf(node);
  if (!SameType(node, is) || !IsInode(inode, is)) return false;
  if (is.is_regular()) return IsUntouched(node, is);
  if (is.is_symlink()) return node.target == is.target;
  if (!is.is_directory()) return is.mtime_ns <= inode.ctime_ns;
  const LiveDirectory& of = *node.directory;
  static const Digest kEmpty = tree::Directory::Make({}, nullptr)->digest();
  if (of.has_lower && of.digest == is.child && is.child != kEmpty) return true;
  if (ToNanos(node.attributes.mtime) == is.mtime_ns) return true;
  const LoadedDirectoryPtr next = of.loaded ? object_(is.child) : nullptr;
  bool shared = false;
  if (next != nullptr) {
    WalkBoth(of.loaded.get(), *next->directory, [&](size_t i, size_t j) {
      shared |= i != kNoEntry && j != kNoEntry && of.loaded->directory->EncodedAt(i) == next->directory->EncodedAt(j);
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
    Search(lost_.empty() ? kMostArrivals : kMostUnknown);
    if (arrivals_.empty()) {
      for (const auto& [inode, place] : found_) {
        if (arrivals_.size() < kMostArrivals) arrivals_.push_back(place);
      }
    }
    if (lost_.empty()) return moves;
    for (Lost& lost : lost_) {
      if (lost.done) continue;
      const tree::FileVersion& inode = InodeOf(*lost.node);
      const auto [first, last] = found_.equal_range({inode.dev, inode.ino});
      const auto at = std::find_if(first, last, [&](const auto& found) {
        const Place& place = found.second;
        if (LiveTree::IsInside(*place.directory, *lost.node)) return false;
        const tree::Entry is = place.object->directory->At(place.index);
        if (lost.was && is.is_regular() && is.size == lost.was->size && is.mtime_ns == lost.was->mtime_ns) return true;
        return IsSame(*lost.node, is);
      });
      if (at == last) continue;
      const tree::Entry is = at->second.object->directory->At(at->second.index);
      moves.push_back({lost.node, lost.from, lost.name, at->second.directory, at->second.below, is.name});
      found_.erase(at);
      lost.done = true;
      if (is.is_directory()) pairs_.push_back({lost.node, is.child});
    }
    if (!pairs_.empty()) continue;
    // The content of directories that were not found may be elsewhere.
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

// `before`: home's previous entry there, if known.
void LiveMoves::Differs(LiveNode* directory, const std::string& name, const LoadedDirectoryPtr& next, size_t index,
                        const tree::Entry* before) {
  std::optional<tree::Entry> is;
  if (next != nullptr && index < next->directory->size()) is = next->directory->At(index);
  const auto& entries = directory->directory->entries;
  const auto entry = entries.find(name);
  LiveNode* node = entry != entries.end() ? entry->second.node : nullptr;
  // Home may have renamed something made here before any tree showed it.
  const bool homes = node != nullptr && entry->second.change <= included_ && InodeOf(*node).ino != 0;
  const bool stays = homes && is && SameType(*node, *is) && IsInode(InodeOf(*node), *is);
  if (homes && !stays) {
    std::optional<Digest> other;
    if (is && is->is_directory()) other = is->child;
    std::optional<tree::Entry> was;
    if (before != nullptr && before->is_regular() && IsInode(InodeOf(*node), *before)) was = *before;
    lost_.push_back({directory, name, node, other, was});
  }
  if (!is) return;
  if (stays) {
    if (is->is_directory()) pairs_.push_back({node, is->child});
    return;
  }
  if (before != nullptr && before->dev == is->dev && before->ino == is->ino) {  // not known here, or ours
    if (is->is_directory() && before->is_directory()) unknown_.push_back({directory, {name}, before->child, is->child});
    return;
  }
  found_.emplace(Inode(is->dev, is->ino), Place{directory, {}, next, index});
  if (is->is_directory()) unknown_.push_back({directory, {name}, std::nullopt, is->child});
}

std::vector<LiveMoves::Place> LiveMoves::TakeArrivals() { return std::exchange(arrivals_, {}); }

void LiveMoves::Search(size_t most) {
  while (!unknown_.empty() && searched_ < most) {
    const Unknown unknown = std::move(unknown_.back());
    unknown_.pop_back();
    Search(unknown, most);
  }
}

void LiveMoves::Search(const Unknown& unknown, size_t most) {
  const LoadedDirectoryPtr next = object_(unknown.next);
  if (next == nullptr) return;
  const LoadedDirectoryPtr before = unknown.before ? object_(*unknown.before) : nullptr;
  WalkBoth(before.get(), *next->directory, [&](size_t i, size_t j) {
    if (j == kNoEntry || searched_ >= most) return;
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
