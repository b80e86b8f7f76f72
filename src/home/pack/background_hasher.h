// SPDX-License-Identifier: Apache-2.0
// Finds the object ids of large files that were served in part: reads and hashes them whole when the machine is idle,
// so that the next job knows the ids.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <unordered_set>

#include "base/thread/mutex.h"
#include "store/format/object_id.h"
#include "tree/tree.h"

namespace vrun::home {

class ContentFiles;

// Any thread. One thread of its own at SCHED_IDLE, started with the first file.
class BackgroundHasher {
 public:
  using Known = std::function<void(const tree::FileVersion&, const store::ObjectId&)>;

  // `known` is called on the hasher's thread. A file is started after `quiet` without a Busy call, and while there are
  // such calls hashing pauses after each megabyte.
  BackgroundHasher(const ContentFiles* files, Known known,
                   std::chrono::milliseconds quiet = std::chrono::milliseconds(1500));
  ~BackgroundHasher();

  // At most 4096 files wait; further ones are dropped.
  void Add(const std::string& path, const tree::FileVersion& version);
  // Pauses hashing: something more urgent is running.
  void Busy();

 private:
  struct File {
    std::string path;
    tree::FileVersion version;
  };
  void Run();
  bool WaitForQuiet(MutexLock* lock);
  void Hash(const File& file);

  const ContentFiles* const files_;
  const Known known_;
  const std::chrono::milliseconds quiet_;
  std::atomic<int64_t> busy_until_us_{0};
  Mutex mutex_;
  CondVar wake_;
  std::deque<File> waiting_ VRUN_GUARDED_BY(mutex_);
  std::unordered_set<tree::FileVersion, tree::FileVersionHash> listed_ VRUN_GUARDED_BY(mutex_);
  std::thread thread_;
  std::atomic<bool> stopping_{false};
};

}  // namespace vrun::home
