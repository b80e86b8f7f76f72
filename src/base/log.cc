// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace vrun {
namespace {

// Written once by InitLog before threads start, read everywhere.
char process_name[24] = "vrun";
std::atomic<int> threshold{static_cast<int>(LogLevel::kInfo)};

const char* LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "DEBUG";
    case LogLevel::kInfo: return "INFO";
    case LogLevel::kWarning: return "WARNING";
    case LogLevel::kError: return "ERROR";
  }
  return "?";
}

}  // namespace

void InitLog(std::string_view process) {
  size_t n = std::min(process.size(), sizeof process_name - 1);
  std::memcpy(process_name, process.data(), n);
  process_name[n] = 0;
  const char* wanted = std::getenv("VRUN_LOG");
  if (wanted == nullptr) return;
  for (LogLevel l : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    if (strcasecmp(wanted, LevelName(l)) == 0) threshold = static_cast<int>(l);
  }
}

bool LogEnabled(LogLevel level) { return static_cast<int>(level) >= threshold.load(std::memory_order_relaxed); }

void LogLine(LogLevel level, std::string_view text) {
  timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  tm parts;
  gmtime_r(&ts.tv_sec, &parts);
  std::string line = fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z {} {}: ", parts.tm_year + 1900,
                                 parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                                 ts.tv_nsec / 1000000, LevelName(level), process_name);
  for (char c : text) line.push_back(c == '\n' || c == '\r' ? ' ' : c);
  line.push_back('\n');
  // One write, so that lines of several threads and processes in one file never interleave. Losing a line is not an
  // error.
  [[maybe_unused]] ssize_t n = ::write(2, line.data(), line.size());
}

}  // namespace vrun
