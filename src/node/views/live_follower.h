// SPDX-License-Identifier: Apache-2.0
// Keeps a live view at home's current state: receives each tree and advances the view to the newest, one at a time, on
// its own thread. When home goes silent, it puts the view into doubt (docs/decisions/0021).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "base/hash/digest.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "tree/tree.h"

namespace vrun::vfs {
class Backend;
}

namespace vrun::node {

class ContentSource;

// Home sends something every second; after this much silence the view may be stale.
inline constexpr int64_t kHomeSilentMicros = 3'000'000;

// Thread safety: any thread.
class LiveFollower {
 public:
  struct State {
    Digest tree;                // the tree that the view shows
    uint64_t serial = 0;        // home's number of that tree; 0: not known yet
    int64_t silent_micros = 0;  // since the last message from home
    bool behind = false;        // home has a newer state than the view shows
    uint64_t trees = 0;         // number of trees that the view was advanced to
    bool silent() const { return silent_micros > kHomeSilentMicros; }
  };
  // Blocks; one call at a time. `included`: see ContentSource::TreeNow.
  using Advance = std::function<Status(const Digest& tree, uint64_t included)>;
  // See LiveView::Doubt; called on the thread of Advance. Null: nothing to do.
  using Doubt = std::function<void(bool doubt)>;

  // `shown`: the tree that the view shows now. `serial`: home's number of that state, 0: unknown. `view`: its id at
  // home, 0: none. The source and the backend must outlive it.
  LiveFollower(ContentSource* home, std::shared_ptr<vfs::Backend> backend, uint64_t view, const Digest& shown,
               uint64_t serial, Advance advance, Doubt doubt = nullptr);
  // Waits for an Advance in progress. Destroy before the view.
  ~LiveFollower();
  LiveFollower(const LiveFollower&) = delete;
  LiveFollower& operator=(const LiveFollower&) = delete;

  State state() const;
  // Runs `done` once the view shows the state `serial` or a later one: at once, or on the follower's thread. Never
  // after destruction.
  void WhenShown(uint64_t serial, std::function<void()> done);

 private:
  struct Shared;  // kept alive by home's callbacks
  void Watch();
  void Run();
  void Believe(MutexLock* lock);

  ContentSource* const home_;
  const uint64_t view_;
  const std::shared_ptr<vfs::Backend> backend_;
  const Advance advance_;
  const Doubt doubt_;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace vrun::node
