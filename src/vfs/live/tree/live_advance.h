// SPDX-License-Identifier: Apache-2.0
// Merges home's next tree into a LiveTree that is in use. decisions/0013, "Home's changes".
//
// Each name that differs is reconciled separately:
//
// * A change of this node stays until a tree contains it (`included`), whatever home says meanwhile.
// * After that home is right. If home's entry is exactly what we sent (FileVersion, from Acknowledge), the node becomes
//   home's without a notice to the kernel. Anything else gets a new node id at its next lookup, so that users who have
//   the old node open or mapped keep its bytes.
// * A file that is open for writing, and a directory that is gone at home but contains changes of ours, keep their
//   names until they are closed, or empty: they are checked again with each tree. The last close wins.
// * A directory that is a directory on both sides stays one node.
// * A node that home has renamed (live_moves.h) gets the new name: a directory with everything in it, a file written
//   here, and a file that nobody has read. A file of home that was read keeps its bytes, as above.
// * A file of which home has changed only the attributes stays the same node.
//
// Memory work only, under the tree's lock. A thread that answers no requests sends the notices to the kernel
// afterwards.
#pragma once

#include <cstdint>
#include <set>
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
  using Missing = std::vector<std::pair<Digest, std::string>>;  // digests of directory objects and their paths at home

  using Names = std::set<std::pair<uint64_t, std::string>>;

  // `included`: number of this node's last change that the tree contains; `operation`: of the last operation (0 without
  // a journal). `have`: directory objects at hand; `in_memory`: finds further ones. `renew`: a file that nobody has
  // opened takes home's next version in the same node; otherwise a node keeps its content. `claimed`: names that home
  // was asked to make for us, and that are not ours yet.
  LiveMerge(LiveTree& tree, uint64_t included, uint64_t operation, const Loaded& have, LiveTree::Objects in_memory,
            bool renew, Names claimed = {})
      : tree_(tree),
        included_(included),
        operation_(operation),
        have_(have),
        in_memory_(std::move(in_memory)),
        renew_(renew),
        claimed_(std::move(claimed)) {}

  // The objects that Run(root) needs.
  Missing FindMissing(const tree::Entry& root) const;
  // Merges the whole tree at once. REQUIRES: FindMissing returns nothing.
  void Run(const tree::Entry& root);
  // New objects of directories of ours that home has replaced: fetch them, then Run again.
  const Missing& wanted() const { return wanted_; }
  const LiveNotices& notices() const { return notices_; }
  // Nodes that lost a name and whose content may have been seen.
  const std::vector<uint64_t>& replaced() const { return replaced_; }
  // Directories in which others have made, removed or replaced names.
  const std::vector<uint64_t>& others() const { return others_; }
  // Directories that home has renamed and the kernel knows: the old name and the new path. A process whose working
  // directory it is moves with it as soon as somebody has looked up that path.
  struct Moved {
    uint64_t parent;
    std::string name;
    std::string path;
  };
  const std::vector<Moved>& moved() const { return moved_; }

 private:
  // A move in progress.
  struct Move {
    LiveMove is;
    std::string home_path;  // before the move
    uint64_t cookie = 0;    // of the node that had the new name
    bool done = false;
  };
  static bool Needs(const LiveNode& directory);
  static bool IsCurrent(const LiveDirectory& of, const Digest& digest);
  LoadedDirectoryPtr Object(const LiveDirectory& of, const Digest& digest) const;
  void Find(const LiveNode& directory, const Digest& digest, const std::string& path, Missing* missing) const;
  void Take(LiveNode* directory, const Digest& digest, const LoadedDirectoryPtr& next);
  // Whether the difference of this name between two states of home is somebody else's work, and more than new content.
  bool IsOthers(const LiveNode& directory, const tree::Entry* before, const tree::Entry* after) const;
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
  // Its part of home's content is still current at home; only attributes may differ.
  bool BecomesNext(const LiveNode& node, const tree::Entry& is) const;
  // The node, or anything below it, was changed here.
  bool HasOurs(const LiveNode& node) const;
  bool IsFree(const LiveMove& move, const std::vector<LiveMove>& moves) const;
  LiveTree::Objects Objects() const;
  void BeginMoves(const tree::Entry& root);
  void BeginMove(Move* move);
  // Removes the node that has the new name.
  void MakeWay(Move* move);
  // Home may acknowledge something made here and rename it before any tree showed it. Then the first tree that contains
  // the change has it under another name: it is searched in that tree. True: postponed to FindDeferred.
  bool Defer(LiveNode* directory, const std::string& name, LiveEntry* entry);
  void FindDeferred();
  void FinishMoves();
  void FinishMove(Move move);
  void Replace(LiveNode* directory, const std::string& name);
  // Removes a name; returns its cookie.
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
  const Names claimed_;
  Missing wanted_;
  LiveNotices notices_;
  std::vector<uint64_t> replaced_;
  std::vector<uint64_t> others_;
  std::vector<Moved> moved_;
  std::vector<Move> moves_;
  bool settling_ = false;  // the tree itself has been merged
  std::vector<std::pair<uint64_t, std::string>> deferred_;
  std::vector<LiveMove> elsewhere_;  // moved files that are not moved here and keep their content
  std::vector<uint64_t> differing_;  // home has something else, or nothing, under one of their names
  std::vector<uint64_t> emptied_;    // directories that may not be needed any more
};

}  // namespace vrun::vfs
