// SPDX-License-Identifier: Apache-2.0
// The live view of a tenant on this node: mounted for the first job that wants one, shared by all such jobs. Some time
// after the last job, once home has all writes, it rests: it stays mounted and keeps the kernel's caches, does not
// follow home's changes, and releases its published content on disk except what fits into the cache. The next job wakes
// it and it catches up with home. It is unmounted when the tenant's server exits. docs/decisions/0013, "Wired"; 0019.
//
// A view's files are in DIRECTORY/ID/: `mount` (the mount point), `written`, `journal`. A view mounted by another
// server of this keeper is taken over. If a view's mount has ended, its unsent writes are sent home (decisions/0021),
// unless the machine has rebooted since (`boot`): then it is unknown what reached the disk, and the files stay.
//
// Loop thread only. Mounting, publishing, resting and unmounting block, so they run on an own thread.
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
    // A file, or "/" for the whole view, can no longer be read.
    std::function<void(const std::string& path, const std::string& reason, const std::vector<uint64_t>& leases)> lost;
    // The view was mounted or its leases changed; called before anybody is told. Null while it is being taken over.
    std::function<void(uint64_t id, const vfs::LiveView* view, const std::set<uint64_t>& leases)> keep;
    // The view is about to be unmounted.
    std::function<void(uint64_t id)> drop;
    // Home has sent this tree, which the view shows next. Runs on a thread of the view.
    std::function<void(const Digest& tree)> told;
  };
  struct Opened {
    uint64_t view = 0;  // the view's id
    UniqueFd mount;
  };
  struct Published {
    uint64_t view = 0;
    uint64_t sequence = 0;
  };

  struct Options {
    IdMap ids;
    // See LiveViewOptions.
    bool no_open = true;
    bool push = true;
    uint32_t read_ahead_kb = 128;
    bool list_attributes = true;
  };

  // `home` must outlive it.
  LiveViews(EventLoop* loop, ContentSource* home, std::shared_ptr<vfs::Backend> backend, std::string directory,
            Options options, Hooks hooks);
  // Unmounts. Writes that home does not have stay on the disk.
  ~LiveViews();

  // Returns a detached mount that shows the state `serial` (TreeNow) or a later one; `tree` is that state or an earlier
  // one. kAborted when Close came first.
  void Open(const Digest& tree, uint64_t serial, uint64_t lease, std::function<void(Result<Opened>)> done);
  // Puts everything written so far into the series. Once home has the returned sequence, it has all of it.
  void Publish(uint64_t lease, std::function<void(Result<Published>)> done);
  // An unknown lease is allowed.
  void Close(uint64_t lease);
  void CloseAllBut(const std::set<uint64_t>& leases);
  size_t leases() const;
  bool empty() const { return views_.empty(); }
  // Whether home sends its trees to the view, or will before the next Open is done, so nobody else need ask for them.
  bool followed() const;

  // Takes over a view that another process mounted.
  void Adopt(uint64_t id, std::set<uint64_t> leases, vfs::ViewHandle handle);
  // Call after all Adopts: sends home what is left of views that no longer exist.
  void Sweep();

 private:
  struct Live;
  struct Left;
  using LivePtr = std::shared_ptr<Live>;
  using Mount = std::function<Result<std::unique_ptr<vfs::LiveView>>(vfs::LiveViewOptions options)>;

  LivePtr Of(uint64_t lease) const;
  // `serial`: home's number of the mounted tree, 0: unknown.
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
  std::map<uint64_t, LivePtr> views_;               // by id; more than one only if a takeover failed
  std::map<uint64_t, std::shared_ptr<Left>> left_;  // only used by the worker
  WorkQueue worker_{"live"};
};

}  // namespace vrun::node
