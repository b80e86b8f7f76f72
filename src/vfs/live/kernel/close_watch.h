// SPDX-License-Identifier: Apache-2.0
// Reports which files of a FUSE mount were open for writing and have been closed, where the kernel sends no open
// requests and so no release requests either (no-open). decisions/0019.
//
// Uses fanotify on the mount's file system. Its events carry descriptors (events with file handles need an fsid, which
// a FUSE file system does not have). The node id is in the file handle that FUSE encodes, which needs no request. An
// event is queued before close(2), munmap(2) or exit(2) of the writer returns, so Drain sees everything closed before
// it.
//
// Thread safety: any thread. A thread of its own and every caller of Drain read events. Only the former closes their
// descriptors: that makes the kernel write the dirty pages of a mapped file and wait for the answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"

namespace vrun::vfs {

class CloseWatch {
 public:
  // Called one at a time, on any thread; must not call Drain.
  struct Hooks {
    // The last descriptor or mapping from one open for writing is gone. Others may still have the file open.
    std::function<void(uint64_t nodeid)> closed;
    // Some events were lost: any written file may have been closed.
    std::function<void()> missed;
  };

  // `mount`: the mounted file system (O_PATH), whose requests other threads answer. Creates a nameless file there, and
  // checks that opening it sends no request and closing it is reported. kUnsupported: this kernel, or our privileges,
  // do not allow that.
  static Result<std::unique_ptr<CloseWatch>> Start(int mount, Hooks hooks);
  // The same without the check, where another process has made it.
  static Result<std::unique_ptr<CloseWatch>> Resume(int mount, Hooks hooks);
  ~CloseWatch();
  CloseWatch(const CloseWatch&) = delete;
  CloseWatch& operator=(const CloseWatch&) = delete;

  // Once it has returned, `closed` was called for everything closed before. (Exception: if dirty pages of mapped files
  // cannot be written because home has no room, and hundreds of events wait for that, some are reported later.)
  void Drain();

 private:
  CloseWatch(UniqueFd group, UniqueFd wake, Hooks hooks)
      : group_(std::move(group)), wake_(std::move(wake)), hooks_(std::move(hooks)) {}
  static Result<std::unique_ptr<CloseWatch>> Create(int mount, Hooks hooks);
  Status Try(int mount);
  void Run();
  void Wake() const;
  void DrainLocked() VRUN_REQUIRES(mutex_);
  // False: no events are left.
  bool ReadSome(const std::function<void(uint64_t nodeid)>& closed) VRUN_REQUIRES(mutex_);

  const UniqueFd group_;
  const UniqueFd wake_;  // an eventfd
  const Hooks hooks_;
  std::atomic<bool> stop_{false};
  Mutex mutex_;                                         // held while events are read and reported
  std::vector<UniqueFd> seen_ VRUN_GUARDED_BY(mutex_);  // of reported events, to be closed
  std::thread thread_;
};

}  // namespace vrun::vfs
