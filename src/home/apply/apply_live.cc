// SPDX-License-Identifier: Apache-2.0
#include "home/apply/apply_live.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "home/apply/apply_append.h"
#include "home/apply/apply_live_internal.h"

namespace vrun::home {

using vrun::v1::Meta;
using vrun::v1::WriteBack;

namespace {

// Limit of remembered files of this series. Beyond it the oldest are forgotten: their next change is sent whole.
constexpr size_t kMostOwn = 200'000;

bool IsInode(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// Whether nobody has written to the file since. Compares what only a write changes, not ctime, which any change alters.
bool HasContentOf(const struct stat& before, const struct stat& now) {
  if (!S_ISREG(now.st_mode)) return true;
  return before.st_size == now.st_size && ToNanos(before.st_mtim) == ToNanos(now.st_mtim);
}

}  // namespace

// --- messages ---

Status LiveApplier::Apply(const WriteBack& message) {
  if (message.sequence() == 0) return Error(Code::kInvalid, "a write of the job without a number");
  if (refused_ != 0 && message.sequence() > refused_) return {};
  refused_ = 0;
  if (message.sequence() <= sequence_) return {};
  if (message.has_file_data()) {
    if (!file_ && ignore_data_) return {};
    Status status = TakeData(message);
    if (!status) {
      DropFile();
      ignore_data_ = true;
    }
    return status;
  }
  DropFile();  // unfinished; it will be sent again
  ignore_data_ = false;
  VRUN_TRY(CheckRootPath(message.path()));
  Status status = Dispatch(message);
  if (!status) {
    ignore_data_ = true;
    return status;
  }
  if (!file_ && refused_ == 0) {
    sequence_ = message.sequence();
    journal_.SetApplied(sequence_);
  }
  return {};
}

Status LiveApplier::Dispatch(const WriteBack& message) {
  if (message.path() == "/" && !message.has_set_meta()) return Error(Code::kInvalid, "/: it can only get metadata");
  switch (message.op_case()) {
    case WriteBack::kPutFile: return BeginFile(message);
    case WriteBack::kMakeDirectory: return MakeDirectory(message);
    case WriteBack::kMakeSymlink: {
      const std::string& target = message.make_symlink().target();
      if (target.empty() || target.size() >= PATH_MAX || target.find('\0') != std::string::npos) {
        return Error(Code::kInvalid, Escape(message.path()) + ": a symbolic link with an impossible target");
      }
      return MakeNamed(message, message.make_symlink().meta(),
                       [&](int parent, const char* name) { return ::symlinkat(target.c_str(), parent, name); });
    }
    case WriteBack::kMakeSpecial: {
      const mode_t type = message.make_special().meta().mode() & S_IFMT;
      if (type != S_IFIFO && type != S_IFSOCK) {
        return Error(Code::kInvalid, Escape(message.path()) + ": a job may make FIFOs and sockets, not this");
      }
      return MakeNamed(message, message.make_special().meta(),
                       [&](int parent, const char* name) { return ::mknodat(parent, name, type | 0600, 0); });
    }
    case WriteBack::kMakeHardLink: return MakeHardLink(message);
    case WriteBack::kRemove: return Remove(message);
    case WriteBack::kRename: return Rename(message);
    case WriteBack::kSetMeta: return SetMeta(message);
    case WriteBack::kFileData:
    case WriteBack::OP_NOT_SET: break;
  }
  return Error(Code::kUnsupported, Escape(message.path()) + ": unknown kind of write: update vrun at home");
}

// --- installing a file under its name ---

Status LiveApplier::MakeWay(const Place& place, bool for_directory) {
  const int parent = place.parent.get();
  for (int i = 0; i < kMaxBeside;) {
    VRUN_ASSIGN(auto current, LstatAt(parent, place.name));
    if (!current || S_ISDIR(current->st_mode) == for_directory) return {};
    if (!for_directory &&
        WithWritable(parent, [&] { return ::unlinkat(parent, place.name.c_str(), AT_REMOVEDIR); }) == 0) {
      return {};
    }
    const std::string beside = paths_.BesideName(std::string(NameOf(place.asked)), i);
    const int error = WithWritable(parent, [&] { return RenameToFreeName(parent, place.name, parent, beside); });
    if (error == EEXIST) {
      ++i;
      continue;
    }
    if (error != 0) return ErrnoError(error, "replace " + Escape(place.path));
    paths_.NoticeChanged(place.path, "what was there is in " + Escape(ChildOf(ParentOf(place.path), beside)));
    return {};
  }
  return Error(Code::kExists, Escape(place.path) + ": too many versions lie beside it: remove some");
}

Status LiveApplier::Install(const Place& place, const std::string& temporary) {
  const int parent = place.parent.get();
  int error = EISDIR;
  for (int i = 0; i < kMaxBeside && error == EISDIR; ++i) {  // somebody may create a directory there meanwhile
    VRUN_TRY(MakeWay(place, false));
    error = WithWritable(parent, [&] { return ::renameat(parent, temporary.c_str(), parent, place.name.c_str()); });
  }
  if (error != 0) return ErrnoError(error, "write " + Escape(place.path));
  // If both were names of one file already, rename(2) does nothing.
  ::unlinkat(parent, temporary.c_str(), 0);
  return {};
}

Status LiveApplier::FinishMeta(const Place& place, const std::string& name, const Meta& meta, MetaFor use) {
  const auto fd = OpenName(place.parent.get(), name);
  if (!fd && fd.error().error_number() == ENOENT && name == place.name) return {};  // removed at home meanwhile
  if (!fd) return fd.error();
  VRUN_ASSIGN(const auto before, LstatAt(place.parent.get(), place.name));
  std::string left_out;
  Status status = SetFileMeta(fd->get(), KeepOwners(meta, before), use, &left_out);
  if (!status) return std::move(status).error().With(Escape(place.path));
  if (!left_out.empty()) paths_.NoticeLeftOut(place.path, left_out);
  return {};
}

void LiveApplier::Done(const Place& place, uint64_t sequence, const struct stat* before, bool copied, bool other) {
  flush_.Touched(place.parent.get());
  paths_.Use(place);
  const auto found = LstatAt(place.parent.get(), place.name);
  if (!found || !*found) return;
  const struct stat& now = **found;
  if (before != nullptr && ((!copied && !IsInode(*before, now)) || !HasContentOf(*before, now))) return;
  Tell(now, sequence, before, other);
}

UniqueFd LiveApplier::Hold(const Place& place, const std::optional<struct stat>& st) {
  if (!st || !S_ISREG(st->st_mode) || st->st_nlink < 2) return UniqueFd();
  auto file = OpenName(place.parent.get(), place.name);
  return file ? *std::move(file) : UniqueFd();
}

void LiveApplier::LostName(const UniqueFd& file, uint64_t sequence, const std::optional<struct stat>& before,
                           bool other) {
  struct stat now {};
  if (!file || ::fstat(file.get(), &now) != 0 || now.st_nlink == 0) return;
  if (IsInode(*before, now) && HasContentOf(*before, now)) Tell(now, sequence, &*before, other);
}

bool LiveApplier::IsOwn(const struct stat& st) const {
  const auto own = own_.find({st.st_dev, st.st_ino});
  if (own == own_.end() || own->second.ctime_ns == 0) return false;
  const bool same_content =
      own->second.mtime_ns == ToNanos(st.st_mtim) && own->second.size == static_cast<uint64_t>(st.st_size);
  return same_content || own->second.ctime_ns == ToNanos(st.st_ctim);
}

void LiveApplier::NoteOwn(const struct stat& st, int64_t ctime_ns) {
  if (own_.size() >= kMostOwn) own_.clear();
  own_[{st.st_dev, st.st_ino}] = {ctime_ns, static_cast<uint64_t>(st.st_size), ToNanos(st.st_mtim)};
}

void LiveApplier::Tell(const struct stat& st, uint64_t sequence, const struct stat* before, bool other) {
  if (before != nullptr && !IsInode(*before, st)) before = nullptr;  // a copy
  vrun::v1::Applied& applied = applied_.emplace_back();
  applied.set_sequence(sequence);
  applied.set_dev(st.st_dev);
  applied.set_ino(st.st_ino);
  applied.set_ctime_ns(ToNanos(st.st_ctim));
  applied.set_size(S_ISDIR(st.st_mode) ? 0 : static_cast<uint64_t>(st.st_size));
  if (before != nullptr) applied.set_before_ctime_ns(ToNanos(before->st_ctim));
  applied.set_other(other);
  if (!S_ISREG(st.st_mode)) return;
  const Inode inode{st.st_dev, st.st_ino};
  if (before != nullptr && !IsOwn(*before)) {
    auto& [first, last] = carried_[inode];
    if (last != ToNanos(before->st_ctim)) first = ToNanos(before->st_ctim);
    last = ToNanos(st.st_ctim);
    return;
  }
  NoteOwn(st, ToNanos(st.st_ctim));
  journal_.AddOwnChange({st.st_dev, st.st_ino, ToNanos(st.st_ctim)});
}

// --- files ---

Status LiveApplier::BeginFile(const WriteBack& message) {
  if (message.put_file().size() > static_cast<uint64_t>(INT64_MAX)) {
    return Error(Code::kInvalid, Escape(message.path()) + ": a file of an impossible size");
  }
  OpenFileState file;
  VRUN_ASSIGN(file.place, paths_.FindOrMakeParents(message.path()));
  file.sequence = message.sequence();
  file.put = message.put_file();
  if (file.put.over() != vrun::v1::NOTHING) {
    bool refused = false;
    VRUN_ASSIGN(const auto current, LstatAt(file.place.parent.get(), file.place.name));
    if (!current || !message.has_base() || message.base().ino() != current->st_ino) {
      VRUN_ASSIGN(auto now, paths_.FindFileNow(file.place, current));
      std::optional<struct stat> there;
      if (now) {
        VRUN_ASSIGN(there, LstatAt(now->parent.get(), now->name));
      }
      if (there && IsOwn(*there)) file.place = *std::move(now);  // otherwise another file may have the inode number
    }
    VRUN_TRY(BeginOver(message, &file, &refused));
    if (refused) {
      refused_ = want_whole_ = message.sequence();
      return {};
    }
  } else {
    VRUN_TRY(MakeTemporaryFile(&file));
  }
  file_ = std::move(file);
  return {};
}

Status LiveApplier::MakeTemporaryFile(OpenFileState* file) {
  file->temporary = TemporaryName(file->sequence);
  const int parent = file->place.parent.get();
  return MakeTemporaryName(parent, file->temporary, file->place.path, [&] {
    file->fd.Reset(::openat(parent, file->temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    return file->fd ? 0 : -1;
  });
}

// Begins with home's file, if it is the one that the node means.
Status LiveApplier::BeginOver(const WriteBack& message, OpenFileState* file, bool* refused) {
  const int parent = file->place.parent.get();
  const auto is_meant = [&](const struct stat& st) {
    const auto& base = message.base();
    const auto carried = carried_.find({st.st_dev, st.st_ino});
    const bool same_time = ToNanos(st.st_ctim) == base.ctime_ns() ||
                           (carried != carried_.end() && carried->second.first == base.ctime_ns() &&
                            carried->second.second == ToNanos(st.st_ctim));
    const bool given =
        message.has_base() && st.st_ino == base.ino() && same_time && static_cast<uint64_t>(st.st_size) == base.size();
    // A patch that a crashed process has applied in part: applying it again gives the same result.
    const ApplyJournal::Intent& begun = journal_.intent();
    const bool half = file->put.over() == vrun::v1::PATCH && begun.sequence == message.sequence() &&
                      begun.device == st.st_dev && begun.inode == st.st_ino;
    return S_ISREG(st.st_mode) && (given || half || IsOwn(st));
  };
  *refused = true;
  if (file->put.over() == vrun::v1::APPEND_ANY) return BeginAppend(message, is_meant, file, refused);
  VRUN_ASSIGN(const auto current, LstatAt(parent, file->place.name));
  if (!current) return {};
  if (file->put.over() == vrun::v1::APPEND) return BeginAppend(message, is_meant, file, refused);
  if (!is_meant(*current)) return {};
  if (file->put.over() != vrun::v1::PATCH) {
    return Error(Code::kUnsupported, Escape(message.path()) + ": unknown kind of patch: update vrun at home");
  }
  file->temporary = TemporaryName(message.sequence());
  DropTemporary(file->place, file->temporary);
  if (OpenInPlace(*file)) {
    file->patch = true;
    file->ctime_ns = ToNanos(current->st_ctim);
    *refused = false;
    return MakeTemporaryFile(file);
  }
  if (const Status copied = CopyTree(parent, file->place.name, parent, file->temporary); !copied) {
    if (copied.error().error_number() != EACCES && copied.error().error_number() != ENOENT) return copied;
    return {};
  }
  VRUN_ASSIGN(const auto after, LstatAt(parent, file->place.name));
  // Its mode may exclude us.
  if (::fchmodat(parent, file->temporary.c_str(), 0600, 0) != 0) return ErrnoError("write " + Escape(file->place.path));
  file->fd.Reset(::openat(parent, file->temporary.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  *refused = !after || !is_meant(*after) || !file->fd;
  if (*refused) DropTemporary(file->place, file->temporary);
  if (!*refused && ::ftruncate(file->fd.get(), static_cast<off_t>(file->put.size())) != 0) {
    const int error = errno;
    DropTemporary(file->place, file->temporary);
    return ErrnoError(error, "write " + Escape(file->place.path));
  }
  return {};
}

Status LiveApplier::BeginAppend(const WriteBack& message, const std::function<bool(const struct stat&)>& is_meant,
                                OpenFileState* file, bool* refused) {
  const bool any = file->put.over() == vrun::v1::APPEND_ANY;
  VRUN_ASSIGN(const auto before, LstatAt(file->place.parent.get(), file->place.name));
  file->made = !before;
  VRUN_ASSIGN(auto opened, Appender::Open(file->place, any ? std::optional<mode_t>(0600) : std::nullopt));
  if (!opened && any) return ErrnoError(EACCES, "append to " + Escape(file->place.path));
  if (!opened) return {};  // request the whole file
  file->fd = *std::move(opened);
  struct stat st {};
  if (::fstat(file->fd.get(), &st) != 0) return ErrnoError("append to " + Escape(file->place.path));
  file->appender.emplace(file->fd.get(), message.sequence(), /*durable=*/false, &journal_);
  const bool resumed = file->appender->resumed();
  const auto size = static_cast<uint64_t>(st.st_size);
  // The node may not know yet what another node of the view, or home, has appended.
  const bool is_end = size <= file->put.size() && (!message.has_base() || message.base().size() == size);
  file->alone = !any && !resumed && is_end && is_meant(st);
  if (!any && !resumed && !file->alone && !MayMerge(message, st)) return {};
  file->size = size;
  if (file->alone) file->begin = file->size;
  file->ctime_ns = ToNanos(st.st_ctim);
  *refused = false;
  return {};
}

Status LiveApplier::AppendData(std::string_view data, uint64_t offset) {
  OpenFileState& file = *file_;
  if (!file.begin || (file.appended == 0 && offset < *file.begin)) {
    file.begin = offset;
    file.alone = false;
  }
  if (offset < *file.begin + file.appended) {
    return Error(Code::kInvalid, Escape(file.place.path) + ": data before the end of the file that it is appended to");
  }
  const uint64_t gap = offset - *file.begin - file.appended;
  VRUN_TRY(file.appender->AppendZeros(gap, file.appended));
  file.appended += gap;
  VRUN_TRY(file.appender->Append(data, file.appended));
  file.appended += data.size();
  return {};
}

Status LiveApplier::TakeData(const WriteBack& message) {
  if (!file_ || message.path() != file_->place.asked || message.sequence() <= file_->sequence) {
    return Error(Code::kInvalid, Escape(message.path()) + ": the node sent data of a file before the file itself");
  }
  const vrun::v1::FileData& data = message.file_data();
  const uint64_t size = file_->put.size();
  if (data.offset() > size || data.data().size() > size - data.offset()) {
    return Error(Code::kInvalid, Escape(message.path()) + ": data beyond the end of the file");
  }
  Status status;
  if (file_->appender) {
    BeforeOwnChange(&*file_);
    status = AppendData(data.data(), data.offset());
    AfterOwnChange(&*file_);
  } else {
    status = WriteRange(file_->fd.get(), data.data(), data.offset(), file_->put.sparse());
  }
  if (!status) return std::move(status).error().With("write " + Escape(file_->place.path));
  if (!data.data().empty()) {
    file_->end = std::max(file_->end, data.offset() + data.data().size());
    if (file_->patch) file_->ranges.emplace_back(data.offset(), data.data().size());
  }
  bytes_ += data.data().size();
  if (!data.last()) return {};
  VRUN_TRY(EndFile(message.sequence()));
  if (refused_ != 0) return {};
  sequence_ = message.sequence();
  journal_.SetApplied(sequence_);
  return {};
}

Status LiveApplier::EndFile(uint64_t sequence) {
  OpenFileState& file = *file_;
  bool in_place = file.appender.has_value();
  if (in_place) {
    BeforeOwnChange(&file);
    const Status appended = AppendData({}, file.put.size());
    AfterOwnChange(&file);
    if (!appended) return appended.error().With("write " + Escape(file.place.path));
  } else {
    const bool short_of = file.put.sparse() || file.end < file.put.size();
    if (!file.patch && short_of && ::ftruncate(file.fd.get(), static_cast<off_t>(file.put.size())) != 0) {
      return ErrnoError("write " + Escape(file.place.path));
    }
    if (file.put.linked() != 0) {
      VRUN_ASSIGN(in_place, WriteThrough(&file));
    }
    if (file.patch && !in_place) {  // home has changed the file meanwhile
      refused_ = want_whole_ = file.sequence;
      DropFile();
      return {};
    }
  }
  Meta meta = file.put.meta();
  struct stat grown {};
  if (file.appender && !file.made && ::fstat(file.fd.get(), &grown) == 0) {
    // Keep the mode that home has set, which the job may not know; except for the bits that a write clears.
    constexpr mode_t kPrivileged = S_ISUID | S_ISGID;
    meta.set_mode((grown.st_mode & ~kPrivileged) | (grown.st_mode & meta.mode() & kPrivileged));
  }
  VRUN_TRY(FinishMeta(file.place, in_place ? file.place.name : file.temporary, meta, MetaFor::kFinal));
  struct stat made {
  }, now{};
  const bool known = ::fstat(file.fd.get(), &made) == 0;
  if (file.appender) {
    made.st_size = static_cast<off_t>(file.size);
  } else {
    made.st_size = static_cast<off_t>(file.put.size());
  }
  if (!in_place) VRUN_TRY(Install(file.place, file.temporary));
  ++files_;
  if (file.alone && known && ::fstat(file.fd.get(), &now) == 0 && HasContentOf(made, now)) {
    Tell(now, sequence, nullptr, false);
  } else if (known) {
    // Noted for the next process too: a file of ours that others have changed.
    const auto own = own_.find({made.st_dev, made.st_ino});
    if (own == own_.end() || own->second.ctime_ns != 0) journal_.AddOwnChange({made.st_dev, made.st_ino, 0});
    NoteOwn(made, 0);
  }
  paths_.Use(file.place, known ? &made : nullptr);
  flush_.Touched(file.place.parent.get(), std::move(file.fd));
  file_.reset();
  return {};
}

UniqueFd LiveApplier::OpenInPlace(const OpenFileState& file) const {
  if (file.put.linked() == 0) return UniqueFd();
  auto opened = Appender::Open(file.place);
  struct stat there {};
  if (!opened || !*opened || ::fstat((*opened)->get(), &there) != 0) return UniqueFd();
  const bool ours = there.st_ino == file.put.linked() || own_.contains({there.st_dev, there.st_ino});
  // Clear O_APPEND.
  if (!ours || ::fcntl((*opened)->get(), F_SETFL, 0) != 0) return UniqueFd();
  return std::move(**opened);
}

// A file written in place stays the same file at home, for processes that have it open or use another name of it.
Result<bool> LiveApplier::WriteThrough(OpenFileState* file) {
  UniqueFd target = OpenInPlace(*file);
  struct stat there {
  }, made{};
  if (!target || ::fstat(target.get(), &there) != 0 || ::fstat(file->fd.get(), &made) != 0) return false;
  auto fail = [&](const Error& error) { return Error(error).With("write " + Escape(file->place.path)); };
  if (file->patch) {
    if (ToNanos(there.st_ctim) != file->ctime_ns) return false;
    journal_.SetIntent({file->sequence, there.st_dev, there.st_ino, 0});
    std::string part(1 << 20, '\0');
    for (const auto& [offset, length] : file->ranges) {
      for (uint64_t done = 0; done < length;) {
        const size_t n = static_cast<size_t>(std::min<uint64_t>(part.size(), length - done));
        VRUN_ASSIGN(const size_t got, PreadUpTo(file->fd.get(), part.data(), n, offset + done));
        if (got != n) return fail(Error(Code::kAborted, "another process truncated the file while home wrote it"));
        if (const Status wrote = PwriteAll(target.get(), {part.data(), n}, offset + done); !wrote) {
          return fail(wrote.error());
        }
        done += n;
      }
    }
    if (::ftruncate(target.get(), static_cast<off_t>(file->put.size())) != 0) return fail(ErrnoError("cut"));
  } else {
    // Never half a file: reserve all the space before changing anything.
    if (made.st_size > 0 && ::fallocate(target.get(), FALLOC_FL_KEEP_SIZE, 0, made.st_size) != 0 &&
        (errno == ENOSPC || errno == EDQUOT)) {
      return ErrnoError("write " + Escape(file->place.path));
    }
    const bool sparse = made.st_blocks * 512 < made.st_size;  // only the data is copied
    if (sparse && ::ftruncate(target.get(), 0) != 0) return fail(ErrnoError("cut"));
    if (const Status copied = CopyData(file->fd.get(), target.get(), made); !copied) return fail(copied.error());
  }
  DropTemporary(file->place, file->temporary);
  file->fd = std::move(target);
  return true;
}

bool LiveApplier::MayMerge(const WriteBack& message, const struct stat& st) const {
  if (!S_ISREG(st.st_mode)) return false;
  if (message.has_base()) return message.base().ino() == st.st_ino;
  return own_.contains({st.st_dev, st.st_ino});
}

// Others' writes to a file that grows in place are not the job's: the next tree reports them.
void LiveApplier::BeforeOwnChange(OpenFileState* file) {
  struct stat st {};
  const bool known = ::fstat(file->fd.get(), &st) == 0;
  file->alone &= known && ToNanos(st.st_ctim) == file->ctime_ns;
}

void LiveApplier::AfterOwnChange(OpenFileState* file) {
  struct stat st {};
  const bool known = ::fstat(file->fd.get(), &st) == 0;
  const auto size = static_cast<uint64_t>(st.st_size);
  file->alone &= known && file->begin && size == *file->begin + file->appended;
  file->ctime_ns = ToNanos(st.st_ctim);
  if (known) file->size = size;
}

// What was appended stays; a repetition continues from there.
void LiveApplier::DropFile() {
  if (!file_) return;
  if (!file_->temporary.empty()) DropTemporary(file_->place, file_->temporary);
  file_.reset();
}

std::unique_ptr<Applier> MakeLiveApplier(ApplyOptions options, SafeRoot root, ApplyJournal journal) {
  return std::make_unique<LiveApplier>(std::move(options), std::move(root), std::move(journal));
}

}  // namespace vrun::home
