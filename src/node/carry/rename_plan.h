// SPDX-License-Identifier: Apache-2.0
// Finds which lower objects ended under another name, and where the lower content of each upper directory lies.
//
// A lower object is named by its path there. Two lower directories matter for an upper directory: `merged` is the one
// that the overlay shows through it (none below an opaque directory). `home` is the one that will be at that place at
// home after all renames (an opaque directory is made from what home has there).
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "node/carry/overlay_layer.h"

namespace vrun::node {

struct Move {
  std::string from;  // path in the lower
  std::string to;    // path in the root after the command
  bool directory = false;
};

struct UpperDirectory {
  std::string path;
  std::optional<std::string> merged;
  std::optional<std::string> home;
  bool redirected = false;
};

class RenamePlan {
 public:
  // The layers must outlive the plan.
  static Result<RenamePlan> Read(const OverlayLayer* upper, const OverlayLayer* lower, std::vector<std::string> skip);

  // Sorted by `to`, parents before children.
  const std::vector<Move>& moves() const { return moves_; }
  // Whether the lower object at this path is the `from` of a move.
  bool MovedAway(const std::string& lower_path) const { return sources_.contains(lower_path); }
  bool IsDestination(const std::string& path) const { return destinations_.contains(path); }
  // For a file whose data is in the lower and that has several names: the name that home's file has after the renames.
  // "" when the file has only one name.
  const std::string& PrimaryName(ino_t upper_inode) const;

  UpperDirectory Root() const { return {"/", "/", "/", false}; }
  Result<UpperDirectory> Enter(const UpperDirectory& parent, const std::string& name) const;
  // The path in the lower of a metacopy file's data.
  Result<std::string> DataOf(const UpperDirectory& parent, const std::string& name) const;
  bool Skipped(const std::string& path) const;

 private:
  struct LinkGroup {
    std::string primary;
    size_t move;  // index in moves_, or kNone
  };
  Status CollectDirectories();
  Status CollectMoves();
  Status AddFile(const UpperDirectory& directory, const std::string& name);
  void Settle();

  const OverlayLayer* upper_;
  const OverlayLayer* lower_;
  std::vector<std::string> skip_;
  std::vector<Move> moves_;
  std::unordered_set<std::string> sources_;
  std::unordered_set<std::string> destinations_;
  std::unordered_map<ino_t, LinkGroup> groups_;
};

}  // namespace vrun::node
