// SPDX-License-Identifier: Apache-2.0
#include "node/views/live_views.h"

#include <dirent.h>
#include <sys/mount.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "node/source/content_source.h"
#include "node/views/live_follower.h"
#include "node/views/live_sender.h"
#include "store/store.h"
#include "vfs/live/root/live_remains.h"

namespace vrun::node {
namespace {

constexpr int64_t kWarmMicros = 10'000'000;  // between the last job and resting
constexpr int64_t kAgainMicros = 1'000'000;  // while home lacks writes of an unused view
constexpr uint64_t kKeepBytes = 1ull << 30;  // maximum of published content kept by a resting view
constexpr int64_t kRoomMicros = 1'000'000;   // interval of checks how much room the cache leaves

uint64_t NewId() {
  uint32_t halves[2] = {};
  while (halves[0] == 0 || halves[1] == 0) {
    if (::getrandom(halves, sizeof halves, 0) != sizeof halves) halves[0] = halves[1] = 1;
  }
  return uint64_t{halves[0]} << 32 | halves[1];
}

std::string BootId() { return ReadFile("/proc/sys/kernel/random/boot_id").value_or(""); }

// Published content can be fetched again like everything in the cache, so it may use only what the cache does not need.
uint64_t RoomBeside(const store::Stats& cache) {
  if (cache.disk_free_bytes < cache.min_free_bytes || cache.bytes >= cache.limit_bytes) return 0;
  return std::min(kKeepBytes, cache.limit_bytes - cache.bytes);
}

bool IsId(const std::string& name) {
  return !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

struct LiveViews::Live {
  uint64_t id = 0;
  bool mounted = false;  // mounted and followed
  bool resting = false;  // mounted, not followed
  bool lost = false;
  std::set<uint64_t> leases;  // including those that wait
  // Until it is mounted: callbacks for success or the error.
  std::vector<std::function<void(const Status&)>> waiting;
  EventLoop::TimerId idle = 0;  // until it rests; then until the next check of the cache
  uint64_t room = 0;            // result of RoomBeside at the last release

  // In order of dependency.
  std::unique_ptr<LiveSender> sender;
  std::unique_ptr<vfs::LiveView> view;
  std::unique_ptr<LiveFollower> follower;

  ~Live() { End(); }
  // Waits for their threads.
  void End() {
    follower.reset();
    sender.reset();
    view.reset();
  }
};

// Unsent writes of a view whose mount has ended, being sent home.
struct LiveViews::Left {
  std::unique_ptr<LiveSender> sender;
  std::unique_ptr<vfs::LiveRemains> remains;
  ~Left() {
    sender.reset();
    remains.reset();
  }
};

LiveViews::LiveViews(EventLoop* loop, ContentSource* home, std::shared_ptr<vfs::Backend> backend, std::string directory,
                     Options options, Hooks hooks)
    : loop_(loop),
      home_(home),
      backend_(std::move(backend)),
      directory_(std::move(directory)),
      options_(options),
      hooks_(std::move(hooks)) {}

LiveViews::~LiveViews() {
  *alive_ = false;
  worker_.Stop();
  left_.clear();  // unsent writes stay on the disk
  for (const auto& [id, live] : views_) loop_->Cancel(live->idle);
}

size_t LiveViews::leases() const {
  size_t n = 0;
  for (const auto& [id, live] : views_) n += live->leases.size();
  return n;
}

bool LiveViews::followed() const {
  return std::any_of(views_.begin(), views_.end(), [](const auto& view) { return !view.second->lost; });
}

LiveViews::LivePtr LiveViews::Of(uint64_t lease) const {
  for (const auto& [id, live] : views_) {
    if (live->leases.contains(lease)) return live;
  }
  return nullptr;
}

LiveViews::LivePtr LiveViews::Make(uint64_t id, uint64_t serial, Mount mount) {
  auto live = std::make_shared<Live>();
  live->id = id;
  views_[id] = live;
  vfs::LiveViewOptions options;
  const std::string directory = DirectoryOf(id);
  options.directory = directory + "/mount";
  options.written = directory + "/written";
  options.journal = directory + "/journal";
  options.ids = options_.ids;
  options.no_open = options_.no_open;
  options.push = options_.push;
  options.read_ahead_kb = options_.read_ahead_kb;
  options.list_attributes = options_.list_attributes;
  options.on_content_lost = [this, alive = std::weak_ptr(alive_), id](const std::string& path,
                                                                      const std::string& reason) {
    loop_->Post([this, alive, id, path, reason] {
      const auto it = alive.expired() ? views_.end() : views_.find(id);
      if (alive.expired() || it == views_.end()) return;
      hooks_.lost(path, reason, {it->second->leases.begin(), it->second->leases.end()});
    });
  };
  options.on_doubt = [home = home_] { home->SendHeard(false, true); };
  live->sender = std::make_unique<LiveSender>(home_, id);
  options.on_ready = live->sender->ReadyCallback();
  worker_.Post([this, alive = std::weak_ptr(alive_), live, serial, options = std::move(options),
                mount = std::move(mount), boot = directory + "/boot"] {
    Status made = MakeDirs(options.directory, 0700);
    if (made && !PathExists(boot)) made = WriteFileAtomic(boot, BootId(), 0600);
    if (made) made = MakeDirs(options.written, 0700);
    if (made) {
      auto view = mount(options);
      if (view) {
        live->view = *std::move(view);
        live->sender->Start(live->view->stream());
        Follow(live, serial);
      } else {
        made = std::move(view).error();
      }
    }
    loop_->Post([this, alive, live, made] {
      if (!alive.expired()) Mounted(live, made);
    });
  });
  return live;
}

// On the worker.
void LiveViews::Follow(const LivePtr& live, uint64_t serial) const {
  live->follower = std::make_unique<LiveFollower>(
      home_, backend_, live->id, live->view->tree(), serial,
      [this, view = live->view.get()](const Digest& tree, uint64_t included) {
        hooks_.told(tree);
        // While an operation is in progress, only the operations before it are included.
        const bool whole = (included & vfs::LiveStream::kLastPlace) == vfs::LiveStream::kLastPlace;
        const uint64_t number = included >> vfs::LiveStream::kPlaceBits;
        return view->Advance(tree, number - (whole || number == 0 ? 0 : 1));
      },
      [view = live->view.get()](bool doubt) { view->Doubt(doubt); });
}

void LiveViews::Mounted(const LivePtr& live, Status mounted) {
  live->mounted = true;
  if (mounted) {
    hooks_.keep(live->id, live->view.get(), live->leases);
    LogInfo("live view {}: serves {} jobs", live->id, live->leases.size());
  } else {
    LogError("live view {}: {}", live->id, Escape(mounted.error().message()));
    live->lost = true;
  }
  for (const auto& go : std::exchange(live->waiting, {})) go(mounted);
  if (live->leases.empty()) Idle(live, kWarmMicros);
}

void LiveViews::Open(const Digest& tree, uint64_t serial, uint64_t lease, std::function<void(Result<Opened>)> done) {
  LivePtr live;
  for (const auto& [id, other] : views_) {
    if (!other->lost) live = other;
  }
  if (!live) {
    // It shows that state from the beginning, so the first job does not wait for home.
    live = Make(NewId(), serial, [this, tree](vfs::LiveViewOptions options) {
      return vfs::LiveView::Mount(backend_, tree, std::move(options));
    });
  }
  loop_->Cancel(std::exchange(live->idle, 0));
  live->leases.insert(lease);
  if (live->mounted) return Grant(live, serial, lease, std::move(done));
  if (live->resting) Wake(live);
  live->waiting.push_back([this, live = live.get(), serial, lease, done = std::move(done)](const Status& mounted) {
    if (!mounted) {
      live->leases.erase(lease);
      return done(mounted.error());
    }
    Grant(views_.at(live->id), serial, lease, done);
  });
}

void LiveViews::Grant(const LivePtr& live, uint64_t serial, uint64_t lease, std::function<void(Result<Opened>)> done) {
  hooks_.keep(live->id, live->view.get(), live->leases);
  const auto shown = [this, alive = std::weak_ptr(alive_), id = live->id, lease, done = std::move(done)] {
    loop_->Post([this, alive, id, lease, done] {
      if (alive.expired()) return;
      const auto it = views_.find(id);
      if (it == views_.end() || !it->second->leases.contains(lease)) {
        return done(Error(Code::kAborted, "the view was closed before it was open"));
      }
      auto mount = it->second->view->CloneMount();
      if (!mount) return done(std::move(mount).error());
      done(Opened{id, *std::move(mount)});
    });
  };
  live->follower->WhenShown(serial, shown);
}

void LiveViews::Publish(uint64_t lease, std::function<void(Result<Published>)> done) {
  const LivePtr live = Of(lease);
  const Error gone(Code::kAborted, "the live view is gone: its last writes may be missing at home");
  if (!live || live->lost) return done(gone);
  const auto publish = [this, alive = std::weak_ptr(alive_), live, done] {
    worker_.Post([this, alive, live, done] {
      const uint64_t number = live->view->PublishAll();
      const uint64_t sequence = number == 0 ? 0 : number << vfs::LiveStream::kPlaceBits | vfs::LiveStream::kLastPlace;
      loop_->Post([alive, done, published = Published{live->id, sequence}] {
        if (!alive.expired()) done(published);
      });
    });
  };
  if (live->mounted) return publish();
  live->waiting.push_back([publish, done, gone](const Status& mounted) {
    if (!mounted) return done(gone);
    publish();
  });
}

void LiveViews::Close(uint64_t lease) {
  const LivePtr live = Of(lease);
  if (!live) return;
  live->leases.erase(lease);
  if (!live->mounted) return;
  if (!live->lost) hooks_.keep(live->id, live->view.get(), live->leases);
  if (live->leases.empty()) Idle(live, kWarmMicros);
}

void LiveViews::CloseAllBut(const std::set<uint64_t>& leases) {
  std::set<uint64_t> others;
  for (const auto& [id, live] : views_) others.insert(live->leases.begin(), live->leases.end());
  for (const uint64_t lease : others) {
    if (!leases.contains(lease)) Close(lease);
  }
}

// Nobody uses it. It may be used again soon, and home may lack some of its writes.
void LiveViews::Idle(const LivePtr& live, int64_t micros) {
  if (live->lost) return Drop(live, false);
  loop_->Cancel(live->idle);
  live->idle = loop_->After(micros, [this, alive = std::weak_ptr(alive_), live] {
    live->idle = 0;
    worker_.Post([this, alive, live] {
      live->view->PublishAll();
      const vfs::LiveStreamStats stats = live->view->stream()->stats();
      const bool home_has_all = stats.acknowledged == stats.last;
      loop_->Post([this, alive, live, home_has_all] {
        if (alive.expired() || !live->leases.empty() || !live->mounted || live->lost || live->idle != 0) return;
        if (home_has_all) {
          Rest(live);
        } else {
          Idle(live, kAgainMicros);
        }
      });
    });
  });
}

void LiveViews::Rest(const LivePtr& live) {
  live->mounted = false;
  live->resting = true;
  worker_.Post([live] {
    live->follower.reset();
    LogInfo("live view {}: rests", live->id);
  });
  live->room = UINT64_MAX;
  GiveRoom(live);
}

void LiveViews::GiveRoom(const LivePtr& live) {
  const uint64_t room = RoomBeside(backend_->store()->stats());
  if (room < live->room - live->room / 8) {  // each release examines all nodes of the tree
    live->room = room;
    worker_.Post([live, room] { live->view->DropWritten(room); });
  }
  live->idle = loop_->After(kRoomMicros, [this, live] {
    live->idle = 0;
    if (live->resting) GiveRoom(live);
  });
}

void LiveViews::Wake(const LivePtr& live) {
  live->resting = false;
  worker_.Post([this, alive = std::weak_ptr(alive_), live] {
    Follow(live, 0);
    loop_->Post([this, alive, live] {
      if (!alive.expired()) Mounted(live, {});
    });
  });
}

void LiveViews::Drop(const LivePtr& live, bool remove) {
  hooks_.drop(live->id);
  views_.erase(live->id);
  worker_.Post([this, live, remove, directory = DirectoryOf(live->id)] {
    live->End();
    while (::umount2((directory + "/mount").c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0) {
    }
    if (!remove) return;
    home_->EndWrites(live->id);
    if (const Status removed = RemoveTree(directory); !removed) LogWarning("{}", Escape(removed.error().message()));
  });
}

void LiveViews::Adopt(uint64_t id, std::set<uint64_t> leases, vfs::ViewHandle handle) {
  // Shared, because a std::function is copied.
  const auto shared = std::make_shared<vfs::ViewHandle>(std::move(handle));
  const LivePtr live = Make(id, 0, [this, shared](vfs::LiveViewOptions options) {
    return vfs::LiveView::TakeOver(backend_, std::move(*shared), std::move(options));
  });
  live->leases = std::move(leases);
  live->waiting.push_back([this, live = live.get()](const Status& mounted) {
    if (mounted) return;
    hooks_.lost(
        "/",
        "the live view could not be taken over: its last writes may be missing at home: " + mounted.error().message(),
        {live->leases.begin(), live->leases.end()});
  });
}

void LiveViews::Sweep() {
  std::vector<std::string> left;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(directory_.c_str()), ::closedir);
  while (const dirent* entry = dir ? ::readdir(dir.get()) : nullptr) {
    const std::string name = entry->d_name;
    if (IsId(name) && !views_.contains(std::strtoull(name.c_str(), nullptr, 10))) left.push_back(name);
  }
  if (left.empty()) return;
  worker_.Post([this, left] {
    for (const std::string& name : left) Send(std::strtoull(name.c_str(), nullptr, 10));
  });
}

void LiveViews::Send(uint64_t id) {
  const std::string path = DirectoryOf(id);
  while (::umount2((path + "/mount").c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0) {
  }
  if (!PathExists(path + "/journal")) {
    if (const Status removed = RemoveTree(path); !removed) LogWarning("{}", Escape(removed.error().message()));
    return;
  }
  if (ReadFile(path + "/boot").value_or("") != BootId()) {
    LogError("live view {}: the machine restarted before all writes were home: it is kept in {}", id, Escape(path));
    return;
  }
  auto left = std::make_shared<Left>();
  left->sender = std::make_unique<LiveSender>(home_, id);
  vfs::LiveRemainsOptions options;
  options.journal = path + "/journal";
  options.written = path + "/written";
  options.on_ready = left->sender->ReadyCallback();
  options.ids = options_.ids;
  auto remains = vfs::LiveRemains::Open(backend_, std::move(options));
  if (!remains) {
    LogError("live view {}: cannot send its remaining writes home, they are kept in {}: {}", id, Escape(path),
             Escape(remains.error().message()));
    return;
  }
  left->remains = *std::move(remains);
  const uint64_t operations = left->remains->stream()->stats().operations;
  if (operations > 0) {
    LogInfo("live view {}: its mount ended before all writes were home: sending {} operations", id, operations);
  }
  left_[id] = left;
  left->sender->Start(left->remains->stream());
  left->remains->stream()->WhenAcknowledged(0, [this, alive = std::weak_ptr(alive_), id] {
    loop_->Post([this, alive, id] {
      if (alive.expired()) return;
      worker_.Post([this, id] { Sent(id); });
    });
  });
}

// Home has all of it.
void LiveViews::Sent(uint64_t id) {
  left_.erase(id);
  home_->EndWrites(id);
  if (const Status removed = RemoveTree(DirectoryOf(id)); !removed) {
    LogWarning("{}", Escape(removed.error().message()));
  }
}

}  // namespace vrun::node
