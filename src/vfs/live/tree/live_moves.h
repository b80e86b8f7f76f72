// SPDX-License-Identifier: Apache-2.0
// What home has renamed of what a live view knows: a name that home has not any more, or for something else, and its
// inode under another name of the same tree. Whoever has it open or stands in it goes with it, as on one machine.
//
// An inode number alone is no proof, for a file system gives it away again at once. So a file is the same if nothing
// was written to it since (size and times), and a directory if it has the content or the time that it had, or a child
// as it was.
//
// Found are names in directories that differ between the two trees, also where nobody has looked into them, as far as
// they are in memory (home sends those that are new with the tree) and up to kMostUnknown names.
//
// Pure memory, under the tree's lock. Reads the LiveTree as it is before a merge.
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
  LiveNode* from = nullptr;  // the directory and name where it was
  std::string name;
  // Where it is: `below` that directory, through directories of which there are no nodes yet.
  LiveNode* directory = nullptr;
  std::vector<std::string> below;
  std::string to;
};

class LiveMoves {
 public:
  static constexpr size_t kMostUnknown = 20'000;

  // `included`: as LiveMerge has it.
  LiveMoves(uint64_t included, LiveTree::Objects object) : included_(included), object_(std::move(object)) {}

  // What of `root`, as the view shows it, is elsewhere in the tree that it is about to show. Each directory comes
  // before what was moved into it.
  std::vector<LiveMove> Find(LiveNode* root, const tree::Entry& next);

  // Names that are new in that tree, also where nothing was lost: kMostArrivals.
  static constexpr size_t kMostArrivals = 1'000;
  struct Place {
    LiveNode* directory;
    std::vector<std::string> below;
    LoadedDirectoryPtr object;
    size_t index;
  };
  std::vector<Place> TakeArrivals();

  // `is` is the same file or directory of home's.
  bool IsSame(const LiveNode& node, const tree::Entry& is) const;
  // Home's inode of a node, as far as it is known (ino 0: not). That of content written here is the one that home made.
  static const tree::FileVersion& InodeOf(const LiveNode& node);
  // `is` is that inode, and nothing was written to it since.
  static bool IsUntouched(const LiveNode& node, const tree::Entry& is);

 private:
  using Inode = std::pair<uint64_t, uint64_t>;  // device and number
  // A known directory and what it is next; null: nothing.
  struct Pair {
    LiveNode* directory;
    std::optional<Digest> next;
  };
  struct Lost {
    LiveNode* from;
    std::string name;
    LiveNode* node;
    std::optional<Digest> other;     // a directory that has the name now
    std::optional<tree::Entry> was;  // what home had there before, if that was its inode: also with content of both
    bool done = false;               // it was found, or what is in it is looked for
  };
  // A directory of home's of which nobody knows anything.
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
