// SPDX-License-Identifier: Apache-2.0
// The policy of frozen views.
//
//   * If the command only appended to a file, its data is appended to home's file in place, whatever others have
//     appended meanwhile.
//   * Any other change made at home since the command saw the file stays: the job's version is stored beside it as
//     NAME.vrun-JOB (.1, .2, ... if taken) and reported by a notice. A file changed at home is not removed or renamed,
//     which is reported too; where the job renamed or linked it to, it gets a copy of what the job saw, if home still
//     has that.
#include <fcntl.h>
#include <sys/stat.h>

#include <functional>
#include <map>
#include <set>
#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "home/apply/apply_append.h"
#include "home/apply/conflict_policy.h"
#include "tree/inode_number.h"

namespace vrun::home {
namespace {

using v1::BaseVersion;
using v1::Meta;
using v1::WriteBack;

class FrozenPolicy final : public ConflictPolicy {
 public:
  // `root_dev`: the device of the root itself.
  FrozenPolicy(ApplyContext* context, uint64_t root_dev) : ConflictPolicy(context), root_dev_(root_dev) {
    // Without an attempt the numbers may belong to another series.
    if (context_.options.attempt != 0) context_.sequence = context_.journal.durable_before();
    for (const auto& own : context_.journal.own_changes()) own_ctime_[{own.device, own.inode}] = own.ctime_ns;
  }

  Result<bool> Put(uint64_t sequence, IncomingFile* file) override;
  Status Install(const std::string& temporary, const Meta* meta, const std::optional<BaseVersion>& base,
                 Place* place) override;
  Result<bool> MakeDirectory(const WriteBack& message, Place* place) override;
  Result<bool> CopyInsteadOfLink(const WriteBack& message, const std::optional<struct stat>& source) override;
  Result<bool> MayRemove(const WriteBack& message, const Place& place, const struct stat& current) override;
  bool TellNotEmpty(const Place& place) override;
  Status Rename(const WriteBack& message, const std::optional<Place>& from, const std::optional<struct stat>& source,
                Place to) override;
  Result<bool> MaySetMeta(const WriteBack& message, const Place& place, const struct stat& current) override;

  void Linked(const Place& /*place*/, uint64_t /*sequence*/, const UniqueFd& held, const struct stat& /*before*/,
              bool /*copied*/) override {
    Remember(held);
  }
  void Removed(uint64_t /*sequence*/, const UniqueFd& held, const struct stat& /*before*/) override { Remember(held); }
  void MetaSet(const WriteBack& message, const Place& place, const UniqueFd& held, const struct stat& before) override;

 private:
  bool IsInode(const struct stat& st, const BaseVersion& base) const;
  bool Matches(const struct stat& st, const BaseVersion& base, bool own_rename = false) const;
  // Whether nobody has written to the content, whatever else of the file the job has changed.
  bool HasContent(const struct stat& st, const BaseVersion& base, int64_t mtime_ns) const {
    return IsInode(st, base) && static_cast<uint64_t>(st.st_size) == base.size() && ToNanos(st.st_mtim) == mtime_ns;
  }
  // Call after an operation that changes the ctime of an inode that keeps other names (`held`: see ApplyContext::Hold).
  void Remember(const UniqueFd& held, bool new_times = false);

  // The command only appended to the file, which has all of the content: appends the tail to home's current file, if
  // that begins with what the command saw. False: it does not, or cannot be written in place.
  Result<bool> AppendTail(IncomingFile* file);
  void Grew(struct stat* last, int file, size_t bytes) const;
  // `current`, at `to`, is what the job saw there: replaces it by `from`. False: `to` is free, because rename(2) cannot
  // replace it; or `current` is a directory with entries that the job did not see.
  Result<bool> Replace(int from_directory, const std::string& from, const struct stat& from_st, const Place& to,
                       const struct stat& current);
  // Calls `make` (returns the errno), with `place` at the job's name or at the first one beside it that is free. False:
  // not called, since what has that name `is_same`. `verb`: for errors.
  Result<bool> MakeAtFreeName(const std::function<bool(const struct stat&)>& is_same, const std::string& verb,
                              const std::function<int()>& make, Place* place);
  void TellBeside(const Place& place) const {
    context_.paths.NoticeChanged(place.asked, "its version is in " + Escape(place.path));
  }
  // Makes `to` a copy of what the command saw at `seen`. False: home does not have all of it. (After a restart of this
  // process the copies count as foreign changes: later versions are stored beside them.)
  Result<bool> Restore(const WriteBack& message, const std::string& seen, const Meta* meta, Place* to);
  // Of Rename: home has another file at the source, or none.
  Status RenameChanged(const WriteBack& message, bool is_there, bool own_name, bool aside, Place* to);

  // The operation may have been applied by a process that died before it acknowledged it.
  bool MayBeRepeated(const WriteBack& message) const { return message.sequence() <= context_.journal.applied_before(); }
  // Also true if the process may have died before it noted the operation: that is the first operation not noted, or
  // after a machine crash any operation.
  bool MayBeDone(const WriteBack& message) const {
    const ApplyJournal& journal = context_.journal;
    const bool unsure = journal.found() && (!journal.same_boot() || context_.sequence <= journal.applied_before());
    return unsure || MayBeRepeated(message);
  }

  using Inode = std::pair<dev_t, ino_t>;
  const uint64_t root_dev_;
  // ctime as we left it, of inodes with several names, copies, and files whose times the job set.
  std::map<Inode, int64_t> own_ctime_;
  std::map<Inode, ino_t> restored_;  // copies -> originals
  std::set<std::string> kept_;       // paths that were not removed
};

// --- versions ---

bool FrozenPolicy::IsInode(const struct stat& st, const BaseVersion& base) const {
  if ((st.st_mode & S_IFMT) != base.type()) return false;
  if (base.ino() == st.st_ino || base.ino() == tree::ShownInode(st.st_dev, st.st_ino, root_dev_)) return true;
  const auto restored = restored_.find({st.st_dev, st.st_ino});
  return restored != restored_.end() && restored->second == base.ino();
}

bool FrozenPolicy::Matches(const struct stat& st, const BaseVersion& base, bool own_rename) const {
  if (!IsInode(st, base)) return false;
  if (S_ISDIR(st.st_mode)) return true;
  if (static_cast<uint64_t>(st.st_size) != base.size()) return false;
  if (ToNanos(st.st_ctim) == base.ctime_ns()) return true;
  auto own = own_ctime_.find({st.st_dev, st.st_ino});
  if (own != own_ctime_.end() && own->second == ToNanos(st.st_ctim)) return true;
  return (base.nlink() > 1 || own_rename) && ToNanos(st.st_mtim) == base.mtime_ns();
}

// If the mtime changed too, it cannot prove after a restart that the other names are unchanged.
void FrozenPolicy::Remember(const UniqueFd& held, bool new_times) {
  struct stat st;
  if (!held || ::fstat(held.get(), &st) != 0) return;
  auto [it, added] = own_ctime_.try_emplace({st.st_dev, st.st_ino});
  it->second = ToNanos(st.st_ctim);
  if (new_times || !added) context_.journal.AddOwnChange({st.st_dev, st.st_ino, it->second});
}

// --- installing a file under its name ---

Result<bool> FrozenPolicy::Replace(int from_directory, const std::string& from, const struct stat& from_st,
                                   const Place& to, const struct stat& current) {
  const UniqueFd old = ApplyContext::Hold(to, current);
  const bool directory = S_ISDIR(current.st_mode);
  int error = EXDEV;
  if (directory == S_ISDIR(from_st.st_mode)) {
    error = MoveName(from_directory, from, to.parent.get(), to.name, /*replace=*/true);
  }
  const bool replaced = error == 0;
  if (error == EXDEV) error = RemoveName(to.parent.get(), to.name, directory);
  if (error == ENOTEMPTY || error == EEXIST) return false;
  if (error != 0) return ErrnoError(error, "replace " + Escape(to.path));
  Remember(old);
  return replaced;
}

Result<bool> FrozenPolicy::MakeAtFreeName(const std::function<bool(const struct stat&)>& is_same,
                                          const std::string& verb, const std::function<int()>& make, Place* place) {
  for (int i = -1; i < kMaxBeside;) {
    VRUN_ASSIGN(const auto current, LstatAt(place->parent.get(), place->name));
    const bool same = current && is_same(*current);
    if (current && !same) {
      place->name = context_.paths.BesideName(std::string(NameOf(place->asked)), ++i);
      place->path = ChildOf(ParentOf(place->path), place->name);
      continue;
    }
    if (i >= 0) VRUN_TRY(context_.journal.Add(place->asked, place->path));
    if (same) return false;
    const int error = make();
    if (error == EEXIST || error == ENOTEMPTY) continue;
    if (error != 0) return ErrnoError(error, verb + " " + Escape(place->path));
    return true;
  }
  return ApplyPaths::TooManyBeside(place->asked);
}

Status FrozenPolicy::Install(const std::string& temporary, const Meta* meta, const std::optional<BaseVersion>& base,
                             Place* place) {
  const int parent = place->parent.get();
  VRUN_ASSIGN(const auto current, LstatAt(parent, place->name));
  if (current && base && Matches(*current, *base)) {
    VRUN_ASSIGN(const auto made, LstatAt(parent, temporary));
    if (!made) return Error(Code::kAborted, Escape(place->path) + ": somebody removed the file while it was written");
    VRUN_ASSIGN(const bool replaced, Replace(parent, temporary, *made, *place, *current));
    if (replaced) return {};
  }
  const std::string path = place->path;
  const auto is_same = [&](const struct stat&) { return SameContent(parent, place->name, parent, temporary); };
  const auto move = [&] { return MoveName(parent, temporary, parent, place->name, /*replace=*/false); };
  VRUN_ASSIGN(const bool moved, MakeAtFreeName(is_same, "write", move, place));
  if (const int error = moved ? 0 : RemoveName(parent, temporary); error != 0) {
    return ErrnoError(error, "remove " + Escape(temporary));
  }
  const bool beside = place->path != path;
  if (beside) TellBeside(*place);
  // Its owner was chosen by what has the job's name.
  if (meta == nullptr || (moved && !beside)) return {};
  return context_.FinishMeta(*place, place->name, *meta, MetaFor::kFinal);
}

// --- files ---

Result<bool> FrozenPolicy::Put(uint64_t /*sequence*/, IncomingFile* file) {
  const NameLock lock(file->place);
  VRUN_ASSIGN(const bool appended, AppendTail(file));
  if (!appended) {
    VRUN_TRY(context_.FinishMeta(file->place, file->temporary, file->put.meta(), MetaFor::kFinal));
    VRUN_TRY(Install(file->temporary, &file->put.meta(), file->base, &file->place));
  }
  return true;
}

// Every state of the file in which a tree may find it is told. `last` becomes the present one.
void FrozenPolicy::Grew(struct stat* last, int file, size_t bytes) const {
  struct stat now {};
  if (!context_.options.grew || ::fstat(file, &now) != 0) return;
  // Otherwise somebody else has written to it, too.
  if (static_cast<uint64_t>(now.st_size - last->st_size) == bytes) context_.options.grew(*last, now);
  *last = now;
}

Result<bool> FrozenPolicy::AppendTail(IncomingFile* file) {
  const v1::PutFile& put = file->put;
  const Place& place = file->place;
  ApplyJournal& journal = context_.journal;
  // Without a journal a repeated operation could not be told from a new one.
  if (!put.appended() || !journal.is_kept() || !file->base || file->base->size() > put.size()) return false;
  const uint64_t begin = file->base->size();
  const int parent = place.parent.get();
  const ApplyJournal::Append* before = journal.FindAppend(file->sequence);
  if (before == nullptr ? file->sequence <= journal.applied_before() : before->inode == 0) return false;
  // Notes that this is not an append: what is there after a crash may look like one.
  const auto otherwise = [&]() -> Result<bool> {
    VRUN_TRY(journal.AddAppend({.sequence = file->sequence}, /*durable=*/true));
    return false;
  };
  for (;;) {
    VRUN_ASSIGN(auto there, Appender::Open(place));
    if (!there) return otherwise();
    struct stat st {};
    if (::fstat(there->get(), &st) != 0) return ErrnoError("append to " + Escape(place.path));
    // The job must not change the file's other names.
    if (st.st_nlink != 1) return otherwise();
    Appender appender(there->get(), file->sequence, /*durable=*/true, &journal);
    const bool unchanged = Matches(st, *file->base);
    const bool over = file->sequence <= journal.durable_before() ||
                      (appender.resumed() && file->sequence <= journal.applied_before());
    if (!over && !SameBeginning(there->get(), file->fd.get(), begin)) return otherwise();
    struct stat last {};  // compared, and about to grow
    if (::fstat(there->get(), &last) != 0) return ErrnoError("append to " + Escape(place.path));
    if (!over && context_.options.grew) context_.options.grew(last, last);
    std::string part(1 << 20, '\0');
    for (uint64_t at = begin; !over && at < put.size();) {
      VRUN_ASSIGN(const size_t n, PreadUpTo(file->fd.get(), part.data(), part.size(), at));
      if (n == 0) return Error(Code::kAborted, Escape(place.path) + ": somebody cut the file while it was written");
      Status appended = appender.Append({part.data(), n}, at - begin);
      if (!appended) return std::move(appended).error().With(Escape(place.path));
      at += n;
      Grew(&last, there->get(), n);
    }
    VRUN_ASSIGN(const auto now, LstatAt(parent, place.name));
    // Somebody has replaced the file meanwhile: append to the new one.
    if (now && (now->st_ino != st.st_ino || now->st_dev != st.st_dev)) continue;
    if (now && (unchanged || appender.resumed()) && static_cast<uint64_t>(now->st_size) == put.size()) {
      VRUN_TRY(context_.FinishMeta(place, place.name, put.meta(), MetaFor::kFinal));
    }
    if (!over) Grew(&last, there->get(), 0);
    (void)RemoveName(parent, file->temporary);
    file->fd = *std::move(there);
    return true;
  }
}

// --- links, directories, removals, metadata ---

Result<bool> FrozenPolicy::MakeDirectory(const WriteBack& message, Place* place) {
  const int parent = place->parent.get();
  VRUN_ASSIGN(const auto current, LstatAt(parent, place->name));
  if (current && !S_ISDIR(current->st_mode) && message.has_base() && Matches(*current, message.base())) {
    const UniqueFd old = ApplyContext::Hold(*place, *current);
    const int error = RemoveName(parent, place->name);
    if (error != 0 && error != ENOENT) return ErrnoError(error, "replace " + Escape(place->path));
    Remember(old);
  }
  const std::string path = place->path;
  const auto is_same = [](const struct stat& there) { return S_ISDIR(there.st_mode); };
  const auto make = [&] { return WithWritable(parent, [&] { return ::mkdirat(parent, place->name.c_str(), 0700); }); };
  VRUN_ASSIGN(const bool made, MakeAtFreeName(is_same, "make", make, place));
  if (made && place->path != path) TellBeside(*place);
  return made;
}

Result<bool> FrozenPolicy::CopyInsteadOfLink(const WriteBack& message, const std::optional<struct stat>& source) {
  const auto& link = message.make_hard_link();
  const bool changed = link.has_source() && source && !Matches(*source, link.source()) &&
                       !HasContent(*source, link.source(), link.source().mtime_ns());
  if (source && !changed) return false;
  VRUN_ASSIGN(Place copy, context_.paths.FindOrMakeParents(message.path()));
  VRUN_ASSIGN(const auto there, LstatAt(copy.parent.get(), copy.name));
  if (there && MayBeRepeated(message)) return true;
  VRUN_ASSIGN(const bool restored, Restore(message, link.seen(), nullptr, &copy));
  if (restored && changed) {
    context_.paths.NoticeChanged(link.existing(),
                                 Escape(copy.path) + ", a hard link to it, is a copy of what the job had there");
  }
  return restored;
}

Result<bool> FrozenPolicy::MayRemove(const WriteBack& message, const Place& place, const struct stat& current) {
  if (message.has_base() && Matches(current, message.base())) return true;
  kept_.insert(place.path);
  if (!MayBeRepeated(message)) context_.paths.NoticeChanged(place.path, "the job removed it, but it stays");
  return false;
}

bool FrozenPolicy::TellNotEmpty(const Place& place) {
  const auto below = kept_.lower_bound(place.path + "/");
  const bool told = below != kept_.end() && AtOrBelow(*below, place.path);
  kept_.insert(place.path);
  return !told;
}

Result<bool> FrozenPolicy::MaySetMeta(const WriteBack& message, const Place& place, const struct stat& current) {
  const Meta& meta = message.set_meta().meta();
  bool same = (current.st_mode & S_IFMT) == (meta.mode() & S_IFMT);
  if (same && !S_ISDIR(current.st_mode)) {
    // Only different content is a conflict: the job changed the metadata, and a process that died may have set them
    // already.
    const BaseVersion& base = message.base();
    same = message.has_base() && (Matches(current, base) || HasContent(current, base, base.mtime_ns()) ||
                                  HasContent(current, base, meta.mtime_ns()));
  }
  if (!same && !MayBeRepeated(message)) {
    context_.paths.NoticeChanged(place.path, "the job's mode, owner and times were not set");
  }
  return same;
}

void FrozenPolicy::MetaSet(const WriteBack& message, const Place& place, const UniqueFd& held,
                           const struct stat& /*before*/) {
  Remember(held, /*new_times=*/true);
  if (held || message.set_meta().meta().mtime_ns() == message.base().mtime_ns()) return;
  const auto set = LstatAt(place.parent.get(), place.name);
  if (set && *set && S_ISREG((*set)->st_mode)) own_ctime_[{(*set)->st_dev, (*set)->st_ino}] = ToNanos((*set)->st_ctim);
}

// --- renames ---

Status FrozenPolicy::RenameChanged(const WriteBack& message, bool is_there, bool own_name, bool aside, Place* to) {
  const auto& rename = message.rename();
  VRUN_ASSIGN(const bool restored, Restore(message, rename.seen(), rename.has_meta() ? &rename.meta() : nullptr, to));
  // If the file could not be put aside under one of our names, that was reported then.
  if (own_name || (restored && aside)) return {};
  std::string what = (is_there ? "it stays, and " : "") + Escape(to->path) + " is a copy of what the job had there";
  if (!restored) {
    what = aside ? "it was not renamed as the job did" : "it was not renamed to " + Escape(message.path());
  }
  context_.paths.NoticeChanged(rename.from(), what);
  return {};
}

Status FrozenPolicy::Rename(const WriteBack& message, const std::optional<Place>& from,
                            const std::optional<struct stat>& from_st, Place to) {
  const auto& rename = message.rename();
  const BaseVersion& source = rename.source();
  if (!rename.has_source()) {
    return Error(Code::kInvalid, Escape(message.path()) + ": an impossible rename from " + Escape(rename.from()));
  }
  const bool aside = NameOf(message.path()).starts_with(context_.prefix);
  if (aside) context_.paths.SetAside(message.path(), rename.from());
  VRUN_ASSIGN(auto current, LstatAt(to.parent.get(), to.name));
  UniqueFd inode;  // its other names must still count as ours
  auto finish = [&]() -> Status {
    context_.Touched(to);
    if (rename.has_meta()) {
      VRUN_TRY(context_.FinishMeta(to, to.name, rename.meta(), MetaFor::kFinal));
      context_.flush.TouchedAttributes(to.parent.get(), to.name);
    }
    Remember(inode, rename.has_meta());
    return {};
  };
  const bool is_source = from_st && IsInode(*from_st, source);
  // The inode number alone may by now belong to another file that home has created.
  const auto is_source_there = [&] {
    if (!current || !IsInode(*current, source)) return false;
    // for directories only the number can be compared
    if (MayBeDone(message) || Matches(*current, source)) return true;
    if (from_st && from_st->st_ino == current->st_ino && from_st->st_dev == current->st_dev) return true;
    return HasContent(*current, source, source.mtime_ns()) ||
           (rename.has_meta() && HasContent(*current, source, rename.meta().mtime_ns()));
  };
  if (is_source_there()) {
    // Already done; or both were names of one file, where rename(2) does nothing.
    if (is_source && !S_ISDIR(from_st->st_mode) && from_st->st_dev == current->st_dev) {
      const int error = RemoveName(from->parent.get(), from->name);
      if (error != 0 && error != ENOENT) return ErrnoError(error, "remove " + Escape(from->path));
    }
    inode = ApplyContext::Hold(to, *current);
    return finish();
  }
  const bool own_name = NameOf(rename.from()).starts_with(context_.prefix);
  if (!is_source || !Matches(*from_st, source, own_name)) {
    // A copy on another file system has another inode: we can only see that the source is absent and the target exists.
    const bool repeated =
        MayBeRepeated(message) || (MayBeDone(message) && !from_st && current &&
                                   (current->st_mode & S_IFMT) == source.type() && !message.has_base());
    return repeated ? Status() : RenameChanged(message, from_st.has_value(), own_name, aside, &to);
  }
  inode = ApplyContext::Hold(*from, *from_st);

  bool moved = false;
  if (current && message.has_base() && Matches(*current, message.base())) {
    VRUN_ASSIGN(moved, Replace(from->parent.get(), from->name, *from_st, to, *current));
  }
  const std::string path = to.path;
  if (!moved) {
    Status across;
    const auto move = [&] {
      const int error = MoveName(from->parent.get(), from->name, to.parent.get(), to.name, /*replace=*/false);
      if (error != EXDEV) return error;
      across = context_.MoveAcross(*from, to, message.sequence(), /*replace=*/false);
      return 0;
    };
    const auto is_same = [](const struct stat&) { return false; };
    VRUN_TRY(MakeAtFreeName(is_same, "rename " + Escape(from->path) + " to", move, &to));
    VRUN_TRY(across);
  }
  context_.Touched(*from);
  if (to.path != path) TellBeside(to);
  return finish();
}

Result<bool> FrozenPolicy::Restore(const WriteBack& message, const std::string& seen, const Meta* meta, Place* to) {
  if (!context_.options.restore || seen.empty()) return false;
  const int parent = to->parent.get();
  const std::string temporary = context_.TemporaryName(message.sequence());
  VRUN_TRY(RemoveTree(NamePath(parent, temporary)));
  struct Made {
    Inode inode;
    int64_t ctime_ns = 0;
    ino_t was = 0;
  };
  std::vector<Made> all;
  Status made;
  const int error = WithWritable(parent, [&] {
    all.clear();
    made = context_.options.restore(seen, parent, temporary, [&](int fd, const tree::Entry& was) {
      struct stat st {};
      if (::fstat(fd, &st) != 0) return;
      all.push_back({{st.st_dev, st.st_ino}, ToNanos(st.st_ctim), tree::ShownInode(was.dev, was.ino, root_dev_)});
    });
    errno = made ? 0 : made.error().error_number();
    return made || errno == 0 ? 0 : -1;
  });
  if (!made) {
    VRUN_TRY(RemoveTree(NamePath(parent, temporary)));
    const bool full = error == ENOSPC || error == EDQUOT || error == EMFILE || error == ENFILE || error == ENOMEM;
    if (full) return std::move(made).error().With("write " + Escape(to->path));
    return false;
  }
  for (const Made& one : all) {
    restored_[one.inode] = one.was;
    own_ctime_[one.inode] = one.ctime_ns;
  }
  context_.flush.TouchedMuch(parent);
  if (Status put = Install(temporary, meta, BaseOf(message), to); !put) {
    (void)RemoveTree(NamePath(parent, temporary));
    return std::move(put).error();
  }
  if (meta != nullptr) VRUN_TRY(context_.FinishMeta(*to, to->name, *meta, MetaFor::kFinal));
  // A new name, and attributes lost in a conflict, change the ctime.
  const auto st = LstatAt(parent, to->name);
  if (st && *st) own_ctime_[{(*st)->st_dev, (*st)->st_ino}] = ToNanos((*st)->st_ctim);
  context_.Touched(*to);
  return true;
}

}  // namespace

Result<std::unique_ptr<ConflictPolicy>> MakeFrozenPolicy(ApplyContext* context) {
  VRUN_ASSIGN(const UniqueFd top, context->paths.OpenRoot());
  struct stat st;
  if (::fstat(top.get(), &st) != 0) return ErrnoError("stat of the root");
  return std::unique_ptr<ConflictPolicy>(std::make_unique<FrozenPolicy>(context, st.st_dev));
}

}  // namespace vrun::home
