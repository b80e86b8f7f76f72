// SPDX-License-Identifier: Apache-2.0
// What the back ends of the watcher share: the log of what is dirty, the cookie, the thread and the barrier.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "home/root/watch/watch.h"
#include "tree/rules.h"
#include "tree/scan/mounts.h"

namespace vrun::home {

// Collects what is dirty between two barriers. Bounded: of much change in one place it keeps the place, of much change
// everywhere "everything".
class DirtyLog {
 public:
  void Name(const std::string& directory, std::string_view name);
  void Own(const std::string& directory);  // the attributes of the directory itself
  void Recursive(const std::string& path);
  void Inode(uint64_t ino);  // under a name that it has no more
  void Everything();
  tree::DirtySet Take();
  bool empty() const { return !everything_ && dirty_.empty(); }

 private:
  bool Room();

  tree::DirtySet dirty_;
  bool everything_ = false;
  // A writer of one file causes the same event over and over.
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

  // Removes what watchers that are gone left behind. On failure there is no cookie (Change says false), with the
  // reason.
  Status Open(const std::string& directory);
  void Disable() { file_.Reset(); }
  // Causes an event for name() in directory(). False: there is none, or it cannot be written.
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

// A watcher with one event queue. The queue is read by our thread in batches and by whoever calls Barrier, in his own
// thread: so a barrier costs no switch between threads.
class EventWatcher : public Watcher {
 public:
  ~EventWatcher() override;
  Result<tree::DirtySet> Barrier(std::chrono::milliseconds timeout) final;
  void Listen(std::function<void()> changed) final;

 protected:
  explicit EventWatcher(WatchOptions options);

  // Opens the cookie and the mount table. Before the back end's own start.
  Status Prepare();
  // Starts the thread. After it.
  void StartThread();
  // The destructor of each back end calls it first.
  void StopThread();

  // All with mutex_ held.
  virtual int queue() const = 0;
  // Reads one batch of events into log_. False: there are none.
  virtual bool ReadBatch() = 0;
  virtual void MountsChanged(const tree::MountTable& old_table) = 0;

  void SawCookie() { cookie_seen_ = true; }
  // For each event; true once when the simulated overflow is due.
  bool OverflowIsDue();
  void CheckMounts();
  void Wake();
  bool Watched(const tree::Mount& mount) const { return mount.included && !rules_.Excludes(mount.point); }

  const WatchOptions options_;
  const tree::PathRules rules_;
  std::string root_;  // real path
  UniqueFd root_fd_;
  mutable std::mutex mutex_;  // guards what follows and all of the back end
  tree::MountTable mounts_;
  DirtyLog log_;
  Cookie cookie_;
  bool blind_ = false;  // events cannot be had any more: each barrier says everything

 private:
  void Loop();

  std::mutex listen_mutex_;  // over the call; before mutex_
  std::function<void()> changed_;
  std::atomic<bool> listened_ = false;
  bool told_ = false;  // guarded by mutex_: nobody has asked what is dirty since

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
