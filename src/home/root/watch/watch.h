// SPDX-License-Identifier: Apache-2.0
// Knows which directories of the root changed, so that home's tree is current when a command starts.
//
// Three ways, best first:
//   fanotify  root: one mark for each local file system sees every change, at no cost per directory
//   inotify   anybody: one watch for each directory
//   rescan    neither works (the limit of watches, a file system without events): every barrier says "everything"
//
// The cookie barrier: Barrier changes a file of ours and returns when its event has been read. The kernel queues events
// inside the system call that causes them, so everything that had returned before Barrier was called is in the answer.
// What a process writes through a shared mapping is announced when the last descriptor or mapping of that file goes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tree/scan/scan.h"

namespace vrun::home {

struct WatchOptions {
  // root, hollow, hidden: as for the scan whose tree is kept current.
  tree::ScanOptions scan;
  // A directory of our own (made if need be) for the cookie file, hidden in the tree or outside of the root. Empty, or
  // not writable: no cookie; the barrier then relies on the kernel's queueing alone.
  std::string cookie_directory;

  enum class Backend { kBest, kFanotify, kInotify, kRescan };
  Backend backend = Backend::kBest;  // a named one is not replaced by a lesser one when it cannot start

  // For tests: the queue "overflows" once after so many events (0: never); no more than so many inotify watches (0: the
  // kernel's own limit).
  uint64_t simulate_overflow_after = 0;
  uint64_t simulate_watch_limit = 0;
};

// Owns one thread, which reads events in batches so that the kernel's queue stays short. Barrier: one thread at a time,
// any; the rest: any thread.
class Watcher {
 public:
  // Watches from here on: start it before the scan that gives the first tree, then no change is lost in between.
  // kUnsupported, kDenied or kExhausted when a named back end cannot start; kBest always starts.
  static Result<std::unique_ptr<Watcher>> Start(WatchOptions options);

  virtual ~Watcher() = default;

  // All that changed since the last barrier (or the start) up to now, for tree::Rescan. When events were lost, or the
  // cookie was not seen within `timeout`, the answer is "everything" (recursive "/"): slow, never stale.
  virtual Result<tree::DirtySet> Barrier(std::chrono::milliseconds timeout) = 0;

  // `changed` is called, on a thread of the watcher's and soon, once something is dirty that no barrier has told of
  // yet; again only after the next barrier. Null: not any more, when it returns. Without events (rescan) it is never
  // called.
  virtual void Listen(std::function<void()> changed) = 0;

  // "fanotify", "inotify" or "rescan".
  virtual std::string_view kind() const = 0;
  // Why it is not the best kind; empty when it is.
  virtual std::string reason() const = 0;
};

}  // namespace vrun::home
