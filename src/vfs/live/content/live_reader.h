// SPDX-License-Identifier: Apache-2.0
// Answers reads of files of a live view.
//
// Thread safety: any thread.
#pragma once

#include "vfs/live/content/live_contents.h"
#include "vfs/live/kernel/kernel_notices.h"

namespace vrun::vfs {

class LiveReader {
 public:
  // All must outlive it.
  LiveReader(Backend& backend, JournaledTree& tree, LiveContents& contents, KernelNotices& notices)
      : backend_(backend), tree_(tree), contents_(contents), notices_(notices) {}

  void Read(const Request& request, uint64_t offset, uint32_t size, Reply reply);
  void Seek(uint64_t nodeid, uint64_t offset, uint32_t whence, Reply reply);

 private:
  bool HasName(uint64_t nodeid);
  // Marks this version as seen. False: home's next tree was merged in between.
  bool BeginReading(uint64_t nodeid, const FileContent& content);
  void ReadSuccessor(uint64_t nodeid, ByteRange range, int64_t deadline, const std::shared_ptr<Reply>& reply);
  bool Declines(uint64_t nodeid, uint64_t offset, uint32_t size);
  void ReadAt(uint64_t nodeid, uint64_t offset, uint32_t size, int tries, int64_t deadline, Reply reply);
  void ReadHome(uint64_t nodeid, NodeContent content, uint64_t offset, uint32_t size, int tries, int64_t deadline,
                Reply reply);
  static void ReadOwn(LiveFile& file, uint64_t offset, uint32_t size, Reply reply);
  void Record(const NodeContent& content, uint64_t offset, uint64_t n);

  Backend& backend_;
  JournaledTree& tree_;
  LiveContents& contents_;
  KernelNotices& notices_;
};

}  // namespace vrun::vfs
