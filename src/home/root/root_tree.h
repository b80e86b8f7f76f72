// SPDX-License-Identifier: Apache-2.0
// The tree of the root, current whenever a command starts.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/io/work_queue.h"
#include "base/thread/mutex.h"
#include "home/root/deny_list.h"
#include "home/root/shared_mappings.h"
#include "home/root/tree_table.h"
#include "home/root/watch/watch.h"
#include "tree/scan/scan.h"

namespace vrun::home {

// Loop thread, callbacks too, unless said otherwise. Scans run on a separate thread.
class RootTree {
 public:
  struct Options {
    std::string root = "/";
    DenyList::Options deny;
    std::string cookie_directory;
    WatchOptions::Backend backend = WatchOptions::Backend::kBest;
    std::shared_ptr<SharedMappings> mappings;  // null: not tracked
  };
  struct Facts {
    bool scanned = false;
    double scan_seconds = 0;
    std::string watch;  // "" until it has started
    std::string watch_reason;
    std::string error;  // of the last scan; "": none
  };

  // `table` must outlive it and always has the current tree.
  RootTree(EventLoop* loop, Options options, TreeTable* table);
  ~RootTree();

  // Starts the watcher and the first scan, in the background.
  void Start();

  // The tree with everything that was written before this call, including the denied names that `exposed` opens
  // (absolute paths in the root). Waits for the first scan. Concurrent callers share one barrier.
  void Current(std::vector<std::string> exposed, std::function<void(Result<tree::TreePtr>)> done);

  // `changed` is called, on any thread, when the tree is no longer current and Attend(true) is set. Call before Start,
  // or from an object that outlives the watcher.
  void Listen(std::function<void()> changed);
  void Attend(bool attend);
  // Replaces DenyList::Options::own, from the next tree on.
  void DenyOwn(std::vector<std::string> own);
  // A file differs from what the tree says: the next tree examines it, and the listener is told. Needed because no
  // event reports a name whose file lost another name that was in no tree. Any thread.
  void LookAt(const std::string& path);

  Facts facts() const;  // any thread

 private:
  struct Waiter {
    std::vector<std::string> exposed;
    std::function<void(Result<tree::TreePtr>)> done;
  };
  // On the worker.
  void Refresh();
  Status MakeCurrent();
  Status FirstScan();
  tree::DirtySet Changes();  // since the last time
  // Updates snapshot_ and rules_ with what is dirty. `names`: see tree::Rescan.
  Status Look(tree::DirtySet dirty, bool denied_anew, bool* names);
  void ListenToWatcher();
  Result<tree::TreePtr> Expose(const std::vector<std::string>& exposed);
  tree::ScanOptions ScanFor(const std::vector<std::string>& exposed) const;
  void Answer(Waiter waiter, Result<tree::TreePtr> result);

  EventLoop* const loop_;
  const Options options_;
  TreeTable* const table_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  mutable Mutex mutex_;
  Facts facts_ VRUN_GUARDED_BY(mutex_);
  std::vector<Waiter> waiters_ VRUN_GUARDED_BY(mutex_);  // their barrier has not started

  // Used by the worker only.
  DenyList deny_;
  bool denied_anew_ = false;
  std::unique_ptr<Watcher> watcher_;
  std::function<void()> changed_;
  bool attended_ = false;
  tree::DirtySet doubted_;  // by LookAt
  tree::TreePtr snapshot_;
  std::shared_ptr<const DenyRules> rules_;

  WorkQueue worker_{"tree"};
};

}  // namespace vrun::home
