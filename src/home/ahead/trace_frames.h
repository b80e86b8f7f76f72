// SPDX-License-Identifier: Apache-2.0
// Frames of content, read, hashed and compressed once, thoroughly and in advance, and stored on disk under a name
// derived from their content, so that for home a burst costs only the sending.
//
// A frame on disk is a magic, the BLAKE3 of the rest, and a v1::TraceFrame. Bounded in bytes: the oldest goes first. A
// corrupt file is removed and treated as missing.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "proto/content.pb.h"
#include "tree/tree.h"

namespace vrun::home {

class ContentFiles;

// Units of versions of files, in order.
struct FramePlan {
  struct Part {
    std::string path;
    tree::FileVersion version;
    uint64_t first = 0;
    uint64_t count = 0;
  };
  Digest id;  // of versions and units
  std::vector<Part> parts;

  void Name();  // sets the id
};

// Any thread. A thread of its own at SCHED_IDLE, started with the first plan, makes frames in advance.
class FrameCache {
 public:
  // `directory` is made when needed; "" keeps nothing. `files` must outlive it.
  FrameCache(const ContentFiles* files, std::string directory, uint64_t limit_bytes = 1u << 30);
  ~FrameCache();

  // The frame, without its index: from the store, else made now. kAborted: a file is not that version any more.
  Result<v1::TraceFrame> Get(const FramePlan& plan);
  // Makes missing frames when the machine is idle.
  void Prepare(std::vector<FramePlan> plans);
  // Pauses background work: something more urgent is running.
  void Busy();

  // Reads, hashes and compresses. `level`: of zstd.
  static Result<v1::TraceFrame> Make(const ContentFiles& files, const FramePlan& plan, int level);
  static std::string Encode(const v1::TraceFrame& frame);
  static bool Decode(std::string_view bytes, v1::TraceFrame* frame);

 private:
  std::string PathOf(const Digest& id) const { return directory_ + "/" + id.Hex(); }
  bool Kept(const Digest& id);
  void Keep(const Digest& id, const v1::TraceFrame& frame);
  void ListLocked() VRUN_REQUIRES(mutex_);
  void Run();
  bool WaitForQuiet(MutexLock* lock) VRUN_REQUIRES(mutex_);

  const ContentFiles* const files_;
  const std::string directory_;
  const uint64_t limit_bytes_;
  std::atomic<int64_t> busy_until_us_{0};

  Mutex mutex_;
  bool listed_ VRUN_GUARDED_BY(mutex_) = false;
  struct Entry {
    uint64_t bytes = 0;
    std::list<Digest>::iterator age;
  };
  std::unordered_map<Digest, Entry, DigestHash> kept_ VRUN_GUARDED_BY(mutex_);
  std::list<Digest> ages_ VRUN_GUARDED_BY(mutex_);  // oldest first
  uint64_t bytes_ VRUN_GUARDED_BY(mutex_) = 0;
  std::deque<FramePlan> waiting_ VRUN_GUARDED_BY(mutex_);
  std::deque<FramePlan> better_ VRUN_GUARDED_BY(mutex_);                   // made fast; to be compressed better
  std::unordered_set<Digest, DigestHash> queued_ VRUN_GUARDED_BY(mutex_);  // of both
  CondVar wake_;
  std::thread thread_;
  bool stopping_ VRUN_GUARDED_BY(mutex_) = false;
};

}  // namespace vrun::home
