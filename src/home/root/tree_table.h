// SPDX-License-Identifier: Apache-2.0
// The trees of the root that may still be requested: the current one, those pinned by running jobs, and a few recent
// ones.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/thread/mutex.h"
#include "home/root/deny_list.h"
#include "tree/tree.h"

namespace vrun::home {

// Any thread. Trees share common directories, so holding several costs little.
class TreeTable {
 public:
  struct Held {
    tree::TreePtr snapshot;
    tree::TreePtr asked;  // set by Find: the tree with the requested id, either `snapshot` or its apart tree
    std::vector<std::string> exposed;  // denied paths that this tree may show (--expose)
  };

  // Keeps a tree findable while the pin lives. Must not outlive the table.
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
    friend class TreeTable;
    Pin(TreeTable* table, const Digest& id) : table_(table), id_(id) {}
    TreeTable* table_ = nullptr;
    Digest id_;
  };

  // `whole`: it has no unread directory (tree/unread.h).
  void SetCurrent(tree::TreePtr snapshot, std::shared_ptr<const DenyRules> rules, bool whole = true);
  // Sets the rules before the first scan has ended, so that denied paths are denied from the start.
  void SetRules(std::shared_ptr<const DenyRules> rules);
  tree::TreePtr current() const;  // null before the first scan has ended
  // As far as the root has been read. Null: it has not been looked at yet.
  tree::TreePtr known() const;
  // known() with its serial number, which grows with each different tree, also across restarts of home.
  std::pair<tree::TreePtr, uint64_t> Numbered() const;
  // `want` is called, on any thread, for a path that somebody waits for. Set before the first request.
  void SetWant(std::function<void(const std::string& path)> want) { want_ = std::move(want); }
  // Somebody waits for a tree that knows this path, and is told of it soon.
  void Want(const std::string& path) const;
  // The same if known() does not know the path yet; otherwise false.
  bool WantUnread(const std::string& path) const;
  std::shared_ptr<const DenyRules> rules() const;  // null without a RootTree

  Pin Add(tree::TreePtr snapshot, std::vector<std::string> exposed);
  std::optional<Held> Find(const Digest& id) const;
  // What any tree of the table may show of denied paths.
  std::vector<std::string> Exposed() const;

 private:
  static constexpr size_t kRecent = 16;
  struct Pinned {
    Held held;
    size_t pins = 0;
  };
  void Unpin(const Digest& id);
  void KeepLocked(Held held) VRUN_REQUIRES(mutex_);

  mutable Mutex mutex_;
  tree::TreePtr current_ VRUN_GUARDED_BY(mutex_);
  bool whole_ VRUN_GUARDED_BY(mutex_) = false;
  uint64_t serial_ VRUN_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const DenyRules> rules_ VRUN_GUARDED_BY(mutex_);
  std::map<Digest, Pinned> pinned_ VRUN_GUARDED_BY(mutex_);
  std::deque<Held> recent_ VRUN_GUARDED_BY(mutex_);
  std::function<void(const std::string&)> want_;
};

}  // namespace vrun::home
