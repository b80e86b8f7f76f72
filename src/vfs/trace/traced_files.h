// SPDX-License-Identifier: Apache-2.0
// What the traces of the runs of the moment say will be read, by file, and who is told when it comes: the views, which
// put it into the kernel before it is asked for (push_traced.cc).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/hash/digest.h"
#include "tree/tree.h"
#include "vfs/trace/trace.h"

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
    std::vector<Range> ranges;  // in the order of first touch
  };
  class Listener {
   public:
    // A run with such a trace begins, or is there when this begins to listen. Any thread; must not block.
    virtual void TraceBegins(std::span<const File> /*in the order of first touch*/) {}
    // These units can be read now. Any thread; must not block.
    virtual void TraceArrived(const tree::FileVersion& version, Range range) = 0;
    // No run has a trace any more.
    virtual void TracesOver() = 0;

   protected:
    ~Listener() = default;
  };

  // A run with this trace begins; Remove as often as Add.
  void Add(const TraceTable& table);
  void Remove(const Digest& table);
  bool active() const { return active_.load(std::memory_order_relaxed); }
  // In the order of first touch; empty when no trace has the file.
  std::vector<Range> Of(const tree::FileVersion& version) const;

  // Not from a Listener's call. After Unlisten returns it is not called any more.
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
  mutable std::mutex mutex_;
  std::map<Digest, Traced> tables_;  // guarded by mutex_

  std::shared_mutex listeners_mutex_;  // shared while they are called
  std::unordered_set<Listener*> listeners_;
};

}  // namespace vrun::vfs
