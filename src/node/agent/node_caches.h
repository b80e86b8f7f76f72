// SPDX-License-Identifier: Apache-2.0
// The content caches of a node, as its agent manages them: one per tenant, owned by that tenant's file system server
// while it runs. Keeps the sum within the node's limit (cache_budget.h), including caches without a server, and routes
// `vctl cache` to the cache of the calling tenant.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/io/event_loop.h"
#include "node/agent/cache_budget.h"
#include "node/fs/fs_client.h"
#include "node/home_stream.h"
#include "node/metrics/node_metrics.h"
#include "node/tenant.h"
#include "proto/cache.pb.h"

namespace vrun::node {

struct NodeCachesOptions {
  std::string directory;        // contains one store directory per tenant
  uint64_t limit_bytes = 0;     // 0: a quarter of the file system
  uint64_t min_free_bytes = 0;  // as in FsServerOptions
  uint32_t min_free_percent = 0;
};

// Loop thread only.
class NodeCaches {
 public:
  struct Hooks {
    // The running servers, by tenant key.
    std::function<std::map<std::string, FsClient*>()> servers;
    // The server of a tenant; starts one if there is none. Returns null and sets *error on failure.
    std::function<FsClient*(const Tenant&, Error*)> server_of;
  };
  NodeCaches(EventLoop* loop, NodeCachesOptions options, Hooks hooks);
  ~NodeCaches();

  // The cache limit for a server that is started now.
  uint64_t LimitForNew() const;
  // As of the last few seconds.
  CacheFigures Figures() const;
  // Serves one /vrun.v1.Node/Cache stream; the caller keeps it while it is open.
  void Serve(const std::shared_ptr<HomeStream>& stream);

 private:
  struct Known {
    uint64_t bytes = 0;
    uint64_t touched = 0;  // hits + misses; a change means activity
    int64_t used = 0;      // wall clock
    v1::CacheStat told;    // by the server that runs
  };
  void Tick();
  void Heard(const std::string& tenant, const v1::CacheStat& stat);
  void Count(const v1::CacheStat& before, const v1::CacheStat& now);
  void Share();
  void Measure();  // starts the thread unless it is running
  void Answer(const std::shared_ptr<HomeStream>& stream, const std::string& frame);
  uint64_t bytes() const;

  EventLoop* const loop_;
  const NodeCachesOptions options_;
  const Hooks hooks_;
  const uint64_t limit_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  EventLoop::TimerId timer_ = 0;
  std::map<std::string, Known> known_;         // all tenants with a directory
  CacheFigures counted_;                       // its counters; the rest is made when asked
  std::map<std::string, uint64_t> told_;       // limits last sent to servers
  std::map<std::string, uint64_t> idle_most_;  // limits of caches without a server
  bool measuring_ = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // measures and shrinks caches without a server
};

}  // namespace vrun::node
