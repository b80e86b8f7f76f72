// SPDX-License-Identifier: Apache-2.0
// Links, directories and special files, removals, renames and metadata.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>

#include "base/escape.h"
#include "base/files.h"
#include "home/apply/apply.h"
#include "home/apply/apply_context.h"
#include "home/apply/conflict_policy.h"

namespace vrun::home {

using v1::Meta;
using v1::WriteBack;

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
  const Status linked = MakeTemporaryName(parent, temporary, place.path, [&] {
    return ::linkat(source->parent.get(), source->name.c_str(), parent, temporary.c_str(), 0);
  });
  if (!linked) {
    const int error = linked.error().error_number();
    if (error != EXDEV && error != EMLINK && error != EPERM) return linked;
    // Another file system, or somebody else's file: copy instead.
    VRUN_TRY(CopyTree(source->parent.get(), source->name, parent, temporary));
    context_->flush.TouchedMuch(parent);
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
  return policy_->Rename(message, from, source_st, std::move(to));
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

}  // namespace vrun::home
