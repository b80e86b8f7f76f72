// SPDX-License-Identifier: Apache-2.0
// Tells which files of a FUSE mount were open for writing and are closed, where the kernel does not ask for opens and
// so says nothing of closes either (no-open). decisions/0019.
//
// fanotify on the mount's file system. Its events come as descriptors (a FUSE file system has no fsid, without which
// there are none with file handles); the node id is in the file handle that FUSE encodes, for which nothing is asked.
// An event is queued before close(2), munmap(2) or exit(2) of the writer returns: so Drain sees all that was closed
// before.
//
// Thread safety: any thread. Events are read by a thread of its own and by whoever drains. Only the former closes their
// descriptors: that has the kernel write what is dirty of a mapped file, and waits for the answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::vfs {

class CloseWatch {
 public:
  // One call at a time, on any thread; not to call Drain.
  struct Hooks {
    // The last descriptor or mapping of one open for writing is gone. Others may still have the file open.
    std::function<void(uint64_t nodeid)> closed;
    // Some were not told: each file that was written may be closed.
    std::function<void()> missed;
  };

  // `mount`: the mounted file system (O_PATH), whose requests other threads answer. Makes a nameless file there, and
  // sees that it is not asked for opens and hears of the close. kUnsupported: this kernel, or our privileges, do not do
  // that.
  static Result<std::unique_ptr<CloseWatch>> Start(int mount, Hooks hooks);
  // The same where another process has seen that it works.
  static Result<std::unique_ptr<CloseWatch>> Resume(int mount, Hooks hooks);
  ~CloseWatch();
  CloseWatch(const CloseWatch&) = delete;
  CloseWatch& operator=(const CloseWatch&) = delete;

  // Once it has returned, `closed` was called for all that was closed before. (But where what is dirty of mapped
  // files cannot be written, for home has no room, and hundreds of events wait for it: then some of them later.)
  void Drain();

 private:
  CloseWatch(UniqueFd group, UniqueFd wake, Hooks hooks)
      : group_(std::move(group)), wake_(std::move(wake)), hooks_(std::move(hooks)) {}
  static Result<std::unique_ptr<CloseWatch>> Create(int mount, Hooks hooks);
  Status Try(int mount);
  void Run();
  void Wake() const;
  void DrainLocked();
  // False: nothing is left.
  bool ReadSome(const std::function<void(uint64_t nodeid)>& closed);

  const UniqueFd group_;
  const UniqueFd wake_;  // an eventfd
  const Hooks hooks_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;            // over reading and telling
  std::vector<UniqueFd> seen_;  // of events that were told: to be closed; guarded by it
  std::thread thread_;
};

}  // namespace vrun::vfs
