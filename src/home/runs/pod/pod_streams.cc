// SPDX-License-Identifier: Apache-2.0
// The part of PodRun that joins the streams of a job's attempts and moves from one attempt to the next.
#include <algorithm>

#include "base/escape.h"
#include "base/log.h"
#include "home/links/controller_client.h"
#include "home/runs/pod/pod_run.h"
#include "home/streams/port_forwards.h"

namespace vrun::home {

// --- from one attempt to the next ---

// Its streams begin where those of the attempt before ended: as recorded by an earlier home, or as far as the sink has
// them.
void PodRun::BeginAttempt() {
  carry_.reset();
  carries_ = false;
  const uint32_t attempt = placement_.attempt();
  StreamBases bases;
  if (plan_.one_attempt) {
    bases.attempt = attempt;
  } else {
    bases = files_->RecallBases(plan_.job);
  }
  if (bases.attempt != attempt) {
    bases = {.attempt = attempt, .out = {0, 0}, .in = input_acked_};
    if (attempt > 1) {
      for (v1::StreamId stream : {v1::STDOUT, v1::STDERR}) {
        bases.out[stream == v1::STDERR] = sink_->OutputWanted(stream);
      }
      files_->RememberBases(plan_.job, bases);
    }
  }
  input_acked_ = std::max(input_acked_, bases.in);
  state_ = State::kAttaching;
  attempt_ = std::make_unique<JobAttempt>(loop_, bases);
  TakeAsPassedOn();
  if (plan_.live || plan_.live_paths) MarkLive();
  live_tree_.reset();
  if (!kept_on_.empty() && kept_on_ != node()) {
    sink_->OnNotice("attempt " + std::to_string(attempt) + " runs on node " + Escape(node()) +
                    ": it does not see what was written before, which is kept on node " + Escape(kept_on_));
  }
}

// What the sink already has needs no acknowledgement from it.
void PodRun::TakeAsPassedOn() {
  for (v1::StreamId stream : {v1::STDOUT, v1::STDERR}) {
    attempt_->outputs[stream == v1::STDERR].acked = sink_->OutputWanted(stream);
  }
}

void PodRun::OnOutput(v1::Output output) {
  if (output.stream() == v1::STDIN) return;
  if (output.stream() > v1::STDERR) {
    // Never for a job that may be restarted (Runs::StartRun), so there is one attempt.
    sink_->OnOutput(output.stream(), output.offset(), std::move(*output.mutable_data()), output.eof());
    return MaybeFinish();
  }
  const size_t i = output.stream() == v1::STDERR;
  JobAttempt::Output& mine = attempt_->outputs[i];
  const uint64_t offset = attempt_->bases.out[i] + output.offset();
  mine.received = std::max(mine.received, offset + output.data().size());
  // Another attempt may continue the stream: its end is passed on at the end of the job.
  const bool last = !MayFollow() || (attempt_->record && !Preempted());
  if (output.eof() && !last) mine.end_is_held = true;
  if (!output.data().empty() && offset == 0) spans_.Output(placement_);
  if (!output.data().empty() || (output.eof() && last)) {
    sink_->OnOutput(output.stream(), offset, std::move(*output.mutable_data()), output.eof() && last);
  }
  MaybeFinish();
}

void PodRun::OnInputAck(const v1::InputAck& ack) {
  std::optional<uint64_t> taken;
  const bool more = ack.stream() > v1::STDERR;
  if (ack.closed() && ack.has_taken()) taken = (more ? 0 : attempt_->bases.in) + ack.taken();
  if (more) return sink_->OnInputAcked(ack.stream(), ack.offset(), ack.closed(), taken);
  input_acked_ = std::max(input_acked_, attempt_->bases.in + ack.offset());
  if (taken) input_taken_ = taken;
  // What this attempt does not read, the next one may.
  sink_->OnInputAcked(v1::STDIN, input_acked_, ack.closed() && !MayFollow(), taken);
}

// Requests inputs from the node's offsets; without `attached`, all of them.
void PodRun::WantInputs(const v1::Attached* attached) {
  sink_->OnInputWanted(v1::STDIN, attempt_->bases.in + (attached != nullptr ? attached->input_offset() : 0));
  for (const v1::Descriptor& d : sink_->Descriptors()) {
    if (d.output()) continue;
    uint64_t offset = 0;
    if (attached != nullptr) {
      for (const v1::StreamOffset& input : attached->inputs()) {
        if (static_cast<uint32_t>(input.stream()) == d.number()) offset = input.offset();
      }
    }
    sink_->OnInputWanted(static_cast<v1::StreamId>(d.number()), offset);
  }
  ConnectPorts();
}

void PodRun::ConnectPorts() {
  if (!plan_.ports || !Attached()) return;
  plan_.ports->Connected([this](v1::PortFrame frame) {
    v1::TaskUp up;
    *up.mutable_port() = std::move(frame);
    Send(up);
  });
}

// A gang listens until it is over itself.
void PodRun::EndPorts() {
  if (!plan_.ports) return;
  plan_.one_attempt ? plan_.ports->Pause() : plan_.ports->End();
}

void PodRun::OnExited(const v1::ExitRecord& record) {
  attempt_->record = record;
  spans_.Exited();
  if (state_ < State::kEnding) state_ = State::kEnding;
  if (Preempted()) {
    sink_->OnDisconnected();  // stdin waits for the next attempt
    return MaybeFinish();
  }
  for (v1::StreamId stream : {v1::STDOUT, v1::STDERR}) {
    JobAttempt::Output& output = attempt_->outputs[stream == v1::STDERR];
    if (std::exchange(output.end_is_held, false)) sink_->OnOutput(stream, output.received, "", true);
  }
  sink_->OnInputAcked(v1::STDIN, 0, true, input_taken_);
  MaybeFinish();
}

void PodRun::OnKept(const v1::WriteBackEnd& end) {
  if (Preempted()) {
    if (end.entries() > 0) kept_on_ = node();
  } else if (plan_.away) {
    carries_ = true;
    return MaybeFinish();
  } else if (end.entries() > 0) {
    const std::string job = std::to_string(plan_.job);
    sink_->OnNotice("what job " + job + " wrote is kept on node " + Escape(node()) + " (" +
                    std::to_string(end.files()) + (end.files() == 1 ? " file" : " files") + "): `vctl job " + job +
                    " pull` fetches it");
  }
  attempt_->writes = JobAttempt::Writes::kFinished;
  MaybeFinish();
}

// All output of the attempt was passed on.
bool PodRun::Drained() const {
  if (attempt_->record->started_us() == 0) return true;
  for (v1::StreamId stream : {v1::STDOUT, v1::STDERR}) {
    const JobAttempt::Output& output = attempt_->outputs[stream == v1::STDERR];
    if (closed_.contains(stream)) continue;
    if (!output.end_is_held || output.acked < output.received) return false;
  }
  return true;
}

void PodRun::MaybeRestart() {
  if (state_ != State::kEnding || attempt_->writes != JobAttempt::Writes::kFinished || !attempt_->paths_home) return;
  if (!Drained()) return;
  if (attempt_->failed_writes > 0) {
    // The next attempt would not find what this one has saved.
    return FinishWithout(std::to_string(attempt_->failed_writes) +
                         " of the command's writes could not be applied at home, so it is not started again");
  }
  spans_.AllHome(placement_, 0, release_.conflicts());
  if (!attempt_->task) return Retry();
  v1::TaskUp up;
  up.mutable_release();
  attempt_->task->Send(up);
  attempt_->task->Finish();
  state_ = State::kLeaving;
  // Posted, because our caller may belong to what is destroyed.
  loop_->Post([this, alive = alive_, reason = Escape(attempt_->record->reason())] {
    if (*alive) Restart(reason.empty() ? "preempted" : reason);
  });
}

void PodRun::Restart(const std::string& notice) {
  if (ended() || !attempt_) return;
  if (!notice.empty()) {
    sink_->OnNotice(notice + ": job " + std::to_string(plan_.job) + " waits, and is started again from its beginning");
  }
  state_ = State::kLeaving;
  for (EventLoop::TimerId* timer : {&watch_timer_, &settle_timer_}) loop_->Cancel(std::exchange(*timer, 0));
  last_event_.reset();
  fetched_before_ += attempt_->fetched_bytes();
  attempt_.reset();
  if (plan_.ports) plan_.ports->Disconnected();
  sink_->OnDisconnected();
  sink_->OnProgress(v1::PENDING, "queued again", "");
  // Posted, because the watch may be our caller. The next attempt then sees what this one has written and any other
  // change.
  loop_->Post([this, alive = alive_] {
    if (!*alive || ended()) return;
    watch_.reset();
    roots_->Next(plan_.job, plan_.frozen, plan_.live, plan_.exposed, [this, alive](Result<tree::TreePtr> tree) {
      if (!*alive || ended()) return;
      if (tree) {
        plan_.tree = std::move(*tree);
        pin_ = roots_->Pin(plan_.tree, plan_.exposed);
      } else {
        LogWarning("job {}: the tree is that of the last attempt: {}", plan_.job, tree.error().message());
      }
      state_ = State::kWaiting;
      OpenWatch();
    });
  });
}

// --- calls of the sink ---

void PodRun::Suspend(Sink* sink) {
  sink_ = sink;
  if (ended()) return;
  suspended_ = true;
  if (!attempt_) return;
  attempt_->StopRetry();
  Disconnect();
}

void PodRun::SetSink(Sink* sink) {
  sink_ = sink;
  suspended_ = false;
  if (ended() || !attempt_) return;
  attempt_->StopRetry();
  TakeAsPassedOn();
  attempt_->task.reset();
  attempt_->attached = false;
  if (plan_.ports) plan_.ports->Disconnected();
  Connect();
}

void PodRun::Send(const v1::TaskUp& message) {
  if (Attached()) attempt_->task->Send(message);
}

void PodRun::SendInput(v1::StreamId stream, uint64_t offset, std::string_view data, bool eof, bool peeked) {
  if (!Attached()) return;
  const uint64_t base = stream == v1::STDIN ? attempt_->bases.in : 0;
  if (offset < base) return;
  v1::TaskUp up;
  up.mutable_input()->set_stream(stream);
  up.mutable_input()->set_peeked(peeked);
  up.mutable_input()->set_offset(offset - base);
  up.mutable_input()->set_data(data.data(), data.size());
  up.mutable_input()->set_eof(eof);
  attempt_->task->Send(up);
}

void PodRun::Acknowledge(v1::StreamId stream, uint64_t offset) {
  if (stream > v1::STDERR) {
    v1::TaskUp up;
    up.mutable_ack()->set_stream(stream);
    up.mutable_ack()->set_offset(offset);
    return Send(up);
  }
  if (!attempt_) return;
  const size_t i = stream == v1::STDERR;
  uint64_t& acked = attempt_->outputs[i].acked;
  acked = std::max(acked, offset);
  if (const uint64_t base = attempt_->bases.out[i]; offset >= base) {
    v1::TaskUp up;
    up.mutable_ack()->set_stream(stream);
    up.mutable_ack()->set_offset(offset - base);
    Send(up);
  }
  if (Preempted()) MaybeRestart();
}

void PodRun::SendSignal(int signal, bool by_user_cancel) {
  v1::TaskUp up;
  up.mutable_signal()->set_signal(signal);
  up.mutable_signal()->set_by_user_cancel(by_user_cancel);
  if (Attached()) return attempt_->task->Send(up);
  if (signals_.size() < 64) signals_.push_back(up.signal());
}

void PodRun::Resize(const v1::TerminalSize& size) {
  size_ = size;
  v1::TaskUp up;
  *up.mutable_resize() = size;
  Send(up);
}

void PodRun::CloseOutput(v1::StreamId stream) {
  closed_.insert(stream);
  v1::TaskUp up;
  up.mutable_close_output()->set_stream(stream);
  Send(up);
}

}  // namespace vrun::home
