// SPDX-License-Identifier: Apache-2.0
// Answers writes to files of a live view. A file of home becomes ours with its first write.
//
// Thread safety: any thread.
#pragma once

#include <vector>

#include "vfs/live/content/live_opens.h"
#include "vfs/live/content/publisher.h"

namespace vrun::vfs {

class LiveWriter {
 public:
  // All must outlive it.
  LiveWriter(Backend& backend, JournaledTree& tree, LiveContents& contents, LiveOpens& opens, Publisher& publisher,
             KernelNotices& notices)
      : backend_(backend), tree_(tree), contents_(contents), opens_(opens), publisher_(publisher), notices_(notices) {}

  void Write(const Request& request, const fuse_write_in& in, std::string_view data, Reply reply);
  // 0 or an errno. `by`: the caller, if it may not keep the set-id bits, or null. `open`: through a descriptor whose
  // close we will see.
  int Truncate(uint64_t nodeid, uint64_t size, const Request* by, bool open);
  // Waits for room first.
  void Allocate(const Request& request, const fuse_fallocate_in& in, Reply reply);
  void CopyRange(const Request& request, const fuse_copy_file_range_in& in, Reply reply);

 private:
  // Returns the node's own content; creates it if there is none. `empty`: without home's content. 0 or an errno.
  int Materialize(uint64_t nodeid, bool empty, std::shared_ptr<LiveFile>* out);
  // `by` and `open` as in Truncate; `open` also for a mapping.
  void BeforeWrite(uint64_t nodeid, const Request* by, bool open);
  // The ranges of home's content that a write needs. They are fetched before the file becomes ours; until then home's
  // next version may take its place.
  static std::vector<ByteRange> RangesPartlyWritten(const FileContent& content, ByteRange range);
  bool LacksForWriting(uint64_t nodeid, ByteRange range);
  void FetchForWriting(uint64_t nodeid, ByteRange range, int64_t deadline, std::function<void(int error)> done);
  enum class After : uint8_t { kNow, kNews, kLost };  // when to try again
  After AfterLoss(uint64_t nodeid, const FileContent& lost);
  // Before the first write to a file that home has renamed, or whose attributes home has changed: gives the node its
  // name back.
  void Reclaim(uint64_t nodeid);
  // With a TreeLock. True: call on_released without the lock.
  bool TakeBackLocked(LiveNode* node, const LiveTree::Successor& successor);
  void WriteNow(const Request& request, const fuse_write_in& in, std::string_view data, Reply reply);
  void WriteHere(const Request& request, const fuse_write_in& in, std::string_view data, Reply reply);
  void WriteOwn(uint64_t nodeid, const std::shared_ptr<LiveFile>& file, uint64_t offset, std::string_view data,
                Reply reply);
  void AllocateNow(const Request& request, const fuse_fallocate_in& in, Reply reply);

  Backend& backend_;
  JournaledTree& tree_;
  LiveContents& contents_;
  LiveOpens& opens_;
  Publisher& publisher_;
  KernelNotices& notices_;
};

}  // namespace vrun::vfs
