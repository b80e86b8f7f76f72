// SPDX-License-Identifier: Apache-2.0
// Which parts of which files the traces of the current runs list. Views listen here, and push content into the kernel
// when it arrives, before it is asked for (push_traced.cc).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/hash/digest.h"
#include "base/thread/mutex.h"
#include "tree/tree.h"
#include "vfs/trace/trace_table.h"

namespace vrun::vfs {

// Thread safety: any thread. Owned by the Backend.
class TracedFiles {
 public:
  struct Range {
    uint64_t first = 0;  // unit
    uint64_t count = 0;
    bool operator==(const Range&) const = default;
  };
  struct File {
    std::string path;
    tree::FileVersion version;
    std::optional<store::ObjectId> known_id;
    std::vector<Range> ranges;  // in order of first touch
  };
  class Listener {
   public:
    // A run with such a trace begins, or was already running when this listener registered. Any thread; must not block.
    virtual void TraceBegins(std::span<const File> /*in the order of first touch*/) {}
    // These units can be read now. Any thread; must not block.
    virtual void TraceArrived(const tree::FileVersion& version, Range range) = 0;
    // No current run has a trace any more.
    virtual void TracesOver() = 0;

   protected:
    ~Listener() = default;
  };

  // A run with this trace begins. Each Add needs one Remove.
  void Add(const TraceTable& table);
  void Remove(const Digest& table);
  bool active() const { return active_.load(std::memory_order_relaxed); }
  // In order of first touch; empty when no trace lists the file.
  std::vector<Range> Of(const tree::FileVersion& version) const;

  // Do not call from a Listener's method. After Unlisten has returned, the listener is not called any more.
  void Listen(Listener* listener);
  void Unlisten(Listener* listener);
  void Arrived(const tree::FileVersion& version, Range range);

 private:
  struct Traced {
    size_t runs = 0;
    std::vector<File> files;
    std::unordered_map<tree::FileVersion, size_t, tree::FileVersionHash> at;
  };

  std::atomic<bool> active_{false};
  mutable Mutex mutex_;
  std::map<Digest, Traced> tables_ VRUN_GUARDED_BY(mutex_);

  std::shared_mutex listeners_mutex_;  // held shared during calls of listeners
  std::unordered_set<Listener*> listeners_;
};

}  // namespace vrun::vfs
