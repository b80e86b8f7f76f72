// SPDX-License-Identifier: Apache-2.0
#include "home/job_run.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "home/frozen_roots.h"
#include "home/live_writes.h"
#include "home/snapshots.h"
#include "home/traces.h"
#include "home/tree_board.h"
#include "jobs/ending.h"

namespace vrun::home {
namespace {

constexpr int64_t kFirstRetryMicros = 50'000;
constexpr int64_t kLastRetryMicros = 5'000'000;
constexpr int64_t kWatchRetryMicros = 1'000'000;
constexpr int64_t kTellLostMicros = 2'000'000;
// A node that has said no may be right or behind; the controller decides within this time.
constexpr int64_t kSettleMicros = 3'000'000;
constexpr int64_t kReportMicros = 1'000'000;

std::string Ordinal(uint32_t n) {
  const char* suffix = "th";
  if (n % 100 < 11 || n % 100 > 13) suffix = n % 10 == 1 ? "st" : n % 10 == 2 ? "nd" : n % 10 == 3 ? "rd" : "th";
  return std::to_string(n) + suffix;
}

}  // namespace

std::string JobRun::WithheldPath(const Services& services, uint64_t job) {
  return services.state_directory + "/runs/" + std::to_string(job) + ".withheld";
}

JobRun::JobRun(const Services* services, Plan plan, Sink* sink)
    : services_(services), plan_(std::move(plan)), sink_(sink) {
  if (plan_.tree) pin_ = services_->trees->Add(plan_.tree, plan_.exposed);
}

JobRun::~JobRun() {
  *alive_ = false;
  if (live_view_ != 0) services_->live_writes->Unlisten(live_view_, live_listener_);
  for (EventLoop::TimerId timer : {watch_timer_, settle_timer_, retry_timer_, report_timer_})
    services_->loop->Cancel(timer);
}

void JobRun::Start() {
  if (plan_.placement) {
    Place(*std::exchange(plan_.placement, std::nullopt));
  } else {
    OpenWatch();
  }
}

// --- the controller's word ---

void JobRun::OpenWatch() {
  if (watch_ || ended_ || releasing_) return;
  watch_ = services_->controller->Watch(plan_.job, {.on_message = [this](v1::JobEvent event) { OnWatchEvent(event); },
                                                    .on_closed = [this](Error) { OnWatchClosed(); }});
  if (!watch_) OnWatchClosed();
}

void JobRun::OnWatchClosed() {
  watch_.reset();
  // A controller that is away stops nothing; it is asked again for as long as we depend on its word.
  if (last_event_ && IsEnd(last_event_->state())) return;
  WatchSoon();
}

void JobRun::WatchSoon() {
  if (ended_ || attached_ || watch_ || watch_timer_ != 0) return;
  watch_timer_ = services_->loop->After(kWatchRetryMicros, [this] {
    watch_timer_ = 0;
    if (!attached_) OpenWatch();
  });
}

void JobRun::OnWatchEvent(const v1::JobEvent& event) {
  if (releasing_) return;  // told again when the next attempt may begin
  last_event_ = event;
  LogDebug("job {}: the controller says {}", plan_.job, v1::JobState_Name(event.state()));
  if (event.has_placement()) {
    bool newer = !plan_.placement || event.placement().epoch() > plan_.placement->epoch();
    // What the last attempt left unfinished has to be forgotten before the next begins.
    if (newer && plan_.placement && !between_ && event.placement().attempt() != plan_.placement->attempt()) {
      return Restart("");
    }
    if (newer && !IsEnd(event.state())) {
      Place(event.placement());
    } else if (!newer && event.placement().epoch() == plan_.placement->epoch()) {
      Readdress(event.placement());
    }
  }
  if (event.state() == v1::PENDING && !event.has_placement() && plan_.placement && !between_) {
    return Restart("the job has lost its node");
  }
  if (event.state() == v1::PENDING) {
    std::string text = "queued";
    if (event.queue_position() > 0) text += ", " + Ordinal(event.queue_position());
    if (!event.reason().empty()) text += ": " + Escape(event.reason());
    sink_->OnProgress(v1::PENDING, text, "");
    return;
  }
  if (event.state() != v1::LOST && !IsEnd(event.state())) return;
  // While the node answers, its own word comes with the output; the controller's is for when it does not.
  if (!attached_) return SettleFromWatch();
  if (settle_timer_ != 0) return;
  settle_timer_ = services_->loop->After(kSettleMicros, [this] {
    settle_timer_ = 0;
    // Attached and exited: output and writes still flow, however long that takes.
    if (!ended_ && !record_) SettleFromWatch();
  });
}

void JobRun::SettleFromWatch() {
  const v1::JobEvent& event = *last_event_;
  if (event.state() == v1::LOST) {
    return FinishWithout("node " + Escape(node()) + " is lost: the outcome is unknown");
  }
  if (!event.has_exit() && !record_) {
    // Cancelled while it waited, or refused: it never ran.
    Outcome outcome;
    outcome.state = event.state();
    outcome.exit_status = kExitNotStarted;
    outcome.reason = event.reason().empty() ? "the job was cancelled before it started" : Escape(event.reason());
    return Finish(std::move(outcome));
  }
  if (!record_) record_ = event.exit();
  bool complete = record_->started_us() == 0 || between_ || Complete();
  if (!complete) {
    const std::string why = fatal_ ? fatal_->message() : "it cannot be reached";
    sink_->OnNotice("job " + std::to_string(plan_.job) + " ended on " + Escape(record_->node()) +
                    ", and the end of its output and of its writes may be missing: " + why);
  }
  Outcome outcome;
  outcome.record = record_;
  outcome.exit_status = ExitStatus(*record_);
  outcome.reason = EndReason(*record_);
  outcome.state = event.state();
  if (!complete && outcome.exit_status == 0) {
    outcome.exit_status = kExitNotStarted;
    outcome.reason = "the command ended with 0, but its output and writes are not all home";
  }
  Finish(std::move(outcome));
}

// --- the node ---

void JobRun::PlaceLate(const v1::Placement& placement) {
  const bool asked = plan_.placement.has_value();
  plan_.placement = placement;
  if (asked) return;
  services_->tree->Current(plan_.exposed, [this, alive = alive_](Result<tree::SnapshotPtr> tree) {
    if (!*alive || ended_ || !plan_.late) return;
    plan_.late = false;
    if (!tree) return FinishWithout(tree.error().message());
    plan_.tree = std::move(*tree);
    pin_ = services_->trees->Add(plan_.tree, plan_.exposed);
    plan_.frozen = plan_.freeze != nullptr;
    if (plan_.frozen) plan_.freeze(plan_);
    Place(*std::exchange(plan_.placement, std::nullopt));
  });
}

void JobRun::Place(const v1::Placement& placement) {
  if (plan_.late) return PlaceLate(placement);
  plan_.placement = placement;
  between_ = false;
  if (bases_.attempt != placement.attempt()) BeginAttempt(placement.attempt());
  services_->loop->Cancel(std::exchange(settle_timer_, 0));
  Disconnect();
  services_->loop->Cancel(retry_timer_);
  retry_timer_ = 0;
  next_address_ = 0;
  delay_ = kFirstRetryMicros;
  lost_since_ = 0;
  fatal_.reset();
  sink_->OnProgress(v1::STARTING, "starting on " + Escape(placement.node()), placement.node());
  Connect();
  // A node that does not answer may be elsewhere, or lost.
  WatchSoon();
}

void JobRun::Readdress(const v1::Placement& placement) {
  const auto& addresses = placement.addresses();
  auto& known = *plan_.placement->mutable_addresses();
  if (std::equal(addresses.begin(), addresses.end(), known.begin(), known.end())) return;
  known = addresses;
  next_address_ = 0;
  delay_ = kFirstRetryMicros;
  if (attached_ || ended_ || between_) return;
  // Whoever answers at the old address is not, or no more, the node.
  Disconnect();
  services_->loop->Cancel(std::exchange(retry_timer_, 0));
  Connect();
}

void JobRun::Disconnect() {
  if (!task_) return;
  task_.reset();
  attached_ = false;
  sink_->OnDisconnected();
}

void JobRun::Connect() {
  if (ended_ || suspended_ || task_ || !plan_.placement || between_ || plan_.late) return;
  const v1::Placement& placement = *plan_.placement;
  if (placement.addresses_size() == 0) {
    return FinishWithout("node " + Escape(placement.node()) + " has told no address");
  }
  const std::string& address =
      placement.addresses(static_cast<int>(next_address_++ % static_cast<size_t>(placement.addresses_size())));
  LogDebug("job {}: to node {} at {}", plan_.job, Escape(node()), Escape(address));
  auto task = services_->nodes->OpenTask(
      address, {.on_message = [this](v1::TaskDown message) { OnTaskMessage(std::move(message)); },
                .on_closed = [this](Error reason) { OnTaskClosed(reason); }});
  if (!task) {
    last_error_ = task.error().message();
    return Retry(delay_);
  }
  task_ = std::move(*task);
  v1::TaskUp up;
  v1::Attach* attach = up.mutable_attach();
  attach->set_job(plan_.job);
  attach->set_attempt(placement.attempt());
  attach->set_token(placement.token());
  attach->set_home_id(services_->home_id);
  if (plan_.tree) attach->set_tree(std::string(plan_.tree->id.view()));
  if (plan_.live) {
    attach->set_tree_serial(services_->trees->Numbered().second);
    MarkLive(placement.attempt());
    services_->tree_board->TellAgain();  // the view is to show it now, not with the next look at the root
  }
  if (plan_.tree && plan_.tree->apart) attach->set_apart(std::string(plan_.tree->apart->id.view()));
  // No tree has this id, and the node says so.
  if (plan_.frozen && !plan_.tree) attach->set_tree(std::string(Digest().view()));
  if (plan_.snapshot) {
    attach->set_tree(plan_.snapshot->tree());
    attach->set_apart(plan_.snapshot->apart());
  }
  // Of a run in a snapshot the snapshot store passes on what its node tells.
  if (plan_.trace && services_->traces != nullptr) {
    const Digest tree = plan_.tree ? plan_.tree->id : Digest();
    services_->traces->Expect({plan_.job, placement.attempt(), placement.token(), tree, *plan_.trace});
  }
  for (v1::StreamId stream : {v1::STDOUT, v1::STDERR}) {
    const size_t i = stream == v1::STDERR;
    received_[i] = sink_->OutputWanted(stream);
    const uint64_t wanted = std::max(received_[i], bases_.out[i]) - bases_.out[i];
    stream == v1::STDOUT ? attach->set_stdout_offset(wanted) : attach->set_stderr_offset(wanted);
  }
  for (const v1::Descriptor& d : sink_->Descriptors()) {
    if (!d.output()) continue;
    v1::StreamOffset* output = attach->add_outputs();
    output->set_stream(static_cast<v1::StreamId>(d.number()));
    output->set_offset(sink_->OutputWanted(output->stream()));
  }
  attach->set_detached(plan_.detached);
  // Only a job that was attached before can have applied anything, perhaps by an earlier home.
  if (write_back_ || PathExists(services_->state_directory + "/apply/" + std::to_string(plan_.job))) {
    MakeWriteBack();
    attach->set_write_back_sequence(write_back_->sequence());
  }
  task_->Send(up);
}

void JobRun::Retry(int64_t delay_micros) {
  if (ended_ || suspended_ || retry_timer_ != 0 || between_) return;
  int64_t now = MonotonicMicros();
  if (lost_since_ == 0) lost_since_ = now;
  if (now - lost_since_ > kReconnectMicros) {
    return FinishWithout("node " + Escape(node()) + " could not be reached for 10 minutes: " + last_error_);
  }
  if (now - lost_since_ > kTellLostMicros && !std::exchange(told_lost_, true)) {
    sink_->OnNotice("no connection to node " + Escape(node()) + ": " + last_error_ +
                    ": the job goes on, trying again for 10 minutes");
  }
  OpenWatch();
  // All addresses in turn before there is a pause.
  bool round_over = next_address_ % static_cast<size_t>(std::max(1, plan_.placement->addresses_size())) == 0;
  retry_timer_ = services_->loop->After(round_over ? delay_micros : 0, [this] {
    retry_timer_ = 0;
    Connect();
  });
  if (round_over) delay_ = std::min(delay_ * 2, kLastRetryMicros);
}

void JobRun::OnTaskClosed(const Error& reason) {
  bool was_attached = attached_;
  Disconnect();
  if (ended_ || between_) return;
  last_error_ = reason.code() == Code::kOk ? "the node ended the connection" : reason.message();
  if (was_attached) {
    LogInfo("job {}: connection to the node lost: {}", plan_.job, last_error_);
  } else {
    LogDebug("job {}: no connection to the node: {}", plan_.job, last_error_);
  }
  if (fatal_) return;  // the controller is being asked
  Retry(delay_);
}

void JobRun::OnTaskError(const v1::Error& error) {
  last_error_ = Escape(error.message());
  Code code = static_cast<Code>(error.code());
  LogInfo("job {}: node {}: {}", plan_.job, Escape(node()), last_error_);
  Disconnect();
  if (code == Code::kUnavailable || code == Code::kTimeout) return Retry(delay_);
  // The node will not say more. The controller may know how it ended.
  fatal_ = Error(code, last_error_);
  OpenWatch();
  if (settle_timer_ != 0) services_->loop->Cancel(settle_timer_);
  settle_timer_ = services_->loop->After(kSettleMicros, [this] {
    settle_timer_ = 0;
    if (ended_ || between_) return;
    if (last_event_ && (IsEnd(last_event_->state()) || last_event_->state() == v1::LOST)) return SettleFromWatch();
    FinishWithout(fatal_ ? fatal_->message() : last_error_);
  });
  if (last_event_ && IsEnd(last_event_->state())) SettleFromWatch();
}

void JobRun::OnTaskMessage(v1::TaskDown message) {
  switch (message.body_case()) {
    case v1::TaskDown::kAttached: return OnAttached(message.attached());
    case v1::TaskDown::kStarted:
      ListenTo(message.started().view());
      if (std::exchange(started_, true)) return;
      sink_->OnProgress(v1::RUNNING, "running on " + Escape(node()), node());
      sink_->OnStarted();
      return WantInputs(nullptr);
    case v1::TaskDown::kOutput: return OnOutput(std::move(*message.mutable_output()));
    case v1::TaskDown::kInputAck: return OnInputAck(message.input_ack());
    case v1::TaskDown::kStopped: return sink_->OnStopped();
    case v1::TaskDown::kExited: return OnExited(message.exited().record());
    case v1::TaskDown::kWriteBack: return OnWrite(std::move(*message.mutable_write_back()));
    case v1::TaskDown::kWriteBackEnd: return OnWriteBackEnd(message.write_back_end());
    case v1::TaskDown::kError: return OnTaskError(message.error());
    case v1::TaskDown::kNotice:
      NoticeOnce(Escape(message.notice().text()));
      if (message.notice().content_lost() && !plan_.live) FailFor(message.notice().text());
      return;
    default: {
      LogWarning("job {}: the node sent a message that this version does not know", plan_.job);
      return;
    }
  }
}

// It was to see the root as it was: what it does without that file is worth nothing.
void JobRun::FailFor(const std::string& lost) {
  v1::TaskUp up;
  up.mutable_signal()->set_signal(SIGTERM);
  up.mutable_signal()->set_content_lost(lost);
  task_->Send(up);
}

void JobRun::OnAttached(const v1::Attached& attached) {
  bool first = !std::exchange(attached_, true);
  ever_attached_ = true;
  lost_since_ = 0;
  delay_ = kFirstRetryMicros;
  if (std::exchange(told_lost_, false)) sink_->OnNotice("connected to node " + Escape(node()) + " again");
  std::vector<std::string> addresses(attached.content_addresses().begin(), attached.content_addresses().end());
  if (!addresses.empty() && addresses != content_addresses_) {
    content_addresses_ = std::move(addresses);
    content_ = UseContent();
  }
  if (first) {
    // What could not be said meanwhile.
    v1::TaskUp up;
    if (size_) {
      *up.mutable_resize() = *size_;
      task_->Send(up);
    }
    for (v1::StreamId stream : {v1::STDOUT, v1::STDERR}) {
      if (!closed_[stream == v1::STDERR]) continue;
      up.mutable_close_output()->set_stream(stream);
      task_->Send(up);
    }
    for (v1::StreamId stream : closed_more_) {
      up.mutable_close_output()->set_stream(stream);
      task_->Send(up);
    }
    for (v1::SendSignal& signal : signals_) {
      *up.mutable_signal() = std::move(signal);
      task_->Send(up);
    }
    signals_.clear();
  }
  if (!attached.started()) return;
  if (!std::exchange(started_, true)) {
    sink_->OnProgress(v1::RUNNING, "running on " + Escape(node()), node());
    sink_->OnStarted();
  }
  WantInputs(&attached);
}

std::unique_ptr<NodeLinks::ContentUse> JobRun::UseContent() {
  if (!plan_.snapshot) return services_->nodes->UseContent(content_addresses_, *plan_.placement);
  return services_->snapshots->Serve(*plan_.snapshot, content_addresses_, *plan_.placement, plan_.trace,
                                     [this](const Error& error) { sink_->OnNotice(error.message()); });
}

// --- the end ---

// The record is here, and all that the command has said and written is home.
bool JobRun::Complete() const {
  if (!record_ || !write_back_done_) return false;
  bool ended = sink_->OutputEnded(v1::STDOUT) && sink_->OutputEnded(v1::STDERR);
  for (const v1::Descriptor& d : sink_->Descriptors()) {
    ended = ended && (!d.output() || sink_->OutputEnded(static_cast<v1::StreamId>(d.number())));
  }
  if (ended) return true;
  return record_->started_us() == 0 && sink_->OutputWanted(v1::STDOUT) == 0 && sink_->OutputWanted(v1::STDERR) == 0;
}

void JobRun::MaybeFinish() {
  if (Preempted()) return MaybeRestart();
  if (ended_ || unreported_ || !Complete()) return;
  Outcome outcome;
  outcome.record = record_;
  outcome.exit_status = ExitStatus(*record_);
  outcome.reason = EndReason(*record_);
  outcome.state = EndState(*record_);
  if (write_back_failed_ > 0) {
    // Nothing is lost: without Release the node keeps all that the command wrote.
    if (MakeDirs(services_->state_directory + "/runs", 0700)) {
      (void)WriteFileAtomic(WithheldPath(*services_, plan_.job), std::to_string(write_back_failed_) + "\n", 0600);
    }
    std::string text = std::to_string(write_back_failed_) +
                       " of the command's writes could not be applied at home: they are kept on node " +
                       Escape(node()) + " until `vctl cancel " + std::to_string(plan_.job) + "`";
    if (outcome.exit_status == 0) {
      outcome.exit_status = kExitNotStarted;
      outcome.state = v1::FAILED;
      outcome.reason = text;
    } else {
      sink_->OnNotice(text);
    }
    return Finish(std::move(outcome));
  }
  AddToOutcome(&outcome);
  if (!task_) return Retry(delay_);  // the end is told to the node before anybody else hears of it
  v1::TaskUp up;
  *up.mutable_release() = release_;
  task_->Send(up);
  task_->Finish();
  if (plan_.explain_io && plan_.trace && services_->traces != nullptr) return AwaitReport(std::move(outcome));
  Finish(std::move(outcome));
}

void JobRun::AddToOutcome(Outcome* outcome) {
  if (release_.conflicts() > 0) {
    outcome->record->set_conflicts(release_.conflicts());
    *outcome->record->mutable_conflict() = release_.conflict();
  }
  if (outcome->exit_status != 0) return;
  if (const uint64_t failed = LiveFailed(); failed > 0) {
    release_.set_failed(std::to_string(failed) +
                        " of the writes in its view could not be applied at home, and are lost");
  } else if (release_.conflicts() > 0 && services_->conflicts_fail) {
    release_.set_failed("what it wrote conflicts with what changed at home meanwhile (" +
                        std::to_string(release_.conflicts()) + ", the first one in " + Escape(release_.conflict(0)) +
                        "), and the configuration says conflicts = \"error\"");
  }
  if (release_.failed().empty()) return;
  outcome->exit_status = kExitNotStarted;
  outcome->state = v1::FAILED;
  outcome->reason = release_.failed();
}

void JobRun::AwaitReport(Outcome outcome) {
  // Nothing but the report or the time brings us on from here.
  task_.reset();
  unreported_ = std::move(outcome);
  report_timer_ = services_->loop->After(kReportMicros, [this] { Reported(std::nullopt); });
  services_->traces->WhenReported(plan_.job,
                                  [loop = services_->loop, alive = alive_, this](const v1::IoReport& report) {
                                    loop->Post([alive, this, report] {
                                      if (*alive) Reported(report);
                                    });
                                  });
}

void JobRun::Reported(std::optional<v1::IoReport> report) {
  services_->loop->Cancel(std::exchange(report_timer_, 0));
  if (!unreported_) return;
  Outcome outcome = *std::exchange(unreported_, std::nullopt);
  outcome.io = std::move(report);
  Finish(std::move(outcome));
}

void JobRun::FinishWithout(const std::string& reason) {
  Outcome outcome;
  outcome.reason = reason;
  // Nobody is left here who could take part in another attempt.
  if (Preempted()) services_->controller->Cancel(plan_.job, SIGTERM, [](Result<v1::CancelReply>) {});
  if (record_) {
    // It ended, and we know how; what is missing is output or writes.
    outcome.record = record_;
    outcome.exit_status = ExitStatus(*record_);
    outcome.state = EndState(*record_);
    if (Complete() && write_back_failed_ == 0) {
      outcome.reason = EndReason(*record_);
    } else if (outcome.exit_status == 0) {
      outcome.exit_status = kExitNotStarted;
      outcome.state = v1::FAILED;
    }
  } else if (!ever_attached_ && fatal_) {
    outcome.exit_status = kExitNotStarted;
    outcome.state = v1::FAILED;
  } else {
    outcome.exit_status = kExitUnknown;
    outcome.state = v1::LOST;
    outcome.reason += " (job " + std::to_string(plan_.job) + ")";
  }
  Finish(std::move(outcome));
}

void JobRun::NoticeOnce(const std::string& text) {
  constexpr size_t kMost = 10'000;
  if (notices_.size() < kMost && ++notices_[text] > 1) return;
  sink_->OnNotice(text);
}

void JobRun::Finish(Outcome outcome) {
  if (std::exchange(ended_, true)) return;
  for (const auto& [text, times] : notices_) {
    if (times > 1) sink_->OnNotice(text + " (" + std::to_string(times) + " times)");
  }
  if (bases_.attempt > 1) ForgetBases(*services_, plan_.job);
  if (plan_.frozen) services_->frozen->Forget(plan_.job);
  if (!plan_.live) ::unlink(ApplyJournalPath().c_str());
  outcome.node = record_ && !record_->node().empty() ? record_->node() : node();
  outcome.attempt = plan_.placement ? plan_.placement->attempt() : 0;
  outcome.fetched_bytes = fetched_before_ + (content_ ? content_->sent_bytes() : 0);
  for (EventLoop::TimerId* timer : {&watch_timer_, &settle_timer_, &retry_timer_}) {
    services_->loop->Cancel(std::exchange(*timer, 0));
  }
  watch_.reset();
  task_.reset();
  content_.reset();
  // Later: whoever is on the stack above us may not expect to lose the run.
  services_->loop->Post([this, alive = alive_, outcome = std::move(outcome)] {
    if (*alive) sink_->OnEnded(outcome);
  });
}

}  // namespace vrun::home
