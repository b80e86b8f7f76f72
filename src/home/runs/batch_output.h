// SPDX-License-Identifier: Apache-2.0
// The output files of a batch job, and the lines that home writes into them, because a batch job has no client to tell.
// The same lines go into the log, for `vbatch -f`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "home/runs/run_files.h"
#include "home/streams/log_spool.h"
#include "home/streams/stdio_pump.h"

namespace vrun::home {

// Loop thread only.
class BatchOutput {
 public:
  BatchOutput(LogSpool* spool, const RunFiles* run_files, uint64_t job, DetachedFiles files);

  // Records the files so that a later home continues with them (RunFiles::RememberDetached). A failure is only logged.
  void Remember(bool loose = false) const;
  // The files are not open, because their names contain the node's.
  bool WaitsForNode() const { return files_ && NamesNode(*files_); }
  // Whether the files could be created, as far as that can be known without the node.
  Status Check() const { return run_files_->CheckDetached(*files_); }
  // The files are not opened here.
  void LeaveFiles() { files_.reset(); }
  // Call once.
  Result<DetachedStreams> Open(const std::string& node);

  // `pump` writes the files from now on, and must outlive this.
  void SetPump(StdioPump* pump) { pump_ = pump; }
  // A line for the user.
  void Note(const std::string& text);
  // A line about something that the job wrote. Limited in number, so that other lines are not crowded out.
  void NoteWrite(const std::string& text);
  // The last lines. `reason`: why the job ended, or "".
  void NoteEnd(const std::string& reason);
  // Writes the waiting lines once the output before them is in the file.
  void Flush();

 private:
  static constexpr size_t kMostWriteNotes = 20;
  static constexpr size_t kMostNotes = 100;

  void Append(const std::string& text);

  LogSpool* const spool_;
  const RunFiles* const run_files_;
  const uint64_t job_;
  std::optional<DetachedFiles> files_;  // not opened yet
  StdioPump* pump_ = nullptr;
  std::string unwritten_;
  size_t write_notes_ = 0;
  size_t notes_ = 0;
  size_t untold_ = 0;
};

}  // namespace vrun::home
