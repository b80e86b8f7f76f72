// SPDX-License-Identifier: Apache-2.0
// The roots that jobs see: that of now, frozen ones, and what live views show.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "home/apply/apply.h"
#include "home/frozen/frozen_roots.h"
#include "home/root/root_tree.h"
#include "home/root/snapshot_table.h"
#include "home/root/tree_board.h"

namespace vrun::home {

class ContentFiles;

// Loop thread only.
class JobRoots {
 public:
  using Done = std::function<void(Result<tree::SnapshotPtr>)>;
  // None is owned; all outlive it. `files`: what the root has, and what it had where that is kept.
  JobRoots(RootTree* tree, SnapshotTable* table, FrozenRoots* frozen, const ContentFiles* files, TreeBoard* board)
      : tree_(tree), table_(table), frozen_(frozen), files_(files), board_(board) {}

  FrozenRoots& frozen() const { return *frozen_; }
  std::shared_ptr<const DenyRules> rules() const { return table_->rules(); }
  RootTree::Facts facts() const { return tree_->facts(); }
  tree::SnapshotPtr current() const { return table_->current(); }  // null before the first scan
  // The root of now.
  void Current(const std::vector<std::string>& exposed, Done done) const { tree_->Current(exposed, std::move(done)); }
  // The root of a job's next attempt. `frozen`: the job has its own.
  void Next(uint64_t job, bool frozen, const std::vector<std::string>& exposed, Done done) const {
    if (frozen) return frozen_->Next(job, std::move(done));
    Current(exposed, std::move(done));
  }
  // Nodes can ask for it while the pin is there.
  SnapshotTable::Pin Pin(const tree::SnapshotPtr& tree, const std::vector<std::string>& exposed) const {
    return table_->Add(tree, exposed);
  }
  // The number of the current tree.
  uint64_t serial() const { return table_->Numbered().second; }
  // Live views are told of the current tree now, and not with the next look at the root.
  void TellLiveViews() const { board_->TellAgain(); }
  // How the writes of a job that saw `tree` (null: home has none) are applied.
  void AddTo(ApplyOptions* options, const tree::SnapshotPtr& tree) const;

 private:
  RootTree* const tree_;
  SnapshotTable* const table_;
  FrozenRoots* const frozen_;
  const ContentFiles* const files_;
  TreeBoard* const board_;
};

}  // namespace vrun::home
