// SPDX-License-Identifier: Apache-2.0
// What an Applier must know after a restart of home: which files were stored beside a taken name, and how far the
// series was applied. A diversion is durable when Add returns. The number of the last operation is only in the page
// cache: it survives the death of the process, when it is needed to tell a repetition from a conflict.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::home {

class ApplyJournal {
 public:
  // "": in memory only. A torn tail is cut off. Records of another attempt, whose numbers mean something else, are
  // dropped.
  static Result<ApplyJournal> Open(const std::string& path, uint32_t attempt);

  // Path in the job -> path at home.
  const std::map<std::string, std::string>& diversions() const { return diversions_; }
  Status Add(const std::string& path, const std::string& actual);

  // Inodes with several names whose times the job changed, with the resulting ctime: their other names must not look
  // changed. Only in the page cache.
  struct OwnChange {
    uint64_t device, inode;
    int64_t ctime_ns;
  };
  const std::vector<OwnChange>& own_changes() const { return own_changes_; }
  void AddOwnChange(const OwnChange& change);

  // An operation whose outcome does not show whether it was applied: what its name will have afterwards.
  struct Intent {
    uint64_t sequence = 0;
    uint64_t device = 0, inode = 0;
    uint64_t unused = 0;
  };
  const Intent& intent() const { return intent_; }
  void SetIntent(const Intent& intent);

  // Progress of an operation that appends to a shared file: `done` bytes are in the file, and the next ones were to be
  // written at `at`, or behind what others have written meanwhile. Inode 0: the operation replaces home's file instead
  // of appending. With `durable` it is on disk when AddAppend returns. Forgotten when the operation is durable.
  struct Append {
    uint64_t sequence = 0;
    uint64_t device = 0, inode = 0;
    uint64_t done = 0, at = 0;
  };
  Status AddAppend(const Append& append, bool durable);
  const Append* FindAppend(uint64_t sequence) const {
    const auto it = appends_.find(sequence);
    return it != appends_.end() ? &it->second : nullptr;
  }

  // Exclusive operations that found their name taken; the latest ones. Only in the page cache.
  const std::vector<uint64_t>& refused() const { return refused_; }
  void AddRefused(uint64_t sequence);

  // The journal is a file that the next process finds.
  bool is_kept() const { return static_cast<bool>(fd_); }
  // The file existed: an earlier process wrote it.
  bool found() const { return found_; }
  // The machine was not rebooted since the journal was written: the contents of the page cache survived.
  bool same_boot() const { return same_boot_; }
  // 0 when new.
  uint64_t applied_before() const { return applied_before_; }
  void SetApplied(uint64_t sequence);
  // Set only after a flush.
  uint64_t durable_before() const { return durable_before_; }
  void SetDurable(uint64_t sequence);

  void Remove();

 private:
  void NoteRefused(uint64_t sequence);

  std::string path_;
  UniqueFd fd_;
  uint64_t end_ = 0;
  uint64_t applied_before_ = 0;
  uint64_t durable_before_ = 0;
  std::map<std::string, std::string> diversions_;
  std::vector<OwnChange> own_changes_;
  Intent intent_;
  std::map<uint64_t, Append> appends_;
  std::vector<uint64_t> refused_;
  bool found_ = false;
  bool same_boot_ = false;
};

}  // namespace vrun::home
