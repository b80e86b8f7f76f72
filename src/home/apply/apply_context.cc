// SPDX-License-Identifier: Apache-2.0
#include "home/apply/apply_context.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/escape.h"
#include "base/files.h"
#include "home/scope/write_scope.h"

namespace vrun::home {
namespace {
constexpr size_t kMostWanted = 4096;
}  // namespace

Status ApplyContext::MakeTemporaryFile(IncomingFile* file) const {
  file->temporary = TemporaryName(file->sequence);
  const int parent = file->place.parent.get();
  return MakeTemporaryName(parent, file->temporary, file->place.path, [&] {
    file->fd.Reset(::openat(parent, file->temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    return file->fd ? 0 : -1;
  });
}

Status ApplyContext::FinishMeta(const Place& place, const std::string& name, const v1::Meta& meta, MetaFor use) {
  const auto fd = OpenName(place.parent.get(), name);
  if (!fd && fd.error().error_number() == ENOENT && name == place.name) return {};
  if (!fd) return fd.error();
  VRUN_ASSIGN(const auto before, LstatAt(place.parent.get(), place.name));
  std::string left_out;
  const v1::Meta wanted = KeepOwners(meta, before);
  const v1::Meta permitted =
      Permitted(wanted, allowed(), paths.owners(), {fd->get(), place.parent.get(), before}, &left_out);
  Status status = SetFileMeta(fd->get(), permitted, use, &left_out);
  if (!status) return std::move(status).error().With(Escape(place.path));
  if (!left_out.empty()) paths.NoticeLeftOut(place.path, left_out);
  if (permitted.uid() == wanted.uid() && permitted.gid() == wanted.gid()) return {};
  struct stat now {};
  if (::fstat(fd->get(), &now) == 0) {
    if (wanted_owners_.size() >= kMostWanted) wanted_owners_.clear();
    wanted_owners_[now.st_ino] = {wanted.uid(), wanted.gid()};
  }
  paths.NoticeOwner(place.path, wanted.uid(), wanted.gid());
  return {};
}

JobWrites ApplyContext::allowed() const {
  const auto rules = options.rules ? options.rules() : nullptr;
  return rules ? rules->writes() : JobWrites::kPlain;
}

Status ApplyContext::CheckWithheld(const Place& place, const struct stat& st) const {
  if (!options.judge || !S_ISREG(st.st_mode)) return {};
  for (const std::string& exposed : options.exposed) {
    if (AtOrBelow(place.path, exposed)) return {};
  }
  const UniqueFd fd(
      ::openat(place.parent.get(), place.name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat now {};
  if (fd && ::fstat(fd.get(), &now) == 0) return options.judge(fd.get(), now, place.path);
  // What this user may not read himself is not served, and what it is nobody knows.
  return errno == EACCES ? PrivateFile(place.path) : Status();
}

bool ApplyContext::MayBring(const struct stat& file, int directory) const {
  return vrun::home::MayBring(file, allowed(), paths.owners(), directory);
}

Status ApplyContext::LeaveForeignOwner(const std::string& asked, const struct stat& moved,
                                       const std::optional<struct stat>& replaced) {
  if (::geteuid() != 0 || allowed() == JobWrites::kAny) return {};
  const auto wanted = wanted_owners_.find(moved.st_ino);
  const bool gets = wanted != wanted_owners_.end() && replaced && replaced->st_uid == wanted->second.first;
  if (!gets && moved.st_uid == ::geteuid()) return {};
  VRUN_ASSIGN(const auto place, paths.Find(asked));
  if (!place) return {};
  const auto fd = OpenName(place->parent.get(), place->name);
  struct stat now {};
  if (!fd || ::fstat(fd->get(), &now) != 0 || now.st_ino != moved.st_ino) return {};
  if (gets) {
    const gid_t gid = replaced->st_gid == wanted->second.second ? replaced->st_gid : static_cast<gid_t>(-1);
    (void)::fchownat(fd->get(), "", wanted->second.first, gid, AT_EMPTY_PATH);
    wanted_owners_.erase(wanted);
    return {};
  }
  if (replaced && replaced->st_uid == now.st_uid) return {};
  if (MayBring(now, place->parent.get())) return {};
  if (::fchownat(fd->get(), "", ::geteuid(), ::getegid(), AT_EMPTY_PATH) != 0) {
    return ErrnoError("take " + Escape(place->path));
  }
  paths.NoticeOwner(place->path, now.st_uid, now.st_gid);
  return {};
}

Status ApplyContext::TakeCopy(const Place& place, const std::string& name) {
  VRUN_ASSIGN(const auto st, LstatAt(place.parent.get(), name));
  if (!st || MayBring(*st, place.parent.get())) return {};
  if (::fchownat(place.parent.get(), name.c_str(), ::geteuid(), ::getegid(), AT_SYMLINK_NOFOLLOW) != 0) {
    return ErrnoError("take " + Escape(place.path));
  }
  paths.NoticeOwner(place.path, st->st_uid, st->st_gid);
  return {};
}

void ApplyContext::Touched(const Place& place, UniqueFd file) {
  flush.Touched(place.parent.get(), std::move(file));
  if (options.applied) options.applied(place.path);
}

UniqueFd ApplyContext::Hold(const Place& place, const struct stat& st) {
  if (S_ISDIR(st.st_mode) || st.st_nlink < 2) return UniqueFd();
  auto fd = OpenName(place.parent.get(), place.name);
  return fd ? *std::move(fd) : UniqueFd();
}

Status ApplyContext::MoveAcross(const Place& from, const Place& to, uint64_t of, bool replace) {
  const std::string temporary = TemporaryName(of);
  const int parent = to.parent.get();
  VRUN_ASSIGN(const auto moved, LstatAt(from.parent.get(), from.name));
  if (moved) VRUN_TRY(CheckWithheld(from, *moved));
  VRUN_TRY(RemoveTree(NamePath(parent, temporary)));
  VRUN_TRY(CopyTree(from.parent.get(), from.name, parent, temporary));
  if (const int error = MoveName(parent, temporary, parent, to.name, replace); error != 0) {
    (void)RemoveTree(NamePath(parent, temporary));
    return ErrnoError(error, "write " + Escape(to.path));
  }
  flush.TouchedMuch(parent);
  VRUN_TRY(flush.Flush());  // before the original is removed
  return RemoveTree(NamePath(from.parent.get(), from.name));
}

}  // namespace vrun::home
