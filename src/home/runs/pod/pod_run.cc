// SPDX-License-Identifier: Apache-2.0
#include "home/runs/pod/pod_run.h"

#include <algorithm>
#include <csignal>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "home/ahead/traces.h"
#include "home/runs/snapshot_client.h"
#include "home/serve/live_writes.h"
#include "home/streams/port_forwards.h"
#include "jobs/ending.h"
#include "tree/rules.h"

namespace vrun::home {
namespace {

constexpr int64_t kLastRetryMicros = 5'000'000;
constexpr int64_t kWatchRetryMicros = 1'000'000;
constexpr int64_t kTellLostMicros = 2'000'000;
// A node that refuses may be right or outdated; the controller decides within this time.
constexpr int64_t kSettleMicros = 3'000'000;
constexpr int64_t kReportMicros = 1'000'000;

std::string Ordinal(uint32_t n) {
  const char* suffix = "th";
  if (n % 100 < 11 || n % 100 > 13) suffix = n % 10 == 1 ? "st" : n % 10 == 2 ? "nd" : n % 10 == 3 ? "rd" : "th";
  return std::to_string(n) + suffix;
}

}  // namespace

PodRun::PodRun(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes, SnapshotClient* snapshots,
               const JobRoots* roots, LiveWrites* live_writes, Traces* traces, const RunFiles* files,
               bool conflicts_fail, Plan plan, Sink* sink)
    : loop_(loop),
      controller_(controller),
      nodes_(nodes),
      snapshots_(snapshots),
      roots_(roots),
      live_writes_(live_writes),
      traces_(traces),
      files_(files),
      conflicts_fail_(conflicts_fail),
      plan_(std::move(plan)),
      spans_(plan_.job, plan_.trace_parent),
      sink_(sink) {
  if (plan_.tree) pin_ = roots_->Pin(plan_.tree, plan_.exposed);
}

PodRun::~PodRun() {
  *alive_ = false;
  if (live_view_ != 0) live_writes_->Unlisten(live_view_, live_listener_);
  for (EventLoop::TimerId timer : {watch_timer_, settle_timer_, report_timer_}) loop_->Cancel(timer);
  EndPorts();
}

void PodRun::Start() {
  if (plan_.placement) {
    Place(*plan_.placement);
  } else {
    OpenWatch();
  }
}

// --- events of the controller ---

void PodRun::OpenWatch() {
  if (watch_ || ended() || state_ == State::kLeaving) return;
  // Of a gang, each pod has its own placement and exit record.
  const uint32_t pod = plan_.placement ? plan_.placement->pod() : 0;
  watch_ = controller_->Watch(plan_.job, pod,
                              {.on_message = [this](v1::JobEvent event) { OnWatchEvent(event); },
                               .on_closed = [this](Error) { OnWatchClosed(); }});
  if (!watch_) OnWatchClosed();
}

void PodRun::OnWatchClosed() {
  watch_.reset();
  // An unreachable controller stops nothing; it is asked again for as long as we depend on its answer.
  if (last_event_ && IsEnd(last_event_->state())) return;
  WatchSoon();
}

void PodRun::WatchSoon() {
  if (ended() || Attached() || watch_ || watch_timer_ != 0) return;
  watch_timer_ = loop_->After(kWatchRetryMicros, [this] {
    watch_timer_ = 0;
    if (!Attached()) OpenWatch();
  });
}

void PodRun::OnWatchEvent(const v1::JobEvent& event) {
  // Events during leaving are repeated when the next attempt may begin.
  if (state_ == State::kLeaving || state_ == State::kReporting) return;
  last_event_ = event;
  LogDebug("job {}: the controller says {}", plan_.job, v1::JobState_Name(event.state()));
  if (event.has_placement()) {
    const bool newer = event.placement().epoch() > placement_.epoch();
    if (newer && plan_.one_attempt) return Supersede("");
    // The unfinished state of the last attempt must be dropped before the next begins.
    if (newer && attempt_) return Restart("");
    if (newer && !IsEnd(event.state())) {
      Place(event.placement());
    } else if (event.placement().epoch() == placement_.epoch()) {
      Readdress(event.placement());
    }
  } else if (event.state() == v1::PENDING) {
    if (plan_.one_attempt) return Supersede("the job has lost node " + Escape(node()));
    if (attempt_) return Restart("the job has lost its node");
    state_ = State::kWaiting;
  }
  if (event.state() == v1::PENDING) {
    std::string text = "queued";
    if (event.queue_position() > 0) text += ", " + Ordinal(event.queue_position());
    if (!event.reason().empty()) text += ": " + Escape(event.reason());
    sink_->OnProgress(v1::PENDING, text, "");
    return;
  }
  if (event.state() != v1::LOST && !IsEnd(event.state())) return;
  // The controller decides what that means for the other pods, and then for the job.
  if (event.state() == v1::LOST && plan_.one_attempt) return;
  // While the node answers, its report comes with the output; the controller's is used only when it does not.
  if (!Attached()) return SettleFromWatch();
  if (settle_timer_ != 0) return;
  settle_timer_ = loop_->After(kSettleMicros, [this] {
    settle_timer_ = 0;
    // Attached and exited: output and writes may still arrive, for however long.
    if (!ended() && !(attempt_ && attempt_->record)) SettleFromWatch();
  });
}

void PodRun::SettleFromWatch() {
  const v1::JobEvent& event = *last_event_;
  if (event.state() == v1::LOST) {
    return FinishWithout("node " + Escape(node()) + " is lost: the outcome is unknown");
  }
  std::optional<v1::ExitRecord> record;
  if (attempt_ && attempt_->record) {
    record = attempt_->record;
  } else if (event.has_exit()) {
    record = event.exit();
  } else {
    // Cancelled while waiting, or refused: it never ran.
    Outcome outcome;
    outcome.state = event.state();
    outcome.exit_status = kExitNotStarted;
    outcome.reason = event.reason().empty() ? "the job was cancelled before it started" : Escape(event.reason());
    return Finish(std::move(outcome));
  }
  if (attempt_) attempt_->record = record;
  // The last attempt was released, so all of it is home.
  const bool released = !attempt_ && placement_.attempt() > 0;
  const bool complete = record->started_us() == 0 || released || Complete();
  // Its task is gone from the node, which has what it wrote.
  if (plan_.away && !complete && attempt_ && attempt_->writes != JobAttempt::Writes::kFinished) {
    settles_ = true;
    return CarryHome();
  }
  if (!complete) {
    const std::string why = attempt_ && attempt_->fatal ? attempt_->fatal->message() : "it cannot be reached";
    sink_->OnNotice("job " + std::to_string(plan_.job) + " ended on " + Escape(record->node()) +
                    ", and the end of its output and of its writes may be missing: " + why);
  }
  Outcome outcome;
  outcome.record = record;
  outcome.exit_status = ExitStatus(*record);
  outcome.reason = EndReason(*record);
  outcome.state = event.state();
  if (!complete && outcome.exit_status == 0) {
    outcome.exit_status = kExitNotStarted;
    outcome.reason = "the command ended with 0, but its output and writes are not all home";
    // The node may know where they are.
    if (event.has_exit() && !event.exit().reason().empty()) outcome.reason = EndReason(event.exit());
  }
  Finish(std::move(outcome));
}

// --- the node ---

void PodRun::PrepareLate() {
  if (std::exchange(state_, State::kPreparing) == State::kPreparing) return;
  const auto prepared = [this, alive = alive_](Result<tree::TreePtr> tree) {
    if (!*alive || state_ != State::kPreparing) return;
    plan_.late = false;
    if (!tree) return FinishWithout(tree.error().message());
    plan_.tree = std::move(*tree);
    pin_ = roots_->Pin(plan_.tree, plan_.exposed);
    plan_.frozen = plan_.freeze != nullptr;
    if (plan_.frozen) plan_.freeze(plan_);
    Place(placement_);
  };
  plan_.live ? roots_->Known(prepared) : roots_->Current(plan_.exposed, prepared);
}

void PodRun::Place(const v1::Placement& placement) {
  placement_ = placement;
  if (plan_.late) return PrepareLate();
  BeginAttempt();
  loop_->Cancel(std::exchange(settle_timer_, 0));
  sink_->OnProgress(v1::STARTING, "starting on " + Escape(node()), node());
  Connect();
  // A node that does not answer may have another address, or be lost.
  WatchSoon();
}

void PodRun::Readdress(const v1::Placement& placement) {
  const auto& addresses = placement.addresses();
  auto& known = *placement_.mutable_addresses();
  if (std::equal(addresses.begin(), addresses.end(), known.begin(), known.end())) return;
  known = addresses;
  if (!attempt_) return;
  attempt_->next_address = 0;
  attempt_->delay = JobAttempt::kFirstRetryMicros;
  if (attempt_->attached || ended()) return;
  // The process at the old address is not, or no longer, the node.
  Disconnect();
  attempt_->StopRetry();
  Connect();
}

void PodRun::Disconnect() {
  if (!attempt_ || !attempt_->task) return;
  attempt_->task.reset();
  attempt_->attached = false;
  if (plan_.ports) plan_.ports->Disconnected();
  sink_->OnDisconnected();
}

void PodRun::PrepareLivePaths() {
  roots_->Current(plan_.exposed, [this, alive = alive_](Result<tree::TreePtr> tree) {
    if (!*alive || ended() || live_tree_) return;
    if (!tree) return FinishWithout(tree.error().message());
    live_tree_ = *std::move(tree);
    live_pin_ = roots_->Pin(live_tree_, plan_.exposed);
    Connect();
  });
}

void PodRun::Connect() {
  if (ended() || suspended_ || !attempt_ || attempt_->task) return;
  if (placement_.addresses_size() == 0) return FinishWithout("node " + Escape(node()) + " has no address");
  if (plan_.live_paths && !live_tree_) return PrepareLivePaths();
  // The node knows of the job from the controller, and may ask before it answers us.
  if (!attempt_->content && !plan_.snapshot) attempt_->expected = nodes_->ExpectContent(ContentOfJob());
  const size_t next = attempt_->next_address++ % static_cast<size_t>(placement_.addresses_size());
  const std::string& address = placement_.addresses(static_cast<int>(next));
  LogDebug("job {}: to node {} at {}", plan_.job, Escape(node()), Escape(address));
  auto task = nodes_->OpenTask(node(), address,
                               {.on_message = [this](v1::TaskDown message) { OnTaskMessage(std::move(message)); },
                                .on_closed = [this](Error reason) { OnTaskClosed(reason); }});
  if (!task) {
    attempt_->last_error = task.error().message();
    return Retry();
  }
  attempt_->task = std::move(*task);
  v1::TaskUp up;
  v1::Attach* attach = up.mutable_attach();
  attach->set_job(plan_.job);
  attach->set_attempt(placement_.attempt());
  attach->set_token(placement_.token());
  attach->set_pod(pod());
  attach->set_home_id(nodes_->home_id());
  if (plan_.tree) attach->set_tree(std::string(plan_.tree->id.view()));
  if (plan_.live) {
    attach->set_tree_serial(roots_->serial());
    roots_->TellLiveViews();
  }
  if (live_tree_) {
    attach->set_live_tree(std::string(live_tree_->id.view()));
    attach->set_live_tree_serial(roots_->serial());
    roots_->TellLiveViews();
  }
  if (plan_.tree && plan_.tree->apart) attach->set_apart(std::string(plan_.tree->apart->id.view()));
  // No tree has this id, and the node reports that.
  if (plan_.frozen && !plan_.tree) attach->set_tree(std::string(Digest().view()));
  if (plan_.snapshot) {
    attach->set_tree(plan_.snapshot->tree());
    attach->set_apart(plan_.snapshot->apart());
  }
  // For a run in a snapshot, the snapshot store forwards the node's report.
  if (plan_.trace && traces_ != nullptr) {
    const Digest tree = plan_.tree ? plan_.tree->id : Digest();
    traces_->Expect({plan_.job, placement_.attempt(), placement_.token(), tree, *plan_.trace});
  }
  for (v1::StreamId stream : {v1::STDOUT, v1::STDERR}) {
    const size_t i = stream == v1::STDERR;
    const uint64_t received = attempt_->outputs[i].received = sink_->OutputWanted(stream);
    const uint64_t base = attempt_->bases.out[i];
    const uint64_t wanted = std::max(received, base) - base;
    stream == v1::STDOUT ? attach->set_stdout_offset(wanted) : attach->set_stderr_offset(wanted);
  }
  for (const v1::Descriptor& d : sink_->Descriptors()) {
    if (!d.output()) continue;
    v1::StreamOffset* output = attach->add_outputs();
    output->set_stream(static_cast<v1::StreamId>(d.number()));
    output->set_offset(sink_->OutputWanted(output->stream()));
  }
  attach->set_detached(plan_.detached);
  for (const std::string& name : plan_.secrets) {
    // The node says what is missing, unless it has it already.
    Result<std::string> value = files_->secrets().Get(name);
    if (!value) continue;
    v1::SecretValue* secret = attach->add_secrets();
    secret->set_name(name);
    secret->set_value(*std::move(value));
  }
  // Only a job that was attached before, perhaps by an earlier home, can have applied anything.
  if (attempt_->write_back || files_->HasApplyJournal(ApplyJournal())) {
    MakeWriteBack();
    attach->set_write_back_sequence(attempt_->write_back->sequence());
  }
  attempt_->task->Send(up);
}

void PodRun::Retry() {
  if (ended() || suspended_ || !attempt_ || attempt_->retry_timer != 0) return;
  int64_t now = MonotonicMicros();
  if (attempt_->lost_since == 0) attempt_->lost_since = now;
  if (now - attempt_->lost_since > kReconnectMicros) {
    return FinishWithout("node " + Escape(node()) + " could not be reached for 10 minutes: " + attempt_->last_error);
  }
  if (now - attempt_->lost_since > kTellLostMicros && !std::exchange(attempt_->told_lost, true)) {
    sink_->OnNotice("no connection to node " + Escape(node()) + ": " + attempt_->last_error +
                    ": the job goes on, trying again for 10 minutes");
  }
  OpenWatch();
  // Try all addresses before a pause.
  bool round_over = attempt_->next_address % static_cast<size_t>(std::max(1, placement_.addresses_size())) == 0;
  attempt_->retry_timer = loop_->After(round_over ? attempt_->delay : 0, [this] {
    attempt_->retry_timer = 0;
    Connect();
  });
  if (round_over) attempt_->delay = std::min(attempt_->delay * 2, kLastRetryMicros);
}

void PodRun::OnTaskClosed(const Error& reason) {
  bool was_attached = attempt_->attached;
  Disconnect();
  if (ended()) return;
  attempt_->last_error = reason.code() == Code::kOk ? "the node ended the connection" : reason.message();
  if (was_attached) {
    LogInfo("job {}: connection to the node lost: {}", plan_.job, attempt_->last_error);
  } else {
    LogDebug("job {}: no connection to the node: {}", plan_.job, attempt_->last_error);
  }
  if (attempt_->fatal) return;  // the controller is being asked
  Retry();
}

void PodRun::OnTaskError(const v1::Error& error) {
  attempt_->last_error = Escape(error.message());
  Code code = static_cast<Code>(error.code());
  LogInfo("job {}: node {}: {}", plan_.job, Escape(node()), attempt_->last_error);
  Disconnect();
  if (code == Code::kUnavailable || code == Code::kTimeout) return Retry();
  // The node will report no more. The controller may know how the job ended.
  attempt_->fatal = Error(code, attempt_->last_error);
  OpenWatch();
  if (settle_timer_ != 0) loop_->Cancel(settle_timer_);
  settle_timer_ = loop_->After(kSettleMicros, [this] {
    settle_timer_ = 0;
    if (ended() || !attempt_) return;
    if (last_event_ && (IsEnd(last_event_->state()) || last_event_->state() == v1::LOST)) return SettleFromWatch();
    FinishWithout(attempt_->fatal ? attempt_->fatal->message() : attempt_->last_error);
  });
  if (last_event_ && IsEnd(last_event_->state())) SettleFromWatch();
}

void PodRun::OnTaskMessage(v1::TaskDown message) {
  switch (message.body_case()) {
    case v1::TaskDown::kAttached: return OnAttached(message.attached());
    case v1::TaskDown::kStarted:
      ListenTo(message.started().view());
      if (state_ != State::kAttaching) return;
      BeginRunning();
      return WantInputs(nullptr);
    case v1::TaskDown::kOutput: return OnOutput(std::move(*message.mutable_output()));
    case v1::TaskDown::kInputAck: return OnInputAck(message.input_ack());
    case v1::TaskDown::kStopped: return sink_->OnStopped();
    case v1::TaskDown::kPort:
      // Before kAttached they belong to connections of the home before this one.
      if (attempt_->attached && plan_.ports) plan_.ports->Receive(std::move(*message.mutable_port()));
      return;
    case v1::TaskDown::kExited: return OnExited(message.exited().record());
    // Before kAttached they are the rest of what the node was sending to the home before this one. They come again.
    case v1::TaskDown::kWriteBack:
      if (attempt_->attached) OnWrite(std::move(*message.mutable_write_back()));
      return;
    case v1::TaskDown::kWriteBackEnd:
      if (attempt_->attached) OnWriteBackEnd(message.write_back_end());
      return;
    case v1::TaskDown::kError: return OnTaskError(message.error());
    case v1::TaskDown::kNotice:
      NoticeOnce(Escape(message.notice().text()));
      if (!message.notice().content_lost() || plan_.live) return;
      attempt_->content_lost = message.notice().text();
      FailFor(attempt_->content_lost);
      return;
    default: {
      LogWarning("job {}: the node sent an unknown message: update vrun at home", plan_.job);
      return;
    }
  }
}

// The job should see the root as it was: what it does without that file is worthless.
void PodRun::FailFor(const std::string& lost) {
  v1::TaskUp up;
  up.mutable_signal()->set_signal(SIGTERM);
  up.mutable_signal()->set_content_lost(lost);
  attempt_->task->Send(up);
}

void PodRun::OnAttached(const v1::Attached& attached) {
  bool first = !std::exchange(attempt_->attached, true);
  ever_attached_ = true;
  attempt_->lost_since = 0;
  attempt_->delay = JobAttempt::kFirstRetryMicros;
  if (std::exchange(attempt_->told_lost, false)) sink_->OnNotice("connected to node " + Escape(node()) + " again");
  std::vector<std::string> addresses(attached.content_addresses().begin(), attached.content_addresses().end());
  if (!addresses.empty() && addresses != attempt_->content_addresses) {
    attempt_->content_addresses = std::move(addresses);
    attempt_->content = UseContent();
  }
  if (first) {
    // Sends what could not be sent while disconnected.
    v1::TaskUp up;
    if (size_) {
      *up.mutable_resize() = *size_;
      attempt_->task->Send(up);
    }
    for (v1::StreamId stream : closed_) {
      up.mutable_close_output()->set_stream(stream);
      attempt_->task->Send(up);
    }
    for (v1::SendSignal& signal : signals_) {
      *up.mutable_signal() = std::move(signal);
      attempt_->task->Send(up);
    }
    signals_.clear();
  }
  if (!attached.started()) return;
  if (state_ == State::kAttaching) BeginRunning();
  WantInputs(&attached);
}

void PodRun::BeginRunning() {
  state_ = State::kRunning;
  sink_->OnProgress(v1::RUNNING, "running on " + Escape(node()), node());
  sink_->OnStarted();
}

std::unique_ptr<NodeLinks::ContentUse> PodRun::UseContent() {
  if (!plan_.snapshot) return nodes_->UseContent(attempt_->content_addresses, ContentOfJob());
  return snapshots_->Serve(*plan_.snapshot, attempt_->content_addresses, placement_, plan_.trace,
                           [this](const Error& error) { sink_->OnNotice(error.message()); });
}

NodeLinks::ContentJob PodRun::ContentOfJob() {
  NodeLinks::ContentJob job{.placement = placement_, .serves = {.any = true, .live = plan_.live, .trees = {}}};
  for (const tree::TreePtr& tree : {plan_.tree, live_tree_}) {
    if (!tree) continue;
    job.serves.trees.insert(std::string(tree->id.view()));
    if (tree->apart) job.serves.trees.insert(std::string(tree->apart->id.view()));
  }
  job.serves.live = job.serves.live || live_tree_;
  job.withheld = [this](const std::string& path) { TellWithheld(path); };
  return job;
}

void PodRun::TellWithheld(const std::string& path) {
  constexpr size_t kMostTold = 5;
  // What is served to this job is no part of the tree, so the node may miss it there, or for another job.
  const auto serves = [&](const std::string& exposed) { return tree::IsBelow(path, exposed); };
  if (std::any_of(plan_.exposed.begin(), plan_.exposed.end(), serves)) return;
  // The node names the first hidden part of a path.
  const auto named = [&](const std::string& told) { return tree::IsBelow(told, path); };
  if (std::any_of(plan_.told.begin(), plan_.told.end(), named)) return;
  if (ended() || withheld_.size() > kMostTold || !withheld_.insert(path).second) return;
  if (withheld_.size() > kMostTold) return sink_->OnNotice("more files were withheld from the job: see `man vrun`");
  sink_->OnNotice("withheld from the job: " + Escape(path) + ": a private key or credential (`--expose " +
                  Escape(path) + "` serves it)");
}

// --- the end ---

// The exit record is here, and all output and writes are home.
bool PodRun::Complete() const {
  if (!attempt_ || !attempt_->record || attempt_->writes != JobAttempt::Writes::kFinished) return false;
  return attempt_->paths_home && OutputsEnded();
}

bool PodRun::OutputsEnded() const {
  bool ended = sink_->OutputEnded(v1::STDOUT) && sink_->OutputEnded(v1::STDERR);
  for (const v1::Descriptor& d : sink_->Descriptors()) {
    ended = ended && (!d.output() || sink_->OutputEnded(static_cast<v1::StreamId>(d.number())));
  }
  // It never started, or its supervisor died: no more output will come.
  return ended || attempt_->record->started_us() == 0;
}

void PodRun::MaybeFinish() {
  if (Preempted()) return MaybeRestart();
  if (carries_ && state_ == State::kEnding && attempt_ && attempt_->record && OutputsEnded()) {
    carries_ = false;
    CarryHome();
  }
  if (state_ != State::kEnding || !Complete()) return;
  spans_.AllHome(placement_, attempt_->failed_writes, release_.conflicts());
  Outcome outcome;
  outcome.record = attempt_->record;
  outcome.exit_status = ExitStatus(*attempt_->record);
  outcome.reason = EndReason(*attempt_->record);
  outcome.state = EndState(*attempt_->record);
  if (attempt_->failed_writes > 0) {
    // Nothing is lost: without Release the node keeps everything that the command wrote.
    files_->RememberWithheld(plan_.job, attempt_->failed_writes);
    std::string text = std::to_string(attempt_->failed_writes) +
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
  if (!attempt_->task) return Retry();  // the node is told of the end first
  sink_->OnReleasing(outcome);
  v1::TaskUp up;
  *up.mutable_release() = release_;
  attempt_->task->Send(up);
  attempt_->task->Finish();
  if (plan_.explain_io && plan_.trace && traces_ != nullptr) return AwaitReport(std::move(outcome));
  Finish(std::move(outcome));
}

void PodRun::AddToOutcome(Outcome* outcome) {
  if (release_.conflicts() > 0) {
    outcome->record->set_conflicts(release_.conflicts());
    *outcome->record->mutable_conflict() = release_.conflict();
  }
  if (outcome->exit_status != 0) return;
  if (!left_on_node_.empty()) {
    release_.set_failed(left_on_node_);
  } else if (!attempt_->content_lost.empty()) {  // the command may have ended before the signal reached it
    release_.set_failed(attempt_->content_lost);
  } else if (const uint64_t failed = LiveFailed(); failed > 0) {
    release_.set_failed(std::to_string(failed) +
                        " of the writes in its view could not be applied at home, and are lost");
  } else if (release_.conflicts() > 0 && conflicts_fail_) {
    release_.set_failed("what it wrote conflicts with what changed at home meanwhile (" +
                        std::to_string(release_.conflicts()) + ", the first one in " + Escape(release_.conflict(0)) +
                        "), and the configuration says conflicts = \"error\"");
  }
  if (release_.failed().empty()) return;
  outcome->exit_status = kExitNotStarted;
  outcome->state = v1::FAILED;
  outcome->reason = release_.failed();
}

void PodRun::AwaitReport(Outcome outcome) {
  state_ = State::kReporting;
  attempt_->task.reset();
  unreported_ = std::move(outcome);
  report_timer_ = loop_->After(kReportMicros, [this] { Reported(std::nullopt); });
  traces_->WhenReported(plan_.job, [loop = loop_, alive = alive_, this](const v1::IoReport& report) {
    loop->Post([alive, this, report] {
      if (*alive) Reported(report);
    });
  });
}

void PodRun::Reported(std::optional<v1::IoReport> report) {
  loop_->Cancel(std::exchange(report_timer_, 0));
  if (state_ != State::kReporting) return;
  Outcome outcome = *std::exchange(unreported_, std::nullopt);
  outcome.io = std::move(report);
  Finish(std::move(outcome));
}

void PodRun::FinishWithout(const std::string& reason) {
  Outcome outcome;
  outcome.reason = reason;
  // Nobody here can take part in another attempt.
  if (Preempted()) controller_->Cancel(plan_.job, SIGTERM, [](Result<v1::CancelReply>) {});
  if (attempt_ && attempt_->record) {
    // It ended and the status is known, but output or writes are missing.
    outcome.record = attempt_->record;
    outcome.exit_status = ExitStatus(*attempt_->record);
    outcome.state = EndState(*attempt_->record);
    if (Complete() && attempt_->failed_writes == 0) {
      outcome.reason = EndReason(*attempt_->record);
    } else if (outcome.exit_status == 0) {
      outcome.exit_status = kExitNotStarted;
      outcome.state = v1::FAILED;
    }
  } else if (!ever_attached_ && attempt_ && attempt_->fatal) {
    outcome.exit_status = kExitNotStarted;
    outcome.state = v1::FAILED;
  } else {
    outcome.exit_status = kExitUnknown;
    outcome.state = v1::LOST;
    outcome.reason += " (job " + std::to_string(plan_.job) + ")";
  }
  Finish(std::move(outcome));
}

// The controller has gone on: nothing more comes from this attempt.
void PodRun::Supersede(const std::string& reason) {
  Outcome outcome;
  if (attempt_ && attempt_->record) {
    outcome.record = attempt_->record;
    outcome.exit_status = ExitStatus(*attempt_->record);
    outcome.state = EndState(*attempt_->record);
  }
  outcome.reason = reason;
  outcome.superseded = true;
  EndOnNode(reason.empty() ? "the job runs in another attempt" : reason);
  Finish(std::move(outcome));
}

// Its node may have lost the controller alone, and would let it run beside the next attempt.
void PodRun::EndOnNode(const std::string& reason) {
  if (!Attached() || attempt_->record) return;
  v1::TaskUp up;
  up.mutable_signal()->set_signal(SIGKILL);
  up.mutable_signal()->set_gang_ended(reason);
  attempt_->task->Send(up);
  attempt_->task->Finish();
}

void PodRun::NoticeOnce(const std::string& text) {
  constexpr size_t kMost = 10'000;
  if (notices_.size() < kMost && ++notices_[text] > 1) return;
  sink_->OnNotice(text);
}

void PodRun::Finish(Outcome outcome) {
  if (std::exchange(state_, State::kEnded) == State::kEnded) return;
  for (const auto& [text, times] : notices_) {
    if (times > 1) sink_->OnNotice(text + " (" + std::to_string(times) + " times)");
  }
  if (placement_.attempt() > 1 && !plan_.one_attempt) files_->ForgetBases(plan_.job);
  if (plan_.frozen && !plan_.one_attempt) roots_->frozen().Forget(plan_.job);
  if (!plan_.live) files_->ForgetApplyJournal(ApplyJournal());
  outcome.node = outcome.record && !outcome.record->node().empty() ? outcome.record->node() : node();
  outcome.attempt = placement_.attempt();
  outcome.fetched_bytes = fetched_before_ + (attempt_ ? attempt_->fetched_bytes() : 0);
  for (EventLoop::TimerId* timer : {&watch_timer_, &settle_timer_}) loop_->Cancel(std::exchange(*timer, 0));
  watch_.reset();
  EndPorts();
  if (attempt_) {
    // Not destroyed: its WriteBack may be on the stack.
    attempt_->StopRetry();
    attempt_->task.reset();
    attempt_->EndContent();
  }
  // Posted, because callers on the stack may not expect the run to be destroyed.
  loop_->Post([this, alive = alive_, outcome = std::move(outcome)] {
    if (*alive) sink_->OnEnded(outcome);
  });
}

}  // namespace vrun::home
