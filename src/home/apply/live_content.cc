// SPDX-License-Identifier: Apache-2.0
// The content of files in a live view: whole, as patches, and appended.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/io/copy_content.h"
#include "home/apply/live_policy.h"

namespace vrun::home {

using v1::Meta;
using v1::WriteBack;

bool HasContentOf(const struct stat& before, const struct stat& now) {
  if (!S_ISREG(now.st_mode)) return true;
  return before.st_size == now.st_size && ToNanos(before.st_mtim) == ToNanos(now.st_mtim);
}

// --- begin ---

Result<bool> LivePolicy::Begin(const WriteBack& message, IncomingFile* file) {
  growing_.reset();
  patch_.reset();
  if (file->put.over() == v1::NOTHING) return ConflictPolicy::Begin(message, file);
  VRUN_ASSIGN(const auto current, LstatAt(file->place.parent.get(), file->place.name));
  if (!current || !message.has_base() || message.base().ino() != current->st_ino) {
    VRUN_ASSIGN(auto now, context_.paths.FindFileNow(file->place, current));
    std::optional<struct stat> there;
    if (now) {
      VRUN_ASSIGN(there, LstatAt(now->parent.get(), now->name));
    }
    if (there && IsOwn(*there)) file->place = *std::move(now);  // otherwise another file may have the inode number
  }
  switch (file->put.over()) {
    case v1::APPEND:
    case v1::APPEND_ANY: return BeginAppend(message, file);
    case v1::PATCH: return BeginPatch(message, file);
    default: return Error(Code::kUnsupported, Escape(message.path()) + ": unknown kind of patch: update vrun at home");
  }
}

bool LivePolicy::IsMeant(const WriteBack& message, const struct stat& st) const {
  const auto& base = message.base();
  const auto carried = carried_.find({st.st_dev, st.st_ino});
  const bool same_time = ToNanos(st.st_ctim) == base.ctime_ns() ||
                         (carried != carried_.end() && carried->second.first == base.ctime_ns() &&
                          carried->second.second == ToNanos(st.st_ctim));
  const bool given =
      message.has_base() && st.st_ino == base.ino() && same_time && static_cast<uint64_t>(st.st_size) == base.size();
  // A patch that a crashed process has applied in part: applying it again gives the same result.
  const ApplyJournal::Intent& begun = context_.journal.intent();
  const bool half = message.put_file().over() == v1::PATCH && begun.sequence == message.sequence() &&
                    begun.device == st.st_dev && begun.inode == st.st_ino;
  return S_ISREG(st.st_mode) && (given || half || IsOwn(st));
}

Result<bool> LivePolicy::BeginPatch(const WriteBack& message, IncomingFile* file) {
  const Place& place = file->place;
  const int parent = place.parent.get();
  VRUN_ASSIGN(const auto current, LstatAt(parent, place.name));
  if (!current || !IsMeant(message, *current)) return false;
  if (!IsOwn(*current)) VRUN_TRY(context_.CheckWithheld(place, *current));
  if (OpenInPlace(*file)) {
    patch_.emplace(Patch{.ctime_ns = ToNanos(current->st_ctim)});
    return ConflictPolicy::Begin(message, file);
  }
  const std::string temporary = context_.TemporaryName(message.sequence());
  (void)RemoveName(parent, temporary);
  if (const Status copied = CopyTree(parent, place.name, parent, temporary); !copied) {
    if (copied.error().error_number() != EACCES && copied.error().error_number() != ENOENT) return copied.error();
    return false;
  }
  VRUN_ASSIGN(const auto after, LstatAt(parent, place.name));
  // Its mode may exclude us.
  if (::fchmodat(parent, temporary.c_str(), 0600, 0) != 0) return ErrnoError("write " + Escape(place.path));
  file->fd.Reset(::openat(parent, temporary.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  const bool meant = after && IsMeant(message, *after) && file->fd;
  const bool cut = meant && ::ftruncate(file->fd.get(), static_cast<off_t>(file->put.size())) == 0;
  const int error = errno;
  if (!cut) (void)RemoveName(parent, temporary);
  if (meant && !cut) return ErrnoError(error, "write " + Escape(place.path));
  file->temporary = temporary;
  return meant;
}

Result<bool> LivePolicy::BeginAppend(const WriteBack& message, IncomingFile* file) {
  const Place& place = file->place;
  const bool any = file->put.over() == v1::APPEND_ANY;
  VRUN_ASSIGN(const auto before, LstatAt(place.parent.get(), place.name));
  if (!before && !any) return false;
  if (before && !IsOwn(*before)) VRUN_TRY(context_.CheckWithheld(place, *before));
  VRUN_ASSIGN(auto opened, Appender::Open(place, any ? std::optional<mode_t>(0600) : std::nullopt));
  if (!opened && any) return ErrnoError(EACCES, "append to " + Escape(place.path));
  if (!opened) return false;
  file->fd = *std::move(opened);
  struct stat st {};
  if (::fstat(file->fd.get(), &st) != 0) return ErrnoError("append to " + Escape(place.path));
  const auto size = static_cast<uint64_t>(st.st_size);
  growing_.emplace(Growing{
      .appender = Appender(file->fd.get(), message.sequence(), /*durable=*/false, &context_.journal),
      .made = !before,
      .size = size,
      .ctime_ns = ToNanos(st.st_ctim),
  });
  const bool resumed = growing_->appender.resumed();
  // The node may not know yet what another node of the view, or home, has appended.
  const bool is_end = size <= file->put.size() && (!message.has_base() || message.base().size() == size);
  const bool new_file = any && !before && size == 0 && file->put.append_from() == 0;
  growing_->alone = !resumed && (new_file || (!any && is_end && IsMeant(message, st)));
  if (growing_->alone) growing_->begin = size;
  return any || resumed || growing_->alone || MayMerge(message, st);
}

bool LivePolicy::MayMerge(const WriteBack& message, const struct stat& st) const {
  if (!S_ISREG(st.st_mode)) return false;
  if (message.has_base()) return message.base().ino() == st.st_ino;
  return own_.contains({st.st_dev, st.st_ino});
}

// --- data ---

Status LivePolicy::Write(const IncomingFile& file, const v1::FileData& data) {
  if (growing_) return Grow(file, data.data(), data.offset());
  VRUN_TRY(ConflictPolicy::Write(file, data));
  if (patch_ && !data.data().empty()) patch_->ranges.emplace_back(data.offset(), data.data().size());
  return {};
}

// Others' writes to a file that grows in place are not the job's: the next tree reports them.
Status LivePolicy::Grow(const IncomingFile& file, std::string_view data, uint64_t offset) {
  Growing& growing = *growing_;
  struct stat st {};
  growing.alone &= ::fstat(file.fd.get(), &st) == 0 && ToNanos(st.st_ctim) == growing.ctime_ns;
  Status appended = Append(file, data, offset);
  const bool known = ::fstat(file.fd.get(), &st) == 0;
  const auto size = static_cast<uint64_t>(st.st_size);
  growing.alone &= known && growing.begin && size == *growing.begin + growing.appended;
  growing.ctime_ns = ToNanos(st.st_ctim);
  if (known) growing.size = size;
  return appended;
}

Status LivePolicy::Append(const IncomingFile& file, std::string_view data, uint64_t offset) {
  Growing& growing = *growing_;
  if (!growing.begin || (growing.appended == 0 && offset < *growing.begin)) {
    growing.begin = offset;
    growing.alone = false;
  }
  if (offset < *growing.begin + growing.appended) {
    return Error(Code::kInvalid, Escape(file.place.path) + ": data before the end of the file that it is appended to");
  }
  const uint64_t gap = offset - *growing.begin - growing.appended;
  VRUN_TRY(growing.appender.AppendZeros(gap, growing.appended));
  growing.appended += gap;
  VRUN_TRY(growing.appender.Append(data, growing.appended));
  growing.appended += data.size();
  return {};
}

// --- end ---

Result<bool> LivePolicy::Put(uint64_t sequence, IncomingFile* file) {
  Meta meta = file->put.meta();
  bool in_place = growing_.has_value();
  if (growing_) {
    Status grown = Grow(*file, {}, file->put.size());
    if (!grown) return std::move(grown).error().With("write " + Escape(file->place.path));
    struct stat st {};
    if (!growing_->made && ::fstat(file->fd.get(), &st) == 0) {
      // Keep the mode that home has set, which the job may not know; except for the bits that a write clears.
      constexpr mode_t kPrivileged = S_ISUID | S_ISGID;
      meta.set_mode((st.st_mode & ~kPrivileged) | (st.st_mode & meta.mode() & kPrivileged));
    }
  } else if (file->put.linked() != 0) {
    VRUN_ASSIGN(in_place, WriteThrough(file));
  }
  if (patch_ && !in_place) return false;  // home has changed the file meanwhile
  VRUN_TRY(context_.FinishMeta(file->place, in_place ? file->place.name : file->temporary, meta, MetaFor::kFinal));
  struct stat made {
  }, now{};
  const bool known = ::fstat(file->fd.get(), &made) == 0;
  made.st_size = static_cast<off_t>(growing_ ? growing_->size : file->put.size());
  if (!in_place) VRUN_TRY(Install(file->temporary, &meta, file->base, &file->place));
  const bool alone = !growing_ || growing_->alone;
  if (alone && known && ::fstat(file->fd.get(), &now) == 0 && HasContentOf(made, now)) {
    Tell(now, sequence, nullptr, /*other=*/false);
  } else if (known) {
    // Noted for the next process too: a file of ours that others have changed.
    const auto own = own_.find({made.st_dev, made.st_ino});
    if (own == own_.end() || own->second.ctime_ns != 0) {
      context_.journal.AddOwnChange({made.st_dev, made.st_ino, 0});
    }
    NoteOwn(made, 0);
  }
  context_.paths.Use(file->place, known ? &made : nullptr);
  return true;
}

UniqueFd LivePolicy::OpenInPlace(const IncomingFile& file) const {
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
Result<bool> LivePolicy::WriteThrough(IncomingFile* file) {
  UniqueFd target = OpenInPlace(*file);
  struct stat there {
  }, made{};
  if (!target || ::fstat(target.get(), &there) != 0 || ::fstat(file->fd.get(), &made) != 0) return false;
  auto fail = [&](const Error& error) { return Error(error).With("write " + Escape(file->place.path)); };
  if (patch_) {
    if (ToNanos(there.st_ctim) != patch_->ctime_ns) return false;
    context_.journal.SetIntent({file->sequence, there.st_dev, there.st_ino, 0});
    std::string part(1 << 20, '\0');
    for (const auto& [offset, length] : patch_->ranges) {
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
    const auto size = static_cast<uint64_t>(made.st_size);
    const Status reserved = ReserveForContent(file->fd.get(), target.get(), size);
    if (!reserved) return fail(reserved.error());
    if (const auto copied = CopyContent(file->fd.get(), target.get(), size); !copied) return fail(copied.error());
  }
  (void)RemoveName(file->place.parent.get(), file->temporary);
  file->fd = std::move(target);
  return true;
}

}  // namespace vrun::home
