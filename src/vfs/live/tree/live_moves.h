// SPDX-License-Identifier: Apache-2.0
// Finds what home has renamed among the nodes that a live view knows: a name that home no longer has, or has for
// something else, and the same inode under another name of the new tree. Users who have it open, or have it as their
// working directory, move with it, as on one machine.
//
// An inode number alone is no proof, because a file system reuses it at once. So a file is the same only if nothing was
// written to it since (size and times), and a directory only if it has its former content or time, or an unchanged
// child.
//
// The search covers directories that differ between the two trees, also those that nobody has looked into, as far as
// they are in memory (home sends new ones with the tree), and up to kMostUnknown names.
//
// Memory work only, under the tree's lock. Reads the LiveTree as it is before a merge.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vfs/live/tree/live_tree.h"

namespace vrun::vfs {

struct LiveMove {
  LiveNode* node = nullptr;
  LiveNode* from = nullptr;  // the old directory and name
  std::string name;
  // The new place: `below` that directory, through directories that have no nodes yet.
  LiveNode* directory = nullptr;
  std::vector<std::string> below;
  std::string to;
};

class LiveMoves {
 public:
  static constexpr size_t kMostUnknown = 20'000;

  // `included`: as LiveMerge has it.
  LiveMoves(uint64_t included, LiveTree::Objects object) : included_(included), object_(std::move(object)) {}

  // The nodes under `root`, as the view shows them, that are elsewhere in the next tree. Each directory comes before
  // nodes moved into it.
  std::vector<LiveMove> Find(LiveNode* root, const tree::Entry& next);

  // Names that are new in that tree, also if nothing was lost; at most kMostArrivals.
  static constexpr size_t kMostArrivals = 1'000;
  struct Place {
    LiveNode* directory;
    std::vector<std::string> below;
    LoadedDirectoryPtr object;
    size_t index;
  };
  std::vector<Place> TakeArrivals();

  // `is` is the same file or directory as `node`.
  bool IsSame(const LiveNode& node, const tree::Entry& is) const;
  // The node's inode at home, if known (otherwise ino 0). For content written here it is the inode that home created.
  static const tree::FileVersion& InodeOf(const LiveNode& node);
  // `is` is that inode, and nothing was written to it since.
  static bool IsUntouched(const LiveNode& node, const tree::Entry& is);

 private:
  using Inode = std::pair<uint64_t, uint64_t>;  // device and number
  // A known directory and its next digest; null: it is gone.
  struct Pair {
    LiveNode* directory;
    std::optional<Digest> next;
  };
  struct Lost {
    LiveNode* from;
    std::string name;
    LiveNode* node;
    std::optional<Digest> other;     // a directory that has the name now
    std::optional<tree::Entry> was;  // home's previous entry there if it was that inode: matches with either content
    bool done = false;               // found, or its children are being searched
  };
  // A directory of home of which no node is known.
  struct Unknown {
    LiveNode* directory;
    std::vector<std::string> below;
    std::optional<Digest> before;
    Digest next;
  };

  void Compare(const Pair& pair);
  void Differs(LiveNode* directory, const std::string& name, const LoadedDirectoryPtr& next, size_t index,
               const tree::Entry* before);
  void Search(size_t most);
  void Search(const Unknown& unknown, size_t most);

  const uint64_t included_;
  const LiveTree::Objects object_;
  std::vector<Pair> pairs_;
  std::vector<Unknown> unknown_;
  std::vector<Lost> lost_;
  std::multimap<Inode, Place> found_;
  std::vector<Place> arrivals_;
  size_t searched_ = 0;
};

}  // namespace vrun::vfs
