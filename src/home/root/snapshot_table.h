// SPDX-License-Identifier: Apache-2.0
// The states of the root that somebody may still ask for: the current one, those pinned by running jobs, a few recent
// ones.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "home/root/deny_list.h"
#include "tree/tree.h"

namespace vrun::home {

// Any thread. Snapshots share what they have in common, so holding some costs little.
class SnapshotTable {
 public:
  struct Held {
    tree::SnapshotPtr snapshot;
    tree::SnapshotPtr asked;  // of Find: the one with that id, `snapshot` itself or what of it is mounted apart
    std::vector<std::string> exposed;  // what this tree may show of the deny-list
  };

  // Keeps a snapshot findable for as long as it lives. Must not outlive the table.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept : table_(std::exchange(other.table_, nullptr)), id_(other.id_) {}
    Pin& operator=(Pin&& other) noexcept {
      Reset();
      table_ = std::exchange(other.table_, nullptr);
      id_ = other.id_;
      return *this;
    }
    ~Pin() { Reset(); }
    void Reset();

   private:
    friend class SnapshotTable;
    Pin(SnapshotTable* table, const Digest& id) : table_(table), id_(id) {}
    SnapshotTable* table_ = nullptr;
    Digest id_;
  };

  void SetCurrent(tree::SnapshotPtr snapshot, std::shared_ptr<const DenyRules> rules);
  // Until the first scan is over: what is kept from jobs is so from the beginning.
  void SetRules(std::shared_ptr<const DenyRules> rules);
  tree::SnapshotPtr current() const;  // null before the first scan
  // The current one, with a number that grows with each that is another one, over restarts of home as well.
  std::pair<tree::SnapshotPtr, uint64_t> Numbered() const;
  std::shared_ptr<const DenyRules> rules() const;  // null where there is no RootTree

  Pin Add(tree::SnapshotPtr snapshot, std::vector<std::string> exposed);
  std::optional<Held> Find(const Digest& id) const;

 private:
  static constexpr size_t kRecent = 16;
  struct Pinned {
    Held held;
    size_t pins = 0;
  };
  void Unpin(const Digest& id);
  void KeepLocked(Held held);

  mutable std::mutex mutex_;
  tree::SnapshotPtr current_;  // guarded by mutex_, as all below
  uint64_t serial_ = 0;
  std::shared_ptr<const DenyRules> rules_;
  std::map<Digest, Pinned> pinned_;
  std::deque<Held> recent_;
};

}  // namespace vrun::home
