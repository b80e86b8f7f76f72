// SPDX-License-Identifier: Apache-2.0
#include "home/apply/apply_context.h"

#include <fcntl.h>

#include "base/escape.h"
#include "base/files.h"
#include "home/scope/write_scope.h"

namespace vrun::home {

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
  const auto rules = options.rules ? options.rules() : nullptr;
  const JobWrites allowed = rules ? rules->writes() : JobWrites::kPlain;
  const v1::Meta permitted = Permitted(KeepOwners(meta, before), allowed, fd->get(), before, &left_out);
  Status status = SetFileMeta(fd->get(), permitted, use, &left_out);
  if (!status) return std::move(status).error().With(Escape(place.path));
  if (!left_out.empty()) paths.NoticeLeftOut(place.path, left_out);
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
