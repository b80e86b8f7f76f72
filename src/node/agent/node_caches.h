// SPDX-License-Identifier: Apache-2.0
// The content caches of a node, seen from its agent: one for each tenant, each in the hands of that tenant's file
// system server while there is one. Keeps all of them together below the node's limit (cache_budget.h), also those that
// nobody serves, and carries `vctl cache` to the one that belongs to who asks.
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
#include "node/tenant.h"
#include "proto/cache.pb.h"

namespace vrun::node {

struct NodeCachesOptions {
  std::string directory;        // of the stores, one directory for each tenant in it
  uint64_t limit_bytes = 0;     // 0: a quarter of the file system
  uint64_t min_free_bytes = 0;  // as in FsServerOptions
  uint32_t min_free_percent = 0;
};

// Loop thread only.
class NodeCaches {
 public:
  struct Hooks {
    // The servers that run, by tenant's key.
    std::function<std::map<std::string, FsClient*>()> servers;
    // The server of a tenant, started when there is none. Null with *error set when it cannot be.
    std::function<FsClient*(const Tenant&, Error*)> server_of;
  };
  NodeCaches(EventLoop* loop, NodeCachesOptions options, Hooks hooks);
  ~NodeCaches();

  // What a server may hold that is started now.
  uint64_t LimitForNew() const;
  // One /vrun.v1.Node/Cache stream; the caller keeps it for as long as it is open.
  void Serve(const std::shared_ptr<HomeStream>& stream);

 private:
  struct Known {
    uint64_t bytes = 0;
    uint64_t touched = 0;  // hits, misses: a change is activity
    int64_t used = 0;      // wall clock
  };
  void Tick();
  void Heard(const std::string& tenant, const v1::CacheStat& stat);
  void Share();
  void Measure();  // starts the thread, unless it runs
  void Answer(const std::shared_ptr<HomeStream>& stream, const std::string& frame);
  uint64_t bytes() const;

  EventLoop* const loop_;
  const NodeCachesOptions options_;
  const Hooks hooks_;
  const uint64_t limit_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  EventLoop::TimerId timer_ = 0;
  std::map<std::string, Known> known_;         // all tenants with a directory
  std::map<std::string, uint64_t> told_;       // limits that servers were told
  std::map<std::string, uint64_t> idle_most_;  // what caches without a server may hold
  bool measuring_ = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // measures and shrinks the caches that nobody serves
};

}  // namespace vrun::node
