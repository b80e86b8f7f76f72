// SPDX-License-Identifier: Apache-2.0
// Who changed what, when, and from where. A file to which the controller and `vctl` only append; nothing here removes a
// line of it.
//
// A line has the six fields of AuditEntry with tabs between. Each is escaped, so that no name forges a field or a line.
#pragma once

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
// In the order of the file. Lines that are none are left out.
Result<std::vector<AuditEntry>> ReadAudit(const std::string& file);

}  // namespace vrun::people
