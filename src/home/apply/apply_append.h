// SPDX-License-Identifier: Apache-2.0
// Appends to a file of home to which others append at the same time. Part of Applier.
//
// Each part is appended by a write(2) with O_APPEND, so data that others append is never overwritten. Before a part is
// written, its position is noted in the journal; a repeated operation continues where the first one stopped, so nothing
// is appended twice, whoever crashed in between.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"
#include "home/apply/apply_journal.h"
#include "home/apply/apply_paths.h"

namespace vrun::home {

class Appender {
 public:
  // Opens the regular file of that name for reading and appending; waits until another program's lease is released.
  // nullopt: there is no such file, or it may not be written (its mode, or it is being executed). `make`: creates a
  // missing file with this mode.
  static Result<std::optional<UniqueFd>> Open(const Place& place, std::optional<mode_t> make = std::nullopt);

  // For the operation `sequence`, on a file opened by Open. `durable`: the notes survive a machine crash. The journal
  // must outlive it.
  Appender(int file, uint64_t sequence, bool durable, ApplyJournal* journal);

  // The operation had already begun on this file.
  bool resumed() const { return resumed_; }
  // Appends `data`, which is at `position` in the operation's content; what is already in the file is skipped. Call in
  // order and without gaps.
  Status Append(std::string_view data, uint64_t position);
  // Appends `n` zeros at `position`: few are written, many become a hole.
  Status AppendZeros(uint64_t n, uint64_t position);

 private:
  uint64_t Find(std::string_view data) const;
  Status Note();

  int file_;
  bool durable_;
  bool resumed_ = false;
  ApplyJournal* journal_;
  ApplyJournal::Append note_;
  bool unsure_ = false;  // the part after note_.done may already be in the file
};

// Prevents other appliers of this process from changing the file of this name.
class NameLock {
 public:
  explicit NameLock(const Place& place);

 private:
  MutexLock lock_;
};

}  // namespace vrun::home
