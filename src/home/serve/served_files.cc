// SPDX-License-Identifier: Apache-2.0
#include "home/serve/served_files.h"

#include <cerrno>
#include <utility>

#include "base/escape.h"
#include "home/root/deny_list.h"
#include "tree/diff.h"

namespace vrun::home {
namespace {

// preadv until all is read; false at the end of the file.
Result<bool> ReadFully(int fd, std::vector<iovec> parts, uint64_t offset) {
  size_t first = 0;
  while (first < parts.size()) {
    ssize_t n = ::preadv(fd, parts.data() + first, static_cast<int>(parts.size() - first), static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoError("read");
    }
    if (n == 0) return false;
    offset += static_cast<uint64_t>(n);
    size_t left = static_cast<size_t>(n);
    while (first < parts.size() && left >= parts[first].iov_len) left -= parts[first++].iov_len;
    if (left > 0) {
      parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + left;
      parts[first].iov_len -= left;
    }
  }
  return true;
}

}  // namespace

Error UnknownTree(const TreeTable& trees, const std::optional<Digest>& id) {
  // JobRun uses the empty digest for this.
  if (id && *id == Digest()) {
    return Error(Code::kAborted, "home no longer has the root from when this job was submitted: submit the job again");
  }
  if (!trees.current()) return Error(Code::kUnavailable, "home has not read its root yet: try again");
  return Error(Code::kAborted, "home does not have this tree any more");
}

Result<ServedFiles::Served> ServedFiles::Check(const std::string& tree, const std::string& path,
                                               const tree::FileVersion& version) const {
  auto tree_id = Digest::FromBytes(tree);
  auto held = tree_id ? trees_->Find(*tree_id) : std::nullopt;
  Served served{held ? held->snapshot : trees_->known(), held ? held->exposed : std::vector<std::string>()};
  auto rules = trees_->rules();
  if (!served.snapshot || !rules) return UnknownTree(*trees_);
  if (rules->Denies(path, served.exposed)) {
    return PrivateFile(path);
  }
  auto entry = tree::Lookup(*served.snapshot, path);
  if (!entry && !held && trees_->WantUnread(path)) {
    return Error(Code::kUnavailable, Escape(path) + ": home has not read this directory yet: try again");
  }
  if (!entry || !entry->is_regular() || entry->version() != version) {
    return Error(Code::kAborted, Escape(path) + ": changed at home after the job's tree was taken");
  }
  return served;
}

Status ServedFiles::CheckOrLent(const std::string& tree, const std::string& path,
                                const tree::FileVersion& version) const {
  const auto served = Check(tree, path, version);
  if (served || (served.error().code() == Code::kAborted && lent_->Has(version))) return {};
  return served.error();
}

Result<ServedFiles::Open> ServedFiles::OpenPart(const std::string& path, const tree::FileVersion& version,
                                                uint64_t offset, uint64_t length) const {
  Open open;
  VRUN_ASSIGN(open.fd, WithDescriptors([&] {
                auto opened = files_->OpenPart(path, version, offset, length);
                open.lent = !opened && opened.error().code() == Code::kAborted && lent_->Has(version);
                return open.lent ? lent_->Open(version) : std::move(opened);
              }));
  return open;
}

Status ServedFiles::StillIs(const Open& open, const std::string& path, const tree::FileVersion& version) const {
  return open.lent ? lent_->Check(version, open.fd.get()) : files_->Check(open.fd.get(), path, version);
}

Status ServedFiles::Read(const Open& open, const std::string& path, const tree::FileVersion& version,
                         std::vector<iovec> parts, uint64_t offset) {
  first_looks_.BeforeServing(open.fd.get(), version);
  VRUN_ASSIGN(bool whole, ReadFully(open.fd.get(), std::move(parts), offset));
  VRUN_TRY(StillIs(open, path, version));
  // Shorter than its size with the same version: a file system that reports wrong sizes (some FUSE ones do).
  if (!whole)
    return Error(Code::kAborted,
                 Escape(path) + ": the file ends before its size: its file system reports a wrong size");
  return {};
}

void ServedFiles::Lend(const Open& open, const tree::FileVersion& version, uint64_t view) {
  if (!open.lent) lent_->Keep(version, open.fd.get(), view);
}

bool ServedFiles::Elsewhere(const std::string& path, const tree::FileVersion& version) const {
  const auto fd = files_->OpenAtHand(path, version);
  return !fd && fd.error().code() == Code::kUnavailable;
}

Guess ServedFiles::GuessFrom(const Served& served, std::function<bool(const tree::FileVersion&)> offer) {
  return Guess(*served.snapshot, *files_, first_looks_, std::move(offer),
               [rules = trees_->rules(), exposed = served.exposed](const std::string& path) {
                 return rules->Denies(path, exposed);
               });
}

}  // namespace vrun::home
