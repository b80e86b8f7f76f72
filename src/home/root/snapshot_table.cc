// SPDX-License-Identifier: Apache-2.0
#include "home/root/snapshot_table.h"

#include <algorithm>

#include "base/clock.h"

namespace vrun::home {

void SnapshotTable::Pin::Reset() {
  if (table_ != nullptr) std::exchange(table_, nullptr)->Unpin(id_);
}

void SnapshotTable::SetCurrent(tree::SnapshotPtr snapshot, std::shared_ptr<const DenyRules> rules) {
  std::lock_guard lock(mutex_);
  // Of the clock where it began: trees do not change a million times a second.
  if (!current_) serial_ = std::max(serial_, static_cast<uint64_t>(WallMicros()));
  if (!current_ || current_->id != snapshot->id) ++serial_;
  if (current_ && current_->id != snapshot->id) {
    KeepLocked({std::move(current_), nullptr, {}});
  }
  current_ = std::move(snapshot);
  rules_ = std::move(rules);
}

void SnapshotTable::SetRules(std::shared_ptr<const DenyRules> rules) {
  std::lock_guard lock(mutex_);
  rules_ = std::move(rules);
}

tree::SnapshotPtr SnapshotTable::current() const {
  std::lock_guard lock(mutex_);
  return current_;
}

std::pair<tree::SnapshotPtr, uint64_t> SnapshotTable::Numbered() const {
  std::lock_guard lock(mutex_);
  return {current_, serial_};
}

std::shared_ptr<const DenyRules> SnapshotTable::rules() const {
  std::lock_guard lock(mutex_);
  return rules_;
}

SnapshotTable::Pin SnapshotTable::Add(tree::SnapshotPtr snapshot, std::vector<std::string> exposed) {
  std::lock_guard lock(mutex_);
  Digest id = snapshot->id;
  Pinned& entry = pinned_[id];
  ++entry.pins;
  entry.held.snapshot = std::move(snapshot);
  // Two runs with the same tree and different permissions: the tree holds the names that both may see.
  for (std::string& e : exposed) entry.held.exposed.push_back(std::move(e));
  return Pin(this, id);
}

void SnapshotTable::Unpin(const Digest& id) {
  std::lock_guard lock(mutex_);
  auto it = pinned_.find(id);
  if (it == pinned_.end() || --it->second.pins > 0) return;
  // The node may ask a little longer: its view outlives the job.
  KeepLocked(std::move(it->second.held));
  pinned_.erase(it);
}

void SnapshotTable::KeepLocked(Held held) {
  // A tree that was current and then a run's counts once, and shows what it may in either.
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

std::optional<SnapshotTable::Held> SnapshotTable::Find(const Digest& id) const {
  const auto asked = [&](const tree::SnapshotPtr& snapshot) -> tree::SnapshotPtr {
    if (snapshot->id == id) return snapshot;
    return snapshot->apart && snapshot->apart->id == id ? snapshot->apart : nullptr;
  };
  std::lock_guard lock(mutex_);
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
