// SPDX-License-Identifier: Apache-2.0
// Home's next tree, taken into a LiveTree that is in use. decisions/0013, "Home's changes".
//
// Each name that differs is reconciled by itself:
//   * What this node changed stays as it is until a tree has that change (`included`), whatever home says meanwhile.
//   * Then home is right. What is there just as we sent it (FileVersion, told by Acknowledge) becomes home's without a
//     word to the kernel; anything else gets a new node id at its next lookup, so that whoever has the old one open or
//     mapped keeps its bytes.
//   * A file that is open for writing, and a directory that is gone at home but has something of ours in it, keep their
//     names until they are closed, or empty: they are looked at again with each tree. The last close wins.
//   * Directories that are directories on both sides are one, and keep their node.
//   * What home has renamed (live_moves.h) keeps its node and gets the new name: directories with all that is in them,
//     what was written here, and what nobody has read. A file of home's that was read keeps its bytes, as above.
//   * So does a file of which home has changed the attributes alone.
//
// Pure memory, under the tree's lock; the notices go to the kernel afterwards, from a thread that answers no requests.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "vfs/live/data/live_journal.h"
#include "vfs/live/tree/live_moves.h"
#include "vfs/live/tree/live_tree.h"

namespace vrun::vfs {

class LiveMerge {
 public:
  using Loaded = DirectoryCache::Loaded;
  using Missing = std::vector<std::pair<Digest, std::string>>;  // directory objects and where home has them

  // `included`: number of the last change of this node's that the tree has, `operation`: of the last operation (0
  // without a journal). `have`: directory objects at hand, `in_memory`: further ones. `renew`: a file that nobody has
  // opened becomes home's next version, the same node; else a node keeps its content.
  LiveMerge(LiveTree& tree, uint64_t included, uint64_t operation, const Loaded& have, LiveTree::Objects in_memory,
            bool renew)
      : tree_(tree),
        included_(included),
        operation_(operation),
        have_(have),
        in_memory_(std::move(in_memory)),
        renew_(renew) {}

  // What Run(root) has to have.
  Missing FindMissing(const tree::Entry& root) const;
  // Takes it all at once. REQUIRES: nothing is missing.
  void Run(const tree::Entry& root);
  // Of directories of ours that home has otherwise by now: to be got, and Run again.
  const Missing& wanted() const { return wanted_; }
  const LiveNotices& notices() const { return notices_; }
  // Nodes that lost a name, of whose content somebody may have seen.
  const std::vector<uint64_t>& replaced() const { return replaced_; }
  // Directories that home has renamed and the kernel knows: the name that each had, and its path now. Whoever stands in
  // one goes with it as soon as somebody has asked for that path.
  struct Moved {
    uint64_t parent;
    std::string name;
    std::string path;
  };
  const std::vector<Moved>& moved() const { return moved_; }

 private:
  // A move that is under way.
  struct Move {
    LiveMove is;
    std::string home_path;  // before it
    uint64_t cookie = 0;    // of what had the name that it gets
    bool done = false;
  };
  static bool Needs(const LiveNode& directory);
  static bool IsCurrent(const LiveDirectory& of, const Digest& digest);
  LoadedDirectoryPtr Object(const LiveDirectory& of, const Digest& digest) const;
  void Find(const LiveNode& directory, const Digest& digest, const std::string& path, Missing* missing) const;
  void Take(LiveNode* directory, const Digest& digest, const LoadedDirectoryPtr& next);
  void TakeNothing(LiveNode* directory);
  void Below(LiveNode* parent, const std::string& name, LiveNode* directory, const Digest& digest);
  void Settle(uint64_t nodeid, const std::string& name);
  void SettleName(LiveNode* directory, const std::string& name);
  bool IsTaken(LiveNode* directory);
  void Reconcile(LiveNode* directory, const std::string& name);
  void Meet(LiveNode* directory, const std::string& name, LiveEntry* entry, size_t index);
  void Miss(LiveNode* directory, const std::string& name, LiveEntry* entry);
  bool IsSame(const LiveNode& node, const tree::Entry& is) const;
  bool CanRenew(const LiveNode& node, const tree::Entry& is) const;
  void Adopt(LiveNode* directory, LiveEntry* entry, const tree::Entry& is, size_t index);
  void SetAttributes(LiveNode* node, const tree::Entry& is, bool ours);
  bool InUse(const LiveNode& node) const;
  bool IsOvertaken(const LiveNode& node);
  void Hold(LiveNode* directory, const std::string& name);
  // What it has of home's is what home has by now, but for attributes.
  bool BecomesNext(const LiveNode& node, const tree::Entry& is) const;
  // It, or anything below it, is not home's.
  bool HasOurs(const LiveNode& node) const;
  bool IsFree(const LiveMove& move, const std::vector<LiveMove>& moves) const;
  LiveTree::Objects Objects() const;
  void BeginMoves(const tree::Entry& root);
  void BeginMove(Move* move);
  // Whoever has the new name goes.
  void MakeWay(Move* move);
  // Home acknowledges what was made here, and renames it, before a tree of its had it: it is looked for in the tree
  // that has neither. True: later, by FindDeferred.
  bool Defer(LiveNode* directory, const std::string& name, LiveEntry* entry);
  void FindDeferred();
  void FinishMoves();
  void FinishMove(Move move);
  void Replace(LiveNode* directory, const std::string& name);
  // A name goes. Returned: its cookie.
  uint64_t LoseName(LiveNode* directory, const std::string& name);
  void LoseLastName(LiveNode* node, std::string home_path);
  void ForgetName(const LiveNode& directory, std::string_view name);
  void ForgetListing(const LiveNode& directory);

  LiveTree& tree_;
  const uint64_t included_;
  const uint64_t operation_;
  const Loaded& have_;
  const LiveTree::Objects in_memory_;
  const bool renew_;
  Missing wanted_;
  LiveNotices notices_;
  std::vector<uint64_t> replaced_;
  std::vector<Moved> moved_;
  std::vector<Move> moves_;
  bool settling_ = false;  // the tree is taken
  std::vector<std::pair<uint64_t, std::string>> deferred_;
  std::vector<LiveMove> elsewhere_;  // files that keep what they have
  std::vector<uint64_t> differing_;  // home has something else, or nothing, under a name of theirs
  std::vector<uint64_t> emptied_;    // directories that may not be needed any more
};

}  // namespace vrun::vfs
