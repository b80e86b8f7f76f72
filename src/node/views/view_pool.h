// SPDX-License-Identifier: Apache-2.0
// Which mounted views there are, and who uses them. The same tree opened twice is one view; an idle view is advanced to
// the next tree; only when all are in use is another one mounted. One idle view is kept for the next job.
//
// A lease is one use of a view, named by the agent. Loop thread only; mounting, advancing and unmounting happen on
// threads of the pool, because they wait for home.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/hash/digest.h"
#include "base/io/event_loop.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "vfs/frozen/view.h"

namespace vrun::node {

class ViewPool {
 public:
  using LostCallback = std::function<void(const std::string& path, const std::string& reason)>;
  struct Hooks {
    // Mounts `tree` on `directory` (made by then). Any thread; may block. `lost` may be called from any thread.
    std::function<Result<std::unique_ptr<vfs::View>>(const Digest& tree, const std::string& directory,
                                                     LostCallback lost)>
        mount;
    // Runs before a view is advanced to `tree`, on the same thread.
    std::function<void(const Digest& tree)> before_advance;
    // A file of a view in use cannot be had any more. Loop thread.
    std::function<void(const std::string& path, const std::string& reason, const std::vector<uint64_t>& leases)> lost;
    // A view was mounted or its leases changed, before anybody is told; null while it is being taken over. Loop thread.
    std::function<void(uint64_t slot, const vfs::View* view, const std::set<uint64_t>& leases)> keep;
    // It is going to be unmounted. Loop thread.
    std::function<void(uint64_t slot)> drop;
  };

  ViewPool(EventLoop* loop, std::string directory, Hooks hooks, unsigned threads = 3);
  // Waits for what is being mounted, unmounts everything.
  ~ViewPool();

  // A view that another process mounted, in that slot: `take_over` runs on a thread of the pool. If it fails, `lost`
  // names "/".
  void Adopt(
      uint64_t slot, const Digest& tree, std::set<uint64_t> leases,
      std::function<Result<std::unique_ptr<vfs::View>>(const std::string& directory, LostCallback lost)> take_over);
  std::string DirectoryOf(uint64_t slot) const { return directory_ + "/" + std::to_string(slot); }

  // `done` gets a detached mount of the tree, once; kAborted when Close came first. kExists: the lease is in use.
  void Open(const Digest& tree, uint64_t lease, std::function<void(Result<UniqueFd>)> done);
  // An unknown lease is fine.
  void Close(uint64_t lease);
  // Closes all others.
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
    std::shared_ptr<vfs::View> view;  // null while it is first mounted
    Digest tree;                      // the one it has, or is being made to have
    bool busy = false;                // a thread works on it
    std::set<uint64_t> leases;
    std::vector<Waiting> waiting;
    uint64_t idle_since = 0;  // serial
  };

  void Grant(Slot* slot, uint64_t lease, const std::function<void(Result<UniqueFd>)>& done);
  void Work(Slot* slot, const Digest& tree);
  LostCallback LostOf(uint64_t slot_id);
  using WorkedCallback = std::function<void(Result<std::shared_ptr<vfs::View>> result, const Digest& tree_now)>;
  WorkedCallback WorkedOf(uint64_t slot_id);
  void Kept(const Slot& slot) const;
  void Worked(uint64_t slot_id, Result<std::shared_ptr<vfs::View>> result, const Digest& tree_now);
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

  std::mutex mu_;
  std::condition_variable cv_;
  std::deque<std::function<void()>> jobs_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace vrun::node
