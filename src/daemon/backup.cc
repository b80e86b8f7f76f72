// SPDX-License-Identifier: Apache-2.0
#include "daemon/backup.h"

#include <signal.h>
#include <unistd.h>

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"

namespace vrun::daemon {
namespace {

constexpr int64_t kBackupToldMicros = 200'000;

std::string Megabytes(uint64_t bytes) { return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6); }

// A line that is written over, while somebody looks.
class TerminalLine {
 public:
  explicit TerminalLine(const char* doing) : doing_(doing), shown_(::isatty(STDERR_FILENO) == 1) {}
  ~TerminalLine() { End(); }

  void Show(const control::BackupReport& so_far, int percent) {
    const int64_t now = MonotonicMicros();
    if (!shown_ || now - told_us_ < kBackupToldMicros) return;
    told_us_ = now;
    const std::string part = percent < 0 ? Megabytes(so_far.bytes) : std::to_string(percent) + " %";
    std::fprintf(stderr, "\r%s: %llu rows, %s\033[K", doing_, static_cast<unsigned long long>(so_far.rows),
                 part.c_str());
  }
  void End() {
    if (told_us_ != 0) std::fputs("\r\033[K", stderr);
    told_us_ = 0;
  }

 private:
  const char* const doing_;
  const bool shown_;
  int64_t told_us_ = 0;
};

int Finish(const char* name, const BackupOptions& options, const Result<control::BackupReport>& done) {
  if (!done && options.json) {
    const nlohmann::ordered_json json = {
        {"schema", 1}, {"error", {{"code", CodeName(done.error().code())}, {"message", done.error().message()}}}};
    std::printf("%s\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    return 1;
  }
  if (!done) {
    std::fprintf(stderr, "vrund %s: %s\n", name, done.error().message().c_str());
    return 1;
  }
  const control::BackupReport& report = *done;
  if (options.json) {
    nlohmann::ordered_json json = {{"schema", 1},
                                   {"file", options.file},
                                   {"rows", report.rows},
                                   {"files", report.files},
                                   {"bytes", report.bytes},
                                   {"database", report.database},
                                   {"database_schema", report.schema},
                                   {"created", FormatRfc3339(report.created_us)},
                                   {"authority", report.has_authority},
                                   {"moved", report.moved},
                                   {"notes", report.notes}};
    const std::string text = json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    std::printf("%s\n", text.c_str());
    return 0;
  }
  std::printf("%s: %llu rows and %llu files of %s, %s, %s\n", Escape(options.file).c_str(),
              static_cast<unsigned long long>(report.rows), static_cast<unsigned long long>(report.files),
              FormatRfc3339(report.created_us).c_str(), report.database.c_str(), Megabytes(report.bytes).c_str());
  if (!report.moved.empty()) std::printf("what was there before is in %s\n", Escape(report.moved).c_str());
  for (const std::string& note : report.notes) std::printf("%s\n", note.c_str());
  return 0;
}

}  // namespace

int BackupMain(const BackupOptions& options) {
  InitLog("backup");
  ::signal(SIGPIPE, SIG_IGN);
  TerminalLine line("backup");
  const auto done = control::BackUp(options.place, options.file,
                                    [&line](const control::BackupReport& so_far, int) { line.Show(so_far, -1); });
  line.End();
  return Finish("backup", options, done);
}

int RestoreMain(const BackupOptions& options) {
  InitLog("restore");
  ::signal(SIGPIPE, SIG_IGN);
  TerminalLine line("restore");
  const auto done =
      control::Restore(options.place, options.file, options.restore,
                       [&line](const control::BackupReport& so_far, int percent) { line.Show(so_far, percent); });
  line.End();
  return Finish("restore", options, done);
}

}  // namespace vrun::daemon
