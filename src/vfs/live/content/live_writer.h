// SPDX-License-Identifier: Apache-2.0
// Writing files of a live view: a file of home's becomes one of ours with its first write.
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
  // 0 or an errno. `by`: who may not keep the set-id bits, or null. `open`: by a descriptor, of whose end we hear.
  int Truncate(uint64_t nodeid, uint64_t size, const Request* by, bool open);
  // When there is room for it.
  void Allocate(const Request& request, const fuse_fallocate_in& in, Reply reply);
  void CopyRange(const Request& request, const fuse_copy_file_range_in& in, Reply reply);

 private:
  // The node's own content, made when there is none. `empty`: without home's. 0 or an errno.
  int Materialize(uint64_t nodeid, bool empty, std::shared_ptr<LiveFile>* out);
  // `by` and `open` as in Truncate; `open` also by a mapping.
  void BeforeWrite(uint64_t nodeid, const Request* by, bool open);
  // What a write needs of a file that is home's until then comes before the file is ours: as long as it is not, home's
  // next version may take its place.
  static std::vector<ByteRange> KeptByWrite(const FileContent& content, ByteRange range);
  bool LacksForWriting(uint64_t nodeid, ByteRange range);
  void FetchForWriting(uint64_t nodeid, ByteRange range, int64_t deadline, std::function<void(int error)> done);
  enum class After : uint8_t { kNow, kNews, kLost };  // when to try again
  After AfterLoss(uint64_t nodeid, const FileContent& lost);
  // Before the first write to it: a file that home has renamed, or whose attributes it has changed, gets its name back.
  void Reclaim(uint64_t nodeid);
  // With a TreeLock. True: on_released is to be called without it.
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
