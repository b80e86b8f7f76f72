// SPDX-License-Identifier: Apache-2.0
// Puts content into the kernel's page cache before it is asked for (FUSE_NOTIFY_STORE), so that reading it costs no
// request: a job that goes through a directory of cached files waits for a few of them, not for each (push_ahead.cc),
// and one with a trace for next to none (push_traced.cc).
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
#include <utility>
#include <vector>

#include "store/object_id.h"
#include "tree/tree.h"
#include "vfs/backend.h"
#include "vfs/transport.h"

namespace vrun::vfs {

// Thread safety: any thread.
class Pusher {
 public:
  static constexpr uint64_t kMostBytes = 64 * 1024;  // of a file that no trace has; a larger one has read-ahead
  static constexpr size_t kMostWaiting = 16384;      // pieces; more are not pushed

  // A part of a file: whole pages, or up to its end.
  struct Piece {
    uint64_t nodeid = 0;
    tree::FileVersion version;
    std::optional<store::ObjectId> known_id;
    uint64_t offset = 0;
    uint64_t length = 0;
    bool traced = false;  // a trace says that it will be read; else it is guessed, and the file small
    int tries = 0;
  };
  struct Callbacks {
    // Asked just before a guessed file is pushed: false when it need not be any more.
    std::function<bool(uint64_t nodeid)> claim;
    // The kernel has taken a traced piece, so that nobody will ask for it.
    std::function<void(const Piece& piece)> taken;
  };

  // Callbacks come on its thread, no lock held. `backend` and `transport` must outlive it.
  Pusher(Backend& backend, Transport& transport, Callbacks callbacks)
      : backend_(backend), transport_(transport), callbacks_(std::move(callbacks)) {}
  // Returns once the kernel lets go: after the connection has ended (Transport::Abort), or when nobody reads.
  ~Pusher() { Stop(); }
  Pusher(const Pusher&) = delete;
  Pusher& operator=(const Pusher&) = delete;

  // In this order, after those that wait already. Returns at once.
  void Post(std::vector<Piece> pieces);
  void Stop();
  uint64_t pushed() const { return pushed_.load(); }  // pieces that the kernel took

 private:
  void Run();
  // False: the kernel does not know the file.
  bool Push(const Piece& piece, char* buffer);
  bool PushBytes(const Piece& piece, uint64_t offset, uint64_t length, char* buffer);
  bool MemoryIsShort();

  Backend& backend_;
  Transport& transport_;
  const Callbacks callbacks_;
  std::atomic<uint64_t> pushed_{0};
  std::atomic<bool> works_{true};  // until the kernel refuses

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Piece> waiting_;                    // guarded by mutex_, as all below
  std::deque<std::pair<int64_t, Piece>> later_;  // from that time on
  bool stopping_ = false;
  std::thread thread_;

  int64_t memory_seen_ = 0;  // of the thread
  bool memory_short_ = false;
};

}  // namespace vrun::vfs
