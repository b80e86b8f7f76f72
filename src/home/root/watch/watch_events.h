// SPDX-License-Identifier: Apache-2.0
// Shared by the watcher's back ends: the dirty log, the cookie, the thread and the barrier.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/thread/mutex.h"
#include "base/unique_fd.h"
#include "home/root/watch/watch.h"
#include "tree/rules.h"
#include "tree/scan/mounts.h"

namespace vrun::home {

// Collects what is dirty between two barriers. Bounded: many changes in one place become that directory, many
// everywhere become "everything".
class DirtyLog {
 public:
  void Name(const std::string& directory, std::string_view name);
  void Own(const std::string& directory);  // the attributes of the directory itself
  void Recursive(const std::string& path);
  void Inode(uint64_t ino);  // changed under a name that it has lost
  void Everything();
  tree::DirtySet Take();
  bool empty() const { return !everything_ && dirty_.empty(); }

 private:
  bool Room();

  tree::DirtySet dirty_;
  bool everything_ = false;
  // The last entry, since a writer of one file causes the same event over and over.
  std::string last_directory_;
  std::string last_name_;
};

// The file whose change a barrier waits for.
class Cookie {
 public:
  Cookie() = default;
  ~Cookie();
  Cookie(const Cookie&) = delete;
  Cookie& operator=(const Cookie&) = delete;

  // Removes cookies of dead watchers. On failure there is no cookie (Change returns false).
  Status Open(const std::string& directory);
  void Disable() { file_.Reset(); }
  // Causes an event for name() in directory(). False: there is no cookie, or it cannot be written.
  bool Change();
  const std::string& directory() const { return directory_; }
  const std::string& name() const { return name_; }
  explicit operator bool() const { return static_cast<bool>(file_); }

 private:
  std::string directory_;
  std::string name_;
  UniqueFd file_;
  uint8_t value_ = 0;
};

// A watcher with one event queue. Our thread reads the queue in batches; a caller of Barrier reads it in its own
// thread, so a barrier needs no thread switch.
class EventWatcher : public Watcher {
 public:
  ~EventWatcher() override;
  Result<tree::DirtySet> Barrier(std::chrono::milliseconds timeout) final;
  void Listen(std::function<void()> changed) final;

 protected:
  explicit EventWatcher(WatchOptions options);

  // Opens the cookie and the mount table. Call before the back end starts.
  Status Prepare();
  // Call after the back end has started.
  void StartThread();
  // Must be called first in the destructor of each back end.
  void StopThread();

  // All with mutex_ held.
  virtual int queue() const = 0;
  // Reads one batch of events into log_. False: there are none.
  virtual bool ReadBatch() = 0;
  virtual void MountsChanged(const tree::MountTable& old_table) = 0;

  void SawCookie() { cookie_seen_ = true; }
  // Call for each event. True once, when the simulated overflow is due.
  bool OverflowIsDue();
  void CheckMounts();
  void Wake();
  bool Watched(const tree::Mount& mount) const { return mount.included && !rules_.Excludes(mount.point); }

  const WatchOptions options_;
  const tree::PathRules rules_;
  std::string root_;  // real path
  UniqueFd root_fd_;
  mutable Mutex mutex_;  // guards the members below and the whole back end
  tree::MountTable mounts_;
  DirtyLog log_;
  Cookie cookie_;
  bool blind_ = false;  // events are not available any more: each barrier reports everything

 private:
  void Loop();

  Mutex listen_mutex_;  // held during the callback; locked before mutex_
  std::function<void()> changed_;
  std::atomic<bool> listened_ = false;
  bool told_ = false;  // changed_ was called since the last barrier; guarded by mutex_

  UniqueFd mountinfo_;
  UniqueFd wake_;
  std::atomic<bool> stop_ = false;
  bool cookie_seen_ = false;
  uint64_t events_ = 0;
  std::thread thread_;
};

Result<std::unique_ptr<Watcher>> StartFanotify(const WatchOptions& options);
Result<std::unique_ptr<Watcher>> StartInotify(const WatchOptions& options, std::string reason);

}  // namespace vrun::home
