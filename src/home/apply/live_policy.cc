// SPDX-License-Identifier: Apache-2.0
// Names, and the record of the job's own changes.
#include "home/apply/live_policy.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/escape.h"

namespace vrun::home {

using v1::Meta;
using v1::WriteBack;

namespace {

// Limit of remembered files of this series. Beyond it the oldest are forgotten: their next change is sent whole.
constexpr size_t kMostOwn = 200'000;

bool IsInode(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

}  // namespace

LivePolicy::LivePolicy(ApplyContext* context) : ConflictPolicy(context) {
  const ApplyJournal& journal = context_.journal;
  for (const auto& own : journal.own_changes()) own_[{own.device, own.inode}] = {own.ctime_ns, 0, -1};
  context_.sequence = journal.durable_before();
  if (journal.same_boot() && journal.applied_before() > journal.durable_before()) {
    // Applied by a process that died, but perhaps not flushed.
    context_.sequence = journal.applied_before();
    context_.flush.TouchedEverything();
  }
}

std::unique_ptr<ConflictPolicy> MakeLivePolicy(ApplyContext* context) { return std::make_unique<LivePolicy>(context); }

// --- names ---

Status LivePolicy::MakeWay(const Place& place, bool for_directory) {
  const int parent = place.parent.get();
  for (int i = 0; i < kMaxBeside;) {
    VRUN_ASSIGN(const auto current, LstatAt(parent, place.name));
    if (!current || S_ISDIR(current->st_mode) == for_directory) return {};
    if (!for_directory && RemoveName(parent, place.name, /*is_directory=*/true) == 0) return {};
    const std::string beside = context_.paths.BesideName(std::string(NameOf(place.asked)), i);
    const int error = MoveName(parent, place.name, parent, beside, /*replace=*/false);
    if (error == EEXIST) {
      ++i;
      continue;
    }
    if (error != 0) return ErrnoError(error, "replace " + Escape(place.path));
    context_.paths.NoticeChanged(place.path, "what was there is in " + Escape(ChildOf(ParentOf(place.path), beside)));
    return {};
  }
  return ApplyPaths::TooManyBeside(place.path);
}

Status LivePolicy::Install(const std::string& temporary, const Meta* /*meta*/,
                           const std::optional<v1::BaseVersion>& /*base*/, Place* place) {
  const int parent = place->parent.get();
  int error = EISDIR;
  for (int i = 0; i < kMaxBeside && error == EISDIR; ++i) {  // somebody may create a directory there meanwhile
    VRUN_TRY(MakeWay(*place, false));
    error = MoveName(parent, temporary, parent, place->name, /*replace=*/true);
  }
  if (error != 0) return ErrnoError(error, "write " + Escape(place->path));
  // If both were names of one file already, rename(2) does nothing.
  (void)RemoveName(parent, temporary);
  return {};
}

Result<bool> LivePolicy::MakeDirectory(const WriteBack& message, Place* place) {
  VRUN_TRY(MakeWay(*place, true));
  const int parent = place->parent.get();
  const int error = WithWritable(parent, [&] { return ::mkdirat(parent, place->name.c_str(), 0700); });
  if (error != 0 && error != EEXIST) return ErrnoError(error, "make " + Escape(place->path));
  if (error == 0) context_.paths.Forget(message.path());
  return true;
}

Result<bool> LivePolicy::MayRemove(const WriteBack& /*message*/, const Place& place, const struct stat& /*current*/) {
  if (!context_.paths.HasHiddenBelow(place.path)) return true;
  return Error(Code::kDenied,
               Escape(place.path) + ": jobs may not remove it: the deny-list hides something below it from them");
}

Status LivePolicy::Rename(const WriteBack& message, const std::optional<Place>& from,
                          const std::optional<struct stat>& source, Place to) {
  const auto& rename = message.rename();
  if (!source) {
    // Done by an earlier process that died before it could acknowledge it, or somebody at home removed the file.
    VRUN_ASSIGN(const auto current, LstatAt(to.parent.get(), to.name));
    if (!current) context_.paths.NoticeChanged(rename.from(), "it was not renamed to " + Escape(message.path()));
    return {};
  }
  if (rename.exchange()) return Exchange(message, *from, to);
  VRUN_TRY(MakeWay(to, S_ISDIR(source->st_mode)));
  VRUN_ASSIGN(const auto target, LstatAt(to.parent.get(), to.name));
  const UniqueFd replaced = target ? ApplyContext::Hold(to, *target) : UniqueFd();
  const int error = MoveName(from->parent.get(), from->name, to.parent.get(), to.name, /*replace=*/true);
  if (error == ENOTEMPTY || error == EEXIST) {
    // The job saw an empty directory there.
    context_.paths.NoticeChanged(
        to.path, Escape(rename.from()) + " was not renamed to it: it contains files that the job did not see");
    return {};
  }
  if (error == EXDEV) {
    VRUN_TRY(context_.MoveAcross(*from, to, message.sequence(), /*replace=*/true));
  } else if (error != 0) {
    return ErrnoError(error, "rename " + Escape(from->path) + " to " + Escape(to.path));
  }
  context_.Touched(*from);
  context_.Touched(to);
  context_.paths.Forget(rename.from());
  context_.paths.Forget(message.path());
  Done(to, message.sequence(), &*source, /*copied=*/error == EXDEV);
  if (target) LostName(replaced, message.sequence(), *target, /*other=*/true);
  return {};
}

Status LivePolicy::Exchange(const WriteBack& message, const Place& from, const Place& to) {
  VRUN_ASSIGN(const auto source, LstatAt(from.parent.get(), from.name));
  VRUN_ASSIGN(const auto target, LstatAt(to.parent.get(), to.name));
  if (!source || !target) return {};
  const ApplyJournal::Intent& before = context_.journal.intent();
  // Exchanging twice would undo it.
  const bool done =
      before.sequence == message.sequence() && before.device == target->st_dev && before.inode == target->st_ino;
  if (!done) {
    context_.journal.SetIntent({message.sequence(), source->st_dev, source->st_ino, 0});
    const int error = WithWritable(from.parent.get(), [&] {
      return ::renameat2(from.parent.get(), from.name.c_str(), to.parent.get(), to.name.c_str(), RENAME_EXCHANGE);
    });
    if (error != 0) return ErrnoError(error, "exchange " + Escape(from.path) + " and " + Escape(to.path));
  }
  context_.Touched(from);
  context_.Touched(to);
  context_.paths.Forget(message.rename().from());
  context_.paths.Forget(message.path());
  // Done before: the earlier state of both is unknown.
  Done(from, message.sequence(), done ? nullptr : &*target, false, /*other=*/true);
  Done(to, message.sequence(), done ? nullptr : &*source);
  return {};
}

Result<bool> LivePolicy::MaySetMeta(const WriteBack& message, const Place& /*place*/, const struct stat& current) {
  return (current.st_mode & S_IFMT) == (message.set_meta().meta().mode() & S_IFMT);
}

// --- the job's own changes ---

void LivePolicy::MetaSet(const WriteBack& message, const Place& place, const UniqueFd& /*held*/,
                         const struct stat& before) {
  struct stat with_time = before;
  const auto set = LstatAt(place.parent.get(), place.name);
  if (set && *set) with_time.st_mtim = (*set)->st_mtim;
  Done(place, message.sequence(), &with_time);
}

void LivePolicy::Done(const Place& place, uint64_t sequence, const struct stat* before, bool copied, bool other) {
  context_.paths.Use(place);
  const auto found = LstatAt(place.parent.get(), place.name);
  if (!found || !*found) return;
  const struct stat& now = **found;
  if (before != nullptr && ((!copied && !IsInode(*before, now)) || !HasContentOf(*before, now))) return;
  Tell(now, sequence, before, other);
}

void LivePolicy::LostName(const UniqueFd& held, uint64_t sequence, const struct stat& before, bool other) {
  struct stat now {};
  if (!held || ::fstat(held.get(), &now) != 0 || now.st_nlink == 0 || !S_ISREG(now.st_mode)) return;
  if (IsInode(before, now) && HasContentOf(before, now)) Tell(now, sequence, &before, other);
}

bool LivePolicy::IsOwn(const struct stat& st) const {
  const auto own = own_.find({st.st_dev, st.st_ino});
  if (own == own_.end() || own->second.ctime_ns == 0) return false;
  const bool same_content =
      own->second.mtime_ns == ToNanos(st.st_mtim) && own->second.size == static_cast<uint64_t>(st.st_size);
  return same_content || own->second.ctime_ns == ToNanos(st.st_ctim);
}

void LivePolicy::NoteOwn(const struct stat& st, int64_t ctime_ns) {
  if (own_.size() >= kMostOwn) own_.clear();
  own_[{st.st_dev, st.st_ino}] = {ctime_ns, static_cast<uint64_t>(st.st_size), ToNanos(st.st_mtim)};
}

void LivePolicy::Tell(const struct stat& st, uint64_t sequence, const struct stat* before, bool other) {
  if (before != nullptr && !IsInode(*before, st)) before = nullptr;  // a copy
  v1::Applied& applied = context_.applied.emplace_back();
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
  context_.journal.AddOwnChange({st.st_dev, st.st_ino, ToNanos(st.st_ctim)});
}

}  // namespace vrun::home
