// SPDX-License-Identifier: Apache-2.0
#include "node/views/view_pool.h"

#include <algorithm>

#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"

namespace vrun::node {

ViewPool::ViewPool(EventLoop* loop, std::string directory, Hooks hooks, unsigned threads)
    : loop_(loop), directory_(std::move(directory)), hooks_(std::move(hooks)) {
  for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

ViewPool::~ViewPool() {
  alive_.reset();
  {
    MutexLock lock(mu_);
    stop_ = true;
    cv_.notify_all();
  }
  for (auto& thread : threads_) thread.join();
}

void ViewPool::Post(std::function<void()> job) {
  MutexLock lock(mu_);
  jobs_.push_back(std::move(job));
  cv_.notify_one();
}

void ViewPool::Run() {
  MutexLock lock(mu_);
  for (;;) {
    cv_.wait(lock, [&]() VRUN_REQUIRES(mu_) { return stop_ || !jobs_.empty(); });
    if (stop_) return;
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
}

size_t ViewPool::leases() const {
  size_t n = 0;
  for (const auto& [id, slot] : slots_) n += slot.leases.size() + slot.waiting.size();
  return n;
}

void ViewPool::Open(const Digest& tree, uint64_t lease, std::function<void(Result<UniqueFd>)> done) {
  for (auto& [id, slot] : slots_) {
    const bool waits =
        std::any_of(slot.waiting.begin(), slot.waiting.end(), [&](const Waiting& w) { return w.lease == lease; });
    if (waits || slot.leases.contains(lease)) return done(Error(Code::kExists, "open a view: the lease is in use"));
  }
  for (auto& [id, slot] : slots_) {
    if (slot.tree != tree) continue;
    if (!slot.busy) return Grant(&slot, lease, done);
    slot.waiting.push_back({lease, std::move(done)});
    return;
  }
  Slot* slot = IdleSlot();
  if (!slot) {
    const uint64_t id = next_slot_++;
    slot = &slots_[id];
    slot->id = id;
  }
  slot->waiting.push_back({lease, std::move(done)});
  Work(slot, tree);
}

void ViewPool::Grant(Slot* slot, uint64_t lease, const std::function<void(Result<UniqueFd>)>& done) {
  auto mount = slot->view->CloneMount();
  if (mount) {
    slot->leases.insert(lease);
    Kept(*slot);
  }
  done(std::move(mount));
}

ViewPool::Slot* ViewPool::IdleSlot() {
  Slot* best = nullptr;
  for (auto& [id, slot] : slots_) {
    if (slot.busy || !slot.leases.empty() || !slot.waiting.empty()) continue;
    if (!best || slot.idle_since > best->idle_since) best = &slot;
  }
  return best;
}

void ViewPool::Work(Slot* slot, const Digest& tree) {
  slot->busy = true;
  slot->tree = tree;
  const WorkedCallback worked = WorkedOf(slot->id);
  if (slot->view) {
    Post([this, view = slot->view, tree, worked] {
      if (hooks_.before_advance) hooks_.before_advance(tree);
      Status advanced = view->Advance(tree);
      if (advanced) return worked(view, tree);
      worked(std::move(advanced).error(), view->tree());
    });
    return;
  }
  Post([this, tree, worked, lost = LostOf(slot->id), directory = DirectoryOf(slot->id)] {
    if (Status made = MakeDirs(directory, 0700); !made) return worked(std::move(made).error(), tree);
    auto view = hooks_.mount(tree, directory, lost);
    if (view) return worked(std::shared_ptr<vfs::FrozenView>(std::move(*view)), tree);
    worked(std::move(view).error(), tree);
  });
}

// Posts a lost file to the loop; reports the leases that the view has at that time.
ViewPool::LostCallback ViewPool::LostOf(uint64_t slot_id) {
  return [this, alive = std::weak_ptr(alive_), slot_id](const std::string& path, const std::string& reason) {
    loop_->Post([this, alive, slot_id, path, reason] {
      if (alive.expired() || !hooks_.lost) return;
      auto it = slots_.find(slot_id);
      if (it != slots_.end()) hooks_.lost(path, reason, {it->second.leases.begin(), it->second.leases.end()});
    });
  };
}

ViewPool::WorkedCallback ViewPool::WorkedOf(uint64_t slot_id) {
  return [this, alive = std::weak_ptr(alive_), slot_id](Result<std::shared_ptr<vfs::FrozenView>> result,
                                                        const Digest& now) {
    loop_->Post([this, alive, slot_id, result = std::move(result), now] {
      if (!alive.expired()) Worked(slot_id, result, now);
    });
  };
}

void ViewPool::Adopt(
    uint64_t slot_id, const Digest& tree, std::set<uint64_t> leases,
    std::function<Result<std::unique_ptr<vfs::FrozenView>>(const std::string& directory, LostCallback lost)>
        take_over) {
  Slot& slot = slots_[slot_id];
  slot.id = slot_id;
  slot.tree = tree;
  slot.leases = std::move(leases);
  slot.busy = true;
  next_slot_ = std::max(next_slot_, slot_id + 1);
  Post([tree, take_over = std::move(take_over), worked = WorkedOf(slot_id), lost = LostOf(slot_id),
        directory = DirectoryOf(slot_id)] {
    auto view = take_over(directory, lost);
    if (view) return worked(std::shared_ptr<vfs::FrozenView>(std::move(*view)), tree);
    worked(std::move(view).error(), tree);
  });
}

void ViewPool::Kept(const Slot& slot) const {
  if (hooks_.keep) hooks_.keep(slot.id, slot.view.get(), slot.leases);
}

void ViewPool::Worked(uint64_t id, Result<std::shared_ptr<vfs::FrozenView>> result, const Digest& tree_now) {
  auto it = slots_.find(id);
  if (it == slots_.end()) return;
  Slot& slot = it->second;
  slot.busy = false;
  slot.tree = tree_now;
  auto waiting = std::exchange(slot.waiting, {});
  if (result) {
    slot.view = *result;
    Kept(slot);
    for (auto& w : waiting) Grant(&slot, w.lease, w.done);
  } else {
    LogWarning("view {}: {}", id, Escape(result.error().message()));
    if (!slot.view) {
      if (!slot.leases.empty() && hooks_.lost) {
        hooks_.lost("/", "the mount could not be taken over: " + result.error().message(),
                    {slot.leases.begin(), slot.leases.end()});
      }
      if (hooks_.drop) hooks_.drop(id);
      slots_.erase(it);
    }
    for (auto& w : waiting) w.done(result.error());
  }
  TrimIdle();
}

void ViewPool::Close(uint64_t lease) {
  std::vector<Waiting> closed;
  for (auto& [id, slot] : slots_) {
    const auto last = std::stable_partition(slot.waiting.begin(), slot.waiting.end(),
                                            [&](const Waiting& w) { return w.lease != lease; });
    closed.insert(closed.end(), std::make_move_iterator(last), std::make_move_iterator(slot.waiting.end()));
    slot.waiting.erase(last, slot.waiting.end());
    if (slot.leases.erase(lease) == 0) continue;
    if (slot.leases.empty()) slot.idle_since = ++idle_serial_;
    Kept(slot);
  }
  TrimIdle();
  for (const Waiting& w : closed) w.done(Error(Code::kAborted, "the view was closed before it was open"));
}

void ViewPool::CloseAllBut(const std::set<uint64_t>& leases) {
  std::set<uint64_t> others;
  for (const auto& [id, slot] : slots_) {
    others.insert(slot.leases.begin(), slot.leases.end());
    for (const Waiting& w : slot.waiting) others.insert(w.lease);
  }
  for (const uint64_t lease : others) {
    if (!leases.contains(lease)) Close(lease);
  }
}

void ViewPool::TrimIdle() {
  Slot* keep = IdleSlot();
  for (auto it = slots_.begin(); it != slots_.end();) {
    Slot& slot = it->second;
    if (slot.busy || !slot.leases.empty() || !slot.waiting.empty() || &slot == keep) {
      ++it;
      continue;
    }
    if (hooks_.drop) hooks_.drop(slot.id);
    // Unmounting waits for the view's threads, so it runs on a thread of the pool.
    Post([view = std::move(slot.view)]() mutable { view.reset(); });
    it = slots_.erase(it);
  }
}

}  // namespace vrun::node
