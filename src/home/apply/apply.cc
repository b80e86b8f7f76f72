// SPDX-License-Identifier: Apache-2.0
// Messages, versions, files and metadata.
#include "home/apply/apply.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "base/escape.h"
#include "base/files.h"
#include "home/apply/apply_append.h"
#include "home/apply/apply_internal.h"
#include "home/apply/apply_live.h"
#include "tree/inode_number.h"

namespace vrun::home {

using v1::BaseVersion;
using v1::Meta;
using v1::WriteBack;

// --- messages ---

Status ApplierImpl::Apply(const WriteBack& message) {
  if (message.sequence() == 0) return Error(Code::kInvalid, "a write of the job without a number");
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
  if (!file_) {
    sequence_ = message.sequence();
    journal_.SetApplied(sequence_);
  }
  return {};
}

Status ApplierImpl::Dispatch(const WriteBack& message) {
  if (message.path() == "/" && !message.has_set_meta()) return Error(Code::kInvalid, "/: it can only get metadata");
  switch (message.op_case()) {
    case WriteBack::kPutFile: return BeginFile(message);
    case WriteBack::kMakeDirectory: return MakeDirectory(message);
    case WriteBack::kMakeSymlink: return MakeSymlink(message);
    case WriteBack::kMakeSpecial: return MakeSpecial(message);
    case WriteBack::kMakeHardLink: return MakeHardLink(message);
    case WriteBack::kRemove: return Remove(message);
    case WriteBack::kRename: return Rename(message);
    case WriteBack::kSetMeta: return SetMeta(message);
    case WriteBack::kFileData:
    case WriteBack::OP_NOT_SET: break;
  }
  return Error(Code::kUnsupported, Escape(message.path()) + ": unknown kind of write: update vrun at home");
}

// --- versions ---

bool ApplierImpl::IsInode(const struct stat& st, const BaseVersion& base) const {
  if ((st.st_mode & S_IFMT) != base.type()) return false;
  if (base.ino() == st.st_ino || base.ino() == tree::ShownInode(st.st_dev, st.st_ino, root_dev_)) return true;
  const auto restored = restored_.find({st.st_dev, st.st_ino});
  return restored != restored_.end() && restored->second == base.ino();
}

bool ApplierImpl::Matches(const struct stat& st, const BaseVersion& base, bool own_rename) const {
  if (!IsInode(st, base)) return false;
  if (S_ISDIR(st.st_mode)) return true;
  if (static_cast<uint64_t>(st.st_size) != base.size()) return false;
  if (ToNanos(st.st_ctim) == base.ctime_ns()) return true;
  auto own = own_ctime_.find({st.st_dev, st.st_ino});
  if (own != own_ctime_.end() && own->second == ToNanos(st.st_ctim)) return true;
  return (base.nlink() > 1 || own_rename) && ToNanos(st.st_mtim) == base.mtime_ns();
}

UniqueFd ApplierImpl::Watch(const Place& place, const struct stat& st) const {
  if (S_ISDIR(st.st_mode) || st.st_nlink < 2) return UniqueFd();
  auto fd = OpenName(place.parent.get(), place.name);
  return fd ? *std::move(fd) : UniqueFd();
}

// If the mtime changed too, it cannot prove after a restart that the other names are unchanged.
void ApplierImpl::Remember(const UniqueFd& inode, bool new_times) {
  struct stat st;
  if (!inode || ::fstat(inode.get(), &st) != 0) return;
  auto [it, added] = own_ctime_.try_emplace({st.st_dev, st.st_ino});
  it->second = ToNanos(st.st_ctim);
  if (new_times || !added) journal_.AddOwnChange({st.st_dev, st.st_ino, it->second});
}

// --- installing a file under its name ---

Status ApplierImpl::FinishMeta(const Place& place, const std::string& name, const Meta& meta, MetaFor use) {
  VRUN_ASSIGN(UniqueFd fd, OpenName(place.parent.get(), name));
  VRUN_ASSIGN(const auto before, LstatAt(place.parent.get(), place.name));
  std::string left_out;
  Status status = SetFileMeta(fd.get(), KeepOwners(meta, before), use, &left_out);
  if (!status) return std::move(status).error().With(Escape(place.path));
  if (!left_out.empty()) paths_.NoticeLeftOut(place.path, left_out);
  return {};
}

// Replaces `current` by `from` (a name in the same directory). False: `current` is a directory with entries that the
// job did not see.
Result<bool> ApplierImpl::Replace(Place& place, const std::string& from, const struct stat& from_st,
                                  const struct stat& current) {
  int parent = place.parent.get();
  bool both = S_ISDIR(from_st.st_mode) && S_ISDIR(current.st_mode);
  UniqueFd old = Watch(place, current);
  int error = WithWritable(parent, [&] {
    // rename(2) replaces only the same type.
    if (S_ISDIR(current.st_mode) && !both && ::unlinkat(parent, place.name.c_str(), AT_REMOVEDIR) != 0) return -1;
    if (S_ISDIR(from_st.st_mode) && !both && ::unlinkat(parent, place.name.c_str(), 0) != 0) return -1;
    return ::renameat(parent, from.c_str(), parent, place.name.c_str());
  });
  if (error == ENOTEMPTY || error == EEXIST) return false;
  if (error != 0) return ErrnoError(error, "replace " + Escape(place.path));
  Remember(old);
  return true;
}

// Gives the finished `temporary` its name, unless home has something there that the job did not know.
Status ApplierImpl::Install(Place& place, const std::string& temporary, const Meta* meta,
                            const std::optional<BaseVersion>& base) {
  int parent = place.parent.get();
  for (;;) {
    VRUN_ASSIGN(auto current, LstatAt(parent, place.name));
    if (!current) {
      int error = WithWritable(parent, [&] { return RenameToFreeName(parent, temporary, parent, place.name); });
      if (error == EEXIST) continue;
      if (error != 0) return ErrnoError(error, "write " + Escape(place.path));
      return {};
    }
    if (base && Matches(*current, *base)) {
      VRUN_ASSIGN(auto made, LstatAt(parent, temporary));
      if (!made) return Error(Code::kAborted, Escape(place.path) + ": somebody removed the file while it was written");
      VRUN_ASSIGN(bool replaced, Replace(place, temporary, *made, *current));
      if (replaced) return {};
    }
    if (SameContent(parent, place.name, parent, temporary)) {
      int error = WithWritable(parent, [&] { return ::unlinkat(parent, temporary.c_str(), 0); });
      if (error != 0) return ErrnoError(error, "remove " + Escape(temporary));
      return meta != nullptr ? FinishMeta(place, place.name, *meta, MetaFor::kFinal) : Status();
    }
    return InstallBeside(place, temporary, meta);
  }
}

Status ApplierImpl::InstallBeside(Place& place, const std::string& temporary, const Meta* meta) {
  int parent = place.parent.get();
  std::string original(NameOf(place.asked));
  for (int i = 0; i < kMaxBeside; ++i) {
    std::string beside = paths_.BesideName(original, i);
    VRUN_ASSIGN(auto taken, LstatAt(parent, beside));
    bool same = taken && SameContent(parent, beside, parent, temporary);
    if (taken && !same) continue;
    std::string put = ChildOf(ParentOf(place.path), beside);
    VRUN_TRY(journal_.Add(place.asked, put));
    int error = WithWritable(parent, [&] {
      return same ? ::unlinkat(parent, temporary.c_str(), 0) : RenameToFreeName(parent, temporary, parent, beside);
    });
    if (error == EEXIST) continue;
    if (error != 0) return ErrnoError(error, "write " + Escape(put));
    paths_.NoticeChanged(place.asked, "its version is in " + Escape(put));
    place.path = put;
    place.name = beside;
    return meta != nullptr ? FinishMeta(place, beside, *meta, MetaFor::kFinal) : Status();
  }
  return Error(Code::kExists, Escape(place.path) + ": too many versions lie beside it: remove some");
}

// --- files ---

Status ApplierImpl::BeginFile(const WriteBack& message) {
  if (message.put_file().size() > static_cast<uint64_t>(INT64_MAX)) {
    return Error(Code::kInvalid, Escape(message.path()) + ": a file of an impossible size");
  }
  OpenFileState file;
  VRUN_ASSIGN(file.place, paths_.FindOrMakeParents(message.path()));
  file.temporary = TemporaryName(message.sequence());
  file.sequence = message.sequence();
  file.put = message.put_file();
  file.base = BaseOf(message);
  VRUN_TRY(MakeTemporary(file.place, file.temporary, [&](const char* name) {
    int fd = ::openat(file.place.parent.get(), name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    file.fd.Reset(fd);
    return fd < 0 ? -1 : 0;
  }));
  file_ = std::move(file);
  return {};
}

Status ApplierImpl::TakeData(const WriteBack& message) {
  if (!file_ || message.path() != file_->place.asked || message.sequence() <= file_->sequence) {
    return Error(Code::kInvalid, Escape(message.path()) + ": the node sent data of a file before the file itself");
  }
  const vrun::v1::FileData& data = message.file_data();
  uint64_t size = file_->put.size();
  if (data.offset() > size || data.data().size() > size - data.offset()) {
    return Error(Code::kInvalid, Escape(message.path()) + ": data beyond the end of the file");
  }
  Status status = WriteRange(file_->fd.get(), data.data(), data.offset(), file_->put.sparse());
  if (!status) return std::move(status).error().With("write " + Escape(file_->place.path));
  if (!data.data().empty()) file_->written_end = std::max(file_->written_end, data.offset() + data.data().size());
  bytes_ += data.data().size();
  if (!data.last()) return {};
  VRUN_TRY(EndFile());
  sequence_ = message.sequence();
  journal_.SetApplied(sequence_);
  return {};
}

Status ApplierImpl::EndFile() {
  OpenFileState& file = *file_;
  // Needed even if nothing is missing: leading or trailing blocks of zeros may have been left out.
  if ((file.put.sparse() || file.written_end < file.put.size()) &&
      ::ftruncate(file.fd.get(), static_cast<off_t>(file.put.size())) != 0) {
    return ErrnoError("write " + Escape(file.place.path));
  }
  const NameLock lock(file.place);
  VRUN_ASSIGN(const bool appended, AppendTail());
  if (!appended) {
    VRUN_TRY(FinishMeta(file.place, file.temporary, file.put.meta(), MetaFor::kFinal));
    VRUN_TRY(Install(file.place, file.temporary, &file.put.meta(), file.base));
  }
  ++files_;
  Touched(file.place, std::move(file.fd));
  file_.reset();
  return {};
}

// Every state of the file in which a tree may find it is told. `last` becomes the present one.
void ApplierImpl::Grew(struct stat* last, int file, size_t bytes) const {
  struct stat now {};
  if (!options_.grew || ::fstat(file, &now) != 0) return;
  // Otherwise somebody else has written to it, too.
  if (static_cast<uint64_t>(now.st_size - last->st_size) == bytes) options_.grew(*last, now);
  *last = now;
}

Result<bool> ApplierImpl::AppendTail() {
  OpenFileState& file = *file_;
  // Without a journal a repeated operation could not be told from a new one.
  if (!file.put.appended() || !journal_.is_kept() || !file.base || file.base->size() > file.put.size()) return false;
  const uint64_t begin = file.base->size();
  const int parent = file.place.parent.get();
  const ApplyJournal::Append* before = journal_.FindAppend(file.sequence);
  if (before == nullptr ? file.sequence <= journal_.applied_before() : before->inode == 0) return false;
  // Notes that this is not an append: what is there after a crash may look like one.
  const auto otherwise = [&]() -> Result<bool> {
    VRUN_TRY(journal_.AddAppend({.sequence = file.sequence}, /*durable=*/true));
    return false;
  };
  for (;;) {
    VRUN_ASSIGN(auto there, Appender::Open(file.place));
    if (!there) return otherwise();
    struct stat st {};
    if (::fstat(there->get(), &st) != 0) return ErrnoError("append to " + Escape(file.place.path));
    // The job must not change the file's other names.
    if (st.st_nlink != 1) return otherwise();
    Appender appender(there->get(), file.sequence, /*durable=*/true, &journal_);
    const bool unchanged = Matches(st, *file.base);
    const bool over = file.sequence <= journal_.durable_before() ||
                      (appender.resumed() && file.sequence <= journal_.applied_before());
    if (!over && !SameBeginning(there->get(), file.fd.get(), begin)) return otherwise();
    struct stat last {};  // compared, and about to grow
    if (::fstat(there->get(), &last) != 0) return ErrnoError("append to " + Escape(file.place.path));
    if (!over && options_.grew) options_.grew(last, last);
    std::string part(1 << 20, '\0');
    for (uint64_t at = begin; !over && at < file.put.size();) {
      VRUN_ASSIGN(const size_t n, PreadUpTo(file.fd.get(), part.data(), part.size(), at));
      if (n == 0)
        return Error(Code::kAborted, Escape(file.place.path) + ": somebody cut the file while it was written");
      Status appended = appender.Append({part.data(), n}, at - begin);
      if (!appended) return std::move(appended).error().With(Escape(file.place.path));
      at += n;
      Grew(&last, there->get(), n);
    }
    VRUN_ASSIGN(const auto now, LstatAt(parent, file.place.name));
    // Somebody has replaced the file meanwhile: append to the new one.
    if (now && (now->st_ino != st.st_ino || now->st_dev != st.st_dev)) continue;
    if (now && (unchanged || appender.resumed()) && static_cast<uint64_t>(now->st_size) == file.put.size()) {
      VRUN_TRY(FinishMeta(file.place, file.place.name, file.put.meta(), MetaFor::kFinal));
    }
    if (!over) Grew(&last, there->get(), 0);
    (void)WithWritable(parent, [&] { return ::unlinkat(parent, file.temporary.c_str(), 0); });
    file.fd = *std::move(there);
    return true;
  }
}

void ApplierImpl::DropFile() {
  if (!file_) return;
  (void)WithWritable(file_->place.parent.get(),
                     [&] { return ::unlinkat(file_->place.parent.get(), file_->temporary.c_str(), 0); });
  file_.reset();
}

// --- metadata ---

Status ApplierImpl::SetMeta(const WriteBack& message) {
  const Meta& meta = message.set_meta().meta();
  VRUN_ASSIGN(const auto found, paths_.FindOrRoot(message.path()));
  if (!found) return {};
  const Place& place = *found;
  VRUN_ASSIGN(auto current, LstatAt(place.parent.get(), place.name));
  if (!current) return {};
  bool same = (current->st_mode & S_IFMT) == (meta.mode() & S_IFMT);
  if (same && !S_ISDIR(current->st_mode)) {
    // Only different content is a conflict: the job changed the metadata, and a process that died may have set them
    // already.
    const BaseVersion& base = message.base();
    same = message.has_base() && (Matches(*current, base) || HasContent(*current, base, base.mtime_ns()) ||
                                  HasContent(*current, base, meta.mtime_ns()));
  }
  if (!same) {
    if (!MayBeRepeated(message)) paths_.NoticeChanged(place.path, "the job's mode, owner and times were not set");
    return {};
  }
  UniqueFd inode = Watch(place, *current);
  VRUN_TRY(FinishMeta(place, place.name, meta, MetaFor::kFinal));
  Remember(inode, true);
  if (const auto set = LstatAt(place.parent.get(), place.name); !inode && set && *set && S_ISREG((*set)->st_mode)) {
    if (meta.mtime_ns() != message.base().mtime_ns())
      own_ctime_[{(*set)->st_dev, (*set)->st_ino}] = ToNanos((*set)->st_ctim);
  }
  flush_.TouchedAttributes(place.parent.get(), place.name);
  Touched(place);
  return {};
}

// --- durability ---

Result<uint64_t> ApplierImpl::Sync() {
  VRUN_TRY(flush_.Flush());
  journal_.SetDurable(sequence_);
  return sequence_;
}

Status ApplierImpl::Finish() {
  DropFile();
  VRUN_ASSIGN(uint64_t done, Sync());
  (void)done;
  journal_.Remove();
  return {};
}

Result<std::unique_ptr<Applier>> Applier::Open(ApplyOptions options) {
  VRUN_ASSIGN(SafeRoot root, SafeRoot::Open(options.root));
  VRUN_ASSIGN(ApplyJournal journal, ApplyJournal::Open(options.journal, options.attempt));
  if (options.live) return MakeLiveApplier(std::move(options), std::move(root), std::move(journal));
  VRUN_ASSIGN(const UniqueFd top, root.OpenDirectory("/"));
  struct stat st;
  if (::fstat(top.get(), &st) != 0) return ErrnoError("stat of the root");
  return std::unique_ptr<Applier>(
      std::make_unique<ApplierImpl>(std::move(options), std::move(root), st.st_dev, std::move(journal)));
}

}  // namespace vrun::home
