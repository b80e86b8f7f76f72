// SPDX-License-Identifier: Apache-2.0
// The files that nodes may read: those that a tree of the table names, of the version that it names, unless the
// deny-list has them. They are checked again whenever they are read.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "home/ahead/guess.h"
#include "home/root/content_files.h"
#include "home/root/snapshot_table.h"
#include "home/serve/lent_files.h"
#include "tree/tree.h"

namespace vrun::home {

// Why the table does not have the tree. A home that has not looked at its root yet may know it in a moment.
Error UnknownTree(const SnapshotTable& trees, const std::optional<Digest>& id = std::nullopt);

// Any thread.
class ServedFiles {
 public:
  ServedFiles(const SnapshotTable* trees, const ContentFiles* files, LentFiles* lent)
      : trees_(trees), files_(files), lent_(lent) {}
  // `stale` is told of files that are not what a tree says, on any thread. Before the first request.
  void SetStale(std::function<void(const std::string& path)> stale) { stale_ = std::move(stale); }

  struct Served {
    tree::SnapshotPtr snapshot;
    std::vector<std::string> exposed;
  };
  // The tree, if it names this version of the file and that may be served; else why not.
  Result<Served> Check(const std::string& tree, const std::string& path, const tree::FileVersion& version) const;
  // The same, but what a live view began to read it may read to its end, whatever has its name by now.
  Status CheckOrLent(const std::string& tree, const std::string& path, const tree::FileVersion& version) const;

  struct Open {
    UniqueFd fd;
    bool lent = false;
  };
  // Of that version, or what a live view began to read of it.
  Result<Open> OpenPart(const std::string& path, const tree::FileVersion& version, uint64_t offset,
                        uint64_t length) const;
  // kAborted: what was read from `open` is not of that version.
  Status StillIs(const Open& open, const std::string& path, const tree::FileVersion& version) const;
  // Reads all `parts`, and checks it.
  Status Read(const Open& open, const std::string& path, const tree::FileVersion& version, std::vector<iovec> parts,
              uint64_t offset);
  // Holds the file for the live view. It has just been opened as that version.
  void Lend(const Open& open, const tree::FileVersion& version, uint64_t view);
  // Reading it would fetch it from another machine.
  bool Elsewhere(const std::string& path, const tree::FileVersion& version) const;

  // For what `served` names.
  Guess GuessFrom(const Served& served, std::function<bool(const tree::FileVersion&)> offer);
  void Stale(const std::string& path) const {
    if (stale_) stale_(path);
  }

 private:
  const SnapshotTable* const trees_;
  const ContentFiles* const files_;
  LentFiles* const lent_;
  FirstLooks first_looks_;
  std::function<void(const std::string& path)> stale_;
};

}  // namespace vrun::home
