// SPDX-License-Identifier: Apache-2.0
// The live view of a tenant on this node: mounted with the first job that wants one, shared by all that do. A while
// after the last, once home has all that was written, it rests: it stays mounted with what the kernel has of it, home
// is not asked for its changes, and what home has by now leaves the disk but for what the cache has room for. The next
// job wakes it: it catches up with the state of then. It ends with the tenant's server. docs/decisions/0013, "Wired";
// 0019.
//
// What a view needs is in DIRECTORY/ID/: `mount` (on which it is mounted), `written`, `journal`. A view that another
// server of this keeper mounted is taken over; what home lacks of one whose mount has ended is sent (decisions/0021),
// unless the machine was restarted since (`boot`): then nobody knows what of it reached the disk, and it stays.
//
// Loop thread only; mounting, publishing, resting and unmounting happen on a thread of this, because they wait.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/hash/digest.h"
#include "base/id_map.h"
#include "base/io/event_loop.h"
#include "base/io/work_queue.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "vfs/content/backend.h"
#include "vfs/live/live_view.h"

namespace vrun::node {

class ContentSource;
class LiveFollower;
class LiveSender;

class LiveViews {
 public:
  struct Hooks {
    // A file, or "/" for all of it, cannot be had any more.
    std::function<void(const std::string& path, const std::string& reason, const std::vector<uint64_t>& leases)> lost;
    // It was mounted or its leases changed, before anybody is told; null while it is being taken over.
    std::function<void(uint64_t id, const vfs::LiveView* view, const std::set<uint64_t>& leases)> keep;
    // It is going to be unmounted.
    std::function<void(uint64_t id)> drop;
    // Home has told it of this tree, which it shows next. On a thread of the view's.
    std::function<void(const Digest& tree)> told;
  };
  struct Opened {
    uint64_t view = 0;  // its id
    UniqueFd mount;
  };
  struct Published {
    uint64_t view = 0;
    uint64_t sequence = 0;
  };

  struct Options {
    IdMap ids;
    // As of LiveViewOptions.
    bool no_open = true;
    bool push = true;
    uint32_t read_ahead_kb = 128;
    bool list_attributes = true;
  };

  // `home` must outlive it.
  LiveViews(EventLoop* loop, ContentSource* home, std::shared_ptr<vfs::Backend> backend, std::string directory,
            Options options, Hooks hooks);
  // Unmounts. What home does not have stays on the disk.
  ~LiveViews();

  // A detached mount that shows the state of that serial (TreeNow) or a later one; `tree` is it, or an earlier one.
  // kAborted when Close came first.
  void Open(const Digest& tree, uint64_t serial, uint64_t lease, std::function<void(Result<Opened>)> done);
  // All that was written by now is on its way home; once home has that sequence, it has all of it.
  void Publish(uint64_t lease, std::function<void(Result<Published>)> done);
  // An unknown lease is fine.
  void Close(uint64_t lease);
  void CloseAllBut(const std::set<uint64_t>& leases);
  size_t leases() const;
  bool empty() const { return views_.empty(); }
  // Home tells the view of its trees, or will before the next Open is done: nobody else need ask for them.
  bool followed() const;

  // One that another process mounted.
  void Adopt(uint64_t id, std::set<uint64_t> leases, vfs::ViewHandle handle);
  // After all were adopted: sends home what is left of views that are no more.
  void Sweep();

 private:
  struct Live;
  struct Left;
  using LivePtr = std::shared_ptr<Live>;
  using Mount = std::function<Result<std::unique_ptr<vfs::LiveView>>(vfs::LiveViewOptions options)>;

  LivePtr Of(uint64_t lease) const;
  // `serial`: home's number of the tree that it is mounted with, 0: not known.
  LivePtr Make(uint64_t id, uint64_t serial, Mount mount);
  void Mounted(const LivePtr& live, Status mounted);
  void Grant(const LivePtr& live, uint64_t serial, uint64_t lease, std::function<void(Result<Opened>)> done);
  void Follow(const LivePtr& live, uint64_t serial) const;
  void Idle(const LivePtr& live, int64_t micros);
  void Rest(const LivePtr& live);
  void GiveRoom(const LivePtr& live);
  void Wake(const LivePtr& live);
  void Drop(const LivePtr& live, bool remove);
  void Send(uint64_t id);  // on the worker
  void Sent(uint64_t id);
  std::string DirectoryOf(uint64_t id) const { return directory_ + "/" + std::to_string(id); }

  EventLoop* const loop_;
  ContentSource* const home_;
  const std::shared_ptr<vfs::Backend> backend_;
  const std::string directory_;
  const Options options_;
  const Hooks hooks_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<uint64_t, LivePtr> views_;               // by id; one, but for those that could not be taken over
  std::map<uint64_t, std::shared_ptr<Left>> left_;  // the worker's own
  WorkQueue worker_{"live"};
};

}  // namespace vrun::node
