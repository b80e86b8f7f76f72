// SPDX-License-Identifier: Apache-2.0
#include "vfs/frozen/frozen_view.h"

#include <fcntl.h>

#include <optional>
#include <utility>

#include "base/escape.h"
#include "base/log.h"
#include "store/store.h"
#include "vfs/frozen/lazy_root.h"
#include "vfs/fuse/dispatcher.h"
#include "vfs/fuse/mount.h"
#include "vfs/fuse/transport.h"

namespace vrun::vfs {
namespace {

Result<UniqueFd> Duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) return ErrnoError("duplicate a descriptor of a view");
  return copy;
}

constexpr int kInitMillis = 30'000;  // INIT comes with the mount; the limit is for an extremely slow machine

class MountedView final : public FrozenView {
 public:
  MountedView(std::shared_ptr<Backend> backend, const Digest& tree, tree::Entry root, ViewOptions options,
              UniqueFd device, std::unique_ptr<SavedView> saved)
      : backend_(std::move(backend)),
        directory_(options.directory),
        saved_(std::move(saved)),
        transport_(std::make_shared<DevFuse>(std::move(device))),
        root_(*backend_, *transport_, tree, std::move(root),
              LazyRootOptions{.ids = options.ids,
                              .passthrough = options.passthrough,
                              .xattrs = options.xattrs,
                              .posix_acls = options.posix_acls,
                              .push = options.push,
                              .list_attributes = options.list_attributes,
                              .no_open = options.no_open,
                              .resend = options.resend,
                              .on_content_lost = std::move(options.on_content_lost)},
              saved_.get()),
        dispatcher_(transport_, &root_, &backend_->timers(), backend_->cpu_latency()) {}

  ~MountedView() override {
    // End the connection first: that wakes the threads that read it, and everyone who waits for an answer.
    if (mount_) mount_->Abort();
    dispatcher_.Stop();
    root_.StopPushing();
    transport_->SetAbort(nullptr);  // the mount is destroyed before the transport that could call it
    if (mount_) mount_->Unmount();
  }

  Status Start(const ViewOptions& options) {
    auto mount = FuseMount::Create(transport_->fd(), options.directory);
    if (!mount) return std::move(mount).error();
    mount_.emplace(*std::move(mount));
    transport_->SetAbort([this] { mount_->Abort(); });
    dispatcher_.Start(options.threads);
    // Only after INIT is it known what the kernel supports, and whether another process could take over the mount.
    if (!dispatcher_.WaitInitialized(kInitMillis))
      return Error(Code::kTimeout, "mount a view: the kernel sent no INIT within 30 s");
    if (options.read_ahead_kb != 0) {
      if (const Status raised = mount_->SetReadAhead(options.read_ahead_kb); !raised) {
        LogWarning("read-ahead of {} stays at 128 KiB: {}", Escape(options.directory), raised.error().message());
      }
    }
    return {};
  }

  Status TakeOver(const ViewOptions& options, UniqueFd mount) {
    auto adopted = FuseMount::Adopt(std::move(mount), options.directory);
    if (!adopted) return std::move(adopted).error();
    mount_.emplace(*std::move(adopted));
    transport_->SetAbort([this] { mount_->Abort(); });
    root_.Restore();
    // Before anything is read here, because that would be sent again as well.
    if (const int error = dispatcher_.Resend(); error != 0)
      return ErrnoError(error, "ask the kernel to resend unanswered requests");
    dispatcher_.Start(options.threads);
    return {};
  }

  Result<ViewHandle> Handle() const override {
    VRUN_TRY(saved_->Usable());
    ViewHandle handle;
    VRUN_ASSIGN(handle.device, Duplicate(transport_->fd()));
    VRUN_ASSIGN(handle.mount, Duplicate(mount_->fd()));
    VRUN_ASSIGN(handle.state, Duplicate(saved_->fd()));
    return handle;
  }

  Result<UniqueFd> CloneMount() const override {
    return mount_->Clone([this](int error) { return backend_->store()->GiveWay(error, 0); });
  }
  Status Advance(const Digest& tree) override { return root_.Advance(dispatcher_, tree); }
  Digest tree() const override { return root_.tree(); }
  const std::string& directory() const override { return directory_; }

  ViewStats stats() const override {
    ViewStats stats;
    const DispatcherCounters& counters = dispatcher_.counters();
    for (size_t i = 0; i < stats.requests.size(); ++i) stats.requests[i] = counters.requests[i].load();
    stats.malformed = counters.malformed.load();
    stats.passthrough_opens = root_.passthrough_opens();
    stats.pushed_files = root_.pushed();
    stats.passthrough_offered = root_.passthrough_offered();
    stats.inodes = root_.inodes();
    return stats;
  }

 private:
  const std::shared_ptr<Backend> backend_;
  const std::string directory_;
  const std::unique_ptr<SavedView> saved_;
  const std::shared_ptr<DevFuse> transport_;
  LazyRoot root_;
  Dispatcher dispatcher_;
  std::optional<FuseMount> mount_;
};

}  // namespace

Result<std::unique_ptr<FrozenView>> FrozenView::Mount(std::shared_ptr<Backend> backend, const Digest& tree,
                                                      ViewOptions options) {
  VRUN_ASSIGN(UniqueFd device, OpenFuseDevice(options.fuse_device));
  VRUN_ASSIGN(tree::Entry root, FetchRootEntry(*backend, tree));
  VRUN_ASSIGN(auto saved, SavedView::Create());
  auto view = std::make_unique<MountedView>(std::move(backend), tree, std::move(root), options, std::move(device),
                                            std::move(saved));
  VRUN_TRY(view->Start(options));
  return std::unique_ptr<FrozenView>(std::move(view));
}

Result<Digest> ViewHandle::Tree() const {
  VRUN_ASSIGN(UniqueFd copy, Duplicate(state.get()));
  VRUN_ASSIGN(const auto saved, SavedView::Open(std::move(copy)));
  VRUN_TRY(saved->Usable());
  return saved->tree();
}

Result<std::unique_ptr<FrozenView>> FrozenView::TakeOver(std::shared_ptr<Backend> backend, ViewHandle handle,
                                                         ViewOptions options) {
  VRUN_ASSIGN(auto saved, SavedView::Open(std::move(handle.state)));
  VRUN_TRY(saved->Usable());
  const Digest tree = saved->tree();
  VRUN_ASSIGN(tree::Entry root, FetchRootEntry(*backend, tree));
  auto view = std::make_unique<MountedView>(std::move(backend), tree, std::move(root), options,
                                            std::move(handle.device), std::move(saved));
  VRUN_TRY(view->TakeOver(options, std::move(handle.mount)));
  return std::unique_ptr<FrozenView>(std::move(view));
}

}  // namespace vrun::vfs
