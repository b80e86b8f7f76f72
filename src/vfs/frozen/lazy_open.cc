// SPDX-License-Identifier: Apache-2.0
// LazyRoot: opens and closes files, and decides which files the kernel reads directly (passthrough).
#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/thread/mutex.h"
#include "store/store.h"
#include "vfs/content/verifier.h"
#include "vfs/frozen/lazy_root.h"
#include "vfs/retry.h"
#include "vfs/trace/recorder.h"

namespace vrun::vfs {
namespace {

constexpr uint64_t kCachedHandle = 1;
constexpr uint64_t kThroughHandle = 2;
constexpr uint64_t kPassthroughLeast = 128 * 1024;  // below, the extra ioctl costs more than it saves
constexpr uint64_t kVerifyInline = 4 << 20;         // a request thread verifies at most this much
constexpr uint64_t kVerifyFirst = 64 << 20;         // for more, readers do not wait and read through us meanwhile
constexpr uint64_t kRepairBytes = 4 << 20;          // per fetch
constexpr int kRepairTries = 3;

}  // namespace

void LazyRoot::Open(const Request& request, uint32_t flags, Reply reply) {
  if ((flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) != 0) {
    reply.Error(EROFS);
    return;
  }
  const uint64_t nodeid = request.nodeid;
  if (!passthrough_works_ && options_.no_open) {
    reply.Error(ENOSYS);  // the kernel sends no more opens, and caches all files
    return;
  }
  std::shared_ptr<FileContent> content;
  FileContent::Place place;
  {
    MutexLock lock(mutex_);
    const Inode* inode = inodes_.Find(nodeid);
    if (inode != nullptr) content = ContentLocked(*inode);
    if (content) place = {tree_, inodes_.PathOf(*inode).value_or("")};
  }
  if (!content) {
    reply.Error(EIO);
    return;
  }
  const Opened opened = HowOpen(nodeid);
  if (opened == Opened::kThrough) {
    if (content->VerifySome(0) == uint64_t{0} && AnswerThrough(nodeid, &reply)) return;
    reply.Suspend();
    OpenChecked(nodeid, content, kRepairTries, std::make_shared<Reply>(std::move(reply)));
    return;
  }
  const bool large = opened == Opened::kNot && passthrough_works_ && content->size() >= kPassthroughLeast;
  const std::optional<uint64_t> unverified = large ? content->VerifySome(0) : std::nullopt;
  const bool complete = large ? unverified.has_value() : content->size() > 0 && content->IsComplete();
  // Content that arrived during this run is read through us until all of it was used: the trace would lack what the
  // kernel reads directly.
  if (unverified && !backend_.recorder().Fresh(content->version())) {
    if (*unverified <= kVerifyInline) {
      if (OpenThrough(nodeid, content, &reply)) return;
    } else if (*unverified <= kVerifyFirst) {
      reply.Suspend();
      const auto shared = std::make_shared<Reply>(std::move(reply));
      backend_.verifier().Verify(content, [this, gate = gate_, shared, content, nodeid](bool) {
        const Gate::Pass pass(gate.get());
        if (pass && !OpenThrough(nodeid, content, shared.get())) OpenCached(nodeid, content, std::move(*shared));
      });
      return;
    } else {
      backend_.verifier().Verify(content);  // for later opens
    }
  } else if (!complete && content->size() <= store::kWholeFileLimit && !place.path.empty()) {
    // An opened file is almost always read: fetch it before the first READ comes.
    content->Ensure(place, 0, content->size(), nullptr);
  }
  OpenCached(nodeid, content, std::move(reply));
}

void LazyRoot::OpenCached(uint64_t nodeid, const std::shared_ptr<FileContent>& content, Reply reply) {
  bool through = false;
  {
    MutexLock lock(open_mutex_);
    OpenFiles& files = open_files_[nodeid];
    through = files.backing != 0;  // opened meanwhile: an inode cannot be open both ways
    if (!through) ++files.cached;
    files.content = content;
    SaveOpenLocked(nodeid, &files);
  }
  if (through && AnswerThrough(nodeid, &reply)) return;
  if (through) {
    MutexLock lock(open_mutex_);
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

LazyRoot::Opened LazyRoot::HowOpen(uint64_t nodeid) {
  MutexLock lock(open_mutex_);
  const auto it = open_files_.find(nodeid);
  if (it == open_files_.end()) return Opened::kNot;
  return it->second.backing != 0 ? Opened::kThrough : Opened::kCached;
}

// An inode that is open with passthrough has one backing file: a new reader reads the same bytes as the others. So the
// file is verified first, and damaged parts are fetched again into the same file, which repairs it for the other
// readers too. (If another file has replaced this one meanwhile, this one has no name any more through which it could
// be damaged.)
void LazyRoot::OpenChecked(uint64_t nodeid, const std::shared_ptr<FileContent>& content, int tries, SharedReply reply) {
  backend_.verifier().Verify(content, [this, gate = gate_, nodeid, content, tries, reply](bool whole) {
    const Gate::Pass pass(gate.get());
    if (!pass) return;
    if (whole) {
      if (AnswerThrough(nodeid, reply.get()) || OpenThrough(nodeid, content, reply.get())) return;
      OpenCached(nodeid, content, std::move(*reply));
    } else if (tries > 0) {
      Repair(nodeid, content, 0, tries - 1, reply);
    } else {
      reply->Error(EIO);
    }
  });
}

void LazyRoot::Repair(uint64_t nodeid, const std::shared_ptr<FileContent>& content, uint64_t offset, int tries,
                      SharedReply reply) {
  while (offset < content->size() && content->Has(offset, kRepairBytes)) offset += kRepairBytes;
  if (offset >= content->size()) {
    OpenChecked(nodeid, content, tries, std::move(reply));
    return;
  }
  FileContent::Place place;
  {
    MutexLock lock(mutex_);
    const Inode* inode = inodes_.Find(nodeid);
    if (inode != nullptr) place = {tree_, inodes_.PathOf(*inode).value_or("")};
  }
  if (place.path.empty()) {
    reply->Error(EIO);
    return;
  }
  content->Ensure(place, offset, kRepairBytes,
                  [this, gate = gate_, nodeid, content, offset, tries, reply, path = place.path](const Status& done) {
                    const Gate::Pass pass(gate.get());
                    if (!pass) return;
                    if (done) return Repair(nodeid, content, offset + kRepairBytes, tries, reply);
                    if (IsLost(done.error())) ReportLost(nodeid, path, done.error());
                    reply->Error(ErrnoOf(done.error()));
                  });
}

// Adds an open to an inode that already uses passthrough.
bool LazyRoot::AnswerThrough(uint64_t nodeid, Reply* reply) {
  OpenOut out{kThroughHandle, kOpenPassthrough | kOpenNoFlush, 0};
  std::shared_ptr<FileContent> content;
  {
    MutexLock lock(open_mutex_);
    const auto it = open_files_.find(nodeid);
    if (it == open_files_.end() || it->second.backing == 0) return false;
    ++it->second.passthrough;
    SaveOpenLocked(nodeid, &it->second);
    out.backing_id = it->second.backing;
    content = it->second.content;
  }
  if (content) backend_.recorder().Unseen(content->version());
  ++passthrough_opens_;
  if (!reply->Struct(out)) CloseHandle(nodeid, kThroughHandle);
  return true;
}

bool LazyRoot::OpenThrough(uint64_t nodeid, const std::shared_ptr<FileContent>& content, Reply* reply) {
  {
    MutexLock lock(open_mutex_);
    const auto it = open_files_.find(nodeid);
    if (it != open_files_.end() && it->second.cached > 0) return false;
  }
  // Ours only until the kernel has its own reference, so no descriptor is kept.
  const auto fd = content->OpenForPassthrough();
  if (!fd) return false;
  {
    MutexLock lock(open_mutex_);
    OpenFiles& files = open_files_[nodeid];
    if (files.cached > 0) return false;
    if (files.backing == 0) {
      const int id = transport_.OpenBacking(fd->get());
      if (id < 0) {
        if (files.saved != SavedTable<SavedOpen>::kNone) saved_->opens().Remove(files.saved);
        open_files_.erase(nodeid);
        // ELOOP: the store is on a stacked file system; EPERM: not permitted to us. Both are permanent.
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
  // Answer first: if we are killed in between, the file counts as open for ever, which costs little. In the other order
  // the request would be sent again and counted twice.
  const uint64_t nodeid = request.nodeid;
  reply.Empty();
  CloseHandle(nodeid, handle);
}

void LazyRoot::CloseHandle(uint64_t nodeid, uint64_t handle) {
  std::shared_ptr<FileContent> released;  // released after the lock
  MutexLock lock(open_mutex_);
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
