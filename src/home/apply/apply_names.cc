// SPDX-License-Identifier: Apache-2.0
// Links, directories and special files, removals and renames.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>

#include "base/escape.h"
#include "base/files.h"
#include "home/apply/apply_internal.h"
#include "tree/inode_number.h"

namespace vrun::home {

using v1::BaseVersion;
using v1::Meta;
using v1::WriteBack;

// --- other kinds ---

Status ApplierImpl::MakeSymlink(const WriteBack& message) {
  const auto& link = message.make_symlink();
  if (link.target().empty() || link.target().size() >= PATH_MAX || link.target().find('\0') != std::string::npos) {
    return Error(Code::kInvalid, Escape(message.path()) + ": a symbolic link with an impossible target");
  }
  VRUN_ASSIGN(Place place, paths_.FindOrMakeParents(message.path()));
  std::string temporary = TemporaryName(message.sequence());
  VRUN_TRY(MakeTemporary(place, temporary, [&](const char* name) {
    return ::symlinkat(link.target().c_str(), place.parent.get(), name);
  }));
  Status status = FinishMeta(place, temporary, link.meta(), MetaFor::kFinal);
  if (status) status = Install(place, temporary, &link.meta(), BaseOf(message));
  if (!status) {
    ::unlinkat(place.parent.get(), temporary.c_str(), 0);
    return status;
  }
  Touched(place);
  return {};
}

Status ApplierImpl::MakeSpecial(const WriteBack& message) {
  const auto& special = message.make_special();
  mode_t type = special.meta().mode() & S_IFMT;
  if (type != S_IFIFO && type != S_IFSOCK) {
    return Error(Code::kInvalid, Escape(message.path()) + ": a job may make FIFOs and sockets, not this");
  }
  VRUN_ASSIGN(Place place, paths_.FindOrMakeParents(message.path()));
  std::string temporary = TemporaryName(message.sequence());
  VRUN_TRY(MakeTemporary(place, temporary,
                         [&](const char* name) { return ::mknodat(place.parent.get(), name, type | 0600, 0); }));
  Status status = FinishMeta(place, temporary, special.meta(), MetaFor::kFinal);
  if (status) status = Install(place, temporary, &special.meta(), BaseOf(message));
  if (!status) {
    ::unlinkat(place.parent.get(), temporary.c_str(), 0);
    return status;
  }
  Touched(place);
  return {};
}

Status ApplierImpl::MakeHardLink(const WriteBack& message) {
  const std::string& existing = message.make_hard_link().existing();
  VRUN_TRY(CheckRootPath(existing));
  VRUN_ASSIGN(auto source, paths_.Find(existing));
  std::optional<struct stat> source_st;
  if (source) {
    VRUN_ASSIGN(source_st, LstatAt(source->parent.get(), source->name));
  }
  const bool changed =
      message.make_hard_link().has_source() && source_st && !S_ISDIR(source_st->st_mode) &&
      !Matches(*source_st, message.make_hard_link().source()) &&
      !HasContent(*source_st, message.make_hard_link().source(), message.make_hard_link().source().mtime_ns());
  if (!source_st || S_ISDIR(source_st->st_mode) || changed) {
    VRUN_ASSIGN(Place copy, paths_.FindOrMakeParents(message.path()));
    VRUN_ASSIGN(const auto there, LstatAt(copy.parent.get(), copy.name));
    if (there && MayBeRepeated(message)) return {};
    VRUN_ASSIGN(const bool restored, Restore(message, message.make_hard_link().seen(), copy, nullptr));
    if (restored) {
      if (changed) {
        paths_.NoticeChanged(existing, Escape(copy.path) + ", a hard link to it, is a copy of what the job had there");
      }
      return {};
    }
  }
  if (!source_st || S_ISDIR(source_st->st_mode)) {
    paths_.Notice(Escape(existing) + " was removed at home while job " + paths_.JobShown() +
                  " ran: " + Escape(message.path()) + ", a hard link to it, was not made");
    return {};
  }
  VRUN_ASSIGN(Place place, paths_.FindOrMakeParents(message.path()));
  VRUN_ASSIGN(auto current, LstatAt(place.parent.get(), place.name));
  if (current && current->st_ino == source_st->st_ino && current->st_dev == source_st->st_dev) return {};
  std::string temporary = TemporaryName(message.sequence());
  UniqueFd inode;
  if (auto fd = OpenName(source->parent.get(), source->name)) inode = *std::move(fd);
  Status made = MakeTemporary(place, temporary, [&](const char* name) {
    return ::linkat(source->parent.get(), source->name.c_str(), place.parent.get(), name, 0);
  });
  if (!made) {
    int error = made.error().error_number();
    if (error != EXDEV && error != EMLINK && error != EPERM) return made;
    // Another file system, or somebody else's file: copy instead.
    VRUN_TRY(CopyTree(source->parent.get(), source->name, place.parent.get(), temporary));
    flush_.TouchedMuch(place.parent.get());
  }
  Status status = Install(place, temporary, nullptr, BaseOf(message));
  if (!status) {
    ::unlinkat(place.parent.get(), temporary.c_str(), 0);
    return status;
  }
  Remember(inode);
  Touched(place);
  return {};
}

Status ApplierImpl::MakeDirectory(const WriteBack& message) {
  const Meta& meta = message.make_directory().meta();
  VRUN_ASSIGN(Place place, paths_.FindOrMakeParents(message.path()));
  int parent = place.parent.get();
  for (int i = -1; i < kMaxBeside;) {
    VRUN_ASSIGN(auto current, LstatAt(parent, place.name));
    if (current && S_ISDIR(current->st_mode)) return i < 0 ? Status() : journal_.Add(place.asked, place.path);
    if (current && i < 0 && message.has_base() && Matches(*current, message.base())) {
      UniqueFd old = Watch(place, *current);
      int error = WithWritable(parent, [&] { return ::unlinkat(parent, place.name.c_str(), 0); });
      if (error != 0 && error != ENOENT) return ErrnoError(error, "replace " + Escape(place.path));
      Remember(old);
    } else if (current) {
      place.name = paths_.BesideName(std::string(NameOf(place.asked)), ++i);
      place.path = ChildOf(ParentOf(place.path), place.name);
      continue;
    }
    if (i >= 0) {
      VRUN_TRY(journal_.Add(place.asked, place.path));
    }
    int error = WithWritable(parent, [&] { return ::mkdirat(parent, place.name.c_str(), 0700); });
    if (error == EEXIST) continue;
    if (error != 0) return ErrnoError(error, "make " + Escape(place.path));
    if (i >= 0) paths_.NoticeChanged(place.asked, "its version is in " + Escape(place.path));
    Touched(place);
    flush_.TouchedAttributes(parent, place.name);
    return FinishMeta(place, place.name, meta, MetaFor::kOpenDirectory);
  }
  return Error(Code::kExists, Escape(place.path) + ": too many versions lie beside it: remove some");
}

Status ApplierImpl::Remove(const WriteBack& message) {
  VRUN_ASSIGN(auto place, paths_.Find(message.path()));
  if (!place) return {};
  int parent = place->parent.get();
  VRUN_ASSIGN(auto current, LstatAt(parent, place->name));
  if (!current) return {};
  std::string job = paths_.JobShown();
  if (!message.has_base() || !Matches(*current, message.base())) {
    kept_.insert(place->path);
    if (!MayBeRepeated(message)) paths_.NoticeChanged(place->path, "the job removed it, but it stays");
    return {};
  }
  bool directory = S_ISDIR(current->st_mode);
  UniqueFd old = Watch(*place, *current);
  int error =
      WithWritable(parent, [&] { return ::unlinkat(parent, place->name.c_str(), directory ? AT_REMOVEDIR : 0); });
  if (error == ENOTEMPTY || error == EEXIST || (directory && error == EBUSY)) {
    auto below = kept_.lower_bound(place->path + "/");
    bool told = below != kept_.end() && AtOrBelow(*below, place->path);
    kept_.insert(place->path);
    if (!told) {
      paths_.Notice(Escape(place->path) + " was removed by job " + job +
                    ", but it stays: it contains files that the job did not see");
    }
    return {};
  }
  if (error != 0 && error != ENOENT) return ErrnoError(error, "remove " + Escape(place->path));
  Remember(old);
  Touched(*place);
  return {};
}

// --- renames ---

// A move between file systems of home, which the job saw as one: copy, then remove the original.
Status ApplierImpl::MoveAcross(const Place& from, const Place& to, uint64_t sequence) {
  std::string temporary = TemporaryName(sequence);
  int parent = to.parent.get();
  VRUN_TRY(RemoveTree("/proc/self/fd/" + std::to_string(parent) + "/" + temporary));
  VRUN_TRY(CopyTree(from.parent.get(), from.name, parent, temporary));
  int error = WithWritable(parent, [&] { return RenameToFreeName(parent, temporary, parent, to.name); });
  if (error != 0) {
    (void)RemoveTree("/proc/self/fd/" + std::to_string(parent) + "/" + temporary);
    return ErrnoError(error, "write " + Escape(to.path));
  }
  flush_.TouchedMuch(parent);
  VRUN_TRY(flush_.Flush());  // before the original is removed
  return RemoveTree("/proc/self/fd/" + std::to_string(from.parent.get()) + "/" + from.name);
}

Status ApplierImpl::Rename(const WriteBack& message) {
  const auto& rename = message.rename();
  VRUN_TRY(CheckRootPath(rename.from()));
  if (rename.from() == "/" || AtOrBelow(message.path(), rename.from()) || !rename.has_source()) {
    return Error(Code::kInvalid, Escape(message.path()) + ": an impossible rename from " + Escape(rename.from()));
  }
  VRUN_ASSIGN(Place to, paths_.FindOrMakeParents(message.path()));
  VRUN_ASSIGN(auto from, paths_.Find(rename.from()));
  const bool aside = NameOf(message.path()).starts_with(prefix_);
  if (aside) paths_.SetAside(message.path(), rename.from());
  if (paths_.HasHiddenBelow(to.path) || (from && paths_.HasHiddenBelow(from->path))) {
    return Error(Code::kDenied,
                 Escape(rename.from()) + ": jobs may not rename it: the deny-list hides something below it from them");
  }
  std::optional<struct stat> from_st;
  if (from) {
    VRUN_ASSIGN(from_st, LstatAt(from->parent.get(), from->name));
  }
  VRUN_ASSIGN(auto current, LstatAt(to.parent.get(), to.name));
  UniqueFd inode;
  auto finish = [&]() -> Status {
    Touched(to);
    if (rename.has_meta()) {
      VRUN_TRY(FinishMeta(to, to.name, rename.meta(), MetaFor::kFinal));
      flush_.TouchedAttributes(to.parent.get(), to.name);
    }
    Remember(inode, rename.has_meta());
    return {};
  };
  const BaseVersion& source = rename.source();
  bool is_source = from_st && IsInode(*from_st, source);
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
      int error =
          WithWritable(from->parent.get(), [&] { return ::unlinkat(from->parent.get(), from->name.c_str(), 0); });
      if (error != 0 && error != ENOENT) return ErrnoError(error, "remove " + Escape(from->path));
    }
    inode = Watch(to, *current);  // its other names must still count as ours
    return finish();
  }
  bool own_name = NameOf(rename.from()).starts_with(prefix_);
  if (!is_source || !Matches(*from_st, source, own_name)) {
    // A copy on another file system has another inode: we can only see that the source is absent and the target exists.
    bool repeated = MayBeRepeated(message) || (MayBeDone(message) && !from_st && current &&
                                               (current->st_mode & S_IFMT) == source.type() && !message.has_base());
    if (repeated) return {};
    VRUN_ASSIGN(const bool restored, Restore(message, rename.seen(), to, rename.has_meta() ? &rename.meta() : nullptr));
    if (restored) {
      if (!own_name && !aside) {
        paths_.NoticeChanged(rename.from(), (from_st ? "it stays, and " : "") + Escape(to.path) +
                                                " is a copy of what the job had there");
      }
      return {};
    }
    // If the file could not be put aside under one of our names, that was reported then.
    if (!own_name) {
      paths_.NoticeChanged(rename.from(), aside ? "it was not renamed as the job did"
                                                : "it was not renamed to " + Escape(message.path()));
    }
    return {};
  }
  inode = Watch(*from, *from_st);

  bool replace = false;
  auto move = [&]() -> int {
    auto call = [&] {
      return replace ? ::renameat(from->parent.get(), from->name.c_str(), to.parent.get(), to.name.c_str())
                     : RenameToFreeName(from->parent.get(), from->name, to.parent.get(), to.name);
    };
    auto with_target = [&] {
      int error = WithWritable(to.parent.get(), call);
      errno = error;
      return error == 0 ? 0 : -1;
    };
    return WithWritable(from->parent.get(), with_target);
  };
  UniqueFd old;
  if (current && message.has_base() && Matches(*current, message.base())) {
    old = Watch(to, *current);
    if (S_ISDIR(current->st_mode) == S_ISDIR(from_st->st_mode) && current->st_dev == from_st->st_dev) {
      replace = true;
      current.reset();
    } else {
      // rename(2) does not replace a different type.
      int error = WithWritable(to.parent.get(), [&] {
        return ::unlinkat(to.parent.get(), to.name.c_str(), S_ISDIR(current->st_mode) ? AT_REMOVEDIR : 0);
      });
      if (error == 0) {
        current.reset();
      } else if (error != ENOTEMPTY && error != EEXIST) {
        return ErrnoError(error, "replace " + Escape(to.path));
      }
    }
  }
  for (int i = -1; i < kMaxBeside;) {
    if (current) {
      to.name = paths_.BesideName(std::string(NameOf(to.asked)), ++i);
      to.path = ChildOf(ParentOf(to.path), to.name);
      VRUN_ASSIGN(current, LstatAt(to.parent.get(), to.name));
      continue;
    }
    if (i >= 0) {
      VRUN_TRY(journal_.Add(to.asked, to.path));
    }
    int error = move();
    if (error == EEXIST || error == ENOTEMPTY) {
      replace = false;
      VRUN_ASSIGN(current, LstatAt(to.parent.get(), to.name));
      continue;
    }
    if (error == EXDEV) {
      VRUN_TRY(MoveAcross(*from, to, message.sequence()));
    } else if (error != 0) {
      return ErrnoError(error, "rename " + Escape(from->path) + " to " + Escape(to.path));
    }
    Remember(old);
    Touched(*from);
    if (i >= 0) paths_.NoticeChanged(to.asked, "its version is in " + Escape(to.path));
    return finish();
  }
  return Error(Code::kExists, Escape(to.path) + ": too many versions lie beside it: remove some");
}

Result<bool> ApplierImpl::Restore(const WriteBack& message, const std::string& seen, Place& to, const Meta* meta) {
  if (!options_.restore || seen.empty()) return false;
  const int parent = to.parent.get();
  const std::string temporary = TemporaryName(message.sequence());
  const std::string temporary_path = "/proc/self/fd/" + std::to_string(parent) + "/" + temporary;
  VRUN_TRY(RemoveTree(temporary_path));
  struct Made {
    std::pair<dev_t, ino_t> inode;
    int64_t ctime_ns = 0;
    ino_t was = 0;
  };
  std::vector<Made> all;
  Status made;
  const int error = WithWritable(parent, [&] {
    all.clear();
    made = options_.restore(seen, parent, temporary, [&](int fd, const tree::Entry& was) {
      struct stat st {};
      if (::fstat(fd, &st) != 0) return;
      all.push_back({{st.st_dev, st.st_ino}, ToNanos(st.st_ctim), tree::ShownInode(was.dev, was.ino, root_dev_)});
    });
    errno = made ? 0 : made.error().error_number();
    return made || errno == 0 ? 0 : -1;
  });
  if (!made) {
    VRUN_TRY(RemoveTree(temporary_path));
    const bool full = error == ENOSPC || error == EDQUOT || error == EMFILE || error == ENFILE || error == ENOMEM;
    if (full) return std::move(made).error().With("write " + Escape(to.path));
    return false;
  }
  for (const Made& one : all) {
    restored_[one.inode] = one.was;
    own_ctime_[one.inode] = one.ctime_ns;
  }
  flush_.TouchedMuch(parent);
  if (Status put = Install(to, temporary, meta, BaseOf(message)); !put) {
    (void)RemoveTree(temporary_path);
    return std::move(put).error();
  }
  if (meta != nullptr) VRUN_TRY(FinishMeta(to, to.name, *meta, MetaFor::kFinal));
  // A new name, and attributes lost in a conflict, change the ctime.
  const auto st = LstatAt(parent, to.name);
  if (st && *st) own_ctime_[{(*st)->st_dev, (*st)->st_ino}] = ToNanos((*st)->st_ctim);
  Touched(to);
  return true;
}

}  // namespace vrun::home
