// SPDX-License-Identifier: Apache-2.0
// What an Applier has to know after a restart of home: where it put what could not go to its own place, and how far it
// came. A diversion is durable when Add returns. The number of the last operation is only as good as the page cache: it
// survives the death of the process, which is when it is needed to tell a repetition from a conflict.
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
  // "": in memory only. A torn tail is cut off; what is of another attempt, whose numbers mean something else, is
  // dropped.
  static Result<ApplyJournal> Open(const std::string& path, uint32_t attempt);

  // Path as the job has it -> path at home.
  const std::map<std::string, std::string>& diversions() const { return diversions_; }
  Status Add(const std::string& path, const std::string& actual);

  // Inodes with several names whose times the job changed, with the ctime that they got by that: their other names must
  // not look changed. As good as the page cache.
  struct OwnChange {
    uint64_t device, inode;
    int64_t ctime_ns;
  };
  const std::vector<OwnChange>& own_changes() const { return own_changes_; }
  void AddOwnChange(const OwnChange& change);

  // An operation that cannot be told from its outcome whether it was done: what its name will have when it is.
  struct Intent {
    uint64_t sequence = 0;
    uint64_t device = 0, inode = 0;
    uint64_t unused = 0;
  };
  const Intent& intent() const { return intent_; }
  void SetIntent(const Intent& intent);

  // How far an operation has come that appends to a file that others append to: `done` bytes of what it appends are
  // there, and the next ones were to be written at `at`, or behind what others have written meanwhile. Inode 0: it does
  // not append, but puts a file in the place of home's. With `durable` it is on the disk when AddAppend returns.
  // Forgotten when the operation is durable.
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

  // It is in a file, which the next process finds.
  bool is_kept() const { return static_cast<bool>(fd_); }
  // A process before this one had it.
  bool found() const { return found_; }
  // The machine was not started again since the journal was written: what the page cache held is there.
  bool same_boot() const { return same_boot_; }
  // 0 when new.
  uint64_t applied_before() const { return applied_before_; }
  void SetApplied(uint64_t sequence);
  // To be set after a flush only.
  uint64_t durable_before() const { return durable_before_; }
  void SetDurable(uint64_t sequence);

  void Remove();

 private:
  std::string path_;
  UniqueFd fd_;
  uint64_t end_ = 0;
  uint64_t applied_before_ = 0;
  uint64_t durable_before_ = 0;
  std::map<std::string, std::string> diversions_;
  std::vector<OwnChange> own_changes_;
  Intent intent_;
  std::map<uint64_t, Append> appends_;
  bool found_ = false;
  bool same_boot_ = false;
};

}  // namespace vrun::home
