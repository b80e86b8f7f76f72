// SPDX-License-Identifier: Apache-2.0
// Puts content into the kernel's page cache before it is asked for, so that reading it costs no request. A job that
// reads a directory of cached files then waits for a few of them, not for each (push_ahead.cc); a job with a trace
// waits for almost none (push_traced.cc, live_push.cc).
//
// It needs a thread of its own: a process that reads a page holds the page's lock until we have answered. So no thread
// that answers requests may push.
//
// Pushes only content that is here, verified as for a reader; skips what is missing. The way into the kernel depends on
// whether the file may be written to: PushWay.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread/mutex.h"
#include "store/format/object_id.h"
#include "tree/tree.h"
#include "vfs/content/backend.h"
#include "vfs/fuse/transport.h"
#include "vfs/trace/traced_files.h"

namespace vrun::vfs {

struct PushPiece;

// How a piece gets into the kernel. Thread safety: used by one Pusher at a time.
class PushWay {
 public:
  virtual ~PushWay() = default;
  // `length` is at most Pusher::kMostAtOnce. 0 or an errno; ENODATA: not all of it is here; ENOENT: the kernel does not
  // know the file, or not yet; EINVAL, ENOSYS, EOPNOTSUPP, EPERM: the kernel never accepts pushes.
  virtual int Push(const PushPiece& piece, uint64_t offset, uint64_t length) = 0;
};

// Pushes by notification (FUSE_NOTIFY_STORE), which overwrites the kernel's pages: for read-only views. There a node id
// always means one version of one file (inode_table.h) and is never reused, so a late push is never wrong: either the
// kernel does not know the id any more, or the content is right. Both arguments must outlive it.
std::unique_ptr<PushWay> PushByNotice(Backend& backend, Transport& transport);

// A part of a file: whole pages, or up to the end of the file.
struct PushPiece {
  uint64_t nodeid = 0;
  tree::FileVersion version;
  std::optional<store::ObjectId> known_id;
  uint64_t offset = 0;
  uint64_t length = 0;
  bool traced = false;  // a trace lists it; otherwise it is a guess, and the file is small
  int tries = 0;

  // The piece for units that a trace lists. `offset` and `length` of `file` are ignored.
  static PushPiece Traced(PushPiece file, TracedFiles::Range range);
};

// Thread safety: any thread.
class Pusher {
 public:
  using Piece = PushPiece;
  static constexpr uint64_t kMostAtOnce = 1 << 20;
  static constexpr uint64_t kMostBytes = 64 * 1024;  // of a file without a trace; read-ahead serves larger ones
  static constexpr size_t kMostWaiting = 16384;      // pieces; further ones are dropped

  struct Callbacks {
    // Called just before a guessed file is pushed; false: the push is no longer needed.
    std::function<bool(uint64_t nodeid)> claim;
    // The kernel has taken a traced piece, so reads of it will cause no request.
    std::function<void(const Piece& piece)> taken;
  };

  // Callbacks run on the Pusher's thread with no lock held; each may be null. `backend` must outlive it.
  Pusher(Backend& backend, std::unique_ptr<PushWay> way, Callbacks callbacks)
      : backend_(backend), way_(std::move(way)), callbacks_(std::move(callbacks)) {}
  // Returns once the kernel releases the thread: after the connection has ended (Transport::Abort), or when nobody
  // reads.
  ~Pusher() { Stop(); }
  Pusher(const Pusher&) = delete;
  Pusher& operator=(const Pusher&) = delete;

  // Appends to the queue, in this order. Returns at once.
  void Post(std::vector<Piece> pieces);
  void Stop();
  uint64_t pushed() const { return pushed_.load(); }  // pieces that the kernel has taken

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

  Mutex mutex_;
  CondVar wake_;
  std::deque<Piece> waiting_ VRUN_GUARDED_BY(mutex_);
  std::deque<std::pair<int64_t, Piece>> later_ VRUN_GUARDED_BY(mutex_);  // not before that time
  bool stopping_ VRUN_GUARDED_BY(mutex_) = false;
  std::thread thread_;

  int64_t memory_seen_ = 0;  // of the thread
  bool memory_short_ = false;
};

}  // namespace vrun::vfs
