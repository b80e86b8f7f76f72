// SPDX-License-Identifier: Apache-2.0
// Tracks which directories of the root have changed, so that home's tree is current when a command starts.
//
// Three back ends, best first:
//   fanotify  root only: one mark per local file system reports every change, at no cost per directory
//   inotify   any user: one watch per directory
//   rescan    neither works (watch limit, a file system without events): every barrier reports "everything"
//
// The cookie barrier: Barrier changes a file of ours and returns when its event has been read. The kernel queues an
// event inside the system call that causes it, so the answer includes every change whose call returned before Barrier
// was called. Writes through a shared mapping are reported only when the last descriptor or mapping of the file is
// closed.
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
  // root, hollow, hidden: as for the scan of the tree that is kept current.
  tree::ScanOptions scan;
  // Our own directory for the cookie file, created if missing; hidden in the tree or outside of the root. Empty or not
  // writable: no cookie, and the barrier relies on the kernel's queueing alone.
  std::string cookie_directory;

  // A back end that watches directories one by one begins with the root's own; the others by Cover.
  bool lazy = false;

  enum class Backend { kBest, kFanotify, kInotify, kRescan };
  Backend backend = Backend::kBest;  // a named back end has no fallback

  // For tests: simulate one queue overflow after this many events (0: never); limit the inotify watches (0: the
  // kernel's limit).
  uint64_t simulate_overflow_after = 0;
  uint64_t simulate_watch_limit = 0;
};

// Owns one thread that reads events in batches to keep the kernel's queue short. Barrier: any thread, but one at a
// time. The rest: any thread.
class Watcher {
 public:
  // Watching starts here. Start it before the first scan, so that no change is lost in between. kUnsupported, kDenied
  // or kExhausted if a named back end cannot start; kBest always starts.
  static Result<std::unique_ptr<Watcher>> Start(WatchOptions options);

  virtual ~Watcher() = default;

  // Everything that changed since the last barrier (or the start), for tree::Rescan. If events were lost, or the cookie
  // was not seen within `timeout`, the answer is "everything" (recursive "/"): slow, never stale.
  virtual Result<tree::DirtySet> Barrier(std::chrono::milliseconds timeout) = 0;

  // `changed` is called soon, on a thread of the watcher, when something becomes dirty; then not again before the next
  // barrier. Null unsets it, and no call runs after the return. The rescan back end never calls it.
  virtual void Listen(std::function<void()> changed) = 0;

  // With WatchOptions::lazy: from now on changes of this directory, and of those on the way to it, are reported;
  // `below`: of all directories below it, too. Call before they are read. Nothing happens if there is no such
  // directory.
  virtual void Cover(const std::string& path, bool below) {
    (void)path;
    (void)below;
  }

  // "fanotify", "inotify" or "rescan".
  virtual std::string_view kind() const = 0;
  // Why the best kind is not used; empty if it is.
  virtual std::string reason() const = 0;
};

}  // namespace vrun::home
