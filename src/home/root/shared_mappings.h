// SPDX-License-Identifier: Apache-2.0
// Files of the root into which programs of this machine write through shared mappings (np.memmap, LMDB). No event tells
// of such a write, not even after msync, until the mapping is gone; what does tell is the kernel's list of each
// process's mappings, and then the file's times, which move with the first store to a page that is clean.
//
// So whoever wants to know what changed looks at the processes, if all such looks together take 5 % of a processor at
// most (one is 5 us for a small program, 40 for a large Python), and at the times of each file that was found. And
// whoever reads such a file cleans the pages first (Settle): what is stored after that moves the times, so no content
// is taken for a version that it is not. What was read of a file between two looks, before it was known to be mapped,
// may be: such a file gets a new ctime.
//
// Not seen: processes that we may not look at (of other users, unless we are root); and files in memory (tmpfs), whose
// pages are never clean and whose times never move.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/io/work_queue.h"
#include "tree/scan/scan.h"
#include "tree/tree.h"

namespace vrun::home {

// A file that a process has mapped writable and shared.
struct MappedFile {
  std::string path;  // as the kernel names it: where the process is in another mount namespace, not as we would
  uint64_t dev = 0;  // of its file system; st_dev but on btrfs and overlayfs
  uint64_t ino = 0;
  std::string range;  // of its addresses: the name of the mapping in /proc/PID/map_files
  bool operator==(const MappedFile&) const = default;
};

// Of the process `pid` ("self": this one). Empty where we may not look.
std::vector<MappedFile> MappedFilesOf(const std::string& pid);
// The same from the text of /proc/PID/maps (kernels before 6.11).
std::vector<MappedFile> MappedFilesIn(std::string_view maps);

class SharedMappings {
 public:
  // `root`: the real path of the directory that is "/" of the tree.
  explicit SharedMappings(std::string root);
  ~SharedMappings();

  // Begins a look at the processes, if it is time. Any thread; does not wait.
  void Look();
  // Adds those that changed since the last call, or were not known then. Waits for the look under way: 25 ms, and if
  // the last one is long ago 250 ms. One thread at a time.
  void AddChanged(tree::DirtySet* dirty);

  // The file, open as `fd` and of that version, is about to be read: if it is one of them, what is stored to this range
  // from now on moves its times. Writes to the disk and waits for it. Any thread.
  void Settle(int fd, const tree::FileVersion& version, uint64_t offset, uint64_t length) const;

 private:
  using Inode = std::pair<uint64_t, uint64_t>;  // st_dev and number
  // How to look at one: a path of this machine, which may go through a process's list of mappings; and what it is in
  // the root, or "".
  struct Known {
    std::string stat_path;
    std::string path;
  };
  void LookNow();
  std::map<Inode, Known> Find() const;
  void AddUntold(const tree::DirtySet& dirty);
  bool IsUntold(const Inode& inode, const tree::FileVersion& now);
  void MakeAnother(const std::string& path, bool follow);

  const std::string root_;  // without a slash at its end: "" for /

  mutable std::mutex mutex_;  // guards these
  std::condition_variable looked_;
  std::map<Inode, Known> mapped_;  // by the last look
  // What was read since the last look began, and was not mapped by the one before; and since the one before that.
  mutable std::map<Inode, tree::FileVersion> read_, read_before_;
  std::map<Inode, tree::FileVersion> made_;  // by MakeAnother, of which an event tells
  mutable bool read_more_ = false;           // than that
  bool looking_ = false;
  std::chrono::steady_clock::time_point looked_at_;  // when the last one ended
  std::chrono::steady_clock::time_point next_look_;  // not before

  std::map<Inode, tree::FileVersion> told_;  // by AddChanged, its own

  WorkQueue worker_{"mappings"};
};

}  // namespace vrun::home
