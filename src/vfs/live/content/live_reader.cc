// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/content/live_reader.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "store/format/object_id.h"
#include "vfs/content/seek.h"
#include "vfs/retry.h"
#include "vfs/trace/recorder.h"

namespace vrun::vfs {
namespace {

constexpr uint32_t kMostBytes = 1 << 20;
constexpr int kReadTries = 8;

// One buffer per thread, never cleared.
char* Buffer() {
  thread_local const std::unique_ptr<char[]> buffer(new char[kMostBytes]);
  return buffer.get();
}

}  // namespace

void LiveReader::ReadOwn(LiveFile& file, uint64_t offset, uint32_t size, Reply reply) {
  size_t got = 0;
  if (const int error = file.Read(offset, Buffer(), size, &got); error != 0) {
    reply.Error(error);
  } else {
    reply.Data({Buffer(), got});
  }
}

void LiveReader::Read(const Request& request, uint64_t offset, uint32_t size, Reply reply) {
  size = std::min(size, kMostBytes);
  if (!request.direct && Declines(request.nodeid, offset, size)) {
    reply.Error(EAGAIN);
    return;
  }
  ReadAt(request.nodeid, offset, size, kReadTries, MonotonicMicros() + HomeNews::kMicros, std::move(reply));
}

// Only for files of home that somebody has begun to read: the first read may have to wait for all of a small file.
bool LiveReader::Declines(uint64_t nodeid, uint64_t offset, uint32_t size) {
  if (size <= FileContent::kPageBytes) return false;
  const NodeContent content = contents_.Of(nodeid);
  return content.home && (content.opened || content.home->size() > store::kWholeFileLimit) &&
         content.home->Declines(offset, size);
}

void LiveReader::ReadAt(uint64_t nodeid, uint64_t offset, uint32_t size, int tries, int64_t deadline, Reply reply) {
  NodeContent content = contents_.Of(nodeid);
  if (content.home) {
    ReadHome(nodeid, std::move(content), offset, size, tries, deadline, std::move(reply));
    return;
  }
  if (!content.file) {
    reply.Error(EIO);
    return;
  }
  const std::shared_ptr<LiveFile> file = content.file;
  if (file->complete()) return ReadOwn(*file, offset, size, std::move(reply));
  contents_.Need(nodeid, file, {offset, size}, false, Waiting(std::move(reply), [file, offset, size](Reply ready) {
                   ReadOwn(*file, offset, size, std::move(ready));
                 }));
}

bool LiveReader::BeginReading(uint64_t nodeid, const FileContent& content) {
  const TreeLock lock(tree_);
  LiveNode* node = tree_.Find(nodeid);
  if (node == nullptr) return true;
  if (!node->file && node->version != content.version() && !node->opened()) return false;
  node->seen = LiveNode::Seen::kOpened;
  return true;
}

// The file was opened, but home replaced it before anything of it was read, and does not have this version any more.
// Readers get the new version, as if they had opened the file a moment later, but not in this answer: the kernel asked
// with the old size and would fill a short answer with zeros. An error of a read-ahead reaches nobody: the kernel
// requests the page again and checks the size. So the answer is an error once the new version can be read.
void LiveReader::ReadSuccessor(uint64_t nodeid, ByteRange range, int64_t deadline,
                               const std::shared_ptr<Reply>& reply) {
  std::optional<LiveTree::Successor> successor;
  FileContent::Place place;
  uint64_t news = 0;
  {
    const TreeLock lock(tree_);
    const LiveNode* node = tree_.Find(nodeid);
    if (node != nullptr && !node->opened() && !node->file && node->names.empty()) successor = tree_.SuccessorOf(*node);
    if (successor) place = {tree_.home_tree(), successor->path};
    news = tree_.news().count();
  }
  if (!successor) {  // it had no name when it was opened, or another read has found the successor
    reply->Error(ESTALE);
    return;
  }
  const auto content = backend_.files().Get(successor->entry.version(), successor->known_id);
  const bool small = content->size() <= store::kWholeFileLimit;
  if (small) range = {0, content->size()};
  const auto came = [this, nodeid, range, deadline, reply, news, content,
                     successor = *std::move(successor)](const Status& done) {
    if (!done && IsLost(done.error()) && MonotonicMicros() < deadline) {
      return tree_.news().After(
          news, deadline, [this, nodeid, range, deadline, reply] { ReadSuccessor(nodeid, range, deadline, reply); });
    }
    if (!done) {
      reply->Error(ErrnoOf(done.error()));
      return;
    }
    {
      const TreeLock lock(tree_);
      LiveNode* node = tree_.Find(nodeid);
      if (node != nullptr && !node->opened()) {
        tree_.Become(node, successor);
        node->seen = LiveNode::Seen::kOpened;
        contents_.KeepLocked(nodeid, content);
      }
    }
    notices_.ForgetAttributes(nodeid);
    reply->Error(ESTALE);
  };
  if (content->size() == 0) return came({});
  content->Ensure(place, range.offset, range.length, tree_.Guarded(came));
}

// Like OpenAt, fetches a small file whole before the first part is answered. Home holds the rest of large files, and of
// files that are read in parts.
void LiveReader::ReadHome(uint64_t nodeid, NodeContent content, uint64_t offset, uint32_t size, int tries,
                          int64_t deadline, Reply reply) {
  const bool first = notices_.no_open() && !content.opened;
  const bool small = content.home->size() <= store::kWholeFileLimit;
  const bool part = first && small && content.home->ComesInParts(content.place);
  const bool all = first && small && !part && !content.fetched && !content.home->IsComplete();
  if (const auto n = all ? std::nullopt : content.home->TryRead(offset, Buffer(), size)) {
    if (first && !BeginReading(nodeid, *content.home)) {
      return ReadAt(nodeid, offset, size, tries, deadline, std::move(reply));
    }
    if (part || (first && !small)) content.home->Borrow(content.place);
    if (*n > 0) Record(content, offset, *n);
    reply.Data({Buffer(), *n});
    return;
  }
  if (tries == 0) {
    reply.Error(EIO);
    return;
  }
  if (tries < kReadTries && content.home->Has(offset, size)) {
    reply.Suspend();
    const auto again = [this, shared = std::make_shared<Reply>(std::move(reply)), nodeid, content = std::move(content),
                        offset, size, tries,
                        deadline] { ReadHome(nodeid, content, offset, size, tries - 1, deadline, std::move(*shared)); };
    backend_.timers().After(PauseMicros(kReadTries - tries), tree_.Guarded(again));
    return;
  }
  reply.Suspend();
  const auto shared = std::make_shared<Reply>(std::move(reply));
  const std::shared_ptr<FileContent> home = content.home;
  content.fetched = true;
  const auto came = [this, shared, content, nodeid, offset, size, first, tries, deadline](const Status& done) {
    if (done) return ReadHome(nodeid, content, offset, size, tries - 1, deadline, std::move(*shared));
    const bool named = HasName(nodeid);
    if (IsLost(done.error()) && MonotonicMicros() < deadline && named) {
      // Perhaps our own write changed it, which home will acknowledge in a moment. Or home has a next version, which
      // replaces a version that nobody has seen. Any other content would be another node.
      tree_.news().After(content.news, deadline, [this, nodeid, offset, size, tries, deadline, shared] {
        ReadAt(nodeid, offset, size, tries, deadline, std::move(*shared));
      });
      return;
    }
    if (IsLost(done.error()) && first && !named) return ReadSuccessor(nodeid, {offset, size}, deadline, shared);
    // Report first: a user who sees the read fail may look for the reason.
    if (IsLost(done.error())) contents_.ReportLost(nodeid, content.place.path, done.error());
    shared->Error(ErrnoOf(done.error()));
  };
  home->Ensure(content.place, all ? 0 : offset, all ? home->size() : size, tree_.Guarded(came));
}

bool LiveReader::HasName(uint64_t nodeid) {
  const TreeLock lock(tree_);
  const LiveNode* node = tree_.Find(nodeid);
  return node != nullptr && !node->names.empty();
}

void LiveReader::Record(const NodeContent& content, uint64_t offset, uint64_t n) {
  if (!backend_.recorder().active()) return;
  const uint64_t unit = store::UnitBytes(content.home->size());
  const uint64_t first = offset / unit, end = (offset + n - 1) / unit + 1;
  backend_.recorder().Used(content.home->version(), first, end - first, [&] { return content.place.path; });
}

void LiveReader::Seek(uint64_t nodeid, uint64_t offset, uint32_t whence, Reply reply) {
  const NodeContent content = contents_.Of(nodeid);
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
