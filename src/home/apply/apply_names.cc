// SPDX-License-Identifier: Apache-2.0
// Links, directories and special files, removals, renames and metadata; names that are made only if they are free.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <functional>
#include <optional>

#include "base/escape.h"
#include "base/files.h"
#include "home/apply/apply.h"
#include "home/apply/apply_context.h"
#include "home/apply/conflict_policy.h"

namespace vrun::home {

using v1::Meta;
using v1::WriteBack;

namespace {

constexpr mode_t kOthers = S_IRWXG | S_IRWXO;

// A list of rights counts too: its mask is the mode of the group.
bool OpensToOthers(const Meta& meta) {
  return (meta.mode() & kOthers) != 0 ||
         std::any_of(meta.xattrs().begin(), meta.xattrs().end(),
                     [](const v1::Xattr& xattr) { return xattr.name().starts_with("system.posix_acl_"); });
}

}  // namespace

Status Applier::MakeSymlink(const WriteBack& message) {
  const std::string& target = message.make_symlink().target();
  if (target.empty() || target.size() >= PATH_MAX || target.find('\0') != std::string::npos) {
    return Error(Code::kInvalid, Escape(message.path()) + ": a symbolic link with an impossible target");
  }
  return MakeNamed(message, message.make_symlink().meta(),
                   [&](int directory, const char* name) { return ::symlinkat(target.c_str(), directory, name); });
}

Status Applier::MakeSpecial(const WriteBack& message) {
  const mode_t type = message.make_special().meta().mode() & S_IFMT;
  if (type != S_IFIFO && type != S_IFSOCK) {
    return Error(Code::kInvalid, Escape(message.path()) + ": a job may make FIFOs and sockets, not this");
  }
  return MakeNamed(message, message.make_special().meta(),
                   [&](int directory, const char* name) { return ::mknodat(directory, name, type | 0600, 0); });
}

Status Applier::MakeNamed(const WriteBack& message, const Meta& meta,
                          const std::function<int(int directory, const char* name)>& make) {
  VRUN_ASSIGN(Place place, context_->paths.FindOrMakeParents(message.path()));
  const int parent = place.parent.get();
  const std::string temporary = context_->TemporaryName(message.sequence());
  VRUN_TRY(MakeTemporaryName(parent, temporary, place.path, [&] { return make(parent, temporary.c_str()); }));
  Status status = context_->FinishMeta(place, temporary, meta, MetaFor::kFinal);
  if (status) status = policy_->Install(temporary, &meta, BaseOf(message), &place);
  if (!status) {
    (void)RemoveName(parent, temporary);
    return status;
  }
  context_->paths.Forget(message.path());
  context_->Touched(place);
  policy_->Made(place, message.sequence());
  return {};
}

Status Applier::MakeDirectory(const WriteBack& message) {
  VRUN_ASSIGN(Place place, context_->paths.FindOrMakeParents(message.path()));
  VRUN_ASSIGN(const bool made, policy_->MakeDirectory(message, &place));
  if (!made) return {};
  context_->Touched(place);
  context_->flush.TouchedAttributes(place.parent.get(), place.name);
  VRUN_TRY(context_->FinishMeta(place, place.name, message.make_directory().meta(), MetaFor::kOpenDirectory));
  policy_->Made(place, message.sequence());
  return {};
}

Status Applier::MakeHardLink(const WriteBack& message) {
  const std::string& existing = message.make_hard_link().existing();
  VRUN_TRY(CheckRootPath(existing));
  VRUN_ASSIGN(const auto source, context_->paths.Find(existing));
  std::optional<struct stat> source_st;
  if (source) {
    VRUN_ASSIGN(source_st, LstatAt(source->parent.get(), source->name));
  }
  if (source_st && S_ISDIR(source_st->st_mode)) source_st.reset();
  VRUN_ASSIGN(const bool done, policy_->CopyInsteadOfLink(message, source_st));
  if (done) return {};
  if (!source_st) {
    context_->paths.Notice(Escape(existing) + " was removed at home while job " + context_->paths.JobShown() +
                           " ran: " + Escape(message.path()) + ", a hard link to it, was not made");
    return {};
  }
  VRUN_ASSIGN(Place place, context_->paths.FindOrMakeParents(message.path()));
  const int parent = place.parent.get();
  VRUN_ASSIGN(const auto current, LstatAt(parent, place.name));
  if (current && current->st_ino == source_st->st_ino && current->st_dev == source_st->st_dev) return {};
  const std::string temporary = context_->TemporaryName(message.sequence());
  UniqueFd held;
  if (auto fd = OpenName(source->parent.get(), source->name)) held = *std::move(fd);
  const Status linked = LinkAs(*source, *source_st, place, temporary);
  if (!linked) {
    const int error = linked.error().error_number();
    if (error != EXDEV && error != EMLINK && error != EPERM) return linked;
    // Another file system, or somebody else's file: copy instead.
    VRUN_TRY(CopyAs(*source, place, temporary));
  }
  if (Status status = policy_->Install(temporary, nullptr, BaseOf(message), &place); !status) {
    (void)RemoveName(parent, temporary);
    return status;
  }
  context_->paths.Forget(message.path());
  context_->Touched(place);
  policy_->Linked(place, message.sequence(), held, *source_st, !linked);
  return {};
}

// EPERM: a file of somebody who could not be given one there.
Status Applier::LinkAs(const Place& source, const struct stat& source_st, const Place& place,
                       const std::string& temporary) {
  const int parent = place.parent.get();
  if (!context_->MayBring(source_st, parent)) return ErrnoError(EPERM, "link " + Escape(place.path));
  return MakeTemporaryName(parent, temporary, place.path, [&] {
    return ::linkat(source.parent.get(), source.name.c_str(), parent, temporary.c_str(), 0);
  });
}

Status Applier::CopyAs(const Place& source, const Place& place, const std::string& temporary) {
  const int parent = place.parent.get();
  VRUN_ASSIGN(const auto copied, LstatAt(source.parent.get(), source.name));
  if (copied) VRUN_TRY(context_->CheckWithheld(source, *copied));
  VRUN_TRY(RemoveTree(NamePath(parent, temporary)));
  VRUN_TRY(CopyTree(source.parent.get(), source.name, parent, temporary));
  context_->flush.TouchedMuch(parent);
  return context_->TakeCopy(place, temporary);
}

Status Applier::Remove(const WriteBack& message) {
  VRUN_ASSIGN(const auto place, context_->paths.Find(message.path()));
  if (!place) return {};
  VRUN_ASSIGN(const auto current, LstatAt(place->parent.get(), place->name));
  if (!current) return {};
  VRUN_ASSIGN(const bool may, policy_->MayRemove(message, *place, *current));
  if (!may) return {};
  const bool directory = S_ISDIR(current->st_mode);
  const UniqueFd held = ApplyContext::Hold(*place, *current);
  const int error = RemoveName(place->parent.get(), place->name, directory);
  if (error == ENOTEMPTY || error == EEXIST || (directory && error == EBUSY)) {
    if (policy_->TellNotEmpty(*place)) {
      context_->paths.Notice(Escape(place->path) + " was removed by job " + context_->paths.JobShown() +
                             ", but it stays: it contains files that the job did not see");
    }
    return {};
  }
  if (error != 0 && error != ENOENT) return ErrnoError(error, "remove " + Escape(place->path));
  context_->paths.Forget(message.path());
  context_->Touched(*place);
  policy_->Removed(message.sequence(), held, *current);
  return {};
}

Status Applier::Rename(const WriteBack& message) {
  const std::string& source = message.rename().from();
  VRUN_TRY(CheckRootPath(source));
  if (source == "/" || AtOrBelow(message.path(), source)) {
    return Error(Code::kInvalid, Escape(message.path()) + ": an impossible rename from " + Escape(source));
  }
  VRUN_ASSIGN(Place to, context_->paths.FindOrMakeParents(message.path()));
  VRUN_ASSIGN(const auto from, context_->paths.Find(source));
  if (context_->paths.HasHiddenBelow(to.path) || (from && context_->paths.HasHiddenBelow(from->path))) {
    return Error(Code::kDenied,
                 Escape(source) + ": jobs may not rename it: the deny-list hides something below it from them");
  }
  std::optional<struct stat> source_st;
  if (from) {
    VRUN_ASSIGN(source_st, LstatAt(from->parent.get(), from->name));
  }
  VRUN_ASSIGN(const auto target_st, LstatAt(to.parent.get(), to.name));
  const auto several = [&](const std::optional<struct stat>& st, int directory) {
    return st && !S_ISDIR(st->st_mode) && st->st_nlink > 1 && !context_->MayBring(*st, directory);
  };
  const bool exchange = message.rename().exchange() && from;
  if (several(source_st, to.parent.get()) || (exchange && several(target_st, from->parent.get()))) {
    return Error(Code::kDenied,
                 Escape(source) + ": jobs may not move it: it is another user's and has several names (job_writes)");
  }
  VRUN_TRY(policy_->Rename(message, from, source_st, std::move(to)));
  if (source_st) VRUN_TRY(context_->LeaveForeignOwner(message.path(), *source_st, target_st));
  if (exchange && target_st) VRUN_TRY(context_->LeaveForeignOwner(source, *target_st, source_st));
  return {};
}

Status Applier::SetMeta(const WriteBack& message) {
  const Meta& meta = message.set_meta().meta();
  if ((meta.mode() & S_IFMT) == 0) return TakeLoss(message);
  VRUN_ASSIGN(const auto place, context_->paths.FindOrRoot(message.path()));
  if (!place) return {};
  VRUN_ASSIGN(const auto current, LstatAt(place->parent.get(), place->name));
  if (!current) return {};
  VRUN_ASSIGN(const bool may, policy_->MaySetMeta(message, *place, *current));
  if (!may) return {};
  // Keys are known by a mode that keeps others out.
  if ((current->st_mode & kOthers) == 0 && OpensToOthers(meta) && !policy_->IsOwn(*current)) {
    VRUN_TRY(context_->CheckWithheld(*place, *current));
  }
  const UniqueFd held = ApplyContext::Hold(*place, *current);
  VRUN_TRY(context_->FinishMeta(*place, place->name, meta, MetaFor::kFinal));
  context_->flush.TouchedAttributes(place->parent.get(), place->name);
  context_->Touched(*place);
  policy_->MetaSet(message, *place, held, *current);
  return {};
}

// The end of the node's list of losses; or a file (reported twice) that it cannot deliver.
Status Applier::TakeLoss(const WriteBack& message) {
  if (message.path() == "/") return {};
  if (given_up_ == message.path()) {
    given_up_.clear();
    return {};
  }
  given_up_ = message.path();
  return Error(Code::kAborted,
               Escape(message.path()) + ": home removed, renamed or replaced it, or home and the job both changed it");
}

// --- exclusive operations of live views: docs/decisions/0047 ---------------------------------------------------------

// The name appears with its final mode and target, by one rename that fails if the name exists. So home's own programs,
// which make such names with O_EXCL, mkdir, symlink or link, and other nodes never get the same name too.
Status Applier::Claim(const WriteBack& message) {
  VRUN_ASSIGN(const Place place, context_->paths.FindOrMakeParents(message.path()));
  const int parent = place.parent.get();
  const std::string temporary = context_->TemporaryName(message.sequence());
  const auto refuse = [&]() -> Status {
    taken_names_.push_back(message.sequence());
    context_->journal.AddRefused(message.sequence());
    return {};
  };
  // Refused by a process that died before it could tell: the name may be free by now, but the answer stays.
  const auto& refused = context_->journal.refused();
  if (std::find(refused.begin(), refused.end(), message.sequence()) != refused.end()) return refuse();
  if (RemoveName(parent, temporary) == EISDIR) (void)RemoveName(parent, temporary, /*is_directory=*/true);
  std::optional<struct stat> source;  // of a link, before it
  UniqueFd held;
  if (message.has_make_hard_link()) {
    VRUN_TRY(CheckRootPath(message.make_hard_link().existing()));
    VRUN_ASSIGN(const auto from, context_->paths.Find(message.make_hard_link().existing()));
    if (from) {
      VRUN_ASSIGN(source, LstatAt(from->parent.get(), from->name));
      if (auto fd = OpenName(from->parent.get(), from->name)) held = *std::move(fd);
    }
  }
  VRUN_ASSIGN(const auto current, LstatAt(parent, place.name));
  if (current) {
    // The process that made it may have died before it could note that.
    const ApplyJournal::Intent& begun = context_->journal.intent();
    const bool made =
        begun.sequence == message.sequence() && begun.device == current->st_dev && begun.inode == current->st_ino;
    if (!made) return refuse();
  } else {
    VRUN_TRY(MakeClaimed(message, place, temporary));
    VRUN_ASSIGN(const auto made, LstatAt(parent, temporary));
    if (!made) return Error(Code::kAborted, Escape(place.path) + ": somebody removed its temporary name");
    context_->journal.SetIntent({message.sequence(), made->st_dev, made->st_ino, 0});
    if (const int error = MoveName(parent, temporary, parent, place.name, /*replace=*/false); error != 0) {
      (void)RemoveName(parent, temporary, S_ISDIR(made->st_mode));
      if (error == EEXIST) return refuse();
      return ErrnoError(error, "make " + Escape(place.path));
    }
  }
  context_->paths.Forget(message.path());
  context_->Touched(place);
  if (source) {
    VRUN_ASSIGN(const auto now, LstatAt(parent, place.name));
    const bool copied = !now || now->st_dev != source->st_dev || now->st_ino != source->st_ino;
    policy_->Linked(place, message.sequence(), held, *source, copied);
  } else {
    policy_->Made(place, message.sequence());
  }
  return {};
}

Status Applier::MakeClaimed(const WriteBack& message, const Place& place, const std::string& temporary) {
  const int parent = place.parent.get();
  const char* const name = temporary.c_str();
  const v1::Meta* meta = nullptr;
  std::function<int()> make;
  switch (message.op_case()) {
    case WriteBack::kPutFile:
      meta = &message.put_file().meta();
      make = [&] {
        return UniqueFd(::openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)) ? 0 : -1;
      };
      break;
    case WriteBack::kMakeDirectory:
      meta = &message.make_directory().meta();
      make = [&] { return ::mkdirat(parent, name, 0700); };
      break;
    case WriteBack::kMakeSymlink: {
      const std::string& target = message.make_symlink().target();
      if (target.empty() || target.size() >= PATH_MAX || target.find('\0') != std::string::npos) break;
      meta = &message.make_symlink().meta();
      make = [&] { return ::symlinkat(target.c_str(), parent, name); };
      break;
    }
    case WriteBack::kMakeSpecial: {
      meta = &message.make_special().meta();
      const mode_t type = meta->mode() & S_IFMT;
      if (type != S_IFIFO && type != S_IFSOCK) break;
      make = [&, type] { return ::mknodat(parent, name, type | 0600, 0); };
      break;
    }
    case WriteBack::kMakeHardLink: {
      VRUN_ASSIGN(const auto source, context_->paths.Find(message.make_hard_link().existing()));
      if (!source) return ErrnoError(ENOENT, "link " + Escape(place.path));
      VRUN_ASSIGN(const auto source_st, LstatAt(source->parent.get(), source->name));
      if (!source_st) return ErrnoError(ENOENT, "link " + Escape(place.path));
      const Status linked = LinkAs(*source, *source_st, place, temporary);
      const int error = linked ? 0 : linked.error().error_number();
      if (error != EXDEV && error != EMLINK && error != EPERM) return linked;
      return CopyAs(*source, place, temporary);
    }
    default: break;
  }
  if (!make) return Error(Code::kInvalid, Escape(message.path()) + ": an exclusive operation that makes nothing");
  VRUN_TRY(MakeTemporaryName(parent, temporary, place.path, make));
  return context_->FinishMeta(place, temporary, *meta, MetaFor::kFinal);
}

}  // namespace vrun::home
