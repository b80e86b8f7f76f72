// SPDX-License-Identifier: Apache-2.0
// Appending to a file of home's that others append to at the same moment. Part of Applier.
//
// Each part goes to the end of the file by a write(2) with O_APPEND, so what others append is never overwritten. Before
// a part is written, its place is noted in the journal; an operation that comes again goes on where the first one
// stopped, so nothing is there twice, whoever died in between.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"
#include "home/apply/apply_journal.h"
#include "home/apply/apply_paths.h"

namespace vrun::home {

class Appender {
 public:
  // Opens the regular file of that name to read and to append; waits while another program's lease is given back.
  // nullopt: there is none, or it is not ours to write to (its mode, or it is being executed). `made`: with this mode
  // if there is none.
  static Result<std::optional<UniqueFd>> Open(const Place& place, std::optional<mode_t> make = std::nullopt);

  // For the operation `sequence`, on a file of Open. `durable`: the notes survive the end of the machine. The journal
  // must outlive it.
  Appender(int file, uint64_t sequence, bool durable, ApplyJournal* journal);

  // This operation was begun before, on this file.
  bool resumed() const { return resumed_; }
  // Of what the operation appends, `data` comes at `position`; what is there already is passed over. Calls are in order
  // and without gaps.
  Status Append(std::string_view data, uint64_t position);
  // `n` zeros at `position`: few are written, many become a hole.
  Status AppendZeros(uint64_t n, uint64_t position);

 private:
  uint64_t Find(std::string_view data) const;
  Status Note();

  int file_;
  bool durable_;
  bool resumed_ = false;
  ApplyJournal* journal_;
  ApplyJournal::Append note_;
  bool unsure_ = false;  // the part after note_.done may be there
};

// Excludes other appliers of this process from changing what has this name.
class NameLock {
 public:
  explicit NameLock(const Place& place);

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace vrun::home
