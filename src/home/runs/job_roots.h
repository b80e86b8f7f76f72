// SPDX-License-Identifier: Apache-2.0
// The roots that jobs see: the current one, frozen ones, and live views.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "home/apply/apply.h"
#include "home/frozen/frozen_roots.h"
#include "home/root/root_tree.h"
#include "home/root/tree_board.h"
#include "home/root/tree_table.h"

namespace vrun::home {

class ContentFiles;

// Loop thread only.
class JobRoots {
 public:
  using Done = std::function<void(Result<tree::TreePtr>)>;
  using Judge = decltype(ApplyOptions::judge);
  // None is owned; all outlive it. `files`: the root's files, and old content where that is kept. `judge`: what home
  // does not serve.
  JobRoots(RootTree* tree, TreeTable* table, FrozenRoots* frozen, const ContentFiles* files, TreeBoard* board,
           Judge judge = nullptr)
      : tree_(tree), table_(table), frozen_(frozen), files_(files), board_(board), judge_(std::move(judge)) {}

  FrozenRoots& frozen() const { return *frozen_; }
  std::shared_ptr<const DenyRules> rules() const { return table_->rules(); }
  RootTree::Facts facts() const { return tree_->facts(); }
  tree::TreePtr current() const { return table_->current(); }  // null before the first scan has ended
  // The current root, once it has been read.
  void Current(const std::vector<std::string>& exposed, Done done) const { tree_->Current(exposed, std::move(done)); }
  // The current root as far as it has been read: for live views, which ask for the rest.
  void Known(Done done) const { tree_->Known({}, std::move(done)); }
  // The root of a job's next attempt. `frozen`: the job has its own frozen root. `live`: it has a live view.
  void Next(uint64_t job, bool frozen, bool live, const std::vector<std::string>& exposed, Done done) const {
    if (frozen) return frozen_->Next(job, std::move(done));
    if (live) return Known(std::move(done));
    Current(exposed, std::move(done));
  }
  // Nodes can request the tree while the pin lives.
  TreeTable::Pin Pin(const tree::TreePtr& tree, const std::vector<std::string>& exposed) const {
    return table_->Add(tree, exposed);
  }
  // The serial number of the current tree.
  uint64_t serial() const { return table_->Numbered().second; }
  // Tells live views of the current tree now instead of at the next refresh, unless they were told of it here before:
  // each pod of a gang asks for this.
  void TellLiveViews() const {
    const uint64_t now = serial();
    if (std::exchange(told_serial_, now) != now || !board_->current()) board_->TellAgain();
  }
  // Sets the options for applying the writes of a job that saw `tree` (null: home has none).
  void AddTo(ApplyOptions* options, const tree::TreePtr& tree) const;

 private:
  RootTree* const tree_;
  TreeTable* const table_;
  FrozenRoots* const frozen_;
  const ContentFiles* const files_;
  TreeBoard* const board_;
  const Judge judge_;
  mutable uint64_t told_serial_ = 0;
};

}  // namespace vrun::home
