// SPDX-License-Identifier: Apache-2.0
#include "home/runs/gang/gang_pod.h"

#include "home/runs/gang/rank_streams.h"
#include "jobs/ending.h"

namespace vrun::home {

void GangRun::Pod::Passed(v1::StreamId stream, uint64_t offset) {
  if (outcome_) return;
  run_->Acknowledge(stream, offset);
  Progressed();
}

void GangRun::Pod::Progressed() {
  if (!outcome_) run_->OutputProgressed();
}

void GangRun::Pod::SetEnded(const v1::ExitRecord& record) {
  Outcome outcome;
  outcome.record = record;
  outcome.exit_status = ExitStatus(record);
  outcome.state = EndState(record);
  outcome.reason = EndReason(record);
  outcome.node = record.node();
  outcome_ = std::move(outcome);
}

void GangRun::Pod::Abandon() {
  if (outcome_) return;
  outcome_.emplace();
  outcome_->superseded = true;
}

void GangRun::Pod::OnProgress(v1::JobState state, const std::string&, const std::string&) {
  if (!outcome_) gang_->OnPodProgress(this, state);
}

void GangRun::Pod::OnNotice(const std::string& text) {
  if (!outcome_) gang_->NoticeOnce(text, false);
}

void GangRun::Pod::OnWriteNotice(const std::string& text) {
  if (!outcome_) gang_->NoticeOnce(text, true);
}

void GangRun::Pod::OnStarted() {
  if (!outcome_) gang_->OnPodStarted(this);
}

void GangRun::Pod::OnInputWanted(v1::StreamId stream, uint64_t offset) {
  if (!outcome_) gang_->input_.Wanted(number_, stream, offset);
}

void GangRun::Pod::OnInputAcked(v1::StreamId stream, uint64_t offset, bool closed, std::optional<uint64_t> taken) {
  if (!outcome_) gang_->input_.Acked(number_, stream, offset, closed, taken);
}

// The streams of its further ranks.
std::vector<v1::Descriptor> GangRun::Pod::Descriptors() const {
  std::vector<v1::Descriptor> out;
  for (uint32_t rank = 1; rank < ranks_; ++rank) {
    for (v1::StreamId fd : {v1::STDIN, v1::STDOUT, v1::STDERR}) {
      v1::Descriptor& d = out.emplace_back();
      d.set_number(static_cast<uint32_t>(RankStream(rank, fd)));
      d.set_output(fd != v1::STDIN);
    }
  }
  return out;
}

void GangRun::Pod::OnDisconnected() {
  if (!outcome_) gang_->input_.Disconnected(number_);
}

void GangRun::Pod::OnOutput(v1::StreamId stream, uint64_t offset, std::string data, bool eof) {
  if (!outcome_) gang_->OnPodOutput(this, stream, offset, std::move(data), eof);
}

uint64_t GangRun::Pod::OutputWanted(v1::StreamId stream) {
  const uint64_t wanted = gang_->output_.Wanted(number_, stream);
  return gang_->rank_files_ ? gang_->rank_files_->Wanted(number_, stream, wanted) : wanted;
}

bool GangRun::Pod::OutputEnded(v1::StreamId stream) { return gang_->output_.Ended(number_, stream); }

void GangRun::Pod::OnReleasing(const Outcome& outcome) { gang_->OnPodReleasing(*this, outcome); }

void GangRun::Pod::OnEnded(const Outcome& outcome) {
  if (outcome_) return;
  outcome_ = outcome;
  gang_->OnPodEnded(this);
}

}  // namespace vrun::home
