// SPDX-License-Identifier: Apache-2.0
// Executes `vctl cache` on one store: figures at once, verification and pruning on its own thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "base/io/event_loop.h"
#include "proto/cache.pb.h"
#include "store/store.h"

namespace vrun::node {

// Loop thread only. Runs one verification or prune at a time; refuses another with kExists.
class CacheWork {
 public:
  using Tell = std::function<void(const v1::CacheEvent&)>;

  // `complete` adds the figures that the store does not know. Both must outlive this.
  CacheWork(EventLoop* loop, store::Store* store, std::function<void(v1::CacheStat*)> complete)
      : loop_(loop), store_(store), complete_(std::move(complete)) {}
  // Waits until the object being read is finished.
  ~CacheWork();

  // `tell` runs on the loop: with progress (at most five times a second), then once with a report or an error.
  void Start(uint64_t id, const v1::CacheRequest& request, Tell tell);
  // Stops the work of this id; `tell` is not called again.
  void Cancel(uint64_t id);

 private:
  void Run(std::function<v1::CacheEvent()> work, Tell tell);
  v1::CacheEvent Verify(const Tell& tell);
  v1::CacheEvent Prune(uint64_t bytes);
  void Finish(v1::CacheEvent event, const Tell& tell);

  EventLoop* const loop_;
  store::Store* const store_;
  const std::function<void(v1::CacheStat*)> complete_;
  uint64_t running_ = 0;  // id of the running work; 0: none
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace vrun::node
