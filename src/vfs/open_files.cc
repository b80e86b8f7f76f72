// SPDX-License-Identifier: Apache-2.0
// LazyRoot: opening and closing, and which files the kernel reads by itself (passthrough).
#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "store/store.h"
#include "vfs/lazy_root.h"
#include "vfs/recorder.h"

namespace vrun::vfs {
namespace {

constexpr uint64_t kCachedHandle = 1;
constexpr uint64_t kThroughHandle = 2;
constexpr uint64_t kPassthroughLeast = 128 * 1024;  // below, the extra ioctl costs more than it saves
constexpr uint64_t kVerifyInline = 4 << 20;         // larger files are verified off the request threads

}  // namespace

void LazyRoot::Open(const Request& request, uint32_t flags, Reply reply) {
  if ((flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) != 0) {
    reply.Error(EROFS);
    return;
  }
  const uint64_t nodeid = request.nodeid;
  if (!passthrough_works_ && options_.no_open) {
    reply.Error(ENOSYS);  // no open is ever asked for again, and all are cached
    return;
  }
  std::shared_ptr<FileContent> content;
  FileContent::Place place;
  {
    std::lock_guard lock(mutex_);
    const Inode* inode = inodes_.Find(nodeid);
    if (inode != nullptr) content = ContentLocked(*inode);
    if (content) place = {tree_, inodes_.PathOf(*inode).value_or("")};
  }
  if (!content) {
    reply.Error(EIO);
    return;
  }
  if (AnswerThrough(nodeid, &reply)) return;
  const bool complete = content->size() > 0 && content->IsComplete();
  const bool large = passthrough_works_ && content->size() >= kPassthroughLeast;
  // What has just come is read through us until all of it was: the trace would lack what the kernel reads by itself.
  if (complete && large && !backend_.recorder().Fresh(content->version())) {
    if (content->size() <= kVerifyInline || content->passthrough_verified()) {
      if (OpenThrough(nodeid, content, &reply)) return;
    } else {
      reply.Suspend();
      const auto shared = std::make_shared<Reply>(std::move(reply));
      backend_.timers().After(0, [this, gate = gate_, shared, content, nodeid] {
        const Gate::Pass pass(gate.get());
        if (pass && !OpenThrough(nodeid, content, shared.get())) OpenCached(nodeid, content, std::move(*shared));
      });
      return;
    }
  } else if (!complete && content->size() <= store::kWholeFileLimit && !place.path.empty()) {
    // Whoever opens it reads it, almost always: on its way before the first READ comes.
    content->Ensure(place, 0, content->size(), nullptr);
  }
  OpenCached(nodeid, content, std::move(reply));
}

void LazyRoot::OpenCached(uint64_t nodeid, const std::shared_ptr<FileContent>& content, Reply reply) {
  bool through = false;
  {
    std::lock_guard lock(open_mutex_);
    OpenFiles& files = open_files_[nodeid];
    through = files.backing != 0;  // opened meanwhile: an inode cannot be open both ways
    if (!through) ++files.cached;
    files.content = content;
    SaveOpenLocked(nodeid, &files);
  }
  if (through && AnswerThrough(nodeid, &reply)) return;
  if (through) {
    std::lock_guard lock(open_mutex_);
    OpenFiles& files = open_files_[nodeid];
    ++files.cached;
    SaveOpenLocked(nodeid, &files);
  }
  const OpenOut out{kCachedHandle, kOpenKeepCache | kOpenNoFlush, 0};
  if (reply.Struct(out)) {
    PushTraced({&nodeid, 1}, true);
  } else {
    CloseHandle(nodeid, kCachedHandle);
  }
}

// Joins the opens of an inode that is being passed through already.
bool LazyRoot::AnswerThrough(uint64_t nodeid, Reply* reply) {
  OpenOut out{kThroughHandle, kOpenPassthrough | kOpenNoFlush, 0};
  {
    std::lock_guard lock(open_mutex_);
    const auto it = open_files_.find(nodeid);
    if (it == open_files_.end() || it->second.backing == 0) return false;
    ++it->second.passthrough;
    SaveOpenLocked(nodeid, &it->second);
    out.backing_id = it->second.backing;
  }
  ++passthrough_opens_;
  if (!reply->Struct(out)) CloseHandle(nodeid, kThroughHandle);
  return true;
}

bool LazyRoot::OpenThrough(uint64_t nodeid, const std::shared_ptr<FileContent>& content, Reply* reply) {
  {
    std::lock_guard lock(open_mutex_);
    const auto it = open_files_.find(nodeid);
    if (it != open_files_.end() && it->second.cached > 0) return false;
  }
  // Ours only until the kernel has its own reference: no descriptor is kept for any file.
  const auto fd = content->OpenForPassthrough();
  if (!fd) return false;
  {
    std::lock_guard lock(open_mutex_);
    OpenFiles& files = open_files_[nodeid];
    if (files.cached > 0) return false;
    if (files.backing == 0) {
      const int id = transport_.OpenBacking(fd->get());
      if (id < 0) {
        if (files.saved != SavedTable<SavedOpen>::kNone) saved_->opens().Remove(files.saved);
        open_files_.erase(nodeid);
        // ELOOP: the store lies on a stacked file system; EPERM: not ours to use. Neither gets better.
        if (id == -ELOOP || id == -EPERM || id == -EOPNOTSUPP || id == -ENOTTY || id == -EINVAL) {
          passthrough_works_ = false;
          LogWarning("no passthrough: {}: reads go through the page cache of the view", std::strerror(-id));
        }
        return false;
      }
      files.backing = id;
      files.content = content;
      SaveOpenLocked(nodeid, &files);
    }
  }
  return AnswerThrough(nodeid, reply);
}

void LazyRoot::Release(const Request& request, uint64_t handle, Reply reply) {
  // The answer first: if we are killed in between it is counted as open for ever, which costs little. The other way
  // round it would be sent again, and taken off twice.
  const uint64_t nodeid = request.nodeid;
  reply.Empty();
  CloseHandle(nodeid, handle);
}

void LazyRoot::CloseHandle(uint64_t nodeid, uint64_t handle) {
  std::shared_ptr<FileContent> released;  // after the lock
  std::lock_guard lock(open_mutex_);
  const auto it = open_files_.find(nodeid);
  if (it == open_files_.end()) return;
  OpenFiles& files = it->second;
  if (handle == kCachedHandle && files.cached > 0) --files.cached;
  if (handle == kThroughHandle && files.passthrough > 0) --files.passthrough;
  const int unused = files.passthrough == 0 ? std::exchange(files.backing, 0) : 0;
  SaveOpenLocked(nodeid, &files);
  if (unused != 0) transport_.CloseBacking(unused);
  if (files.cached == 0 && files.passthrough == 0) {
    released = std::move(files.content);
    open_files_.erase(it);
  }
}

void LazyRoot::SaveOpenLocked(uint64_t nodeid, OpenFiles* files) {
  constexpr uint32_t kNone = SavedTable<SavedOpen>::kNone;
  if (saved_ == nullptr) return;
  SavedTable<SavedOpen>& table = saved_->opens();
  if (files->cached == 0 && files->passthrough == 0 && files->backing == 0) {
    table.Remove(std::exchange(files->saved, kNone));
  } else if (files->saved == kNone) {
    files->saved = table.Add({nodeid, files->cached, files->passthrough, files->backing, 0});
    if (files->saved == kNone) saved_->header().incomplete = 1;
  } else {
    SavedOpen& record = table.At(files->saved);
    record.cached = files->cached;
    record.passthrough = files->passthrough;
    record.backing = files->backing;
  }
}

}  // namespace vrun::vfs
