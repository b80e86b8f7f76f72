// SPDX-License-Identifier: Apache-2.0
// Applies a live view's operations on names and on everything that is not a regular file.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/escape.h"
#include "base/files.h"
#include "home/apply/apply_live_internal.h"

namespace vrun::home {

using vrun::v1::Meta;
using vrun::v1::WriteBack;

Status LiveApplier::MakeNamed(const WriteBack& message, const Meta& meta,
                              const std::function<int(int, const char*)>& make) {
  VRUN_ASSIGN(const Place place, paths_.FindOrMakeParents(message.path()));
  const std::string temporary = TemporaryName(message.sequence());
  VRUN_TRY(MakeTemporaryName(place.parent.get(), temporary, place.path,
                             [&] { return make(place.parent.get(), temporary.c_str()); }));
  Status status = FinishMeta(place, temporary, meta, MetaFor::kFinal);
  if (status) status = Install(place, temporary);
  if (!status) {
    DropTemporary(place, temporary);
    return status;
  }
  paths_.Forget(message.path());
  Done(place, message.sequence(), nullptr);
  return {};
}

Status LiveApplier::MakeHardLink(const WriteBack& message) {
  const std::string& existing = message.make_hard_link().existing();
  VRUN_TRY(CheckRootPath(existing));
  VRUN_ASSIGN(const auto source, paths_.Find(existing));
  std::optional<struct stat> source_st;
  if (source) {
    VRUN_ASSIGN(source_st, LstatAt(source->parent.get(), source->name));
  }
  if (!source_st || S_ISDIR(source_st->st_mode)) {
    paths_.Notice(Escape(existing) + " was removed at home while the job ran: " + Escape(message.path()) +
                  ", a hard link to it, was not made");
    return {};
  }
  VRUN_ASSIGN(const Place place, paths_.FindOrMakeParents(message.path()));
  VRUN_ASSIGN(const auto current, LstatAt(place.parent.get(), place.name));
  if (current && current->st_ino == source_st->st_ino && current->st_dev == source_st->st_dev) return {};
  const std::string temporary = TemporaryName(message.sequence());
  const Status made = MakeTemporaryName(place.parent.get(), temporary, place.path, [&] {
    return ::linkat(source->parent.get(), source->name.c_str(), place.parent.get(), temporary.c_str(), 0);
  });
  if (!made) {
    const int error = made.error().error_number();
    if (error != EXDEV && error != EMLINK && error != EPERM) return made;
    // Another file system, or somebody else's file: copy instead.
    VRUN_TRY(CopyTree(source->parent.get(), source->name, place.parent.get(), temporary));
    flush_.TouchedMuch(place.parent.get());
  }
  if (const Status status = Install(place, temporary); !status) {
    DropTemporary(place, temporary);
    return status;
  }
  paths_.Forget(message.path());
  Done(place, message.sequence(), &*source_st, !made);
  return {};
}

Status LiveApplier::MakeDirectory(const WriteBack& message) {
  VRUN_ASSIGN(const Place place, paths_.FindOrMakeParents(message.path()));
  VRUN_TRY(MakeWay(place, true));
  const int parent = place.parent.get();
  const int error = WithWritable(parent, [&] { return ::mkdirat(parent, place.name.c_str(), 0700); });
  if (error != 0 && error != EEXIST) return ErrnoError(error, "make " + Escape(place.path));
  if (error == 0) paths_.Forget(message.path());
  VRUN_TRY(FinishMeta(place, place.name, message.make_directory().meta(), MetaFor::kOpenDirectory));
  flush_.TouchedAttributes(parent, place.name);
  Done(place, message.sequence(), nullptr);
  return {};
}

Status LiveApplier::Remove(const WriteBack& message) {
  VRUN_ASSIGN(const auto place, paths_.Find(message.path()));
  if (!place) return {};
  const int parent = place->parent.get();
  VRUN_ASSIGN(const auto current, LstatAt(parent, place->name));
  if (!current) return {};
  if (paths_.HasHiddenBelow(place->path)) {
    return Error(Code::kDenied,
                 Escape(place->path) + ": jobs may not remove it: the deny-list hides something below it from them");
  }
  const bool directory = S_ISDIR(current->st_mode);
  const UniqueFd file = Hold(*place, current);
  const int error =
      WithWritable(parent, [&] { return ::unlinkat(parent, place->name.c_str(), directory ? AT_REMOVEDIR : 0); });
  if (error == ENOTEMPTY || error == EEXIST || (directory && error == EBUSY)) {
    paths_.Notice(Escape(place->path) +
                  " was removed by the job, but it stays: it contains files that the job did not see");
    return {};
  }
  if (error != 0 && error != ENOENT) return ErrnoError(error, "remove " + Escape(place->path));
  flush_.Touched(parent);
  paths_.Forget(message.path());
  LostName(file, message.sequence(), current, false);
  return {};
}

Status LiveApplier::Rename(const WriteBack& message) {
  const auto& rename = message.rename();
  VRUN_TRY(CheckRootPath(rename.from()));
  if (rename.from() == "/" || AtOrBelow(message.path(), rename.from())) {
    return Error(Code::kInvalid, Escape(message.path()) + ": an impossible rename from " + Escape(rename.from()));
  }
  VRUN_ASSIGN(const Place to, paths_.FindOrMakeParents(message.path()));
  VRUN_ASSIGN(const auto from, paths_.Find(rename.from()));
  if (paths_.HasHiddenBelow(to.path) || (from && paths_.HasHiddenBelow(from->path))) {
    return Error(Code::kDenied,
                 Escape(rename.from()) + ": jobs may not rename it: the deny-list hides something below it from them");
  }
  std::optional<struct stat> source;
  if (from) {
    VRUN_ASSIGN(source, LstatAt(from->parent.get(), from->name));
  }
  if (!source) {
    // Done by an earlier process that died before it could acknowledge it, or somebody at home removed the file.
    VRUN_ASSIGN(const auto current, LstatAt(to.parent.get(), to.name));
    if (!current) paths_.NoticeChanged(rename.from(), "it was not renamed to " + Escape(message.path()));
    return {};
  }
  if (rename.exchange()) return Exchange(message, *from, to);
  VRUN_TRY(MakeWay(to, S_ISDIR(source->st_mode)));
  VRUN_ASSIGN(const auto target, LstatAt(to.parent.get(), to.name));
  const UniqueFd replaced = Hold(to, target);
  const auto move = [&] {
    return ::renameat(from->parent.get(), from->name.c_str(), to.parent.get(), to.name.c_str());
  };
  int error = WithWritable(from->parent.get(), [&] {
    const int result = WithWritable(to.parent.get(), move);
    errno = result;
    return result == 0 ? 0 : -1;
  });
  if (error == ENOTEMPTY || error == EEXIST) {
    // The job saw an empty directory there.
    paths_.NoticeChanged(to.path,
                         Escape(rename.from()) + " was not renamed to it: it contains files that the job did not see");
    return {};
  }
  const bool copied = error == EXDEV;
  if (copied) {
    // A move between file systems of home, which the job sees as one.
    const std::string temporary = TemporaryName(message.sequence());
    (void)RemoveTree("/proc/self/fd/" + std::to_string(to.parent.get()) + "/" + temporary);
    VRUN_TRY(CopyTree(from->parent.get(), from->name, to.parent.get(), temporary));
    error = WithWritable(to.parent.get(), [&] {
      return ::renameat(to.parent.get(), temporary.c_str(), to.parent.get(), to.name.c_str());
    });
    if (error == 0) {
      flush_.TouchedMuch(to.parent.get());
      VRUN_TRY(flush_.Flush());  // before the original is removed
      VRUN_TRY(RemoveTree("/proc/self/fd/" + std::to_string(from->parent.get()) + "/" + from->name));
    }
  }
  if (error != 0) return ErrnoError(error, "rename " + Escape(from->path) + " to " + Escape(to.path));
  flush_.Touched(from->parent.get());
  paths_.Forget(rename.from());
  paths_.Forget(message.path());
  Done(to, message.sequence(), &*source, copied);
  LostName(replaced, message.sequence(), target, true);
  return {};
}

Status LiveApplier::Exchange(const WriteBack& message, const Place& from, const Place& to) {
  VRUN_ASSIGN(const auto source, LstatAt(from.parent.get(), from.name));
  VRUN_ASSIGN(const auto target, LstatAt(to.parent.get(), to.name));
  if (!source || !target) return {};
  const ApplyJournal::Intent& before = journal_.intent();
  // Exchanging twice would undo it.
  const bool done =
      before.sequence == message.sequence() && before.device == target->st_dev && before.inode == target->st_ino;
  if (!done) {
    journal_.SetIntent({message.sequence(), source->st_dev, source->st_ino, 0});
    const int error = WithWritable(from.parent.get(), [&] {
      return ::renameat2(from.parent.get(), from.name.c_str(), to.parent.get(), to.name.c_str(), RENAME_EXCHANGE);
    });
    if (error != 0) return ErrnoError(error, "exchange " + Escape(from.path) + " and " + Escape(to.path));
  }
  paths_.Forget(message.rename().from());
  paths_.Forget(message.path());
  // Done before: the earlier state of both is unknown.
  Done(from, message.sequence(), done ? nullptr : &*target, false, true);
  Done(to, message.sequence(), done ? nullptr : &*source);
  return {};
}

Status LiveApplier::SetMeta(const WriteBack& message) {
  const Meta& meta = message.set_meta().meta();
  if ((meta.mode() & S_IFMT) == 0) {
    // The end of the node's list of losses; or a file (reported twice) that it cannot deliver.
    if (message.path() == "/") return {};
    if (given_up_ == message.path()) {
      given_up_.clear();
      return {};
    }
    given_up_ = message.path();
    return Error(Code::kAborted, Escape(message.path()) +
                                     ": home removed, renamed or replaced it, or home and the job both changed it");
  }
  VRUN_ASSIGN(const auto found, paths_.FindOrRoot(message.path()));
  if (!found) return {};
  const Place& place = *found;
  VRUN_ASSIGN(auto current, LstatAt(place.parent.get(), place.name));
  if (!current || (current->st_mode & S_IFMT) != (meta.mode() & S_IFMT)) return {};
  VRUN_TRY(FinishMeta(place, place.name, meta, MetaFor::kFinal));
  flush_.TouchedAttributes(place.parent.get(), place.name);
  VRUN_ASSIGN(const auto set, LstatAt(place.parent.get(), place.name));
  if (set) current->st_mtim = set->st_mtim;
  Done(place, message.sequence(), &*current);
  return {};
}

}  // namespace vrun::home
