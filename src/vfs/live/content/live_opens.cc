// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/content/live_opens.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "store/format/object_id.h"
#include "vfs/live/tree/node_attributes.h"
#include "vfs/retry.h"

namespace vrun::vfs {
namespace {

constexpr uint64_t kCachedHandle = 1;
constexpr uint64_t kThroughHandle = 2;
constexpr uint64_t kWriterHandle = 4;  // flag of a handle

}  // namespace

void LiveOpens::Open(uint64_t nodeid, bool write, Reply reply) {
  OpenAt(nodeid, write, MonotonicMicros() + HomeNews::kMicros, std::move(reply));
}

// A small file is fetched whole before the open is answered: afterwards home may replace its content, and users who
// have it open must keep the old one. Home holds large files.
void LiveOpens::OpenAt(uint64_t nodeid, bool write, int64_t deadline, Reply reply) {
  const NodeContent content = contents_.Of(nodeid);
  if (!content.file && !content.home) {
    reply.Error(ESTALE);
    return;
  }
  if (!content.home || content.home->size() == 0 || content.home->size() > store::kWholeFileLimit ||
      content.home->IsComplete()) {
    return FinishOpen(nodeid, content, write, deadline, std::move(reply));
  }
  reply.Suspend();
  const auto shared = std::make_shared<Reply>(std::move(reply));
  const auto came = [this, shared, content, nodeid, write, deadline](const Status& done) {
    if (done) return FinishOpen(nodeid, content, write, deadline, std::move(*shared));
    if (IsLost(done.error())) {
      return OpenLost(nodeid, content, write, deadline, done.error(), std::move(*shared));
    }
    shared->Error(ErrnoOf(done.error()));
  };
  content.home->Ensure(content.place, 0, content.home->size(), tree_.Guarded(came));
}

void LiveOpens::FinishOpen(uint64_t nodeid, const NodeContent& content, bool write, int64_t deadline, Reply reply) {
  bool other = false, renewed = false;
  {
    const TreeLock lock(tree_);
    LiveNode* node = tree_.Find(nodeid);
    other = node != nullptr && content.home && !node->file && node->version != content.home->version() &&
            !node->names.empty();
    if (node != nullptr && !other) {
      renewed = std::exchange(node->seen, LiveNode::Seen::kOpened) == LiveNode::Seen::kRenewed;
    }
  }
  if (renewed) notices_.ForgetAttributes(nodeid);                       // old size does not fit the new content
  if (other) return OpenAt(nodeid, write, deadline, std::move(reply));  // home's next tree was merged in between
  if (content.home && !content.opened && content.home->size() > store::kWholeFileLimit) {
    content.home->Borrow(content.place);
  }
  const OpenOut out = OpenNow(nodeid, write);
  if (!reply.Struct(out)) Close(nodeid, out.fh);
}

// Home has another version of it, and will announce it in a moment.
void LiveOpens::OpenLost(uint64_t nodeid, const NodeContent& content, bool write, int64_t deadline, const Error& error,
                         Reply reply) {
  bool stale = false, other = false;
  {
    const TreeLock lock(tree_);
    const LiveNode* node = tree_.Find(nodeid);
    stale = node == nullptr || node->names.empty();
    other = !stale && node->version != content.home->version();
  }
  if (stale) {
    reply.Error(ESTALE);  // the kernel looks the name up again
  } else if (other) {
    OpenAt(nodeid, write, deadline, std::move(reply));
  } else if (MonotonicMicros() < deadline) {
    const auto kept = std::make_shared<Reply>(std::move(reply));
    tree_.news().After(content.news, deadline,
                       [this, nodeid, write, deadline, kept] { OpenAt(nodeid, write, deadline, std::move(*kept)); });
  } else if (write) {
    FinishOpen(nodeid, content, write, deadline, std::move(reply));  // perhaps the caller replaces all of it
  } else {
    contents_.ReportLost(nodeid, content.place.path, error);
    reply.Error(EIO);
  }
}

OpenOut LiveOpens::OpenNow(uint64_t nodeid, bool write) {
  NodeContent content = contents_.Of(nodeid);
  bool privileged = false;  // set if kernel-only writes would leave privileges in place
  {
    const TreeLock lock(tree_);
    LiveNode* node = tree_.Find(nodeid);
    privileged = node != nullptr && HasPrivileges(node);
    if (node != nullptr && write) ++node->writers;
  }
  const uint32_t no_flush = write ? 0 : kOpenNoFlush;
  const uint64_t writer = write ? kWriterHandle : 0;
  MutexLock lock(mutex_);
  OpenFile& files = files_[nodeid];
  const bool may = passthrough_works_ && !privileged && content.file && content.file->complete() && files.cached == 0;
  if (files.backing == 0 && may) files.backing = OpenThroughLocked(*content.file);
  files.content = content.home;
  if (files.backing != 0) {  // then every open must use passthrough; the kernel drops its cached pages
    ++files.passthrough;
    ++passthrough_opens_;
    files.file = content.file;
    content.file->passed_through = true;
    return {kThroughHandle | writer, kOpenPassthrough | no_flush, files.backing};
  }
  ++files.cached;
  if (content.file) {
    files.file = content.file;
    content.file->Pin(true);
  }
  return {kCachedHandle | writer, kOpenKeepCache | no_flush, 0};
}

// Returns the backing id; 0: not possible this time.
int LiveOpens::OpenThroughLocked(LiveFile& file) {
  const auto fd = file.Descriptor();
  if (!fd) return 0;
  const int id = transport_.OpenBacking((*fd)->get());
  if (id > 0) return id;
  // ELOOP: the directory is on a stacked file system; EPERM: not permitted to us. Both are permanent.
  if (id == -ELOOP || id == -EPERM || id == -EOPNOTSUPP || id == -ENOTTY || id == -EINVAL) {
    passthrough_works_ = false;
    LogWarning("no passthrough: {}: reads and writes go through the file system server", std::strerror(-id));
  }
  return 0;
}

void LiveOpens::Close(uint64_t nodeid, uint64_t handle) {
  if ((handle & kWriterHandle) != 0) CloseWriter(nodeid);
  handle &= ~kWriterHandle;
  OpenFile closed;  // released after the lock
  MutexLock lock(mutex_);
  const auto it = files_.find(nodeid);
  if (it == files_.end()) return;
  OpenFile& files = it->second;
  if (handle == kCachedHandle && files.cached > 0) --files.cached;
  if (handle == kThroughHandle && files.passthrough > 0) --files.passthrough;
  if (files.passthrough == 0 && files.backing != 0) {
    transport_.CloseBacking(std::exchange(files.backing, 0));
    files.file->passed_through = false;
  }
  if (files.cached > 0 || files.passthrough > 0) return;
  if (files.file) files.file->Pin(false);
  closed = std::move(files);
  files_.erase(it);
}

// A finished write counts as one change: at close(2), or with the end of the last mapping.
void LiveOpens::NoteWritten(uint64_t nodeid) {
  const TreeLock lock(tree_);
  LiveNode* node = tree_.Find(nodeid);
  if (node == nullptr || !node->file) return;
  struct stat st {};
  const bool through = node->file->passed_through && node->file->Stat(&st) == 0;  // direct writes by the kernel
  const bool moved =
      through && (st.st_mtim.tv_sec != node->written.tv_sec || st.st_mtim.tv_nsec != node->written.tv_nsec);
  if (!moved && node->writing == LiveNode::Writing::kNothing) return;
  if (through) node->written = st.st_mtim;
  node->writing = LiveNode::Writing::kNothing;
  tree_.Changed(node);
}

void LiveOpens::CloseWriter(uint64_t nodeid) {
  NoteWritten(nodeid);
  bool released = false;
  {
    const TreeLock lock(tree_);
    LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr || node->writers == 0 || --node->writers > 0) return;
    released = tree_.holds();
  }
  if (released) tree_.Released();
}

void LiveOpens::Attach(uint64_t nodeid, const std::shared_ptr<LiveFile>& file) {
  MutexLock lock(mutex_);
  const auto it = files_.find(nodeid);
  if (it == files_.end() || it->second.file) return;
  it->second.file = file;
  file->Pin(true);
}

void LiveOpens::Flushed(uint64_t nodeid) {
  bool through = false;
  {
    MutexLock lock(mutex_);
    const auto it = files_.find(nodeid);
    through = it != files_.end() && it->second.backing != 0;
  }
  NoteWritten(nodeid);
  // The kernel does not update its attributes after writes through a mapping.
  if (through) notices_.ForgetAttributes(nodeid);
}

}  // namespace vrun::vfs
