// SPDX-License-Identifier: Apache-2.0
// The part of JobRun that joins the streams of a job's attempts, and goes from one attempt to the next.
#include <algorithm>

#include "base/escape.h"
#include "base/log.h"
#include "home/controller_client.h"
#include "home/frozen_roots.h"
#include "home/job_run.h"
#include "home/root_tree.h"

namespace vrun::home {

// --- from one attempt to the next ---

// Its streams begin where those of the attempt before it ended: as an earlier home has written down, or as far as the
// sink has them.
void JobRun::BeginAttempt(uint32_t attempt) {
  StreamBases known = RecallBases(*services_, plan_.job);
  const bool recalled = known.attempt == attempt;
  if (recalled) {
    bases_ = known;
  } else {
    bases_.attempt = attempt;
    for (v1::StreamId stream : {v1::STDOUT, v1::STDERR}) {
      bases_.out[stream == v1::STDERR] = attempt > 1 ? sink_->OutputWanted(stream) : 0;
    }
    bases_.in = input_acked_;
    if (attempt > 1) RememberBases(*services_, plan_.job, bases_);
  }
  if (!kept_on_.empty() && kept_on_ != node()) {
    sink_->OnNotice("attempt " + std::to_string(attempt) + " runs on node " + Escape(node()) +
                    ": it does not see what was written before, which is kept on node " + Escape(kept_on_));
  }
  input_acked_ = std::max(input_acked_, bases_.in);
  for (v1::StreamId stream : {v1::STDOUT, v1::STDERR}) {
    uint64_t& acked = acked_[stream == v1::STDERR];
    acked = std::max(acked, sink_->OutputWanted(stream));
  }
}

void JobRun::OnOutput(v1::Output output) {
  if (output.stream() == v1::STDIN) return;
  if (output.stream() > v1::STDERR) {
    // Not of a job that may be started again (Runs::StartRun), so there is one attempt.
    sink_->OnOutput(output.stream(), output.offset(), std::move(*output.mutable_data()), output.eof());
    return MaybeFinish();
  }
  const size_t i = output.stream() == v1::STDERR;
  const uint64_t offset = bases_.out[i] + output.offset();
  received_[i] = std::max(received_[i], offset + output.data().size());
  // Another attempt may go on with the stream: its end is told with that of the job.
  const bool last = !plan_.requeue || (record_ && !Preempted());
  if (output.eof() && !last) eof_held_[i] = true;
  if (!output.data().empty() || (output.eof() && last)) {
    sink_->OnOutput(output.stream(), offset, std::move(*output.mutable_data()), output.eof() && last);
  }
  MaybeFinish();
}

void JobRun::OnInputAck(const v1::InputAck& ack) {
  std::optional<uint64_t> taken;
  const bool more = ack.stream() > v1::STDERR;
  if (ack.closed() && ack.has_taken()) taken = (more ? 0 : bases_.in) + ack.taken();
  if (more) return sink_->OnInputAcked(ack.stream(), ack.offset(), ack.closed(), taken);
  input_acked_ = std::max(input_acked_, bases_.in + ack.offset());
  if (taken) input_taken_ = taken;
  // What this attempt does not read, the next one may.
  sink_->OnInputAcked(v1::STDIN, input_acked_, ack.closed() && !plan_.requeue, taken);
}

// From where the node has them; without `attached`, all of them.
void JobRun::WantInputs(const v1::Attached* attached) {
  sink_->OnInputWanted(v1::STDIN, bases_.in + (attached != nullptr ? attached->input_offset() : 0));
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
}

void JobRun::OnExited(const v1::ExitRecord& record) {
  record_ = record;
  if (Preempted()) {
    sink_->OnDisconnected();  // stdin waits for the next attempt
    return MaybeFinish();
  }
  for (v1::StreamId stream : {v1::STDOUT, v1::STDERR}) {
    const size_t i = stream == v1::STDERR;
    if (std::exchange(eof_held_[i], false)) sink_->OnOutput(stream, received_[i], "", true);
  }
  sink_->OnInputAcked(v1::STDIN, 0, true, input_taken_);
  MaybeFinish();
}

void JobRun::OnKept(const v1::WriteBackEnd& end) {
  if (Preempted()) {
    if (end.entries() > 0) kept_on_ = node();
  } else if (end.entries() > 0) {
    const std::string job = std::to_string(plan_.job);
    sink_->OnNotice("what job " + job + " wrote is kept on node " + Escape(node()) + " (" +
                    std::to_string(end.files()) + (end.files() == 1 ? " file" : " files") + "): `vctl job " + job +
                    " pull` fetches it");
  }
  write_back_done_ = true;
  MaybeFinish();
}

// All that the attempt has said was passed on.
bool JobRun::Drained() const {
  if (record_->started_us() == 0) return true;
  for (size_t i : {0, 1}) {
    if (closed_[i]) continue;
    if (!eof_held_[i] || acked_[i] < received_[i]) return false;
  }
  return true;
}

void JobRun::MaybeRestart() {
  if (ended_ || releasing_ || between_ || !write_back_done_ || !Drained()) return;
  if (write_back_failed_ > 0) {
    // The next attempt would not find what this one has saved.
    return FinishWithout(std::to_string(write_back_failed_) +
                         " of the command's writes could not be applied at home, so it is not started again");
  }
  if (!task_) return Retry(delay_);
  v1::TaskUp up;
  up.mutable_release();
  task_->Send(up);
  task_->Finish();
  releasing_ = true;
  // Later: whoever told us may belong to what is thrown away.
  services_->loop->Post([this, alive = alive_, reason = Escape(record_->reason())] {
    if (*alive) Restart(reason.empty() ? "preempted" : reason);
  });
}

void JobRun::Restart(const std::string& notice) {
  if (ended_) return;
  if (!notice.empty()) {
    sink_->OnNotice(notice + ": job " + std::to_string(plan_.job) + " waits, and is started again from its beginning");
  }
  between_ = releasing_ = true;
  started_ = writing_ = live_told_ = write_back_done_ = attached_ = told_lost_ = false;
  write_back_failed_ = 0;
  blocked_times_ = 0;
  for (size_t i : {0, 1}) eof_held_[i] = false;
  for (EventLoop::TimerId* timer : {&watch_timer_, &settle_timer_, &retry_timer_}) {
    services_->loop->Cancel(std::exchange(*timer, 0));
  }
  record_.reset();
  last_event_.reset();
  fatal_.reset();
  task_.reset();
  sink_->OnDisconnected();
  write_back_.reset();
  if (content_) fetched_before_ += content_->sent_bytes();
  content_.reset();
  content_addresses_.clear();
  sink_->OnProgress(v1::PENDING, "queued again", "");
  // Later: the watch may be who told us. Then what the attempt has written, and whatever else has changed, is seen by
  // the next one.
  services_->loop->Post([this, alive = alive_] {
    if (!*alive || ended_) return;
    watch_.reset();
    NextTree([this, alive](Result<tree::SnapshotPtr> tree) {
      if (!*alive || ended_) return;
      if (tree) {
        plan_.tree = std::move(*tree);
        pin_ = services_->trees->Add(plan_.tree, plan_.exposed);
      } else {
        LogWarning("job {}: the tree is that of the last attempt: {}", plan_.job, tree.error().message());
      }
      releasing_ = false;
      OpenWatch();
    });
  });
}

void JobRun::NextTree(std::function<void(Result<tree::SnapshotPtr>)> done) {
  if (plan_.frozen) return services_->frozen->Next(plan_.job, std::move(done));
  services_->tree->Current(plan_.exposed, std::move(done));
}

// --- the sink's words ---

void JobRun::Suspend(Sink* sink) {
  sink_ = sink;
  if (ended_) return;
  suspended_ = true;
  services_->loop->Cancel(std::exchange(retry_timer_, 0));
  Disconnect();
}

void JobRun::SetSink(Sink* sink) {
  sink_ = sink;
  suspended_ = false;
  if (ended_) return;
  services_->loop->Cancel(std::exchange(retry_timer_, 0));
  for (v1::StreamId stream : {v1::STDOUT, v1::STDERR}) acked_[stream == v1::STDERR] = sink->OutputWanted(stream);
  if (task_) {
    task_.reset();
    attached_ = false;
  }
  Connect();
}

void JobRun::Send(const v1::TaskUp& message) {
  if (task_ && attached_) task_->Send(message);
}

void JobRun::SendInput(v1::StreamId stream, uint64_t offset, std::string_view data, bool eof, bool peeked) {
  const uint64_t base = stream == v1::STDIN ? bases_.in : 0;
  if (!task_ || !attached_ || offset < base) return;
  v1::TaskUp up;
  up.mutable_input()->set_stream(stream);
  up.mutable_input()->set_peeked(peeked);
  up.mutable_input()->set_offset(offset - base);
  up.mutable_input()->set_data(data.data(), data.size());
  up.mutable_input()->set_eof(eof);
  task_->Send(up);
}

void JobRun::Acknowledge(v1::StreamId stream, uint64_t offset) {
  if (stream > v1::STDERR) {
    v1::TaskUp up;
    up.mutable_ack()->set_stream(stream);
    up.mutable_ack()->set_offset(offset);
    return Send(up);
  }
  const size_t i = stream == v1::STDERR;
  acked_[i] = std::max(acked_[i], offset);
  if (offset >= bases_.out[i]) {
    v1::TaskUp up;
    up.mutable_ack()->set_stream(stream);
    up.mutable_ack()->set_offset(offset - bases_.out[i]);
    Send(up);
  }
  if (Preempted()) MaybeRestart();
}

void JobRun::SendSignal(int signal, bool by_user_cancel) {
  v1::TaskUp up;
  up.mutable_signal()->set_signal(signal);
  up.mutable_signal()->set_by_user_cancel(by_user_cancel);
  if (task_ && attached_) return task_->Send(up);
  if (signals_.size() < 64) signals_.push_back(up.signal());
}

void JobRun::Resize(const v1::TerminalSize& size) {
  size_ = size;
  v1::TaskUp up;
  *up.mutable_resize() = size;
  Send(up);
}

void JobRun::CloseOutput(v1::StreamId stream) {
  if (stream > v1::STDERR)
    closed_more_.insert(stream);
  else
    closed_[stream == v1::STDERR] = true;
  v1::TaskUp up;
  up.mutable_close_output()->set_stream(stream);
  Send(up);
}

}  // namespace vrun::home
