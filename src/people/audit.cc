// SPDX-License-Identifier: Apache-2.0
#include "people/audit.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/escape.h"
#include "base/files.h"
#include "base/time/calendar.h"

namespace vrun::people {
namespace {

// The end of the file, from the beginning of a line on.
Result<std::string> ReadEnd(const std::string& file, uint64_t most_bytes) {
  VRUN_ASSIGN(const UniqueFd fd, OpenFile(file, O_RDONLY));
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return ErrnoError("stat " + Escape(file));
  const uint64_t size = static_cast<uint64_t>(st.st_size), from = size > most_bytes ? size - most_bytes : 0;
  std::string text(size - from, '\0');
  VRUN_ASSIGN(const size_t n, PreadUpTo(fd.get(), text.data(), text.size(), from));
  text.resize(n);
  if (from > 0) text.erase(0, std::min(text.find('\n'), text.size() - 1) + 1);
  return text;
}

std::vector<std::string> Split(const std::string& line) {
  std::vector<std::string> fields;
  for (size_t at = 0;;) {
    const size_t tab = line.find('\t', at);
    fields.push_back(line.substr(at, tab - at));
    if (tab == std::string::npos) return fields;
    at = tab + 1;
  }
}

constexpr size_t kMonthDigits = 7;  // "2026-11"

bool IsMonth(const std::string& text) { return text.size() == kMonthDigits && ParseDay(text + "-01").has_value(); }

// Files of months that are over, the oldest first.
Result<std::vector<std::string>> MonthsOf(const std::string& file) {
  const size_t slash = file.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : file.substr(0, slash + 1);
  const std::string begin = file.substr(slash == std::string::npos ? 0 : slash + 1) + "-";
  std::vector<std::string> months;
  DIR* open = ::opendir(directory.c_str());
  if (open == nullptr) {
    if (errno == ENOENT) return months;
    return ErrnoError("list " + Escape(directory));
  }
  while (const dirent* entry = ::readdir(open)) {
    const std::string name = entry->d_name;
    if (name.starts_with(begin) && IsMonth(name.substr(begin.size())))
      months.push_back(file + "-" + name.substr(begin.size()));
  }
  ::closedir(open);
  std::sort(months.begin(), months.end());
  return months;
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

Result<std::vector<AuditEntry>> ReadAudit(const std::string& file, uint64_t most_bytes) {
  VRUN_ASSIGN(std::vector<std::string> files, MonthsOf(file));
  files.push_back(file);
  std::vector<AuditEntry> entries;
  bool any = false;
  std::optional<Error> problem;
  for (const std::string& one : files) {
    auto text = ReadEnd(one, most_bytes);
    if (!text && text.error().code() != Code::kNotFound) return std::move(text).error();
    if (!text) {
      problem = text.error();
      continue;
    }
    any = true;
    for (size_t at = 0; at < text->size();) {
      const size_t end = std::min(text->find('\n', at), text->size());
      const std::vector<std::string> f = Split(text->substr(at, end - at));
      at = end + 1;
      if (f.size() == 6) entries.push_back({f[0], f[1], f[2], f[3], f[4], f[5]});
    }
  }
  if (!any && problem) return *problem;
  return entries;
}

Result<int> RotateAudit(const std::string& file, int64_t now_us, int64_t keep_us) {
  const std::string now = DayText(now_us).substr(0, kMonthDigits);
  std::string first(kMonthDigits, '\0');
  if (auto open = OpenFile(file, O_RDONLY)) {
    VRUN_ASSIGN(const size_t n, ReadUpTo(open->get(), first.data(), first.size()));
    first.resize(n);
    // Lines of the first days of a month may be moved with those of the month before. They are kept longer, not
    // shorter: the name is that of the last one.
    if (n == kMonthDigits && IsMonth(first) && first < now) {
      const std::string last = DayText(MonthOf(now_us) - 1).substr(0, kMonthDigits);
      std::string moved = file + "-" + last;
      if (PathExists(moved)) return Error(Code::kExists, Escape(moved) + ": is there already: move it away");
      if (::rename(file.c_str(), moved.c_str()) != 0) return ErrnoError("move " + Escape(file));
    }
  } else if (open.error().code() != Code::kNotFound) {
    return std::move(open).error();
  }
  int removed = 0;
  VRUN_ASSIGN(const std::vector<std::string> months, MonthsOf(file));
  for (const std::string& month : months) {
    const auto begin = ParseDay(month.substr(month.size() - kMonthDigits) + "-01");
    if (!begin || now_us - NextMonth(*begin) <= keep_us) continue;
    if (::unlink(month.c_str()) != 0) return ErrnoError("remove " + Escape(month));
    ++removed;
  }
  return removed;
}

}  // namespace vrun::people
