// SPDX-License-Identifier: Apache-2.0
// Keeps a live view at the state in which home is: hears of each tree and advances the view to the newest, one at a
// time, on a thread of its own. Where home says nothing any more it has the view doubt what it shows
// (docs/decisions/0021).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/hash/digest.h"
#include "base/result.h"
#include "tree/tree.h"

namespace vrun::vfs {
class Backend;
}

namespace vrun::node {

class ContentSource;

// Home says something every second; when it has not for so long, the view may be behind.
inline constexpr int64_t kHomeSilentMicros = 3'000'000;

// Thread safety: any thread.
class LiveFollower {
 public:
  struct State {
    Digest tree;                // that the view shows
    uint64_t serial = 0;        // of it, as home counts; 0: not known yet
    int64_t silent_micros = 0;  // since home was heard of last
    bool behind = false;        // home was heard of, and the view is not there yet
    uint64_t trees = 0;         // that it was advanced to
    bool silent() const { return silent_micros > kHomeSilentMicros; }
  };
  // Blocks; one call at a time. `included`: as ContentSource::TreeNow.
  using Advance = std::function<Status(const Digest& tree, uint64_t included)>;
  // As LiveView::Doubt; on the thread of Advance. Null: nothing is to be done.
  using Doubt = std::function<void(bool doubt)>;

  // `shown`: the tree that the view shows now, and `serial` home's number of that state, 0: not known. `view`: its id
  // at home, 0: none. The source and the backend must outlive it.
  LiveFollower(ContentSource* home, std::shared_ptr<vfs::Backend> backend, uint64_t view, const Digest& shown,
               uint64_t serial, Advance advance, Doubt doubt = nullptr);
  // Waits for an Advance under way. Before the view.
  ~LiveFollower();
  LiveFollower(const LiveFollower&) = delete;
  LiveFollower& operator=(const LiveFollower&) = delete;

  State state() const;
  // Runs `done` once the view shows the state of that serial, or a later one: at once, or on the follower's thread. Not
  // after destruction.
  void WhenShown(uint64_t serial, std::function<void()> done);

 private:
  struct Shared;  // what home's callbacks keep alive
  void Watch();
  void Run();
  void Believe(std::unique_lock<std::mutex>* lock);

  ContentSource* const home_;
  const uint64_t view_;
  const std::shared_ptr<vfs::Backend> backend_;
  const Advance advance_;
  const Doubt doubt_;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace vrun::node
