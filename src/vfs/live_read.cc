// SPDX-License-Identifier: Apache-2.0
// LiveRoot: reading.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "store/object_id.h"
#include "vfs/live_root.h"
#include "vfs/recorder.h"
#include "vfs/retry.h"

namespace vrun::vfs {
namespace {

constexpr uint32_t kMostBytes = 1 << 20;
constexpr int kReadTries = 8;

// One buffer a thread, never cleared.
char* Buffer() {
  thread_local const std::unique_ptr<char[]> buffer(new char[kMostBytes]);
  return buffer.get();
}

}  // namespace

void LiveRoot::ReadOwn(LiveFile& file, uint64_t offset, uint32_t size, Reply reply) {
  size_t got = 0;
  if (const int error = file.Read(offset, Buffer(), size, &got); error != 0) {
    reply.Error(error);
  } else {
    reply.Data({Buffer(), got});
  }
}

void LiveRoot::Read(const Request& request, uint64_t offset, uint32_t size, Reply reply) {
  ReadAt(request.nodeid, offset, std::min(size, kMostBytes), kReadTries, MonotonicMicros() + kHomeMicros,
         std::move(reply));
}

void LiveRoot::ReadAt(uint64_t nodeid, uint64_t offset, uint32_t size, int tries, int64_t deadline, Reply reply) {
  Content content = ContentOf(nodeid);
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
  reply.Suspend();
  const auto shared = std::make_shared<Reply>(std::move(reply));
  NeedOwn(nodeid, file, {offset, size}, false, [shared, file, offset, size](int error) {
    if (error != 0) {
      shared->Error(error);
    } else {
      ReadOwn(*file, offset, size, std::move(*shared));
    }
  });
}

void LiveRoot::KeepContent(uint64_t nodeid) {
  if (!no_open_) return;  // OpenFiles does
  Content content = ContentOf(nodeid);
  if (!content.home) return;
  const TreeLock lock(*this);
  if (tree_.Find(nodeid) != nullptr) kept_[nodeid] = std::move(content.home);
}

bool LiveRoot::BeginReading(uint64_t nodeid, const FileContent& content) {
  bool renewed = false;
  {
    const TreeLock lock(*this);
    LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr) return true;
    if (!node->file && node->version != content.version() && !node->names.empty()) return false;
    node->opened = true;
    renewed = std::exchange(node->renewed, false);
  }
  if (renewed) ForgetAttributes(nodeid);  // the new content is not read by the old size
  return true;
}

// What is read as a whole is here before the first of it is given, as in OpenAt.
void LiveRoot::ReadHome(uint64_t nodeid, Content content, uint64_t offset, uint32_t size, int tries, int64_t deadline,
                        Reply reply) {
  const bool first = no_open_ && !content.opened;
  const bool small = content.home->size() <= store::kWholeFileLimit;
  const bool all = first && small && !content.fetched && !content.home->IsComplete();
  if (const auto n = all ? std::nullopt : content.home->TryRead(offset, Buffer(), size)) {
    if (first && !BeginReading(nodeid, *content.home)) {
      return ReadAt(nodeid, offset, size, tries, deadline, std::move(reply));
    }
    if (*n > 0) Record(content, offset, *n);
    reply.Data({Buffer(), *n});
    return;
  }
  if (tries == 0) {
    reply.Error(EIO);
    return;
  }
  reply.Suspend();
  const auto shared = std::make_shared<Reply>(std::move(reply));
  const std::shared_ptr<FileContent> home = content.home;
  content.fetched = true;
  home->Ensure(content.place, all ? 0 : offset, all ? home->size() : size,
               [this, gate = gate_, shared, content, nodeid, offset, size, first, tries, deadline](const Status& done) {
                 const Gate::Pass pass(gate.get());
                 if (!pass) return;
                 if (done) return ReadHome(nodeid, content, offset, size, tries - 1, deadline, std::move(*shared));
                 const bool named = HasName(nodeid);
                 if (IsLost(done.error()) && MonotonicMicros() < deadline && named) {
                   // Perhaps it is what we did to it, of which we hear in a moment; or home's next version, which takes
                   // the place of one that nobody has seen. Any other content would be another node.
                   AfterNews(content.news, deadline, [this, nodeid, offset, size, tries, deadline, shared] {
                     ReadAt(nodeid, offset, size, tries, deadline, std::move(*shared));
                   });
                   return;
                 }
                 if (IsLost(done.error()) && first && !named) {  // it was gone when it was opened
                   shared->Error(ESTALE);
                   return;
                 }
                 // First the report: whoever sees the reader fail may look for the reason.
                 if (IsLost(done.error())) ReportLost(nodeid, content.place.path, done.error());
                 shared->Error(ErrnoOf(done.error()));
               });
}

bool LiveRoot::HasName(uint64_t nodeid) {
  const TreeLock lock(*this);
  const LiveNode* node = tree_.Find(nodeid);
  return node != nullptr && !node->names.empty();
}

void LiveRoot::Record(const Content& content, uint64_t offset, uint64_t n) {
  if (!backend_.recorder().active()) return;
  const uint64_t unit = store::UnitBytes(content.home->size());
  const uint64_t first = offset / unit, end = (offset + n - 1) / unit + 1;
  backend_.recorder().Used(content.home->version(), first, end - first, [&] { return content.place.path; });
}

}  // namespace vrun::vfs
