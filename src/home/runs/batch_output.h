// SPDX-License-Identifier: Apache-2.0
// The output files of a batch job, and the lines that home writes into them: a batch job has no client that could be
// told. The same lines go into the log, for `vbatch -f`.
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

  // Makes a later home go on with these files. A failure is logged only.
  void Remember() const;
  // They are not open, because their names contain the node's.
  bool WaitsForNode() const { return files_ && NamesNode(*files_); }
  // Whether they could be made, as far as that can be known without the node.
  Status Check() const { return run_files_->CheckDetached(*files_); }
  // Once.
  Result<DetachedStreams> Open(const std::string& node);

  // `pump` writes the files from now on, and must outlive this.
  void SetPump(StdioPump* pump) { pump_ = pump; }
  // A line for the user.
  void Note(const std::string& text);
  // A line about something that the job wrote. There may be many: they must not crowd out the others.
  void NoteWrite(const std::string& text);
  // The last lines. `reason`: why the job ended, or "".
  void NoteEnd(const std::string& reason);
  // Writes the lines that wait for the output before them, once that is in the file.
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
