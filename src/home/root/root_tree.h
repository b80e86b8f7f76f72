// SPDX-License-Identifier: Apache-2.0
// The tree of the root, current whenever a command starts.
//
// After home has started, nobody needs to wait for a scan of the whole root (docs/decisions/0046): Known answers with a
// tree in which directories are unread (tree/unread.h). They are read when somebody wants them, and otherwise in their
// turn, by a thread of low priority. What is read is current as ever: the watcher starts first. Where the root cannot
// be watched, Known waits for a scan, too.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/io/event_loop.h"
#include "base/io/work_queue.h"
#include "base/thread/mutex.h"
#include "home/root/deny_list.h"
#include "home/root/shared_mappings.h"
#include "home/root/tree_table.h"
#include "home/root/watch/watch.h"
#include "tree/scan/first_look.h"
#include "tree/scan/scan.h"

namespace vrun::home {

// Loop thread, callbacks too, unless said otherwise. Scans run on separate threads.
class RootTree {
 public:
  struct Options {
    std::string root = "/";
    DenyList::Options deny;
    std::string cookie_directory;
    WatchOptions::Backend backend = WatchOptions::Backend::kBest;
    std::shared_ptr<SharedMappings> mappings;  // null: not tracked
    // Called with each new state of the deny-list, on the tree's thread and once in the constructor (`first`).
    std::function<void(const DenyRules& rules, bool first)> on_rules = nullptr;
    std::chrono::milliseconds pause{0};  // for tests: before each piece of the first scan
  };
  struct Facts {
    bool known = false;           // Known does not wait
    bool scanned = false;         // Current does not wait
    uint64_t entries = 0;         // read so far, while it is not scanned
    uint64_t entries_before = 0;  // of the last whole scan, perhaps before a restart; 0: unknown
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
  // The same without a denied name, as far as the root has been read. `paths` (absolute, in the root) are read before.
  void Known(std::vector<std::string> paths, std::function<void(Result<tree::TreePtr>)> done);

  // `changed` is called, on any thread, when the tree is no longer current and Attend(true) is set. Call before Start,
  // or from an object that outlives the watcher.
  void Listen(std::function<void()> changed);
  void Attend(bool attend);
  // Replaces DenyList::Options::own, from the next tree on.
  void DenyOwn(std::vector<std::string> own);
  // A file differs from what the tree says: the next tree examines it, and the listener is told. Needed because no
  // event reports a name whose file lost another name that was in no tree. Or somebody waits for a path that is unread.
  // Any thread.
  void LookAt(const std::string& path);

  Facts facts() const;  // any thread

 private:
  struct Waiter {
    bool whole = true;
    std::vector<std::string> exposed;
    std::vector<std::string> paths;
    std::function<void(Result<tree::TreePtr>)> done;
  };
  // The first scan while it is in progress.
  struct Pieces {
    std::vector<std::string> todo;           // directories to be read; the last one is next
    std::optional<tree::Piece> piece;        // being read
    std::shared_ptr<const DenyRules> rules;  // the piece is read with these
    tree::DirtySet meanwhile;                // what changed in the piece since it was begun
    bool examined = false;                   // once more, after the last piece
    int64_t began = 0;
  };
  void Add(Waiter waiter);
  // On the worker.
  void Refresh();
  void AnswerAll(std::vector<Waiter> waiters, const Status& current);
  Status MakeCurrent();
  Status Begin();
  void Watch();
  void NextPiece();
  void ReadAt(const std::string& path);
  void HavePiece(uint64_t number, Result<tree::Piece> piece);
  void ExamineAll();
  void HaveAll();
  void Fail(const Error& error);  // of the first scan: the next who asks begins it anew
  // A file with several names may have another one in a directory that is read.
  void AddLinked(tree::DirtySet* dirty) const;
  // Changes in unread directories are not reported, even if their files have other names in directories that are read.
  bool WatchesLazily() const { return pieces_ && watcher_ && watcher_->kind() == "inotify"; }
  bool CanExamine() const { return snapshot_->entries <= kMostExamined; }
  tree::DirtySet Changes();  // since the last time
  // Updates snapshot_ and rules_ with what is dirty. `names`: see tree::Rescan.
  Status Look(tree::DirtySet dirty, bool denied_anew, bool* names);
  void ListenToWatcher();
  Result<tree::TreePtr> Expose(const std::vector<std::string>& exposed);
  tree::ScanOptions ScanFor(const std::vector<std::string>& exposed) const;
  void Answer(Waiter waiter, Result<tree::TreePtr> result);

  // Files that are examined for each caller while WatchesLazily. If more are known, callers wait for the whole tree.
  static constexpr uint64_t kMostExamined = 100'000;

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
  tree::DirtySet doubted_;  // by LookAt; or in a piece that has just been read
  tree::TreePtr snapshot_;
  std::unique_ptr<Pieces> pieces_;  // null: snapshot_ is whole
  std::vector<Waiter> for_whole_;   // they wait for the end of the first scan
  std::thread reader_;              // reads a piece
  uint64_t pieces_begun_ = 0;
  std::shared_ptr<const DenyRules> rules_;

  std::atomic<bool> stop_ = false;
  WorkQueue worker_{"tree"};
};

}  // namespace vrun::home
