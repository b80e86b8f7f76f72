// SPDX-License-Identifier: Apache-2.0
// What `vctl cache` asks of one store: figures at once, verifying and pruning on a thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "base/io/event_loop.h"
#include "proto/cache.pb.h"
#include "store/store.h"

namespace vrun::node {

// Loop thread only. One verification or prune at a time; another one is refused with kExists.
class CacheWork {
 public:
  using Tell = std::function<void(const v1::CacheEvent&)>;

  // `complete` adds to the figures what the store does not know. Both outlive this.
  CacheWork(EventLoop* loop, store::Store* store, std::function<void(v1::CacheStat*)> complete)
      : loop_(loop), store_(store), complete_(std::move(complete)) {}
  // Waits for the object that is being read.
  ~CacheWork();

  // `tell` runs on the loop: with progress (five times a second at most), then once with a report or an error.
  void Start(uint64_t id, const v1::CacheRequest& request, Tell tell);
  // Nobody waits for it any more.
  void Cancel(uint64_t id);

 private:
  void Run(std::function<v1::CacheEvent()> work, Tell tell);
  v1::CacheEvent Verify(const Tell& tell);
  v1::CacheEvent Prune(uint64_t bytes);
  void Finish(v1::CacheEvent event, const Tell& tell);

  EventLoop* const loop_;
  store::Store* const store_;
  const std::function<void(v1::CacheStat*)> complete_;
  uint64_t running_ = 0;  // its id; 0: none
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace vrun::node
