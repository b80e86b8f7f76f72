// SPDX-License-Identifier: Apache-2.0
// The contents of files in use now or recently, one per version. Shared by the views of one home.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "store/format/object_id.h"
#include "tree/tree.h"
#include "vfs/content/file_content.h"
#include "vfs/gate.h"

namespace vrun::vfs {

class Backend;

// Thread safety: any thread. Owned by the Backend.
class FileCache {
 public:
  explicit FileCache(Backend& backend) : backend_(backend) {}

  std::shared_ptr<FileContent> Get(const tree::FileVersion& version, const std::optional<store::ObjectId>& known_id);
  // Releases contents that nobody uses now, so that the store may evict them. Any thread; the store's locks may be
  // held.
  void ReleaseIdle();
  // No content is accepted any more. Waiters are not called: they may hold what they wait for.
  void Close();

 private:
  friend class FileContent;
  struct Cached {
    std::shared_ptr<FileContent> content;
    std::list<tree::FileVersion>::iterator position;
  };
  // Logs the error, at most now and then.
  void StoreRefuses(const Error& error);
  // Accounts for a unit that only memory holds. Drops the oldest ones beyond the limit.
  void AddUnstored(const std::shared_ptr<FileContent>& content, uint64_t unit, uint64_t bytes);

  Backend& backend_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::atomic<int64_t> last_came_micros_{INT64_MIN / 2};  // last arrival of content, of any file
  std::atomic<int64_t> said_refused_micros_{INT64_MIN / 2};
  Mutex mutex_;
  std::unordered_map<tree::FileVersion, Cached, tree::FileVersionHash> cached_ VRUN_GUARDED_BY(mutex_);
  std::unordered_map<tree::FileVersion, std::weak_ptr<FileContent>, tree::FileVersionHash> known_
      VRUN_GUARDED_BY(mutex_);
  size_t sweep_at_ VRUN_GUARDED_BY(mutex_) = 4096;
  std::list<tree::FileVersion> recent_ VRUN_GUARDED_BY(mutex_);
  struct Unstored {
    std::weak_ptr<FileContent> content;
    uint64_t unit;
    uint64_t bytes;
  };
  std::deque<Unstored> unstored_ VRUN_GUARDED_BY(mutex_);
  uint64_t unstored_bytes_ VRUN_GUARDED_BY(mutex_) = 0;
};

}  // namespace vrun::vfs
