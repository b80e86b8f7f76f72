// SPDX-License-Identifier: Apache-2.0
#include "node/views/live_follower.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "node/source/content_source.h"
#include "store/store.h"
#include "tree/codec.h"
#include "vfs/content/backend.h"

namespace vrun::node {
namespace {

constexpr std::chrono::seconds kAgain{1};  // after home could not or would not tell; after a tree could not be applied
constexpr int64_t kHeardMicros = 500'000;  // interval of our Heard messages to home

}  // namespace

struct LiveFollower::Shared {
  Mutex mutex;
  CondVar changed;
  bool stop VRUN_GUARDED_BY(mutex) = false;
  bool watched VRUN_GUARDED_BY(mutex) = false;
  uint64_t watch VRUN_GUARDED_BY(mutex) = 0;
  ContentSource::TreeNow shown VRUN_GUARDED_BY(mutex);
  ContentSource::TreeNow newest VRUN_GUARDED_BY(mutex);
  std::multimap<uint64_t, std::function<void()>> waiting VRUN_GUARDED_BY(mutex);  // by serial

  // Compares `included` too: if home has changed back to the same tree, that state includes more of our writes.
  bool behind() const VRUN_REQUIRES(mutex) { return newest.tree != shown.tree || newest.included > shown.included; }
  std::vector<std::function<void()>> TakeServed() VRUN_REQUIRES(mutex) {
    std::vector<std::function<void()>> served;
    while (!waiting.empty() && waiting.begin()->first <= shown.serial) {
      served.push_back(std::move(waiting.begin()->second));
      waiting.erase(waiting.begin());
    }
    return served;
  }
  int64_t heard VRUN_GUARDED_BY(mutex) = 0;  // last message from home; monotonic
  uint64_t trees VRUN_GUARDED_BY(mutex) = 0;
  int64_t told VRUN_GUARDED_BY(mutex) = 0;     // last message about its tree; monotonic
  int64_t doubted VRUN_GUARDED_BY(mutex) = 0;  // in doubt since; 0: not in doubt
  bool pinged VRUN_GUARDED_BY(mutex) = false;  // home understands Heard
  int64_t said VRUN_GUARDED_BY(mutex) = 0;     // time of our last Heard; monotonic

  // Tells home from time to time that the view shows its latest state.
  bool TakeSay() VRUN_REQUIRES(mutex) {
    const int64_t now = MonotonicMicros();
    if (!pinged || doubted != 0 || behind() || now - said < kHeardMicros) return false;
    said = now;
    return true;
  }
};

LiveFollower::LiveFollower(ContentSource* home, std::shared_ptr<vfs::Backend> backend, uint64_t view,
                           const Digest& shown, uint64_t serial, Advance advance, Doubt doubt)
    : home_(home),
      view_(view),
      backend_(std::move(backend)),
      advance_(std::move(advance)),
      doubt_(std::move(doubt)),
      shared_(std::make_shared<Shared>()) {
  shared_->shown.tree = shared_->newest.tree = shown;
  shared_->shown.serial = shared_->newest.serial = serial;
  shared_->heard = MonotonicMicros();
  thread_ = std::thread([this] { Run(); });
}

LiveFollower::~LiveFollower() {
  uint64_t watch = 0;
  {
    MutexLock lock(shared_->mutex);
    shared_->stop = true;
    watch = shared_->watched ? shared_->watch : 0;
    shared_->changed.notify_all();
  }
  thread_.join();
  home_->Unwatch(watch);
  // The next follower determines the doubt for itself.
  if (shared_->doubted != 0 && doubt_) doubt_(false);
}

LiveFollower::State LiveFollower::state() const {
  MutexLock lock(shared_->mutex);
  return {shared_->shown.tree, shared_->shown.serial, MonotonicMicros() - shared_->heard, shared_->behind(),
          shared_->trees};
}

void LiveFollower::WhenShown(uint64_t serial, std::function<void()> done) {
  {
    MutexLock lock(shared_->mutex);
    if (shared_->shown.serial < serial) {
      shared_->waiting.emplace(serial, std::move(done));
      return;
    }
  }
  done();
}

void LiveFollower::Watch() {
  Digest have;
  {
    MutexLock lock(shared_->mutex);
    shared_->watched = true;
    have = shared_->shown.tree;
  }
  ContentSource::TreeWatch watch;
  watch.find = [backend = std::weak_ptr(backend_)](const Digest& digest) {
    const auto kept = backend.lock();
    return kept ? kept->directories().Find(digest) : nullptr;
  };
  watch.edited = [backend = std::weak_ptr(backend_)](const tree::FileVersion& version, vfs::FetchedRange content) {
    if (const auto kept = backend.lock()) kept->Offer(version, std::move(content));
  };
  watch.arrived = [backend = std::weak_ptr(backend_)](std::vector<vfs::FetchedDirectory> objects) {
    if (const auto kept = backend.lock()) kept->Preload(std::move(objects));
  };
  watch.now = [shared = shared_, backend = std::weak_ptr(backend_)](const ContentSource::TreeNow& now) {
    MutexLock lock(shared->mutex);
    shared->heard = shared->told = MonotonicMicros();
    // So that applying it needs no request.
    const auto kept = backend.lock();
    if (kept && shared->newest.tree != now.tree) (void)kept->store()->PutBlob(now.tree, tree::EncodeRoot(now.root));
    shared->newest = now;
    shared->changed.notify_all();
  };
  watch.ping = [shared = shared_] {
    MutexLock lock(shared->mutex);
    shared->heard = MonotonicMicros();
    shared->pinged = true;
    shared->changed.notify_all();
  };
  watch.over = [shared = shared_](const Error& error) {
    LogInfo("live view: home does not tell of changes: {}", Escape(error.message()));
    MutexLock lock(shared->mutex);
    shared->watched = false;
  };
  const uint64_t id = home_->WatchTree(have, view_, std::move(watch));
  MutexLock lock(shared_->mutex);
  shared_->watch = id;
}

// Updates the doubt: the view shows home's state as long as home speaks.
// The analysis does not know which mutex `lock` holds.
void LiveFollower::Believe(MutexLock* lock) VRUN_NO_THREAD_SAFETY_ANALYSIS {
  Shared& s = *shared_;
  const int64_t now = MonotonicMicros(), silent = now - s.heard;
  // A ping shows that home is alive, but not its state: only a check of the root ends a doubt.
  const bool doubt = s.doubted == 0 ? silent > kHomeSilentMicros : s.told <= s.doubted || s.behind();
  if (doubt != (s.doubted != 0)) {
    s.doubted = doubt ? now : 0;
    lock->unlock();
    if (doubt) {
      LogWarning("live view: no message from home for {} s: its changes may not be seen", silent / 1'000'000);
    } else {
      LogInfo("live view: home sends messages again");
    }
    if (doubt_) doubt_(doubt);
    lock->lock();
  }
  if (!s.TakeSay()) return;
  lock->unlock();
  home_->SendHeard(true, false);
  lock->lock();
}

void LiveFollower::Run() {
  Shared& s = *shared_;
  MutexLock lock(s.mutex);
  while (!s.stop) {
    if (!s.watched) {
      lock.unlock();
      Watch();
      lock.lock();
    }
    if (!s.behind()) {
      s.shown.serial = s.newest.serial;
      const auto served = s.TakeServed();
      lock.unlock();
      for (const auto& done : served) done();
      lock.lock();
      if (s.stop || s.behind()) continue;
      const int64_t heard = s.heard;
      Believe(&lock);
      const auto news = [&]() VRUN_REQUIRES(s.mutex) {
        return s.stop || s.behind() || s.newest.serial != s.shown.serial || s.heard != heard;
      };
      const int64_t silent = heard + kHomeSilentMicros + 1 - MonotonicMicros();
      const auto wait = silent > 0 ? std::min<std::chrono::microseconds>(kAgain, std::chrono::microseconds(silent))
                                   : std::chrono::microseconds(kAgain);
      s.changed.wait_for(lock, wait, news);
      continue;
    }
    const ContentSource::TreeNow now = s.newest;
    lock.unlock();
    const Status advanced = advance_(now.tree, now.included);
    if (!advanced && advanced.error().code() == Code::kAborted) {
      // Home has changed since, or has read something only now: the next tree comes soon.
      LogInfo("live view: {}", Escape(advanced.error().message()));
    } else if (!advanced) {
      LogWarning("live view: {}", Escape(advanced.error().message()));
    }
    lock.lock();
    if (advanced) {
      s.shown = now;
      ++s.trees;
      const auto served = s.TakeServed();
      lock.unlock();
      for (const auto& done : served) done();
      lock.lock();
    } else {
      Believe(&lock);
      s.changed.wait_for(lock, kAgain, [&]() VRUN_REQUIRES(s.mutex) { return s.stop || s.newest.tree != now.tree; });
    }
  }
}

}  // namespace vrun::node
