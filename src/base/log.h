// SPDX-License-Identifier: Apache-2.0
// The daemons' log: one line per event on stderr, which the starter redirects to a file.
//
//   LogInfo("node {} registered with {} gpus", name, gpus);
//
// "2026-11-20T23:59:01.123Z INFO home: node n1 registered with 8 gpus". Any thread. Pass external values (names, paths)
// through Escape (base/escape.h) first.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace vrun {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Sets the process name in each line ("home", "node", ...). Level from $VRUN_LOG (debug|info|warning|error), default
// info.
void InitLog(std::string_view process);
bool LogEnabled(LogLevel level);
void LogLine(LogLevel level, std::string_view text);

template <typename... Args>
void LogDebug(fmt::format_string<Args...> f, Args&&... args) {
  if (LogEnabled(LogLevel::kDebug)) LogLine(LogLevel::kDebug, fmt::format(f, std::forward<Args>(args)...));
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> f, Args&&... args) {
  if (LogEnabled(LogLevel::kInfo)) LogLine(LogLevel::kInfo, fmt::format(f, std::forward<Args>(args)...));
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> f, Args&&... args) {
  if (LogEnabled(LogLevel::kWarning)) LogLine(LogLevel::kWarning, fmt::format(f, std::forward<Args>(args)...));
}
template <typename... Args>
void LogError(fmt::format_string<Args...> f, Args&&... args) {
  LogLine(LogLevel::kError, fmt::format(f, std::forward<Args>(args)...));
}

}  // namespace vrun
