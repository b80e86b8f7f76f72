// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/content/live_writer.h"

#include <linux/falloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "store/format/object_id.h"
#include "vfs/live/tree/live_moves.h"
#include "vfs/live/tree/node_attributes.h"
#include "vfs/retry.h"

namespace vrun::vfs {
namespace {

LiveTree::Objects InMemory(Backend& backend) {
  return [&backend](const Digest& digest) { return backend.directories().InMemory(digest); };
}

}  // namespace

bool LiveWriter::TakeBackLocked(LiveNode* node, const LiveTree::Successor& successor) {
  if (!tree_.TakeBack(node, successor)) return false;
  LiveNotices notices;
  for (const LiveName& link : node->names) notices.names.emplace_back(link.parent->nodeid, link.name);
  notices_.AddLocked(notices);  // sent with the next Advance, because a request must not wait for the kernel
  return true;
}

// Users who have the file open have read it, so it kept its bytes (live_advance.h). They are still the bytes of the
// file.
void LiveWriter::Reclaim(uint64_t nodeid) {
  {
    const TreeLock lock(tree_);
    LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr || node->file || !node->gone_at_home() || !node->names.empty()) return;
    const auto is_it = [&](const tree::Entry& is) { return LiveMoves::IsUntouched(*node, is); };
    auto successor = tree_.SuccessorOf(*node);
    if (!successor || !is_it(successor->entry)) {  // renamed again meanwhile
      const auto place = tree_.PlaceOf(node->version, InMemory(backend_), is_it);
      if (!place) return;
      node->replaced = std::make_unique<const std::pair<uint64_t, std::string>>(place->parent->nodeid, place->name);
      successor = tree_.SuccessorOf(*node);
    }
    if (!successor || !is_it(successor->entry)) return;
    if (!TakeBackLocked(node, *successor)) return;
  }
  notices_.ForgetAttributes(nodeid);
  tree_.Released();
}

int LiveWriter::Materialize(uint64_t nodeid, bool empty, std::shared_ptr<LiveFile>* out) {
  tree_.SeekRoom();
  NodeContent content = contents_.Of(nodeid);
  if (content.file) {
    *out = std::move(content.file);
    return 0;
  }
  if (!content.home) return ESTALE;
  const uint64_t units = content.home->size() / kLiveUnit;
  timespec atime{}, mtime{};
  {
    const TreeLock lock(tree_);
    const LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr) return ESTALE;
    atime = node->attributes.atime;
    mtime = node->attributes.mtime;
  }
  auto made =
      empty ? LiveFile::Create(tree_.files())
            : LiveFile::CreateOver(tree_.files(), std::move(content.home), std::move(content.place), atime, mtime);
  if (!made) return ErrnoOfFile(made.error());
  {
    const TreeLock lock(tree_);
    LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr) return ESTALE;
    if (!node->file) {  // otherwise another request was faster
      if (const int error = tree_.ChangeLocked(units); error != 0) return error;
      node->file = *std::move(made);
      if (LiveFrame* frame = tree_.FrameLocked(); frame != nullptr && !node->file->complete()) {
        frame->File(node->file->State());
      }
    }
    tree_.Changed(node);
    *out = node->file;
  }
  opens_.Attach(nodeid, *out);
  return 0;
}

void LiveWriter::BeforeWrite(uint64_t nodeid, const Request* by, bool open) {
  bool changed = false;
  {
    const TreeLock lock(tree_);
    LiveNode* node = tree_.Find(nodeid);
    if (node != nullptr) node->writing = LiveNode::Writing::kData;
    if (node != nullptr && notices_.no_open() && open) node->writers = 1;
    changed = node != nullptr && DropPrivileges(node, by, tree_.ids());
    if (changed) {
      node->attributes.ctime = LiveNow();
      tree_.Touch(node);
    }
  }
  if (changed) notices_.ForgetAttributes(nodeid);
}

int LiveWriter::Truncate(uint64_t nodeid, uint64_t size, const Request* by, bool open) {
  Reclaim(nodeid);
  std::shared_ptr<LiveFile> file;
  if (const int error = Materialize(nodeid, size == 0, &file); error != 0) return error;
  BeforeWrite(nodeid, by, open);
  const int error = file->Truncate(size);
  {
    const TreeLock lock(tree_);
    if (LiveNode* node = tree_.Find(nodeid)) {
      tree_.Changed(node);
      if (notices_.no_open() && !open && size == 0) node->writing = LiveNode::Writing::kTruncated;
    }
  }
  publisher_.NoteDirty(nodeid);
  return error;
}

// --- home's content, before the file is ours -------------------------------------------------------------------------

// What a write of `range` leaves of the units that it touches; for a small file all of it, unless it is replaced.
std::vector<ByteRange> LiveWriter::RangesPartlyWritten(const FileContent& content, ByteRange range) {
  const uint64_t size = content.size();
  if (range.length == 0 || range.offset >= size) return {};
  if (size <= store::kWholeFileLimit) {
    if (range.offset == 0 && range.length >= size) return {};
    return {{0, size}};
  }
  std::vector<ByteRange> kept;
  for (const auto& [first, end] : LiveFile::UnitsPartlyWritten(range.offset, range.length, size)) {
    kept.push_back({first * kLiveUnit, std::min(end * kLiveUnit, size) - first * kLiveUnit});
  }
  return kept;
}

bool LiveWriter::LacksForWriting(uint64_t nodeid, ByteRange range) {
  const NodeContent content = contents_.Of(nodeid);
  if (!content.home) return false;
  const auto kept = RangesPartlyWritten(*content.home, range);
  return std::any_of(kept.begin(), kept.end(),
                     [&](const ByteRange& part) { return !content.home->Has(part.offset, part.length); });
}

void LiveWriter::FetchForWriting(uint64_t nodeid, ByteRange range, int64_t deadline, std::function<void(int)> done) {
  const NodeContent content = contents_.Of(nodeid);
  if (!content.home) return done(0);  // another request was faster
  const auto kept = RangesPartlyWritten(*content.home, range);
  const auto lacks = std::find_if(kept.begin(), kept.end(),
                                  [&](const ByteRange& part) { return !content.home->Has(part.offset, part.length); });
  if (lacks == kept.end()) return done(0);
  content.home->Ensure(
      content.place, lacks->offset, lacks->length,
      tree_.Guarded([this, content, nodeid, range, deadline, done = std::move(done)](const Status& came) {
        const bool late = MonotonicMicros() >= deadline;
        if (came && !late) return FetchForWriting(nodeid, range, deadline, done);
        if (came || !IsLost(came.error())) return done(came ? 0 : ErrnoOf(came.error()));
        const auto again = [this, nodeid, range, deadline, done] { FetchForWriting(nodeid, range, deadline, done); };
        switch (late ? After::kLost : AfterLoss(nodeid, *content.home)) {
          case After::kNow: return again();
          case After::kNews: return tree_.news().After(content.news, deadline, again);
          case After::kLost: break;
        }
        contents_.ReportLost(nodeid, content.place.path, came.error());
        done(EIO);
      }));
}

// For a file of home that home has changed meanwhile.
LiveWriter::After LiveWriter::AfterLoss(uint64_t nodeid, const FileContent& lost) {
  bool released = false;
  {
    const TreeLock lock(tree_);
    LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr) return After::kLost;
    if (node->file || node->version != lost.version()) return After::kNow;
    if (!node->names.empty()) return node->overtaken() ? After::kLost : After::kNews;
    if (node->opened()) return After::kLost;
    const auto successor = tree_.SuccessorOf(*node);
    if (!successor) return After::kLost;
    if (successor->entry.version() == node->version) return After::kNews;
    const bool same_file = successor->entry.dev == node->version.dev && successor->entry.ino == node->version.ino;
    // Home wrote the file in place, or changed its mode: our writes belong to it, unless its size is one that the
    // kernel does not know.
    if (same_file) {
      if (successor->entry.size != node->attributes.size) return After::kLost;
      released = TakeBackLocked(node, *successor);
      if (!released) return After::kLost;
    } else {
      tree_.Become(node, *successor);
    }
  }
  notices_.ForgetAttributes(nodeid);
  if (released) tree_.Released();
  return After::kNow;
}

void LiveWriter::Write(const Request& request, const fuse_write_in& in, std::string_view data, Reply reply) {
  if (tree_.HasRoom()) {
    WriteNow(request, in, data, std::move(reply));
    return;
  }
  publisher_.WithRoom(std::move(reply), [this, request, in, kept = std::string(data)](Reply ready) {
    WriteNow(request, in, kept, std::move(ready));
  });
}

void LiveWriter::WriteNow(const Request& request, const fuse_write_in& in, std::string_view data, Reply reply) {
  const ByteRange range{in.offset, data.size()};
  Reclaim(request.nodeid);
  if (!LacksForWriting(request.nodeid, range)) return WriteHere(request, in, data, std::move(reply));
  FetchForWriting(request.nodeid, range, MonotonicMicros() + HomeNews::kMicros,
                  Waiting(std::move(reply), [this, request, in, kept = std::string(data)](Reply ready) {
                    WriteHere(request, in, kept, std::move(ready));
                  }));
}

void LiveWriter::WriteHere(const Request& request, const fuse_write_in& in, std::string_view data, Reply reply) {
  std::shared_ptr<LiveFile> file;
  if (const int error = Materialize(request.nodeid, false, &file); error != 0) {
    reply.Error(error);
    return;
  }
  BeforeWrite(request.nodeid, (in.write_flags & FUSE_WRITE_KILL_SUIDGID) != 0 ? &request : nullptr, true);
  if (notices_.no_open()) file->Pin(true);
  if (file->complete()) return WriteOwn(request.nodeid, file, in.offset, data, std::move(reply));
  contents_.Need(
      request.nodeid, file, {in.offset, data.size()}, true,
      Waiting(std::move(reply), [this, file, nodeid = request.nodeid, offset = in.offset, kept = std::string(data)](
                                    Reply ready) { WriteOwn(nodeid, file, offset, kept, std::move(ready)); }));
}

void LiveWriter::WriteOwn(uint64_t nodeid, const std::shared_ptr<LiveFile>& file, uint64_t offset,
                          std::string_view data, Reply reply) {
  if (const int error = file->Write(offset, data); error != 0) {
    reply.Error(error);
    return;
  }
  publisher_.NoteDirty(nodeid);
  publisher_.PublishAppended(nodeid, file);
  reply.Struct(fuse_write_out{static_cast<uint32_t>(data.size()), 0});
}

void LiveWriter::Allocate(const Request& request, const fuse_fallocate_in& in, Reply reply) {
  publisher_.WithRoom(std::move(reply),
                      [this, request, in](Reply ready) { AllocateNow(request, in, std::move(ready)); });
}

void LiveWriter::AllocateNow(const Request& request, const fuse_fallocate_in& in, Reply reply) {
  Reclaim(request.nodeid);
  std::shared_ptr<LiveFile> file;
  if (const int error = Materialize(request.nodeid, false, &file); error != 0) {
    reply.Error(error);
    return;
  }
  BeforeWrite(request.nodeid, request.uid != 0 ? &request : nullptr, true);  // the kernel does not tell this itself
  const bool zeroes = (in.mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) != 0;
  const auto allocate = [this, file, nodeid = request.nodeid, in](Reply ready) {
    const int error = file->Allocate(in.offset, in.length, static_cast<int>(in.mode));
    publisher_.NoteDirty(nodeid);
    ready.Error(error);
  };
  if (file->complete() || !zeroes) return allocate(std::move(reply));
  contents_.Need(request.nodeid, file, {in.offset, in.length}, true, Waiting(std::move(reply), allocate));
}

void LiveWriter::CopyRange(const Request& request, const fuse_copy_file_range_in& in, Reply reply) {
  const NodeContent from = contents_.Of(request.nodeid);
  const NodeContent to = contents_.Of(in.nodeid_out);
  // EXDEV: the kernel falls back to reading and writing.
  if (!from.file || !to.file || !from.file->complete() || !to.file->complete()) {
    reply.Error(EXDEV);
    return;
  }
  const auto source = from.file->Descriptor();
  if (!source) {
    reply.Error(EIO);
    return;
  }
  tree_.SeekRoom();
  BeforeWrite(in.nodeid_out, request.uid != 0 ? &request : nullptr, true);
  size_t copied = 0;
  const uint64_t length = std::min<uint64_t>(in.len, 1u << 30);
  const int error = to.file->CopyFrom((*source)->get(), in.off_in, in.off_out, length, &copied);
  publisher_.NoteDirty(in.nodeid_out);
  if (error != 0) {
    reply.Error(error);
  } else {
    reply.Struct(fuse_write_out{static_cast<uint32_t>(copied), 0});
  }
}

}  // namespace vrun::vfs
