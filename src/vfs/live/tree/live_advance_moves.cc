// SPDX-License-Identifier: Apache-2.0
// LiveMerge: nodes that home has renamed (live_moves.h) keep their identity and get the new name.
#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "vfs/live/tree/live_advance.h"

namespace vrun::vfs {

bool LiveMerge::HasOurs(const LiveNode& node) const {
  if (node.change > included_) return true;
  if (!node.is_directory()) return InUse(node);
  const auto& entries = node.directory->entries;
  return std::any_of(entries.begin(), entries.end(), [&](const auto& item) {
    return item.second.change > included_ || (item.second.node != nullptr && HasOurs(*item.second.node));
  });
}

// Whether the target name is free, or its node leaves it with this tree.
bool LiveMerge::IsFree(const LiveMove& move, const std::vector<LiveMove>& moves) const {
  if (!move.below.empty()) return true;
  const auto& entries = move.directory->directory->entries;
  const auto there = entries.find(move.to);
  if (there == entries.end()) return true;
  const LiveEntry& entry = there->second;
  if (entry.change > included_) return false;
  if (entry.node == nullptr) return true;
  if (!HasOurs(*entry.node)) return true;
  return std::any_of(moves.begin(), moves.end(), [&](const LiveMove& other) {
    return other.node == entry.node && other.from == move.directory && other.name == move.to;
  });
}

LiveTree::Objects LiveMerge::Objects() const {
  return [this](const Digest& digest) {
    const auto object = have_.find(digest);
    return object != have_.end() ? object->second : in_memory_(digest);
  };
}

void LiveMerge::BeginMove(Move* move) {
  LiveNode* node = move->is.node;
  tree_.Erase(move->is.from, move->is.name);
  node->LoseName(move->is.from, move->is.name);
  tree_.Touch(node);
  ForgetName(*move->is.from, move->is.name);
  emptied_.push_back(move->is.from->nodeid);
  emptied_.push_back(node->nodeid);
}

void LiveMerge::MakeWay(Move* move) {
  if (!move->is.below.empty()) return;
  const auto& entries = move->is.directory->directory->entries;
  const auto there = entries.find(move->is.to);
  if (there == entries.end()) return;
  if (there->second.node == nullptr) {
    tree_.Erase(move->is.directory, move->is.to);
    return;
  }
  if (there->second.node->is_directory()) TakeNothing(there->second.node);
  move->cookie = LoseName(move->is.directory, move->is.to);
}

// Removes the old names of renamed nodes, and nodes that hold the new names.
void LiveMerge::BeginMoves(const tree::Entry& root) {
  LiveMoves finder(included_, Objects());
  std::vector<LiveMove> found = finder.Find(tree_.root_, root);
  for (const LiveMoves::Place& place : finder.TakeArrivals()) {
    const tree::Entry is = place.object->directory->At(place.index);
    tree_.arrivals_.push_front({is.dev, is.ino, place.directory->nodeid, place.below, is.name});
  }
  if (tree_.arrivals_.size() > 2 * LiveMoves::kMostArrivals) tree_.arrivals_.resize(2 * LiveMoves::kMostArrivals);
  const auto stays = std::stable_partition(found.begin(), found.end(), [&](const LiveMove& move) {
    const LiveNode& node = *move.node;
    return !S_ISREG(node.attributes.mode) || node.file || !node.opened() || InUse(node);
  });
  elsewhere_.assign(std::move_iterator(stays), std::move_iterator(found.end()));
  found.erase(stays, found.end());
  // A move that is not possible may block another.
  const auto stuck = [&] {
    return std::find_if(found.begin(), found.end(), [&](const LiveMove& move) { return !IsFree(move, found); });
  };
  for (auto at = stuck(); at != found.end(); at = stuck()) found.erase(at);
  for (LiveMove& move : found) {
    std::string home_path = move.node->HomePath();  // before any of them is moved
    moves_.push_back({std::move(move), std::move(home_path), 0, false});
  }
  for (Move& move : moves_) BeginMove(&move);
  for (Move& move : moves_) MakeWay(&move);
}

bool LiveMerge::Defer(LiveNode* directory, const std::string& name, LiveEntry* entry) {
  LiveNode* node = entry->node;
  if (!settling_ || node->sought >= entry->change || LiveMoves::InodeOf(*node).ino == 0) return false;
  node->sought = entry->change;
  deferred_.emplace_back(directory->nodeid, name);
  return true;
}

void LiveMerge::FindDeferred() {
  for (const auto& [nodeid, name] : std::exchange(deferred_, {})) {
    LiveNode* directory = tree_.Find(nodeid);
    if (directory == nullptr || !directory->is_directory()) continue;
    const auto entry = directory->directory->entries.find(name);
    if (entry == directory->directory->entries.end() || entry->second.node == nullptr) continue;
    LiveNode* node = entry->second.node;
    Move move;
    const LiveMoves same(included_, Objects());
    const auto place = tree_.PlaceOf(LiveMoves::InodeOf(*node), Objects(),
                                     [&](const tree::Entry& is) { return same.IsSame(*node, is); });
    if (place) move = {{node, directory, name, place->parent, {}, place->name}, node->HomePath(), 0, false};
    if (!place || LiveTree::IsInside(*place->parent, *node) || !IsFree(move.is, {})) {
      Reconcile(directory, name);
      continue;
    }
    BeginMove(&move);
    MakeWay(&move);
    FinishMove(move);
  }
}

// Gives the nodes their names in the new tree.
void LiveMerge::FinishMoves() {
  if (moves_.empty() && elsewhere_.empty()) return;
  std::unordered_map<const LiveNode*, Move*> directories;
  std::vector<Move*> order;
  for (Move& move : moves_) {
    order.push_back(&move);
    if (move.is.node->is_directory()) directories[move.is.node] = &move;
  }
  // A directory comes before its content, whether it was known before or not.
  std::stable_sort(order.begin(), order.end(),
                   [](const Move* a, const Move* b) { return a->is.below.size() < b->is.below.size(); });
  const std::function<void(Move*)> finish = [&](Move* move) {
    if (std::exchange(move->done, true)) return;
    if (const auto of = directories.find(move->is.directory); of != directories.end()) finish(of->second);
    FinishMove(*move);
  };
  for (Move* move : order) finish(move);
  // Users who have read such a file keep its bytes, but their writes belong to the new name.
  for (const LiveMove& move : elsewhere_) {
    LiveNode* node = move.node;
    if (!node->names.empty() || node->file || !move.below.empty()) continue;  // else found through the arrivals
    node->replaced = std::make_unique<const std::pair<uint64_t, std::string>>(move.directory->nodeid, move.to);
  }
}

void LiveMerge::FinishMove(Move move) {
  LiveNode* node = move.is.node;
  LiveNode* directory = tree_.Reach(move.is.directory, move.is.below, Objects());
  const LoadedDirectoryPtr& home = directory != nullptr ? directory->directory->loaded : nullptr;
  const size_t index = home != nullptr ? home->directory->Find(move.is.to) : 0;
  const bool there = home != nullptr && index < home->directory->size();
  if (there && directory->directory->entries.contains(move.is.to)) {  // the target directory was not known before
    move.is.directory = directory;
    move.is.below.clear();
    if (IsFree(move.is, {})) MakeWay(&move);
  }
  const bool may = there && !directory->directory->entries.contains(move.is.to) &&
                   home->directory->At(index).ino == LiveMoves::InodeOf(*node).ino;
  if (!may) {
    if (node->is_directory()) TakeNothing(node);
    if (node->names.empty()) LoseLastName(node, move.home_path);
    return;
  }
  LiveEntry* entry = &directory->directory->entries.emplace(move.is.to, LiveEntry{node, 0, 0, 0}).first->second;
  node->names.push_back({directory, move.is.to});
  tree_.TouchName(*directory, move.is.to);
  tree_.Touch(node);
  if (move.cookie != 0) tree_.Keep(directory, move.is.to, move.cookie);
  ForgetName(*directory, move.is.to);
  if (node->is_directory() && node->lookups > 0) {
    moved_.push_back({move.is.from->nodeid, move.is.name, tree_.PathOf(*node)});
  }
  Meet(directory, move.is.to, entry, index);
}

}  // namespace vrun::vfs
