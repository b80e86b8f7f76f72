// SPDX-License-Identifier: Apache-2.0
#include "people/audit.h"

#include <fcntl.h>

#include <algorithm>

#include "base/escape.h"
#include "base/files.h"

namespace vrun::people {
namespace {

constexpr size_t kMostFileBytes = 1u << 30;

std::vector<std::string> Split(const std::string& line) {
  std::vector<std::string> fields;
  for (size_t at = 0;;) {
    const size_t tab = line.find('\t', at);
    fields.push_back(line.substr(at, tab - at));
    if (tab == std::string::npos) return fields;
    at = tab + 1;
  }
}

}  // namespace

Status AppendAudit(const std::string& file, const AuditEntry& entry) {
  std::string line;
  for (const std::string* field : {&entry.time, &entry.who, &entry.from, &entry.what, &entry.of, &entry.result}) {
    line += (line.empty() ? "" : "\t") + Escape(*field);
  }
  VRUN_ASSIGN(const UniqueFd fd, OpenFile(file, O_WRONLY | O_APPEND | O_CREAT, 0600));
  return WriteAll(fd.get(), line + "\n");
}

Result<std::vector<AuditEntry>> ReadAudit(const std::string& file) {
  VRUN_ASSIGN(const std::string text, ReadFile(file, kMostFileBytes));
  std::vector<AuditEntry> entries;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::vector<std::string> f = Split(text.substr(at, end - at));
    at = end + 1;
    if (f.size() == 6) entries.push_back({f[0], f[1], f[2], f[3], f[4], f[5]});
  }
  return entries;
}

}  // namespace vrun::people
