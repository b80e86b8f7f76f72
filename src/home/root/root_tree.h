// SPDX-License-Identifier: Apache-2.0
// The tree of the root, current whenever a command starts.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/io/work_queue.h"
#include "home/root/deny_list.h"
#include "home/root/shared_mappings.h"
#include "home/root/snapshot_table.h"
#include "home/root/watch/watch.h"
#include "tree/scan/scan.h"

namespace vrun::home {

// Loop thread, callbacks too, unless said otherwise. Scanning happens on a thread of its own.
class RootTree {
 public:
  struct Options {
    std::string root = "/";
    DenyList::Options deny;
    std::string cookie_directory;
    WatchOptions::Backend backend = WatchOptions::Backend::kBest;
    std::shared_ptr<SharedMappings> mappings;  // null: nobody looks for them
  };
  struct Facts {
    bool scanned = false;
    double scan_seconds = 0;
    std::string watch;  // "" until it has started
    std::string watch_reason;
    std::string error;  // of the last attempt to scan; "": none
  };

  // `table` must outlive it; the current snapshot is always in there.
  RootTree(EventLoop* loop, Options options, SnapshotTable* table);
  ~RootTree();

  // Starts the watcher and the first scan, in the background.
  void Start();

  // The tree with everything that was written before this call, and with the names of the deny-list that `exposed`
  // opens (absolute paths in the root). Waits for the first scan. Several callers share one barrier.
  void Current(std::vector<std::string> exposed, std::function<void(Result<tree::SnapshotPtr>)> done);

  // `changed` is called, on any thread, when the tree is not current any more, while somebody attends to it. Before
  // Start, or by what outlives the watcher.
  void Listen(std::function<void()> changed);
  void Attend(bool attend);
  // Other places than the options say are ours (DenyList::Options::own): as of the next tree.
  void DenyOwn(std::vector<std::string> own);
  // A file is not what the tree says: the next tree looks at it, and whoever listens hears that it is to be made. No
  // event tells of a name whose file lost another one that no tree ever had. Any thread.
  void LookAt(const std::string& path);

  Facts facts() const;  // any thread

 private:
  struct Waiter {
    std::vector<std::string> exposed;
    std::function<void(Result<tree::SnapshotPtr>)> done;
  };
  // On the worker.
  void Refresh();
  Status MakeCurrent();
  Status FirstScan();
  tree::DirtySet Changes();  // since the last time
  // Brings snapshot_ and rules_ up to date with what is dirty. `names`: as of tree::Rescan.
  Status Look(tree::DirtySet dirty, bool denied_anew, bool* names);
  void ListenToWatcher();
  Result<tree::SnapshotPtr> Expose(const std::vector<std::string>& exposed);
  tree::ScanOptions ScanFor(const std::vector<std::string>& exposed) const;
  void Answer(Waiter waiter, Result<tree::SnapshotPtr> result);

  EventLoop* const loop_;
  const Options options_;
  SnapshotTable* const table_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  mutable std::mutex mutex_;
  Facts facts_;                  // guarded by mutex_
  std::vector<Waiter> waiters_;  // guarded by mutex_; their barrier has not begun

  // The worker's own.
  DenyList deny_;
  bool denied_anew_ = false;
  std::unique_ptr<Watcher> watcher_;
  std::function<void()> changed_;
  bool attended_ = false;
  tree::DirtySet doubted_;  // by LookAt
  tree::SnapshotPtr snapshot_;
  std::shared_ptr<const DenyRules> rules_;

  WorkQueue worker_{"tree"};
};

}  // namespace vrun::home
