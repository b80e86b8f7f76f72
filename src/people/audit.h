// SPDX-License-Identifier: Apache-2.0
// Who changed what, when, and from where. A file to which the controller and `vctl` only append; nothing removes a
// line of it, but where the configuration says how long lines are kept, whole months that are older: the lines of a
// month that is over are moved to FILE-YYYY-MM.
//
// A line has the six fields of AuditEntry with tabs between. Each is escaped, so that no name forges a field or a line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace vrun::people {

struct AuditEntry {
  std::string time;    // RFC 3339
  std::string who;     // "home anna@laptop", or "uid 0" for what was done on the controller's machine
  std::string from;    // address as gRPC writes it; "here": this machine
  std::string what;    // "submit", "cancel", ...
  std::string of;      // "job 12"
  std::string result;  // "ok", or why it was refused
};

// Any thread, several processes at once: a line is written by one write(2). Does not wait for the disk.
Status AppendAudit(const std::string& file, const AuditEntry& entry);
// Also of the months beside it; in the order in which they were written. Lines that are none are left out. kNotFound:
// there is no log. Of a file of more than `most_bytes`, which somebody may have made so, only the last ones.
constexpr uint64_t kMostAuditBytes = uint64_t{1} << 30;
Result<std::vector<AuditEntry>> ReadAudit(const std::string& file, uint64_t most_bytes = kMostAuditBytes);

// Moves the lines of months that are over out of the file, if there are any, and removes months whose last day ended
// more than `keep_us` ago. Returns how many months were removed. Other processes may append meanwhile: nothing is lost.
Result<int> RotateAudit(const std::string& file, int64_t now_us, int64_t keep_us);

}  // namespace vrun::people
