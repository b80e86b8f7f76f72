// SPDX-License-Identifier: Apache-2.0
// Handles opens and closes, if the kernel sends them (otherwise publisher.h hears of the closes).
//
// A file written here is opened with passthrough where the kernel can: reads and writes then go straight to the backing
// file. An inode is open either through the page cache or with passthrough, never both at once (fs/fuse/iomode.c).
//
// Thread safety: any thread.
#pragma once

#include <atomic>

#include "base/thread/mutex.h"
#include "vfs/fuse/write_operations.h"
#include "vfs/live/content/live_contents.h"
#include "vfs/live/kernel/kernel_notices.h"

namespace vrun::vfs {

class LiveOpens {
 public:
  // All must outlive it.
  LiveOpens(Transport& transport, JournaledTree& tree, LiveContents& contents, KernelNotices& notices)
      : transport_(transport), tree_(tree), contents_(contents), notices_(notices) {}

  // The kernel supports passthrough; call before the first open.
  void AllowPassthrough() { passthrough_works_ = true; }
  bool passthrough_works() const { return passthrough_works_.load(); }
  uint64_t passthrough_opens() const { return passthrough_opens_.load(); }

  // Answers with an OpenOut.
  void Open(uint64_t nodeid, bool write, Reply reply);
  // For content that is here, or is not needed.
  OpenOut OpenNow(uint64_t nodeid, bool write);
  void Close(uint64_t nodeid, uint64_t handle);
  // close(2) was called: what was written before is a change of its own.
  void Flushed(uint64_t nodeid);
  // From now on the node has content of its own.
  void Attach(uint64_t nodeid, const std::shared_ptr<LiveFile>& file);

 private:
  struct OpenFile {
    uint32_t cached = 0;
    uint32_t passthrough = 0;
    int backing = 0;
    std::shared_ptr<LiveFile> file;
    std::shared_ptr<FileContent> content;  // not evicted while the file is open
  };
  void OpenAt(uint64_t nodeid, bool write, int64_t deadline, Reply reply);
  void FinishOpen(uint64_t nodeid, const NodeContent& content, bool write, int64_t deadline, Reply reply);
  void OpenLost(uint64_t nodeid, const NodeContent& content, bool write, int64_t deadline, const Error& error,
                Reply reply);
  int OpenThroughLocked(LiveFile& file) VRUN_REQUIRES(mutex_);
  void CloseWriter(uint64_t nodeid);
  void NoteWritten(uint64_t nodeid);

  Transport& transport_;
  JournaledTree& tree_;
  LiveContents& contents_;
  KernelNotices& notices_;
  std::atomic<bool> passthrough_works_{false};
  std::atomic<uint64_t> passthrough_opens_{0};
  Mutex mutex_;  // never held with the tree's lock
  std::unordered_map<uint64_t, OpenFile> files_ VRUN_GUARDED_BY(mutex_);
};

}  // namespace vrun::vfs
