// SPDX-License-Identifier: Apache-2.0
#include "node/live_follower.h"

#include <chrono>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "node/content_source.h"
#include "store/store.h"
#include "tree/codec.h"
#include "vfs/backend.h"

namespace vrun::node {
namespace {

constexpr std::chrono::seconds kAgain{1};  // after home could not, or would not tell; after a tree could not be taken

}  // namespace

struct LiveFollower::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  bool watched = false;
  uint64_t watch = 0;
  Digest shown;
  Digest newest;
  int64_t heard = 0;  // monotonic
  uint64_t trees = 0;
};

LiveFollower::LiveFollower(ContentSource* home, std::shared_ptr<vfs::Backend> backend, const Digest& shown,
                           Advance advance)
    : home_(home), backend_(std::move(backend)), advance_(std::move(advance)), shared_(std::make_shared<Shared>()) {
  shared_->shown = shared_->newest = shown;
  shared_->heard = MonotonicMicros();
  thread_ = std::thread([this] { Run(); });
}

LiveFollower::~LiveFollower() {
  uint64_t watch = 0;
  {
    std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
    watch = shared_->watched ? shared_->watch : 0;
    shared_->changed.notify_all();
  }
  thread_.join();
  home_->Unwatch(watch);
}

LiveFollower::State LiveFollower::state() const {
  std::lock_guard lock(shared_->mutex);
  return {shared_->shown, MonotonicMicros() - shared_->heard, shared_->shown != shared_->newest, shared_->trees};
}

void LiveFollower::Watch() {
  Digest have;
  {
    std::lock_guard lock(shared_->mutex);
    shared_->watched = true;
    have = shared_->shown;
  }
  ContentSource::TreeWatch watch;
  watch.arrived = [backend = std::weak_ptr(backend_)](std::vector<vfs::FetchedDirectory> objects) {
    if (const auto kept = backend.lock()) kept->Preload(std::move(objects));
  };
  watch.now = [shared = shared_, backend = std::weak_ptr(backend_)](const Digest& tree, const tree::Entry& root) {
    std::lock_guard lock(shared->mutex);
    shared->heard = MonotonicMicros();
    if (shared->newest == tree) return;
    // So that taking it does not have to ask.
    if (const auto kept = backend.lock()) (void)kept->store()->PutBlob(tree, tree::EncodeRoot(root));
    shared->newest = tree;
    shared->changed.notify_all();
  };
  watch.over = [shared = shared_](const Error& error) {
    LogInfo("live view: home does not tell of changes: {}", Escape(error.message()));
    std::lock_guard lock(shared->mutex);
    shared->watched = false;
  };
  const uint64_t id = home_->WatchTree(have, std::move(watch));
  std::lock_guard lock(shared_->mutex);
  shared_->watch = id;
}

void LiveFollower::Run() {
  Shared& s = *shared_;
  std::unique_lock lock(s.mutex);
  while (!s.stop) {
    if (!s.watched) {
      lock.unlock();
      Watch();
      lock.lock();
    }
    if (s.newest == s.shown) {
      s.changed.wait_for(lock, kAgain, [&] { return s.stop || s.newest != s.shown; });
      continue;
    }
    const Digest tree = s.newest;
    lock.unlock();
    const Status advanced = advance_(tree);
    if (!advanced) LogWarning("live view: {}", Escape(advanced.error().message()));
    lock.lock();
    if (advanced) {
      s.shown = tree;
      ++s.trees;
    } else {
      s.changed.wait_for(lock, kAgain, [&] { return s.stop || s.newest != tree; });
    }
  }
}

}  // namespace vrun::node
