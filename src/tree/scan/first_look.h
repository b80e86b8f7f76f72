// SPDX-License-Identifier: Apache-2.0
// A tree that is usable before the root is scanned: its directories are unread (tree/unread.h) until somebody wants
// them (DirtySet::wanted), or until their turn comes in the scan, which goes through the root in pieces.
#pragma once

#include <string>

#include "base/result.h"
#include "tree/scan/scan.h"
#include "tree/tree.h"

namespace vrun::tree {

// The root's own directory; every directory in it is unread.
Result<TreePtr> FirstLook(const ScanOptions& options);

// A part of the scan: one directory with everything below it.
struct Piece {
  std::string path;  // "/a/b", in the root
  uint64_t dev = 0;
  uint64_t ino = 0;
  DirectoryPtr directory;
};

// The directory that `snapshot` has at `path`, still to be read. kNotFound: it has none.
Result<Piece> PieceAt(const Tree& snapshot, const std::string& path);
// Reads piece->directory from the disk. kNotFound: it is gone.
Status ReadPiece(const ScanOptions& options, Piece* piece);
// `base` with the piece, also in place of what was read of it before. Null: `base` has another directory there by now.
Result<TreePtr> PutPiece(const TreePtr& base, const Piece& piece);

// Names in `snapshot` whose attributes may differ from the disk's: files that were changed, perhaps under another name,
// and unread directories. Looks at each file: about a microsecond each.
DirtySet OutdatedNames(const Tree& snapshot, const std::string& root);

}  // namespace vrun::tree
