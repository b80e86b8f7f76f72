// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/live_view.h"

#include <fcntl.h>

#include <optional>
#include <thread>
#include <utility>

#include "base/escape.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "store/store.h"
#include "vfs/frozen/lazy_root.h"
#include "vfs/frozen/saved_view.h"
#include "vfs/fuse/dispatcher.h"
#include "vfs/fuse/mount.h"
#include "vfs/fuse/transport.h"
#include "vfs/live/kernel/close_watch.h"
#include "vfs/live/kernel/live_push.h"
#include "vfs/live/root/live_root.h"

namespace vrun::vfs {
namespace {

constexpr int kInitMillis = 30'000;  // INIT comes with the mount; the limit is for an extremely slow machine

Result<UniqueFd> Duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) return ErrnoError("duplicate a descriptor of a live view");
  return copy;
}

// All members are null in a view without a journal.
struct Journaling {
  std::unique_ptr<SavedView> saved;
  std::unique_ptr<LiveJournal> journal;
  std::unique_ptr<LiveStream> stream;
};

class MountedLiveView final : public LiveView {
 public:
  MountedLiveView(std::shared_ptr<Backend> backend, std::shared_ptr<LiveFiles> files, const Digest& tree,
                  const tree::Entry& root, LiveViewOptions options, UniqueFd device, Journaling journaling)
      : backend_(std::move(backend)),
        files_(std::move(files)),
        journaling_(std::move(journaling)),
        transport_(std::make_shared<DevFuse>(std::move(device))),
        root_(*backend_, *transport_, *files_, tree, root,
              {options.ids, options.passthrough && !journaling_.journal, options.no_open && journaling_.journal,
               std::move(options.on_content_lost), [this] { Release(); }, std::move(options.on_doubt),
               options.publish_bytes, options.publish_micros, options.list_attributes, options.hidden_flags,
               options.nameless_files}),
        dispatcher_(transport_, &root_, &backend_->timers(), backend_->cpu_latency()),
        releaser_([this] { ShowReleased(); }) {}

  ~MountedLiveView() override {
    // End the connection first: that wakes the threads that read it, and everyone who waits for an answer.
    if (mount_) mount_->Abort();
    dispatcher_.Stop();
    root_.WatchCloses(nullptr);
    closes_.reset();
    {
      MutexLock lock(release_mutex_);
      stop_ = true;
      release_.notify_one();
    }
    releaser_.join();
    if (journaling_.journal) files_->Keep();
    transport_->SetAbort(nullptr);  // the mount is destroyed before the transport that could call it
    if (mount_) mount_->Unmount();
  }

  Status Start(const LiveViewOptions& options) {
    if (journaling_.journal) {
      VRUN_TRY(root_.Begin(journaling_.journal.get(), journaling_.stream.get(), nullptr));
    }
    auto mount = FuseMount::Create(transport_->fd(), options.directory, FuseMount::Access::kReadWrite);
    if (!mount) return std::move(mount).error();
    mount_.emplace(*std::move(mount));
    transport_->SetAbort([this] { mount_->Abort(); });
    dispatcher_.Start(options.threads);
    if (!dispatcher_.WaitInitialized(kInitMillis)) {
      return Error(Code::kTimeout, "mount a live view: the kernel sent no INIT within 30 s");
    }
    if (root_.no_open()) {
      VRUN_ASSIGN(closes_, CloseWatch::Start(mount_->fd(), HooksOfCloses()));
      root_.WatchCloses(closes_.get());
      if (options.push) StartPushing();
    }
    if (journaling_.saved) {
      SavedView::Header& header = journaling_.saved->header();
      header.init_flags = root_.init_flags();
      header.resend = (root_.init_flags() & kFuseHasResend) != 0 ? 1 : 0;
    }
    if (options.read_ahead_kb != 0) {
      if (const Status raised = mount_->SetReadAhead(options.read_ahead_kb); !raised) {
        LogWarning("read-ahead of {} stays at 128 KiB: {}", Escape(options.directory), raised.error().message());
      }
    }
    return {};
  }

  Status TakeOver(const LiveViewOptions& options, UniqueFd mount, LiveState* state) {
    auto adopted = FuseMount::Adopt(std::move(mount), options.directory);
    if (!adopted) return std::move(adopted).error();
    mount_.emplace(*std::move(adopted));
    transport_->SetAbort([this] { mount_->Abort(); });
    VRUN_TRY(root_.Begin(journaling_.journal.get(), journaling_.stream.get(), state));
    const uint64_t init_flags = journaling_.saved->header().init_flags;
    dispatcher_.SetInitialized(init_flags);
    root_.SetInitialized(init_flags);
    if (root_.no_open()) root_.ClosesMissed();  // before the requests that followed those closes
    // Before anything is read here: it would be sent again as well, and done twice.
    if (const int error = dispatcher_.Resend(); error != 0)
      return ErrnoError(error, "ask the kernel to resend unanswered requests");
    dispatcher_.Start(options.threads);
    {
      MutexLock lock(release_mutex_);
      restored_ = true;
      release_.notify_one();
    }
    if (!root_.no_open()) return {};
    auto closes = CloseWatch::Resume(mount_->fd(), HooksOfCloses());
    if (closes) {
      closes_ = *std::move(closes);
      root_.WatchCloses(closes_.get());
    } else {  // without it, written content is published after a while
      LogWarning("live view: {}", Escape(closes.error().message()));
    }
    if (options.push) StartPushing();
    return {};
  }

  Result<ViewHandle> Handle() const override {
    if (!journaling_.saved) return Error(Code::kUnsupported, "cannot hand over a live view without a journal");
    VRUN_TRY(journaling_.saved->Usable());
    ViewHandle handle;
    VRUN_ASSIGN(handle.device, Duplicate(transport_->fd()));
    VRUN_ASSIGN(handle.mount, Duplicate(mount_->fd()));
    VRUN_ASSIGN(handle.state, Duplicate(journaling_.saved->fd()));
    return handle;
  }
  LiveStream* stream() override { return journaling_.stream.get(); }
  uint64_t PublishAll() override { return root_.PublishAll(); }
  void SeeCloses() override { root_.SettleCloses(); }
  uint64_t DropWritten(uint64_t rest_bytes) override { return root_.DropWritten(rest_bytes); }

  Result<UniqueFd> CloneMount() const override {
    return mount_->Clone([this](int error) { return backend_->store()->GiveWay(error, 0); });
  }

  Status Advance(const Digest& tree, uint64_t included) override { return root_.Advance(dispatcher_, tree, included); }
  void Doubt(bool doubt) override { root_.Doubt(dispatcher_, doubt); }
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
    stats.no_open = root_.no_open();
    if (push_) stats.pushed = push_->pushed();
    return stats;
  }

 private:
  CloseWatch::Hooks HooksOfCloses() {
    return {[this](uint64_t nodeid) { root_.Closed(nodeid); }, [this] { root_.ClosesMissed(); }};
  }

  void StartPushing() {
    auto push = LivePush::Start(*backend_, mount_->fd());
    if (!push) return LogWarning("live view: pushing is off: {}", Escape(push.error().message()));
    push_ = *std::move(push);
    root_.PushInto(push_.get());
  }

  void Release() {
    MutexLock lock(release_mutex_);
    released_ = true;
    release_.notify_one();
  }

  // A thread of its own: the thread that closed the file answers requests, and the kernel may wait for answers before
  // it accepts a notice.
  void ShowReleased() {
    MutexLock lock(release_mutex_);
    for (;;) {
      release_.wait(lock, [this]() VRUN_REQUIRES(release_mutex_) { return stop_ || released_ || restored_; });
      if (stop_) return;
      const bool restored = std::exchange(restored_, false);
      if (!restored) released_ = false;
      lock.unlock();
      const Status shown = restored ? root_.TellRestored(dispatcher_) : root_.AdvanceAgain(dispatcher_);
      if (!shown) LogWarning("live view: {}", Escape(shown.error().message()));
      lock.lock();
    }
  }

  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<LiveFiles> files_;
  const Journaling journaling_;
  const std::shared_ptr<DevFuse> transport_;
  std::unique_ptr<LivePush> push_;  // null: nothing is pushed; as long as root_
  LiveRoot root_;
  Dispatcher dispatcher_;
  std::optional<FuseMount> mount_;
  std::unique_ptr<CloseWatch> closes_;  // null: the kernel sends opens

  Mutex release_mutex_;
  CondVar release_;
  bool released_ VRUN_GUARDED_BY(release_mutex_) = false;
  bool restored_ VRUN_GUARDED_BY(release_mutex_) = false;
  bool stop_ VRUN_GUARDED_BY(release_mutex_) = false;
  std::thread releaser_;
};

}  // namespace

namespace {

Result<std::unique_ptr<LiveView>> MountOnce(const std::shared_ptr<Backend>& backend, const Digest& tree,
                                            const tree::Entry& root, const LiveViewOptions& options) {
  VRUN_ASSIGN(UniqueFd device, OpenFuseDevice(options.fuse_device));
  VRUN_ASSIGN(auto files, LiveFiles::Open(options.written));
  Journaling journaling;
  if (!options.journal.empty()) {
    VRUN_ASSIGN(journaling.journal, LiveJournal::Create(options.journal));
    VRUN_ASSIGN(journaling.saved, SavedView::Create());
    journaling.saved->SetTree(tree);
    journaling.stream = std::make_unique<LiveStream>(options.stream);
    journaling.stream->SetReady(options.on_ready);
  }
  auto view = std::make_unique<MountedLiveView>(backend, std::move(files), tree, root, options, std::move(device),
                                                std::move(journaling));
  VRUN_TRY(view->Start(options));
  return std::unique_ptr<LiveView>(std::move(view));
}

}  // namespace

Result<std::unique_ptr<LiveView>> LiveView::Mount(std::shared_ptr<Backend> backend, const Digest& tree,
                                                  LiveViewOptions options) {
  VRUN_ASSIGN(const tree::Entry root, FetchRootEntry(*backend, tree));
  auto view = MountOnce(backend, tree, root, options);
  if (view || !options.no_open || options.journal.empty() || view.error().code() != Code::kUnsupported) return view;
  LogInfo("live view: each open and each close costs a request: {}", Escape(view.error().message()));
  options.no_open = false;
  return MountOnce(backend, tree, root, options);
}

Result<std::unique_ptr<LiveView>> LiveView::TakeOver(std::shared_ptr<Backend> backend, ViewHandle handle,
                                                     LiveViewOptions options) {
  Journaling journaling;
  VRUN_ASSIGN(journaling.saved, SavedView::Open(std::move(handle.state)));
  VRUN_TRY(journaling.saved->Usable());
  LiveState state;
  VRUN_ASSIGN(journaling.journal, LiveJournal::Open(options.journal, &state));
  journaling.stream = std::make_unique<LiveStream>(options.stream);
  journaling.stream->SetReady(options.on_ready);
  VRUN_ASSIGN(auto files, LiveFiles::Open(options.written));
  const tree::Entry root;  // the journal has the real one
  auto view = std::make_unique<MountedLiveView>(std::move(backend), std::move(files), state.tree, root, options,
                                                std::move(handle.device), std::move(journaling));
  VRUN_TRY(view->TakeOver(options, std::move(handle.mount), &state));
  return std::unique_ptr<LiveView>(std::move(view));
}

}  // namespace vrun::vfs
