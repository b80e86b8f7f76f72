// SPDX-License-Identifier: Apache-2.0
// The files that nodes may read: those named by a tree of the table, in the version it names, unless the deny-list has
// them. Every read checks this again.
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
#include "home/root/tree_table.h"
#include "home/serve/lent_files.h"
#include "tree/tree.h"

namespace vrun::home {

// The error for a tree that is not in the table. Retryable if home has not scanned its root yet.
Error UnknownTree(const TreeTable& trees, const std::optional<Digest>& id = std::nullopt);

// Any thread.
class ServedFiles {
 public:
  ServedFiles(const TreeTable* trees, const ContentFiles* files, LentFiles* lent)
      : trees_(trees), files_(files), lent_(lent) {}
  // `stale` is called, on any thread, for files that differ from what a tree says. Set before the first request.
  void SetStale(std::function<void(const std::string& path)> stale) { stale_ = std::move(stale); }

  struct Served {
    tree::TreePtr snapshot;
    std::vector<std::string> exposed;
  };
  // Returns the tree if it names this version of the file and the file may be served.
  Result<Served> Check(const std::string& tree, const std::string& path, const tree::FileVersion& version) const;
  // The same, but also allows a file that a live view has begun to read, whatever has its name now.
  Status CheckOrLent(const std::string& tree, const std::string& path, const tree::FileVersion& version) const;

  struct Open {
    UniqueFd fd;
    bool lent = false;
  };
  // Opens that version, or the lent descriptor if a live view has begun to read it.
  Result<Open> OpenPart(const std::string& path, const tree::FileVersion& version, uint64_t offset,
                        uint64_t length) const;
  // kAborted: what was read from `open` does not belong to that version.
  Status StillIs(const Open& open, const std::string& path, const tree::FileVersion& version) const;
  // Reads all `parts`, then checks the version.
  Status Read(const Open& open, const std::string& path, const tree::FileVersion& version, std::vector<iovec> parts,
              uint64_t offset);
  // Holds the file for the live view. The caller has just opened it as that version.
  void Lend(const Open& open, const tree::FileVersion& version, uint64_t view);
  // True if the content would have to be fetched from another machine.
  bool Elsewhere(const std::string& path, const tree::FileVersion& version) const;

  // Guesses related files in the tree of `served`.
  Guess GuessFrom(const Served& served, std::function<bool(const tree::FileVersion&)> offer);
  void Stale(const std::string& path) const {
    if (stale_) stale_(path);
  }

 private:
  const TreeTable* const trees_;
  const ContentFiles* const files_;
  LentFiles* const lent_;
  FirstLooks first_looks_;
  std::function<void(const std::string& path)> stale_;
};

}  // namespace vrun::home
