// SPDX-License-Identifier: Apache-2.0
#include "home/runs/orphan_run.h"

#include <csignal>

#include "base/log.h"
#include "home/links/controller_client.h"

namespace vrun::home {

OrphanRun::OrphanRun(EventLoop* loop, ControllerClient* controller, LogSpool* spool, uint64_t job, Options options,
                     std::function<void(const Outcome&)> on_ended)
    : loop_(loop),
      controller_(controller),
      spool_(spool),
      job_(job),
      options_(options),
      on_ended_(std::move(on_ended)) {
  streams_[0].received = options_.stdout_offset;
  streams_[1].received = options_.stderr_offset;
  if (options_.hold) {
    let_go_ = loop_->After(JobRun::kReconnectMicros, [this] {
      let_go_ = 0;
      LetGo();
    });
  }
  if (options_.hangup_micros == 0) return;
  hangup_ = loop_->After(options_.hangup_micros, [this] {
    hangup_ = 0;
    LogInfo("job {}: its client did not reconnect: sending SIGHUP", job_);
    controller_->Cancel(job_, SIGHUP, [this, alive = alive_](Result<v1::CancelReply> reply) {
      if (!reply && *alive && run_ != nullptr) run_->SendSignal(SIGHUP, true);
    });
  });
}

OrphanRun::~OrphanRun() {
  *alive_ = false;
  loop_->Cancel(hangup_);
  loop_->Cancel(let_go_);
}

void OrphanRun::OnNotice(const std::string& text) {
  LogInfo("job {}: {}", job_, text);
  spool_->Note(job_, "vrun: " + text + "\n");
}

void OrphanRun::OnEnded(const Outcome& outcome) {
  if (!outcome.reason.empty()) spool_->Note(job_, "vrun: " + outcome.reason + "\n");
  on_ended_(outcome);
}

void OrphanRun::OnOutput(v1::StreamId stream, uint64_t offset, std::string data, bool eof) {
  if (stream > v1::STDERR) {
    // The log does not store these streams: dropped, unless the client may still reconnect.
    uint64_t& received = more_[stream];
    received = std::max(received, offset + data.size());
    if (!options_.hold && run_ != nullptr && received > 0) run_->Acknowledge(stream, received);
    return;
  }
  Stream& s = streams_[stream == v1::STDERR];
  uint64_t end = offset + data.size();
  // What an earlier home acknowledged is not sent again, so the first bytes may begin anywhere.
  if (end > s.received) s.received = end;
  if (data.empty() && !eof) return;
  uint64_t limit = options_.hold ? LogSpool::kOrphanBytes : LogSpool::kJobBytes;
  spool_->Append(job_, stream, offset, std::move(data), limit,
                 [this, alive = alive_, stream, end, eof](LogSpool::Appended appended) {
                   if (*alive) Kept(stream, end, eof, appended.kept);
                 });
}

void OrphanRun::Kept(v1::StreamId stream, uint64_t end, bool eof, bool kept) {
  Stream& s = streams_[stream == v1::STDERR];
  if (!kept && options_.hold) {
    s.held = std::max(s.held, end);
    if (eof) s.ended = true;
    return;
  }
  if (run_ == nullptr || run_->ended()) return;
  if (s.held == 0 && end > 0) run_->Acknowledge(stream, end);
  if (!eof) return;
  s.ended = true;
  // An end after held bytes is not the end yet.
  if (s.held == 0) run_->OutputProgressed();
}

void OrphanRun::LetGo() {
  options_.hold = false;
  for (v1::StreamId stream : {v1::STDOUT, v1::STDERR}) {
    Stream& s = streams_[stream == v1::STDERR];
    if (std::exchange(s.held, 0) > 0 && run_ != nullptr) run_->Acknowledge(stream, s.received);
  }
  for (const auto& [stream, received] : more_) {
    if (run_ != nullptr && received > 0) run_->Acknowledge(stream, received);
  }
  if (run_ != nullptr) run_->OutputProgressed();
}

}  // namespace vrun::home
