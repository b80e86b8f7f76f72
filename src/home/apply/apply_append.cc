// SPDX-License-Identifier: Apache-2.0
#include "home/apply/apply_append.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>

#include "base/escape.h"
#include "base/files.h"
#include "base/thread/mutex.h"
#include "home/apply/apply_files.h"

namespace vrun::home {
namespace {

// How far behind its noted position a part is searched, since others may have appended first.
constexpr uint64_t kSearched = 8u << 20;
// If the process died in the middle of a part, whole pages of it were written, perhaps followed by others' appends.
constexpr uint64_t kPage = 4096;

}  // namespace

Result<std::optional<UniqueFd>> Appender::Open(const Place& place, std::optional<mode_t> make) {
  const int parent = place.parent.get();
  if (make) {
    const UniqueFd made(
        ::openat(parent, place.name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, *make));
    if (!made && errno != EEXIST) return ErrnoError("append to " + Escape(place.path));
  }
  // O_PATH first, to know that it is a regular file before an open that may block.
  const auto name = OpenName(parent, place.name);
  if (!name && name.error().error_number() == ENOENT) return std::nullopt;
  if (!name) return name.error();
  struct stat st {};
  if (::fstat(name->get(), &st) != 0) return ErrnoError("append to " + Escape(place.path));
  // A job's content never stands in a file with privileges that home gave to other content.
  if (!S_ISREG(st.st_mode) || (st.st_mode & (S_ISUID | S_ISGID)) != 0) return std::nullopt;
  UniqueFd file(::open(("/proc/self/fd/" + std::to_string(name->get())).c_str(), O_RDWR | O_APPEND | O_CLOEXEC));
  if (file) return file;
  if (errno == EACCES || errno == EPERM || errno == ETXTBSY) return std::nullopt;
  return ErrnoError("append to " + Escape(place.path));
}

Appender::Appender(int file, uint64_t sequence, bool durable, ApplyJournal* journal)
    : file_(file), durable_(durable), journal_(journal) {
  note_.sequence = sequence;
  struct stat st {};
  if (::fstat(file, &st) != 0) return;
  note_.device = st.st_dev;
  note_.inode = st.st_ino;
  const ApplyJournal::Append* before = journal->FindAppend(sequence);
  if (before == nullptr || before->device != note_.device || before->inode != note_.inode) return;
  note_ = *before;
  resumed_ = unsure_ = true;
}

// How much of `data`, which may have been written, is in the file.
uint64_t Appender::Find(std::string_view data) const {
  std::string there(std::min<uint64_t>(data.size() + kSearched, 64u << 20), '\0');
  const auto got = PreadUpTo(file_, there.data(), there.size(), note_.at);
  if (!got) return 0;
  there.resize(*got);
  if (there.find(data) != std::string::npos) return data.size();
  const size_t most = std::min(there.size(), data.size());
  const size_t same = static_cast<size_t>(
      std::mismatch(there.begin(), there.begin() + static_cast<ptrdiff_t>(most), data.begin()).first - there.begin());
  return same == there.size() || same >= kPage ? same : 0;
}

Status Appender::Note() {
  struct stat st {};
  if (::fstat(file_, &st) != 0) return ErrnoError("append");
  note_.at = static_cast<uint64_t>(st.st_size);
  return journal_->AddAppend(note_, durable_);
}

Status Appender::Append(std::string_view data, uint64_t position) {
  if (position < note_.done) data.remove_prefix(std::min<uint64_t>(data.size(), note_.done - position));
  if (data.empty()) return {};
  if (std::exchange(unsure_, false)) {
    const uint64_t found = Find(data);
    note_.done += found;
    data.remove_prefix(found);
  }
  while (!data.empty()) {
    VRUN_TRY(Note());
    const ssize_t n = ::write(file_, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError("append");
    note_.done += static_cast<uint64_t>(n);
    data.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

Status Appender::AppendZeros(uint64_t n, uint64_t position) {
  constexpr uint64_t kFew = 1u << 20;
  if (n <= kFew) return Append(std::string(n, '\0'), position);
  if (position + n <= note_.done) return {};
  VRUN_TRY(Note());
  if (::ftruncate(file_, static_cast<off_t>(note_.at + n)) != 0) return ErrnoError("append");
  note_.done = position + n;
  return Note();
}

namespace {
Mutex& MutexOf(const Place& place) {
  static std::array<Mutex, 64> mutexes;
  struct stat st {};
  (void)::fstat(place.parent.get(), &st);
  const size_t which = std::hash<std::string>()(place.name) ^ std::hash<uint64_t>()(st.st_ino);
  return mutexes[which % mutexes.size()];
}
}  // namespace

NameLock::NameLock(const Place& place) : lock_(MutexOf(place)) {}

}  // namespace vrun::home
