// SPDX-License-Identifier: Apache-2.0
#include "node/carry/rename_plan.h"

#include <algorithm>

#include "base/escape.h"

namespace vrun::node {
namespace {
constexpr size_t kNone = static_cast<size_t>(-1);

// A redirect is a path in the lower, or a name that replaces this entry's name in the parent's lower directory.
std::optional<std::string> LowerPath(const UpperDirectory& parent, const std::string& name,
                                     const std::optional<std::string>& redirect) {
  if (redirect && redirect->starts_with('/')) return redirect;
  if (!parent.merged) return std::nullopt;
  return JoinPath(*parent.merged, redirect ? *redirect : name);
}
}  // namespace

Result<RenamePlan> RenamePlan::Read(const OverlayLayer* upper, const OverlayLayer* lower,
                                    std::vector<std::string> skip) {
  RenamePlan plan;
  plan.upper_ = upper;
  plan.lower_ = lower;
  plan.skip_ = std::move(skip);
  // All renamed directories first: whether a directory's lower content stays in place depends on all of them.
  VRUN_TRY(plan.CollectDirectories());
  VRUN_TRY(plan.CollectMoves());
  plan.Settle();
  return plan;
}

bool RenamePlan::Skipped(const std::string& path) const {
  return std::find(skip_.begin(), skip_.end(), path) != skip_.end();
}

Result<UpperDirectory> RenamePlan::Enter(const UpperDirectory& parent, const std::string& name) const {
  UpperDirectory out;
  out.path = JoinPath(parent.path, name);
  VRUN_ASSIGN(bool opaque, upper_->IsOpaque(out.path));
  if (!opaque) {
    VRUN_ASSIGN(auto redirect, upper_->Redirect(out.path));
    auto lower_path = LowerPath(parent, name, redirect);
    if (lower_path) {
      VRUN_ASSIGN(auto st, lower_->Lstat(*lower_path));
      if (st && S_ISDIR(st->st_mode)) {
        out.merged = std::move(lower_path);
        out.redirected = redirect.has_value();
      }
    }
  }
  if (out.redirected) {
    out.home = out.merged;
  } else if (parent.home) {
    std::string there = JoinPath(*parent.home, name);
    if (!MovedAway(there)) {
      VRUN_ASSIGN(auto st, lower_->Lstat(there));
      if (st && S_ISDIR(st->st_mode)) out.home = std::move(there);
    }
  }
  return out;
}

Result<std::string> RenamePlan::DataOf(const UpperDirectory& parent, const std::string& name) const {
  std::string path = JoinPath(parent.path, name);
  VRUN_ASSIGN(auto redirect, upper_->Redirect(path));
  auto lower_path = LowerPath(parent, name, redirect);
  if (lower_path) {
    VRUN_ASSIGN(auto st, lower_->Lstat(*lower_path));
    if (st && S_ISREG(st->st_mode)) return *std::move(lower_path);
  }
  return Error(Code::kCorrupt, Escape(path) + ": the overlay does not show where its data is");
}

// The walks keep an explicit stack, because a command may nest directories deeper than our call stack allows.
Status RenamePlan::CollectDirectories() {
  std::vector<UpperDirectory> stack = {Root()};
  while (!stack.empty()) {
    UpperDirectory directory = std::move(stack.back());
    stack.pop_back();
    VRUN_ASSIGN(auto entries, upper_->List(directory.path));
    for (const LayerEntry& entry : entries) {
      if (!entry.directory || Skipped(JoinPath(directory.path, entry.name))) continue;
      VRUN_ASSIGN(UpperDirectory child, Enter(directory, entry.name));
      if (child.redirected && !sources_.insert(*child.merged).second) {
        return Error(Code::kCorrupt, Escape(child.path) + ": two directories of the overlay were renamed from " +
                                         Escape(*child.merged));
      }
      stack.push_back(std::move(child));
    }
  }
  return {};
}

Status RenamePlan::CollectMoves() {
  std::vector<UpperDirectory> stack = {Root()};
  while (!stack.empty()) {
    UpperDirectory directory = std::move(stack.back());
    stack.pop_back();
    VRUN_ASSIGN(auto entries, upper_->List(directory.path));
    for (const LayerEntry& entry : entries) {
      if (Skipped(JoinPath(directory.path, entry.name))) continue;
      if (!entry.directory) {
        VRUN_TRY(AddFile(directory, entry.name));
        continue;
      }
      VRUN_ASSIGN(UpperDirectory child, Enter(directory, entry.name));
      if (child.redirected) {
        // Renamed away and back: the mark remains, but nothing moved.
        if (directory.home && JoinPath(*directory.home, entry.name) == *child.merged) {
          sources_.erase(*child.merged);
        } else {
          moves_.push_back({*child.merged, child.path, true});
        }
      }
      stack.push_back(std::move(child));
    }
  }
  return {};
}

Status RenamePlan::AddFile(const UpperDirectory& directory, const std::string& name) {
  std::string path = JoinPath(directory.path, name);
  VRUN_ASSIGN(auto st, upper_->Lstat(path));
  if (!st || !S_ISREG(st->st_mode)) return {};
  VRUN_ASSIGN(bool metacopy, upper_->IsMetacopy(path));
  if (!metacopy) return {};
  VRUN_ASSIGN(std::string data, DataOf(directory, name));
  bool stays = directory.home && JoinPath(*directory.home, name) == data;
  if (st->st_nlink == 1) {
    if (!stays) moves_.push_back({std::move(data), std::move(path), false});
    return {};
  }
  // Of several names, one is home's file and the others are links to it: the old name if it is still one of them, else
  // the first in order, to which the file is then renamed.
  auto [it, first] = groups_.try_emplace(st->st_ino, LinkGroup{path, kNone});
  LinkGroup& group = it->second;
  if (stays) {
    group.primary = path;
    if (group.move != kNone) moves_[group.move].from.clear();
    group.move = kNone;
  } else if (first) {
    group.move = moves_.size();
    moves_.push_back({std::move(data), std::move(path), false});
  }
  return {};
}

void RenamePlan::Settle() {
  // Two upper inodes with the same lower file would be a bug of the overlay; the second is carried with its data.
  std::erase_if(moves_, [this](const Move& move) {
    if (move.from.empty()) return true;
    return !move.directory && !sources_.insert(move.from).second;
  });
  for (const Move& move : moves_) destinations_.insert(move.to);
}

const std::string& RenamePlan::PrimaryName(ino_t upper_inode) const {
  static const std::string kEmpty;
  auto it = groups_.find(upper_inode);
  return it == groups_.end() ? kEmpty : it->second.primary;
}

}  // namespace vrun::node
