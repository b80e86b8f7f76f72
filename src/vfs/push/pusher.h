// SPDX-License-Identifier: Apache-2.0
// Puts content into the kernel's page cache before it is asked for, so that reading it costs no request: a job that
// goes through a directory of cached files waits for a few of them, not for each (push_ahead.cc), and one with a trace
// for next to none (push_traced.cc, live_push.cc).
//
// Why a thread of its own: whoever reads a page at the moment holds its lock until we have answered. So no thread that
// answers requests may push.
//
// Only what is here, verified as for a reader; what is missing is skipped. How the kernel takes it depends on whether
// anybody may write to the file: PushWay.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "store/format/object_id.h"
#include "tree/tree.h"
#include "vfs/content/backend.h"
#include "vfs/fuse/transport.h"
#include "vfs/trace/traced_files.h"

namespace vrun::vfs {

struct PushPiece;

// How a piece gets into the kernel. Thread safety: of one Pusher at a time.
class PushWay {
 public:
  virtual ~PushWay() = default;
  // Of `length` bytes, at most Pusher::kMostAtOnce. 0 or an errno; ENODATA: not all of it is here; ENOENT: the kernel
  // does not know the file, or not yet; EINVAL, ENOSYS, EOPNOTSUPP, EPERM: it never takes any.
  virtual int Push(const PushPiece& piece, uint64_t offset, uint64_t length) = 0;
};

// Tells the kernel (FUSE_NOTIFY_STORE), which overwrites what it has: for views that nobody writes to. A node id always
// means one version of one file there (inode_table.h) and is never used again, so what is pushed late is never wrong:
// the kernel does not know the id any more, or it is that content. Both must outlive it.
std::unique_ptr<PushWay> PushByNotice(Backend& backend, Transport& transport);

// A part of a file: whole pages, or up to its end.
struct PushPiece {
  uint64_t nodeid = 0;
  tree::FileVersion version;
  std::optional<store::ObjectId> known_id;
  uint64_t offset = 0;
  uint64_t length = 0;
  bool traced = false;  // a trace says that it will be read; else it is guessed, and the file small
  int tries = 0;

  // Units of `file`, whose `offset` and `length` do not matter, that a trace has.
  static PushPiece Traced(PushPiece file, TracedFiles::Range range);
};

// Thread safety: any thread.
class Pusher {
 public:
  using Piece = PushPiece;
  static constexpr uint64_t kMostAtOnce = 1 << 20;
  static constexpr uint64_t kMostBytes = 64 * 1024;  // of a file that no trace has; a larger one has read-ahead
  static constexpr size_t kMostWaiting = 16384;      // pieces; more are not pushed

  struct Callbacks {
    // Asked just before a guessed file is pushed: false when it need not be any more.
    std::function<bool(uint64_t nodeid)> claim;
    // The kernel has taken a traced piece, so that nobody will ask for it.
    std::function<void(const Piece& piece)> taken;
  };

  // Callbacks come on its thread, no lock held; each may be null. `backend` must outlive it.
  Pusher(Backend& backend, std::unique_ptr<PushWay> way, Callbacks callbacks)
      : backend_(backend), way_(std::move(way)), callbacks_(std::move(callbacks)) {}
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
  bool Push(const Piece& piece);
  bool PushBytes(const Piece& piece, uint64_t offset, uint64_t length);
  bool MemoryIsShort();

  Backend& backend_;
  const std::unique_ptr<PushWay> way_;
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
