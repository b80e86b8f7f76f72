// SPDX-License-Identifier: Apache-2.0
#include "vfs/live_view.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/escape.h"
#include "base/log.h"
#include "vfs/dispatcher.h"
#include "vfs/lazy_root.h"
#include "vfs/live_root.h"
#include "vfs/mount.h"
#include "vfs/transport.h"

namespace vrun::vfs {
namespace {

constexpr int kInitMillis = 30'000;  // INIT comes with the mount; this is for a machine that hardly runs

class MountedLiveView final : public LiveView {
 public:
  MountedLiveView(std::shared_ptr<Backend> backend, std::unique_ptr<LiveFiles> files, const Digest& tree,
                  const tree::Entry& root, LiveViewOptions options, UniqueFd device)
      : backend_(std::move(backend)),
        files_(std::move(files)),
        transport_(std::make_shared<DevFuse>(std::move(device))),
        root_(*backend_, *transport_, *files_, tree, root,
              {options.uid_base, options.passthrough, std::move(options.on_content_lost), [this] { Release(); }}),
        dispatcher_(transport_, &root_, &backend_->timers()),
        releaser_([this] { ShowReleased(); }) {}

  ~MountedLiveView() override {
    // The connection first: it wakes the threads that read it, and everybody who waits for an answer.
    if (mount_) mount_->Abort();
    dispatcher_.Stop();
    {
      std::lock_guard lock(release_mutex_);
      stop_ = true;
      release_.notify_one();
    }
    releaser_.join();
    transport_->SetAbort(nullptr);  // the mount goes before what might still call it
    if (mount_) mount_->Unmount();
  }

  Status Start(const LiveViewOptions& options) {
    auto mount = FuseMount::Create(transport_->fd(), options.directory, FuseMount::Access::kReadWrite);
    if (!mount) return std::move(mount).error();
    mount_.emplace(*std::move(mount));
    transport_->SetAbort([this] { mount_->Abort(); });
    dispatcher_.Start(options.threads);
    if (!dispatcher_.WaitInitialized(kInitMillis)) {
      return Error(Code::kTimeout, "mount a live view: the kernel says nothing");
    }
    if (options.read_ahead_kb != 0) {
      if (const Status raised = mount_->SetReadAhead(options.read_ahead_kb); !raised) {
        LogWarning("read-ahead of {} stays at 128 KiB: {}", Escape(options.directory), raised.error().message());
      }
    }
    return {};
  }

  Result<UniqueFd> CloneMount() const override { return mount_->Clone(); }

  Status Advance(const Digest& tree, uint64_t included) override { return root_.Advance(dispatcher_, tree, included); }
  Digest tree() const override { return root_.tree(); }
  uint64_t changes() const override { return root_.changes(); }
  void Acknowledge(uint64_t nodeid, const tree::FileVersion& version) override { root_.Acknowledge(nodeid, version); }

  LiveViewStats stats() const override {
    LiveViewStats stats;
    const DispatcherCounters& counters = dispatcher_.counters();
    for (size_t i = 0; i < stats.requests.size(); ++i) stats.requests[i] = counters.requests[i].load();
    stats.malformed = counters.malformed.load();
    stats.passthrough_opens = root_.passthrough_opens();
    stats.passthrough = root_.passthrough_works();
    stats.inodes = root_.inodes();
    return stats;
  }

 private:
  void Release() {
    std::lock_guard lock(release_mutex_);
    released_ = true;
    release_.notify_one();
  }

  // A thread of its own, since the one that closed the file answers requests.
  void ShowReleased() {
    std::unique_lock lock(release_mutex_);
    for (;;) {
      release_.wait(lock, [this] { return stop_ || released_; });
      if (stop_) return;
      released_ = false;
      lock.unlock();
      if (const Status shown = root_.AdvanceAgain(dispatcher_); !shown) {
        LogWarning("live view: {}", Escape(shown.error().message()));
      }
      lock.lock();
    }
  }

  const std::shared_ptr<Backend> backend_;
  const std::unique_ptr<LiveFiles> files_;
  const std::shared_ptr<DevFuse> transport_;
  LiveRoot root_;
  Dispatcher dispatcher_;
  std::optional<FuseMount> mount_;

  std::mutex release_mutex_;
  std::condition_variable release_;
  bool released_ = false;
  bool stop_ = false;
  std::thread releaser_;
};

}  // namespace

Result<std::unique_ptr<LiveView>> LiveView::Mount(std::shared_ptr<Backend> backend, const Digest& tree,
                                                  LiveViewOptions options) {
  VRUN_ASSIGN(UniqueFd device, OpenFuseDevice(options.fuse_device));
  VRUN_ASSIGN(const tree::Entry root, FetchRootEntry(*backend, tree));
  VRUN_ASSIGN(auto files, LiveFiles::Open(options.written));
  auto view =
      std::make_unique<MountedLiveView>(std::move(backend), std::move(files), tree, root, options, std::move(device));
  VRUN_TRY(view->Start(options));
  return std::unique_ptr<LiveView>(std::move(view));
}

}  // namespace vrun::vfs
