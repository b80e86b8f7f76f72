// SPDX-License-Identifier: Apache-2.0
// The mounted views and their users. Two opens of one tree share a view. An idle view is advanced to the next tree;
// another view is mounted only when all are in use. One idle view is kept for the next job.
//
// A lease is one use of a view, numbered by the agent. Loop thread only. Mounting, advancing and unmounting wait for
// home, so they run on threads of the pool.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/hash/digest.h"
#include "base/io/event_loop.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"
#include "vfs/frozen/frozen_view.h"

namespace vrun::node {

class ViewPool {
 public:
  using LostCallback = std::function<void(const std::string& path, const std::string& reason)>;
  struct Hooks {
    // Mounts `tree` on `directory`, which exists. Any thread; may block. `lost` may be called from any thread.
    std::function<Result<std::unique_ptr<vfs::FrozenView>>(const Digest& tree, const std::string& directory,
                                                           LostCallback lost)>
        mount;
    // Runs before a view is advanced to `tree`, on the same thread.
    std::function<void(const Digest& tree)> before_advance;
    // A file of a view in use can no longer be read. Loop thread.
    std::function<void(const std::string& path, const std::string& reason, const std::vector<uint64_t>& leases)> lost;
    // A view was mounted or its leases changed; called before anybody is told. Null while it is being taken over. Loop
    // thread.
    std::function<void(uint64_t slot, const vfs::FrozenView* view, const std::set<uint64_t>& leases)> keep;
    // The view is about to be unmounted. Loop thread.
    std::function<void(uint64_t slot)> drop;
  };

  ViewPool(EventLoop* loop, std::string directory, Hooks hooks, unsigned threads = 3);
  // Waits for mounts in progress, unmounts everything.
  ~ViewPool();

  // Takes over a view that another process mounted in that slot: `take_over` runs on a thread of the pool. If it fails,
  // `lost` reports "/".
  void Adopt(uint64_t slot, const Digest& tree, std::set<uint64_t> leases,
             std::function<Result<std::unique_ptr<vfs::FrozenView>>(const std::string& directory, LostCallback lost)>
                 take_over);
  std::string DirectoryOf(uint64_t slot) const { return directory_ + "/" + std::to_string(slot); }

  // `done` gets a detached mount of the tree, once; kAborted when Close came first. kExists: the lease is in use.
  void Open(const Digest& tree, uint64_t lease, std::function<void(Result<UniqueFd>)> done);
  // An unknown lease is allowed.
  void Close(uint64_t lease);
  // Closes all other leases.
  void CloseAllBut(const std::set<uint64_t>& leases);

  size_t leases() const;
  size_t views() const { return slots_.size(); }

 private:
  struct Waiting {
    uint64_t lease;
    std::function<void(Result<UniqueFd>)> done;
  };
  struct Slot {
    uint64_t id;
    std::shared_ptr<vfs::FrozenView> view;  // null during the first mount
    Digest tree;                            // its current or next tree
    bool busy = false;                      // a thread is working on it
    std::set<uint64_t> leases;
    std::vector<Waiting> waiting;
    uint64_t idle_since = 0;  // a serial number
  };

  void Grant(Slot* slot, uint64_t lease, const std::function<void(Result<UniqueFd>)>& done);
  void Work(Slot* slot, const Digest& tree);
  LostCallback LostOf(uint64_t slot_id);
  using WorkedCallback = std::function<void(Result<std::shared_ptr<vfs::FrozenView>> result, const Digest& tree_now)>;
  WorkedCallback WorkedOf(uint64_t slot_id);
  void Kept(const Slot& slot) const;
  void Worked(uint64_t slot_id, Result<std::shared_ptr<vfs::FrozenView>> result, const Digest& tree_now);
  void TrimIdle();
  Slot* IdleSlot();
  void Post(std::function<void()> job);
  void Run();

  EventLoop* const loop_;
  const std::string directory_;
  const Hooks hooks_;
  std::map<uint64_t, Slot> slots_;
  uint64_t next_slot_ = 1;
  uint64_t idle_serial_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  Mutex mu_;
  CondVar cv_;
  std::deque<std::function<void()>> jobs_ VRUN_GUARDED_BY(mu_);
  bool stop_ VRUN_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace vrun::node
