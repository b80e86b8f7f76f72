// SPDX-License-Identifier: Apache-2.0
// LiveRoot: content, and how files are open.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "store/object_id.h"
#include "vfs/live_root.h"
#include "vfs/retry.h"
#include "vfs/seek.h"

namespace vrun::vfs {
namespace {

constexpr uint64_t kCachedHandle = 1;
constexpr uint64_t kThroughHandle = 2;
constexpr uint64_t kWriterHandle = 4;  // beside one of these

}  // namespace

LiveRoot::Content LiveRoot::ContentOf(uint64_t nodeid) {
  Content content;
  std::optional<store::ObjectId> known;
  tree::FileVersion version;
  {
    const TreeLock lock(*this);
    const LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr || !S_ISREG(node->attributes.mode)) return content;
    content.file = node->file;
    content.opened = node->opened;
    if (content.file || !node->home) return content;
    content.place = {home_tree_, node->HomePath()};
    content.news = news_;
    content.sparse = IsSparse(node->attributes.size, node->attributes.blocks);
    version = node->version;
    known = node->known_id;
  }
  content.home = backend_.files().Get(version, known);
  return content;
}

// Of attributes alone, which takes no lock in the kernel that anybody waits under: allowed from an operation.
void LiveRoot::ForgetAttributes(uint64_t nodeid) {
  const fuse_notify_inval_inode_out out{nodeid, -1, 0};
  Notify(transport_, FUSE_NOTIFY_INVAL_INODE, {reinterpret_cast<const char*>(&out), sizeof out}, {});
}

// --- open ------------------------------------------------------------------------------------------------------------

void LiveRoot::Open(const Request& request, uint32_t flags, Reply reply) {
  if (no_open_) {  // the kernel asks no more
    reply.Error(ENOSYS);
    return;
  }
  const uint64_t nodeid = request.nodeid;
  if ((flags & O_TRUNC) != 0) {
    if (const int error = Truncate(nodeid, 0, request.kill_privileges ? &request : nullptr, true); error != 0) {
      reply.Error(error);
      return;
    }
  }
  OpenAt(nodeid, (flags & O_ACCMODE) != O_RDONLY, MonotonicMicros() + kHomeMicros, std::move(reply));
}

// What is read as a whole is here before the file is open: once it is, home may have other content, and what there is
// of this one stays as it is for whoever has it open. What is large home holds.
void LiveRoot::OpenAt(uint64_t nodeid, bool write, int64_t deadline, Reply reply) {
  const Content content = ContentOf(nodeid);
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
  content.home->Ensure(content.place, 0, content.home->size(),
                       [this, gate = gate_, shared, content, nodeid, write, deadline](const Status& came) {
                         const Gate::Pass pass(gate.get());
                         if (!pass) return;
                         if (came) return FinishOpen(nodeid, content, write, deadline, std::move(*shared));
                         if (IsLost(came.error())) {
                           return OpenLost(nodeid, content, write, deadline, came.error(), std::move(*shared));
                         }
                         shared->Error(ErrnoOf(came.error()));
                       });
}

void LiveRoot::FinishOpen(uint64_t nodeid, const Content& content, bool write, int64_t deadline, Reply reply) {
  bool other = false, renewed = false;
  {
    const TreeLock lock(*this);
    LiveNode* node = tree_.Find(nodeid);
    other = node != nullptr && content.home && !node->file && node->version != content.home->version() &&
            !node->names.empty();
    if (node != nullptr && !other) {
      node->opened = true;
      renewed = std::exchange(node->renewed, false);
    }
  }
  if (renewed) ForgetAttributes(nodeid);                                // the new content is not read by the old size
  if (other) return OpenAt(nodeid, write, deadline, std::move(reply));  // home's next tree came in between
  if (content.home && !content.opened && content.home->size() > store::kWholeFileLimit) {
    content.home->Borrow(content.place);
  }
  const OpenOut out = OpenData(nodeid, write);
  if (!reply.Struct(out)) CloseHandle(nodeid, out.fh);
}

// Home has another version of it, of which we hear in a moment.
void LiveRoot::OpenLost(uint64_t nodeid, const Content& content, bool write, int64_t deadline, const Error& error,
                        Reply reply) {
  bool stale = false, other = false;
  {
    const TreeLock lock(*this);
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
    AfterNews(content.news, deadline,
              [this, nodeid, write, deadline, kept] { OpenAt(nodeid, write, deadline, std::move(*kept)); });
  } else if (write) {
    FinishOpen(nodeid, content, write, deadline, std::move(reply));  // perhaps to replace it all
  } else {
    ReportLost(nodeid, content.place.path, error);
    reply.Error(EIO);
  }
}

OpenOut LiveRoot::OpenData(uint64_t nodeid, bool write) {
  Content content = ContentOf(nodeid);
  bool privileged = false;  // a write that the kernel does by itself would leave them
  {
    const TreeLock lock(*this);
    LiveNode* node = tree_.Find(nodeid);
    privileged = node != nullptr && ((node->attributes.mode & (S_ISUID | S_ISGID)) != 0 ||
                                     FindXattr(node, "security.capability") != nullptr);
    if (node != nullptr && write) ++node->writers;
  }
  const uint32_t no_flush = write ? 0 : kOpenNoFlush;
  const uint64_t writer = write ? kWriterHandle : 0;
  std::lock_guard lock(open_mutex_);
  OpenFiles& files = open_files_[nodeid];
  const bool may = passthrough_works_ && !privileged && content.file && content.file->complete() && files.cached == 0;
  if (files.backing == 0 && may) files.backing = OpenThroughLocked(*content.file);
  files.content = content.home;
  if (files.backing != 0) {  // then every open has to be one of these; the kernel drops the pages that it has
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

// The backing id; 0: not this time.
int LiveRoot::OpenThroughLocked(LiveFile& file) {
  const auto fd = file.Descriptor();
  if (!fd) return 0;
  const int id = transport_.OpenBacking((*fd)->get());
  if (id > 0) return id;
  // ELOOP: the directory lies on a stacked file system; EPERM: not ours to use. Neither gets better.
  if (id == -ELOOP || id == -EPERM || id == -EOPNOTSUPP || id == -ENOTTY || id == -EINVAL) {
    passthrough_works_ = false;
    LogWarning("no passthrough: {}: reads and writes go through the file system server", std::strerror(-id));
  }
  return 0;
}

void LiveRoot::Release(const Request& request, uint64_t handle, Reply reply) {
  if (no_open_) {  // of what was made before the kernel knew
    reply.Empty();
    return;
  }
  CloseHandle(request.nodeid, handle);
  // What came after the last FLUSH: a mapping outlives its descriptor.
  WithContent(request.nodeid, std::move(reply), [this, nodeid = request.nodeid](Reply whole) {
    Publish(nodeid);
    whole.Empty();
  });
}

void LiveRoot::CloseHandle(uint64_t nodeid, uint64_t handle) {
  if ((handle & kWriterHandle) != 0) CloseWriter(nodeid);
  handle &= ~kWriterHandle;
  OpenFiles closed;  // let go of after the lock
  std::lock_guard lock(open_mutex_);
  const auto it = open_files_.find(nodeid);
  if (it == open_files_.end()) return;
  OpenFiles& files = it->second;
  if (handle == kCachedHandle && files.cached > 0) --files.cached;
  if (handle == kThroughHandle && files.passthrough > 0) --files.passthrough;
  if (files.passthrough == 0 && files.backing != 0) {
    transport_.CloseBacking(std::exchange(files.backing, 0));
    files.file->passed_through = false;
  }
  if (files.cached > 0 || files.passthrough > 0) return;
  if (files.file) files.file->Pin(false);
  closed = std::move(files);
  open_files_.erase(it);
}

// What was written is a change of its own when it is done, by close(2) or with the last mapping.
void LiveRoot::NoteWritten(uint64_t nodeid) {
  const TreeLock lock(*this);
  LiveNode* node = tree_.Find(nodeid);
  if (node == nullptr || !node->file) return;
  struct stat st {};
  const bool through = node->file->passed_through && node->file->Stat(&st) == 0;  // what the kernel wrote by itself
  const bool moved =
      through && (st.st_mtim.tv_sec != node->written.tv_sec || st.st_mtim.tv_nsec != node->written.tv_nsec);
  if (!moved && !node->dirty) return;
  if (through) node->written = st.st_mtim;
  node->dirty = false;
  tree_.Changed(node);
}

void LiveRoot::CloseWriter(uint64_t nodeid) {
  NoteWritten(nodeid);
  bool released = false;
  {
    const TreeLock lock(*this);
    LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr || node->writers == 0 || --node->writers > 0) return;
    released = tree_.holds();
  }
  if (released && options_.on_released) options_.on_released();
}

void LiveRoot::Flush(const Request& request, Reply reply) {
  if (no_open_) {
    reply.Error(ENOSYS);
    return;
  }
  bool through = false;
  {
    std::lock_guard lock(open_mutex_);
    const auto it = open_files_.find(request.nodeid);
    through = it != open_files_.end() && it->second.backing != 0;
  }
  NoteWritten(request.nodeid);
  // What was written through a mapping the kernel has not noticed in its own attributes.
  if (through) ForgetAttributes(request.nodeid);
  WithContent(request.nodeid, std::move(reply), [this, nodeid = request.nodeid](Reply whole) {
    Publish(nodeid);
    whole.Empty();
  });
}

void LiveRoot::Seek(const Request& request, uint64_t offset, uint32_t whence, Reply reply) {
  const Content content = ContentOf(request.nodeid);
  if (content.home) {
    AnswerSeek(content.home, content.place, content.sparse, offset, whence, std::move(reply));
  } else if (content.file) {
    uint64_t result = 0;
    const int error = content.file->Seek(offset, static_cast<int>(whence), &result);
    error != 0 ? reply.Error(error) : reply.Struct(fuse_lseek_out{result});
  } else {
    reply.Error(ESTALE);
  }
}

}  // namespace vrun::vfs
