// SPDX-License-Identifier: Apache-2.0
#include "home/runs/batch_output.h"

#include <utility>

#include "base/log.h"

namespace vrun::home {

BatchOutput::BatchOutput(LogSpool* spool, const RunFiles* run_files, uint64_t job, DetachedFiles files)
    : spool_(spool), run_files_(run_files), job_(job), files_(std::move(files)) {}

void BatchOutput::Remember(bool loose) const {
  const Status remembered = run_files_->RememberDetached(job_, *files_, loose);
  if (!remembered)
    LogWarning("job {}: a restarted home will not continue its output files: {}", job_, remembered.error().message());
}

Result<DetachedStreams> BatchOutput::Open(const std::string& node) {
  if (WaitsForNode()) {
    // Later attempts, and a later home, continue with the same files.
    SetNode(node, &*files_);
    Remember(true);
  }
  return run_files_->OpenDetached(job_, *std::exchange(files_, std::nullopt));
}

void BatchOutput::Note(const std::string& text) {
  if (++notes_ <= kMostNotes) return Append(text);
  ++untold_;
}

void BatchOutput::NoteWrite(const std::string& text) {
  if (++write_notes_ <= kMostWriteNotes) return Note(text);
  ++untold_;
}

void BatchOutput::NoteEnd(const std::string& reason) {
  if (untold_ > 0) Append("and " + std::to_string(untold_) + " more lines like these; home's log has them all");
  if (!reason.empty()) Append(reason);
}

void BatchOutput::Append(const std::string& text) {
  const std::string line = "vrun: " + text + "\n";
  spool_->Note(job_, line);
  unwritten_ += line;
  Flush();
}

void BatchOutput::Flush() {
  if (unwritten_.empty() || pump_ == nullptr || !pump_->drained()) return;
  pump_->Append(std::exchange(unwritten_, ""));
}

}  // namespace vrun::home
