// SPDX-License-Identifier: Apache-2.0
// Puts small files into the kernel's page cache before they are asked for (FUSE_NOTIFY_STORE), so that reading them
// costs no request: a job that goes through a directory of cached files waits for a few of them, not for each.
//
// Why a thread of its own: the kernel stores under the lock of each page, and whoever reads that page at the moment
// holds it until we have answered. So no thread that answers requests may push.
//
// Only what the store has, verified as for a reader; what is missing is skipped. A node id always means one version of
// one file (inode_table.h) and is never used again, so what is pushed late is never wrong: the kernel does not know the
// id any more, or it is that content.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "store/object_id.h"
#include "tree/tree.h"
#include "vfs/backend.h"
#include "vfs/transport.h"

namespace vrun::vfs {

// Thread safety: any thread.
class Pusher {
 public:
  static constexpr uint64_t kMostBytes = 64 * 1024;  // of a file; a larger one has read-ahead
  static constexpr size_t kMostWaiting = 1024;       // files; more are not pushed

  struct File {
    uint64_t nodeid = 0;
    tree::FileVersion version;
    std::optional<store::ObjectId> known_id;
  };

  // `claim(nodeid)` is asked just before a file is pushed, without locks: false when it need not be any more. `backend`
  // and `transport` must outlive it.
  Pusher(Backend& backend, Transport& transport, std::function<bool(uint64_t nodeid)> claim)
      : backend_(backend), transport_(transport), claim_(std::move(claim)) {}
  // Returns once the kernel lets go: after the connection has ended (Transport::Abort), or when nobody reads.
  ~Pusher() { Stop(); }
  Pusher(const Pusher&) = delete;
  Pusher& operator=(const Pusher&) = delete;

  // In this order, after those that wait already. Returns at once.
  void Post(std::vector<File> files);
  void Stop();
  uint64_t pushed() const { return pushed_.load(); }  // files that the kernel took

 private:
  void Run();
  void Push(const File& file, char* buffer);
  bool MemoryIsShort();

  Backend& backend_;
  Transport& transport_;
  const std::function<bool(uint64_t)> claim_;
  std::atomic<uint64_t> pushed_{0};
  std::atomic<bool> works_{true};  // until the kernel refuses

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<File> waiting_;  // guarded by mutex_, as all below
  bool stopping_ = false;
  std::thread thread_;

  int64_t memory_seen_ = 0;  // of the thread
  bool memory_short_ = false;
};

}  // namespace vrun::vfs
