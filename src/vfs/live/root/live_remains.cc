// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/root/live_remains.h"

#include <cerrno>
#include <utility>

#include "vfs/fuse/transport.h"
#include "vfs/live/root/live_root.h"

namespace vrun::vfs {
namespace {

// Stands in for the kernel, which is no longer there.
class NoKernel final : public Transport {
 public:
  size_t Receive(void*, size_t) override { return 0; }
  int Send(const iovec*, int) override { return ENOENT; }
  int OpenBacking(int) override { return -EOPNOTSUPP; }
  void CloseBacking(int) override {}
  void Abort() override {}
};

class Remains final : public LiveRemains {
 public:
  Remains(std::shared_ptr<Backend> backend, std::shared_ptr<LiveFiles> files, std::unique_ptr<LiveJournal> journal,
          const LiveState& state, const LiveRemainsOptions& options)
      : backend_(std::move(backend)),
        files_(std::move(files)),
        journal_(std::move(journal)),
        stream_(options.stream),
        root_(*backend_, kernel_, *files_, state.tree, tree::Entry(), RootOptions(options)) {
    stream_.SetReady(options.on_ready);
  }
  ~Remains() override { files_->Keep(); }

  Status Start(LiveState* state) {
    VRUN_TRY(root_.Begin(journal_.get(), &stream_, state));
    root_.PublishAll();
    return {};
  }
  LiveStream* stream() override { return &stream_; }

 private:
  static LiveRootOptions RootOptions(const LiveRemainsOptions& options) {
    LiveRootOptions root;
    root.ids = options.ids;
    root.passthrough = false;
    return root;
  }

  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<LiveFiles> files_;
  const std::unique_ptr<LiveJournal> journal_;
  NoKernel kernel_;
  LiveStream stream_;
  LiveRoot root_;
};

}  // namespace

Result<std::unique_ptr<LiveRemains>> LiveRemains::Open(std::shared_ptr<Backend> backend, LiveRemainsOptions options) {
  LiveState state;
  VRUN_ASSIGN(auto journal, LiveJournal::Open(options.journal, &state));
  VRUN_ASSIGN(auto files, LiveFiles::Open(options.written));
  auto remains = std::make_unique<Remains>(std::move(backend), std::move(files), std::move(journal), state, options);
  VRUN_TRY(remains->Start(&state));
  return std::unique_ptr<LiveRemains>(std::move(remains));
}

}  // namespace vrun::vfs
