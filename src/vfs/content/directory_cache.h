// SPDX-License-Identifier: Apache-2.0
// Directory objects by digest: from memory, else from the store, else from home. Shared by the views of one home.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "store/format/object_id.h"
#include "tree/tree.h"
#include "vfs/content/source.h"
#include "vfs/gate.h"
#include "vfs/retry.h"
#include "vfs/timer_thread.h"

namespace vrun::vfs {

class Backend;

struct LoadedDirectory {
  tree::DirectoryPtr directory;
  std::vector<std::pair<uint32_t, store::ObjectId>> known_ids;  // by entry index, ascending

  std::optional<store::ObjectId> KnownId(size_t index) const;
};
using LoadedDirectoryPtr = std::shared_ptr<const LoadedDirectory>;

// Thread safety: any thread. Owned by the Backend.
class DirectoryCache {
 public:
  using Done = std::function<void(Result<LoadedDirectoryPtr>)>;

  explicit DirectoryCache(Backend& backend);

  // From memory or the store (disk I/O); null when it must be fetched.
  LoadedDirectoryPtr Find(const Digest& digest);
  // From memory; null when it is not there.
  LoadedDirectoryPtr InMemory(const Digest& digest);
  // As Find, then from home: `tree` and `path` say where it is. `done` runs once, on any thread, perhaps before this
  // returns. Concurrent calls for one digest share one fetch. Waits for an unreachable home until the deadline.
  void Get(const Digest& tree, const std::string& path, const Digest& digest, Done done);
  // Blocks until each object has arrived or failed. `have` gets those that arrived, also after an error. Do not call on
  // a thread that the source's callbacks need.
  using Loaded = std::unordered_map<Digest, LoadedDirectoryPtr, DigestHash>;
  Status GetAll(const Digest& tree, const std::vector<std::pair<Digest, std::string>>& wanted, Loaded* have);
  // Takes an object that nobody fetched; callers that wait for it get it.
  void Insert(FetchedDirectory directory);
  bool Has(const Digest& digest) { return Find(digest) != nullptr; }

  // Pending callbacks do nothing after this.
  void Close() { gate_->Close(); }

 private:
  struct Fetch {
    Digest tree;
    std::string path;
    std::vector<Done> waiters;
    Retry retry;
    uint64_t attempt = 0;
    TimerThread::Id deadline_timer = 0;
  };
  struct Cached {
    LoadedDirectoryPtr directory;
    std::list<Digest>::iterator position;
  };

  void Remember(LoadedDirectoryPtr directory);
  void Start(const Digest& digest);
  void Answered(const Digest& digest, uint64_t attempt, Result<FetchedDirectory> answer);
  void Finish(const Digest& digest, Result<LoadedDirectoryPtr> result);

  Backend& backend_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  Mutex mutex_;
  std::unordered_map<Digest, Cached, DigestHash> cached_ VRUN_GUARDED_BY(mutex_);
  std::list<Digest> recent_ VRUN_GUARDED_BY(mutex_);  // front: most recently used
  uint64_t bytes_ VRUN_GUARDED_BY(mutex_) = 0;
  std::unordered_map<Digest, Fetch, DigestHash> fetching_ VRUN_GUARDED_BY(mutex_);
};

}  // namespace vrun::vfs
