// SPDX-License-Identifier: Apache-2.0
#include "tree/scan/first_look.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/escape.h"
#include "base/unique_fd.h"
#include "tree/directory_builder.h"
#include "tree/rules.h"
#include "tree/scan/scan_engine.h"
#include "tree/unread.h"

namespace vrun::tree {
namespace {

// `rest`: the path of the piece below `base`. Null: it is not there.
Result<DirectoryPtr> PutBelow(const Directory& base, std::string_view rest, const Piece& piece) {
  const size_t end = std::min(rest.find('/'), rest.size());
  const std::string_view name = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  const size_t at = base.Find(name);
  if (at == base.size()) return DirectoryPtr();
  DirectoryPtr child = base.Child(at);
  if (rest.empty()) {
    const Entry entry = base.At(at);
    if (!entry.is_directory() || entry.dev != piece.dev || entry.ino != piece.ino) return DirectoryPtr();
    child = piece.directory;
  } else if (child) {
    VRUN_ASSIGN(child, PutBelow(*child, rest, piece));
  }
  if (!child) return DirectoryPtr();
  DirectoryBuilder builder;
  std::vector<DirectoryBuilder::NamedDirectory> children;
  bool fits = true;
  for (size_t i = 0; i < base.size(); ++i) {
    fits = builder.AddEncoded(base.EncodedAt(i)) && fits;
    if (DirectoryPtr of = i == at ? child : base.Child(i)) children.emplace_back(base.NameAt(i), std::move(of));
  }
  if (!fits) return Error(Code::kExhausted, "scan: a directory has more than 4 GiB of attributes");
  return std::move(builder).Finish(std::move(children));
}

}  // namespace

Result<Piece> PieceAt(const Tree& snapshot, const std::string& path) {
  VRUN_ASSIGN(const Entry entry, Lookup(snapshot, path));
  if (!entry.is_directory()) return Error(Code::kNotFound, Escape(path) + ": not a directory");
  return Piece{path, entry.dev, entry.ino, nullptr};
}

Status ReadPiece(const ScanOptions& options, Piece* piece) {
  VRUN_ASSIGN(const ScanContext context, ScanContext::Open(options));
  ScanEngine engine(context);
  VRUN_ASSIGN(piece->directory, engine.Run(piece->path));
  return {};
}

Result<TreePtr> PutPiece(const TreePtr& base, const Piece& piece) {
  VRUN_ASSIGN(DirectoryPtr directory, PutBelow(*base->directory, std::string_view(piece.path).substr(1), piece));
  if (!directory) return TreePtr();
  return AssembleTree(base->root, std::move(directory));
}

DirtySet OutdatedNames(const Tree& snapshot, const std::string& root) {
  DirtySet outdated;
  std::vector<std::pair<std::string, DirectoryPtr>> stack{{"/", snapshot.directory}};
  while (!stack.empty()) {
    const auto [path, directory] = std::move(stack.back());
    stack.pop_back();
    const UniqueFd fd(::open((root + path).c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    for (size_t i = 0; i < directory->size(); ++i) {
      if (DirectoryPtr child = directory->Child(i)) {
        stack.emplace_back(JoinPath(path, directory->NameAt(i)), std::move(child));
        continue;
      }
      const Entry entry = directory->At(i);
      struct stat st;
      const bool same = !entry.is_directory()
                            ? fd && ::fstatat(fd.get(), entry.name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                                  st.st_ino == entry.ino && st.st_nlink == entry.nlink &&
                                  ToNanos(st.st_ctim) == entry.ctime_ns
                            : !IsUnread(entry.child);
      if (!same) outdated.names[path].insert(entry.name);
    }
  }
  return outdated;
}

}  // namespace vrun::tree
