// SPDX-License-Identifier: Apache-2.0
// Files of the root into which programs of this machine write through shared mappings (np.memmap, LMDB). No event tells
// of such a write, not even after msync, until the mapping is gone; what does tell is the kernel's list of each
// process's mappings, and then the file's times, which move with the first store to a page that is clean.
//
// So whoever wants to know what changed looks at the processes, if the last look was long enough ago that all looks
// together take 1 % of a processor (about 40 us for a large Python program), and at the times of each file that was
// found. And whoever reads such a file cleans the pages first (Settle): what is stored after that moves the times, so
// no content is taken for a version that it is not.
//
// Not seen: processes that we may not look at (of other users, unless we are root); a mapping made since the last look;
// and files in memory (tmpfs), whose pages are never clean and whose times never move.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "base/work_queue.h"
#include "tree/scan.h"
#include "tree/tree.h"

namespace vrun::home {

class SharedMappings {
 public:
  // `root`: the real path of the directory that is "/" of the tree.
  explicit SharedMappings(std::string root);
  ~SharedMappings();

  // Begins a look at the processes, if it is time. Any thread; does not wait.
  void Look();
  // Adds those that changed since the last call, or were not known then; of the look under way too, if it ends within
  // `patience`. One thread at a time.
  void AddChanged(std::chrono::milliseconds patience, tree::DirtySet* dirty);

  // If the file, open as `fd` and of that version, is one of them: what is stored to this range from now on moves its
  // times. Writes to the disk and waits for it. Any thread.
  void Settle(int fd, const tree::FileVersion& version, uint64_t offset, uint64_t length) const;

 private:
  void LookNow();

  const std::string root_;  // without a slash at its end: "" for /

  mutable std::mutex mutex_;  // guards these
  std::condition_variable looked_;
  std::set<std::string> mapped_;                    // by the last look; paths of this machine
  std::set<std::pair<uint64_t, uint64_t>> inodes_;  // the same: device and number
  bool looking_ = false;
  std::chrono::steady_clock::time_point next_look_;  // not before

  std::map<std::string, tree::FileVersion> told_;  // by AddChanged, its own

  WorkQueue worker_{"mappings"};
};

// Of the process `pid` ("self": this one): the paths of files that it has mapped writable and shared, as the kernel
// names them. Empty where we may not look.
std::set<std::string> WritableSharedFiles(const std::string& pid);
// The same from the text of /proc/PID/maps (kernels before 6.11).
std::set<std::string> WritableSharedFilesIn(std::string_view maps);

}  // namespace vrun::home
