// SPDX-License-Identifier: Apache-2.0
// Files of the root that local programs write through shared mappings (np.memmap, LMDB). Such a write causes no event
// until the mapping is gone, not even after msync. It is visible only in the kernel's list of each process's mappings,
// and in the file's times, which move at the first store to a clean page.
//
// So home scans the processes, spending at most 5 % of a processor on it (5 us for a small program, 40 us for a large
// Python), and stats each file it finds. Before it reads such a file it cleans the pages (Settle): later stores then
// move the times, so content is never attributed to the wrong version. Content read between two scans, before the file
// was known to be mapped, may be wrong: such a file gets a new ctime.
//
// Not seen: processes that we may not inspect (other users' processes, unless we are root), and files on tmpfs, whose
// pages are never clean and whose times never move.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/io/work_queue.h"
#include "base/thread/mutex.h"
#include "tree/scan/scan.h"
#include "tree/tree.h"

namespace vrun::home {

// A file that a process has mapped writable and shared.
struct MappedFile {
  std::string path;  // as the kernel names it; differs from our path if the process is in another mount namespace
  uint64_t dev = 0;  // device of its file system; equals st_dev except on btrfs and overlayfs
  uint64_t ino = 0;
  std::string range;  // address range: the name of the mapping in /proc/PID/map_files
  bool operator==(const MappedFile&) const = default;
};

// For process `pid` ("self": this one). Empty if we may not look.
std::vector<MappedFile> MappedFilesOf(const std::string& pid);
// The same from the text of /proc/PID/maps (kernels before 6.11).
std::vector<MappedFile> MappedFilesIn(std::string_view maps);

class SharedMappings {
 public:
  // `root`: the real path of the directory that is "/" of the tree.
  explicit SharedMappings(std::string root);
  ~SharedMappings();

  // Starts a scan of the processes if one is due. Any thread; does not wait.
  void Look();
  // Adds the mapped files that changed since the last call or are new. Waits for a running scan: up to 25 ms, or 250 ms
  // if the last one is long ago. One thread at a time.
  void AddChanged(tree::DirtySet* dirty);

  // Call before reading the file, which is open as `fd` and has that version. If it is mapped, later stores to this
  // range will move its times. Writes to the disk and waits for it. Any thread.
  void Settle(int fd, const tree::FileVersion& version, uint64_t offset, uint64_t length) const;

 private:
  using Inode = std::pair<uint64_t, uint64_t>;  // st_dev and number
  // How to stat the file: a path of this machine, perhaps through a process's list of mappings; and its path in the
  // root, or "".
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

  mutable Mutex mutex_;  // guards the members below
  CondVar looked_;
  std::map<Inode, Known> mapped_ VRUN_GUARDED_BY(mutex_);  // result of the last scan
  // Files read since the last scan began that the scan before did not list as mapped; and those of the interval before.
  mutable std::map<Inode, tree::FileVersion> read_ VRUN_GUARDED_BY(mutex_), read_before_ VRUN_GUARDED_BY(mutex_);
  std::map<Inode, tree::FileVersion> made_
      VRUN_GUARDED_BY(mutex_);                              // given a new ctime by MakeAnother, which causes an event
  mutable bool read_more_ VRUN_GUARDED_BY(mutex_) = false;  // read_ is incomplete
  bool looking_ VRUN_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point looked_at_ VRUN_GUARDED_BY(mutex_);  // end of the last scan
  std::chrono::steady_clock::time_point next_look_ VRUN_GUARDED_BY(mutex_);  // earliest time

  std::map<Inode, tree::FileVersion> told_;  // reported by AddChanged; used only there

  WorkQueue worker_{"mappings"};
};

}  // namespace vrun::home
