// SPDX-License-Identifier: Apache-2.0
#include "home/root/tree_table.h"

#include <algorithm>

#include "base/clock.h"
#include "tree/unread.h"

namespace vrun::home {

void TreeTable::Pin::Reset() {
  if (table_ != nullptr) std::exchange(table_, nullptr)->Unpin(id_);
}

void TreeTable::SetCurrent(tree::TreePtr snapshot, std::shared_ptr<const DenyRules> rules, bool whole) {
  MutexLock lock(mutex_);
  // Starts from the clock, so it grows across restarts: trees change less than a million times a second.
  if (!current_) serial_ = std::max(serial_, static_cast<uint64_t>(WallMicros()));
  if (!current_ || current_->id != snapshot->id) ++serial_;
  if (current_ && current_->id != snapshot->id) {
    KeepLocked({std::move(current_), nullptr, {}});
  }
  current_ = std::move(snapshot);
  whole_ = whole;
  rules_ = std::move(rules);
}

void TreeTable::SetRules(std::shared_ptr<const DenyRules> rules) {
  MutexLock lock(mutex_);
  rules_ = std::move(rules);
}

tree::TreePtr TreeTable::current() const {
  MutexLock lock(mutex_);
  return whole_ ? current_ : nullptr;
}

tree::TreePtr TreeTable::known() const {
  MutexLock lock(mutex_);
  return current_;
}

void TreeTable::Want(const std::string& path) const {
  if (want_) want_(path);
}

bool TreeTable::WantUnread(const std::string& path) const {
  const tree::TreePtr now = known();
  if (now && (current() || tree::UnreadAbove(*now, path).empty())) return false;
  Want(path);
  return true;
}

std::pair<tree::TreePtr, uint64_t> TreeTable::Numbered() const {
  MutexLock lock(mutex_);
  return {current_, serial_};
}

std::shared_ptr<const DenyRules> TreeTable::rules() const {
  MutexLock lock(mutex_);
  return rules_;
}

TreeTable::Pin TreeTable::Add(tree::TreePtr snapshot, std::vector<std::string> exposed) {
  MutexLock lock(mutex_);
  Digest id = snapshot->id;
  Pinned& entry = pinned_[id];
  ++entry.pins;
  entry.held.snapshot = std::move(snapshot);
  // Two runs with the same tree but different permissions: the tree has the names that both may see.
  for (std::string& e : exposed) entry.held.exposed.push_back(std::move(e));
  return Pin(this, id);
}

void TreeTable::Unpin(const Digest& id) {
  MutexLock lock(mutex_);
  auto it = pinned_.find(id);
  if (it == pinned_.end() || --it->second.pins > 0) return;
  // The node may send requests a little longer: its view outlives the job.
  KeepLocked(std::move(it->second.held));
  pinned_.erase(it);
}

void TreeTable::KeepLocked(Held held) {
  // A tree that was current and is then a run's is listed once, and exposes the union of both.
  const auto same = std::find_if(recent_.begin(), recent_.end(),
                                 [&](const Held& other) { return other.snapshot->id == held.snapshot->id; });
  if (same != recent_.end()) {
    for (std::string& e : same->exposed) {
      if (std::find(held.exposed.begin(), held.exposed.end(), e) == held.exposed.end())
        held.exposed.push_back(std::move(e));
    }
    recent_.erase(same);
  }
  recent_.push_back(std::move(held));
  if (recent_.size() > kRecent) recent_.pop_front();
}

std::vector<std::string> TreeTable::Exposed() const {
  MutexLock lock(mutex_);
  std::vector<std::string> exposed;
  const auto add = [&](const Held& held) { exposed.insert(exposed.end(), held.exposed.begin(), held.exposed.end()); };
  for (const auto& [tree, pinned] : pinned_) add(pinned.held);
  for (const Held& held : recent_) add(held);
  return exposed;
}

std::optional<TreeTable::Held> TreeTable::Find(const Digest& id) const {
  const auto asked = [&](const tree::TreePtr& snapshot) -> tree::TreePtr {
    if (snapshot->id == id) return snapshot;
    return snapshot->apart && snapshot->apart->id == id ? snapshot->apart : nullptr;
  };
  MutexLock lock(mutex_);
  for (const auto& [tree, pinned] : pinned_) {
    if (auto found = asked(pinned.held.snapshot)) return Held{pinned.held.snapshot, found, pinned.held.exposed};
  }
  for (auto it = recent_.rbegin(); it != recent_.rend(); ++it) {
    if (auto found = asked(it->snapshot)) return Held{it->snapshot, found, it->exposed};
  }
  if (current_) {
    if (auto found = asked(current_)) return Held{current_, found, {}};
  }
  return std::nullopt;
}

}  // namespace vrun::home
