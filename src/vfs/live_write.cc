// SPDX-License-Identifier: Apache-2.0
// LiveRoot: writing.
#include <linux/falloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "store/object_id.h"
#include "vfs/live_moves.h"
#include "vfs/live_root.h"
#include "vfs/retry.h"

namespace vrun::vfs {
bool LiveRoot::TakeBackLocked(LiveNode* node, const LiveTree::Successor& successor) {
  if (!tree_.TakeBack(node, successor)) return false;
  LiveNotices notices;
  for (const LiveName& link : node->names) notices.names.emplace_back(link.parent->nodeid, link.name);
  AddUntoldLocked(notices);  // with the next Advance, for a request must not wait for the kernel
  return true;
}

LiveTree::Objects LiveRoot::DirectoriesInMemory() const {
  return [this](const Digest& digest) { return backend_.directories().InMemory(digest); };
}

// Whoever has it open has read it, and so it kept its bytes (live_advance.h); they are still those of the file.
void LiveRoot::Reclaim(uint64_t nodeid) {
  {
    const TreeLock lock(*this);
    LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr || node->file || !node->gone_at_home || !node->names.empty()) return;
    const auto is_it = [&](const tree::Entry& is) { return LiveMoves::IsUntouched(*node, is); };
    auto successor = tree_.SuccessorOf(*node);
    if (!successor || !is_it(successor->entry)) {  // renamed again since
      const auto place = tree_.PlaceOf(node->version, DirectoriesInMemory(), is_it);
      if (!place) return;
      node->replaced = std::make_unique<const std::pair<uint64_t, std::string>>(place->parent->nodeid, place->name);
      successor = tree_.SuccessorOf(*node);
    }
    if (!successor || !is_it(successor->entry)) return;
    if (!TakeBackLocked(node, *successor)) return;
  }
  ForgetAttributes(nodeid);
  if (options_.on_released) options_.on_released();
}

int LiveRoot::Materialize(uint64_t nodeid, bool empty, std::shared_ptr<LiveFile>* out) {
  SeekJournalRoom();
  Content content = ContentOf(nodeid);
  if (content.file) {
    *out = std::move(content.file);
    return 0;
  }
  if (!content.home) return ESTALE;
  const uint64_t units = content.home->size() / kLiveUnit;
  timespec atime{}, mtime{};
  {
    const TreeLock lock(*this);
    const LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr) return ESTALE;
    atime = node->attributes.atime;
    mtime = node->attributes.mtime;
  }
  auto made = empty ? LiveFile::Create(files_)
                    : LiveFile::CreateOver(files_, std::move(content.home), std::move(content.place), atime, mtime);
  if (!made) return ErrnoOfFile(made.error());
  {
    const TreeLock lock(*this);
    LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr) return ESTALE;
    if (!node->file) {  // else another request was faster
      if (const int error = ChangeLocked(units); error != 0) return error;
      node->file = *std::move(made);
      if (journal_ != nullptr && !node->file->complete()) frame_.File(node->file->State());
    }
    tree_.Changed(node);
    *out = node->file;
  }
  std::lock_guard lock(open_mutex_);
  if (const auto it = open_files_.find(nodeid); it != open_files_.end() && !it->second.file) {
    it->second.file = *out;
    (*out)->Pin(true);
  }
  return 0;
}

void LiveRoot::BeforeWrite(uint64_t nodeid, const Request* by, bool open) {
  bool changed = false;
  {
    const TreeLock lock(*this);
    LiveNode* node = tree_.Find(nodeid);
    if (node != nullptr) node->dirty = true;
    if (node != nullptr && no_open_ && open) {
      node->writers = 1;
      node->truncated = false;
    }
    changed = node != nullptr && DropPrivileges(node, by);
    if (changed) {
      node->attributes.ctime = LiveNow();
      tree_.Touch(node);
    }
  }
  if (changed) ForgetAttributes(nodeid);
}

int LiveRoot::Truncate(uint64_t nodeid, uint64_t size, const Request* by, bool open) {
  Reclaim(nodeid);
  std::shared_ptr<LiveFile> file;
  if (const int error = Materialize(nodeid, size == 0, &file); error != 0) return error;
  BeforeWrite(nodeid, by, open);
  const int error = file->Truncate(size);
  {
    const TreeLock lock(*this);
    if (LiveNode* node = tree_.Find(nodeid)) {
      tree_.Changed(node);
      node->truncated = no_open_ && !open && size == 0;
    }
  }
  NoteDirty(nodeid);
  return error;
}

// --- home's content, before it is ours -----------------------------------------------------------------------------

// What a write of `range` leaves of the units that it touches, or all of a small file that it does not replace.
std::vector<ByteRange> LiveRoot::KeptByWrite(const FileContent& content, ByteRange range) {
  const uint64_t size = content.size();
  if (range.length == 0 || range.offset >= size) return {};
  if (size <= store::kWholeFileLimit) {
    if (range.offset == 0 && range.length >= size) return {};
    return {{0, size}};
  }
  std::vector<ByteRange> kept;
  for (const auto& [first, end] : LiveFile::KeptUnits(range.offset, range.length, size)) {
    kept.push_back({first * kLiveUnit, std::min(end * kLiveUnit, size) - first * kLiveUnit});
  }
  return kept;
}

bool LiveRoot::LacksForWriting(uint64_t nodeid, ByteRange range) {
  const Content content = ContentOf(nodeid);
  if (!content.home) return false;
  const auto kept = KeptByWrite(*content.home, range);
  return std::any_of(kept.begin(), kept.end(),
                     [&](const ByteRange& part) { return !content.home->Has(part.offset, part.length); });
}

void LiveRoot::FetchForWriting(uint64_t nodeid, ByteRange range, int64_t deadline, std::function<void(int)> done) {
  const Content content = ContentOf(nodeid);
  if (!content.home) return done(0);  // somebody else was faster
  const auto kept = KeptByWrite(*content.home, range);
  const auto lacks = std::find_if(kept.begin(), kept.end(),
                                  [&](const ByteRange& part) { return !content.home->Has(part.offset, part.length); });
  if (lacks == kept.end()) return done(0);
  content.home->Ensure(
      content.place, lacks->offset, lacks->length,
      [this, gate = gate_, content, nodeid, range, deadline, done = std::move(done)](const Status& came) {
        const Gate::Pass pass(gate.get());
        if (!pass) return;
        const bool late = MonotonicMicros() >= deadline;
        if (came && !late) return FetchForWriting(nodeid, range, deadline, done);
        if (came || !IsLost(came.error())) return done(came ? 0 : ErrnoOf(came.error()));
        const auto again = [this, nodeid, range, deadline, done] { FetchForWriting(nodeid, range, deadline, done); };
        switch (late ? After::kLost : AfterLoss(nodeid, *content.home)) {
          case After::kNow: return again();
          case After::kNews: return AfterNews(content.news, deadline, again);
          case After::kLost: break;
        }
        ReportLost(nodeid, content.place.path, came.error());
        done(EIO);
      });
}

// Of a file of home's that home has otherwise by now.
LiveRoot::After LiveRoot::AfterLoss(uint64_t nodeid, const FileContent& lost) {
  bool released = false;
  {
    const TreeLock lock(*this);
    LiveNode* node = tree_.Find(nodeid);
    if (node == nullptr) return After::kLost;
    if (node->file || node->version != lost.version()) return After::kNow;
    if (!node->names.empty()) return node->overtaken ? After::kLost : After::kNews;
    if (node->opened) return After::kLost;
    const auto successor = tree_.SuccessorOf(*node);
    if (!successor) return After::kLost;
    if (successor->entry.version() == node->version) return After::kNews;
    const bool same_file = successor->entry.dev == node->version.dev && successor->entry.ino == node->version.ino;
    // Written at home in place, or given another mode: what is written here belongs into it, but for a size that the
    // kernel does not know of.
    if (same_file) {
      if (successor->entry.size != node->attributes.size) return After::kLost;
      released = TakeBackLocked(node, *successor);
      if (!released) return After::kLost;
    } else {
      tree_.Become(node, *successor);
    }
  }
  ForgetAttributes(nodeid);
  if (released && options_.on_released) options_.on_released();
  return After::kNow;
}

void LiveRoot::NeedOwn(uint64_t nodeid, const std::shared_ptr<LiveFile>& file, ByteRange range, bool overwrite,
                       std::function<void(int error)> done, bool quietly, int64_t deadline) {
  if (deadline == 0) deadline = MonotonicMicros() + kHomeMicros;
  FileContent::Place place;
  tree::FileVersion version;
  std::optional<store::ObjectId> known;
  uint64_t news = 0;
  bool named = false, overtaken = false;
  {
    const TreeLock lock(*this);
    news = news_;
    if (const LiveNode* node = tree_.Find(nodeid); node != nullptr && node->home) {
      place = {home_tree_, node->HomePath()};
      version = node->version;
      known = node->known_id;
      named = !node->names.empty();
      overtaken = node->overtaken;
    }
  }
  if (named) file->SetLower(backend_.files().Get(version, known), place);
  file->Need(range.offset, range.length, overwrite,
             [this, gate = gate_, nodeid, file, range, overwrite, deadline, news, quietly, wait = named && !overtaken,
              path = place.path, done = std::move(done)](int error) {
               const Gate::Pass pass(gate.get());
               if (!pass) return;
               if (error == LiveFile::kLost && wait && MonotonicMicros() < deadline) {
                 AfterNews(news, deadline, [this, nodeid, file, range, overwrite, quietly, deadline, done] {
                   NeedOwn(nodeid, file, range, overwrite, done, quietly, deadline);
                 });
                 return;
               }
               if (error == LiveFile::kLost && !quietly) {
                 ReportLost(nodeid, path, Error(Code::kAborted, "the file has changed"));
                 error = EIO;
               }
               done(error);
             });
}

void LiveRoot::Write(const Request& request, const fuse_write_in& in, std::string_view data, Reply reply) {
  if (journal_ == nullptr || (stream_->HasRoom() && journal_->TakesChange())) {
    WriteNow(request, in, data, std::move(reply));
    return;
  }
  WithRoom(std::move(reply), [this, request, in, kept = std::string(data)](Reply ready) {
    WriteNow(request, in, kept, std::move(ready));
  });
}

void LiveRoot::WriteNow(const Request& request, const fuse_write_in& in, std::string_view data, Reply reply) {
  const ByteRange range{in.offset, data.size()};
  Reclaim(request.nodeid);
  if (!LacksForWriting(request.nodeid, range)) return WriteHere(request, in, data, std::move(reply));
  reply.Suspend();
  const auto shared = std::make_shared<Reply>(std::move(reply));
  FetchForWriting(request.nodeid, range, MonotonicMicros() + kHomeMicros,
                  [this, shared, request, in, kept = std::string(data)](int error) {
                    if (error != 0) {
                      shared->Error(error);
                    } else {
                      WriteHere(request, in, kept, std::move(*shared));
                    }
                  });
}

void LiveRoot::WriteHere(const Request& request, const fuse_write_in& in, std::string_view data, Reply reply) {
  std::shared_ptr<LiveFile> file;
  if (const int error = Materialize(request.nodeid, false, &file); error != 0) {
    reply.Error(error);
    return;
  }
  BeforeWrite(request.nodeid, (in.write_flags & FUSE_WRITE_KILL_SUIDGID) != 0 ? &request : nullptr, true);
  if (no_open_) file->Pin(true);
  if (file->complete()) return WriteOwn(request.nodeid, file, in.offset, data, std::move(reply));
  reply.Suspend();
  const auto shared = std::make_shared<Reply>(std::move(reply));
  NeedOwn(request.nodeid, file, {in.offset, data.size()}, true,
          [this, shared, file, nodeid = request.nodeid, offset = in.offset, kept = std::string(data)](int error) {
            if (error != 0) {
              shared->Error(error);
            } else {
              WriteOwn(nodeid, file, offset, kept, std::move(*shared));
            }
          });
}

void LiveRoot::WriteOwn(uint64_t nodeid, const std::shared_ptr<LiveFile>& file, uint64_t offset, std::string_view data,
                        Reply reply) {
  if (const int error = file->Write(offset, data); error != 0) {
    reply.Error(error);
    return;
  }
  NoteDirty(nodeid);
  PublishAppended(nodeid, file);
  reply.Struct(fuse_write_out{static_cast<uint32_t>(data.size()), 0});
}

void LiveRoot::Sync(const Request& request, bool data_only, Reply reply) {
  SeeCloses();
  const Content content = ContentOf(request.nodeid);
  const int error = content.file ? content.file->Sync(data_only) : 0;
  if (error != 0 || journal_ == nullptr) {
    reply.Error(error);
    return;
  }
  SyncHome(request.nodeid, std::move(reply));
}

void LiveRoot::Allocate(const Request& request, const fuse_fallocate_in& in, Reply reply) {
  WithRoom(std::move(reply), [this, request, in](Reply ready) { AllocateNow(request, in, std::move(ready)); });
}

void LiveRoot::AllocateNow(const Request& request, const fuse_fallocate_in& in, Reply reply) {
  Reclaim(request.nodeid);
  std::shared_ptr<LiveFile> file;
  if (const int error = Materialize(request.nodeid, false, &file); error != 0) {
    reply.Error(error);
    return;
  }
  BeforeWrite(request.nodeid, request.uid != 0 ? &request : nullptr, true);  // of this the kernel does not say it
  const bool zeroes = (in.mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) != 0;
  const auto allocate = [this, nodeid = request.nodeid, in](LiveFile& of) {
    const int error = of.Allocate(in.offset, in.length, static_cast<int>(in.mode));
    NoteDirty(nodeid);
    return error;
  };
  if (file->complete() || !zeroes) {
    reply.Error(allocate(*file));
    return;
  }
  reply.Suspend();
  const auto shared = std::make_shared<Reply>(std::move(reply));
  NeedOwn(request.nodeid, file, {in.offset, in.length}, true,
          [shared, file, allocate](int error) { shared->Error(error != 0 ? error : allocate(*file)); });
}

void LiveRoot::CopyRange(const Request& request, const fuse_copy_file_range_in& in, Reply reply) {
  const Content from = ContentOf(request.nodeid);
  const Content to = ContentOf(in.nodeid_out);
  // EXDEV: the kernel copies by reading and writing.
  if (!from.file || !to.file || !from.file->complete() || !to.file->complete()) {
    reply.Error(EXDEV);
    return;
  }
  const auto source = from.file->Descriptor();
  if (!source) {
    reply.Error(EIO);
    return;
  }
  SeekJournalRoom();
  BeforeWrite(in.nodeid_out, request.uid != 0 ? &request : nullptr, true);
  size_t copied = 0;
  const uint64_t length = std::min<uint64_t>(in.len, 1u << 30);
  const int error = to.file->CopyFrom((*source)->get(), in.off_in, in.off_out, length, &copied);
  NoteDirty(in.nodeid_out);
  if (error != 0) {
    reply.Error(error);
  } else {
    reply.Struct(fuse_write_out{static_cast<uint32_t>(copied), 0});
  }
}

}  // namespace vrun::vfs
