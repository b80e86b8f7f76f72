// SPDX-License-Identifier: Apache-2.0
#include "home/runs/attached_run.h"

#include <fcntl.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "home/ahead/trace.h"
#include "home/ahead/traces.h"
#include "home/frozen/frozen_roots.h"
#include "home/links/controller_client.h"
#include "home/streams/log_spool.h"
#include "jobs/ending.h"
#include "jobs/gang.h"
#include "telemetry/trace_context.h"

namespace vrun::home {
namespace {

constexpr int64_t kDurableMicros = 500'000;  // how long a client waits for a busy disk

bool EndsAWaitingRun(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

}  // namespace

AttachedRun::AttachedRun(EventLoop* loop, ControllerClient* controller, const JobRoots* roots, Traces* traces,
                         LogSpool* spool, const RunFiles* files, Owner* owner, std::shared_ptr<ClientConnection> client,
                         Options options)
    : loop_(loop),
      controller_(controller),
      roots_(roots),
      traces_(traces),
      spool_(spool),
      files_(files),
      owner_(owner),
      client_(std::move(client)),
      options_(options),
      begun_us_(MonotonicMicros()) {
  if (!client_) return;
  client_->SetEvents(
      {.on_message = [this](v1::ClientMessage message, std::vector<UniqueFd>) { OnClientMessage(std::move(message)); },
       .on_closed = [this] { OnClientGone(); }});
}

AttachedRun::~AttachedRun() {
  *alive_ = false;
  Answer();  // also for a job that has already ended
  if (launch_) launch_->Forget();
  if (client_) client_->SetEvents({});
}

void AttachedRun::TakeDescriptors(UniqueFd in, UniqueFd out, UniqueFd err, StreamProgressMap progress) {
  for (const UniqueFd* fd : {&in, &out, &err}) {
    if (saved_) break;
    auto saved = std::make_unique<SavedTerminal>(fd->get());
    if (!saved->saved()) continue;
    saved_ = std::move(saved);
    terminal_.Reset(::fcntl(fd->get(), F_DUPFD_CLOEXEC, 3));
  }
  pump_ = std::make_unique<StdioPump>(loop_, this, std::move(in), std::move(out), std::move(err), std::move(progress));
  if (client_ && saved_) {
    pump_->SetTerminalGate([this] { return client_ && !stopped_ && MayReadTerminal(client_->peer().pid); });
  }
  // A job that prints without end must not stop all that home's machine does.
  constexpr uint64_t kLeaveFree = uint64_t{256} << 20;
  options_.detached ? pump_->LeaveFree(kLeaveFree) : pump_->SetPipeTurns(owner_->pipe_turns());
}

void AttachedRun::TakeDescriptor(const v1::Descriptor& descriptor, UniqueFd fd, StreamProgressMap progress) {
  extras_.push_back(std::make_unique<ExtraStream>(loop_, this, descriptor, std::move(fd), std::move(progress)));
}

void AttachedRun::StartRun(const v1::Run& request, std::shared_ptr<PortForwards> ports) {
  auto run = std::make_shared<const v1::Run>(request);
  launch_ = owner_->MakeLaunch(
      *run,
      Launch::Events{.on_accepted = [this, run](uint64_t job) { Accepted(*run, job); },
                     .on_progress = [this](std::string text) { OnProgress(v1::PENDING, text, ""); },
                     .on_notice = [this](std::string text) { OnNotice(text); },
                     .on_tree =
                         [this, run](const tree::TreePtr& tree) {
                           if (options_.detached && !launch_->live())
                             PrepareRoot(*run, tree, roots_, traces_, files_->root());
                         },
                     .uses =
                         [this, run] {
                           auto paths = traces_->Touched(TraceOf(run->spec().command(), files_->root()));
                           paths.push_back(run->spec().command().directory());
                           return paths;
                         },
                     .goes_first =
                         [this, run](const tree::TreePtr& tree) {
                           auto first = traces_->Touched(TraceOf(run->spec().command(), files_->root()));
                           first.push_back(ProjectOf(*tree, run->spec().command().directory()));
                           return first;
                         },
                     .on_ready =
                         [this, run, ports = std::move(ports)](std::optional<v1::Placement> placement,
                                                               tree::TreePtr tree, const v1::SubmitRequest& request) {
                           auto launch = std::move(launch_);
                           root_bytes_ = tree ? tree->bytes : 0;
                           root_entries_ = tree ? tree->entries : 0;
                           root_is_part_ = tree && !roots_->facts().scanned;
                           JobRun::Plan plan = PlanOf(*run, request, std::move(tree), files_->root());
                           plan.job = job_;
                           plan.placement = std::move(placement);
                           plan.detached = options_.detached;
                           if (plan.trace) files_->RememberTraced(job_, *run);
                           plan.rank_files = rank_files_;
                           plan.ports = ports;
                           if (request.spec().away())
                             GoAway(&plan, run->spec().command().directory(), launch->TakeSending());
                           const bool freeze = !plan.live && plan.tree && roots_->frozen().enabled();
                           plan.frozen = freeze && !plan.late;
                           if (plan.frozen) {
                             Freeze(plan, run->spec().command().directory());
                           } else if (!request.spec().away()) {
                             RootIsKept();
                           }
                           if (freeze && plan.late) plan.freeze = LateFreeze(run->spec().command().directory());
                           run_ = owner_->MakeRun(this, std::move(plan));
                           run_->Start();
                           // Its terminal is gone.
                           if (!client_ && options_.terminal) owner_->Orphan(this);
                         },
                     .on_failed =
                         [this](Error error) {
                           auto launch = std::move(launch_);
                           ended_ = true;
                           if (options_.detached && job_ != 0 && !client_) {
                             // The client has its number and has left.
                             Outcome outcome;
                             outcome.exit_status = kExitNotStarted;
                             outcome.state = v1::FAILED;
                             outcome.reason = error.message();
                             return TellFinished(std::move(outcome));
                           }
                           if (client_) client_->SendError(error);
                           client_.reset();
                           End();
                         }});
  launch_->Start();
}

void AttachedRun::Accepted(const v1::Run& run, uint64_t job) {
  job_ = job;
  accepted_us_ = MonotonicMicros();
  bool taken_up = owner_->OnAccepted(this, job);
  if (taken_up) {
    launch_->Forget();
    // Posted, because the launch is on the stack.
    loop_->Post([launch = std::move(launch_)] {});
  } else if (options_.detached) {
    Status opened = OpenOutputFiles(run);
    if (!opened) {
      launch_->Abandon(SIGTERM);
      ended_ = true;
      if (client_) client_->SendError(opened.error());
      client_.reset();
      return End();
    }
  }
  if (!client_) return;
  if (!options_.detached) {
    v1::HomeMessage message;
    message.mutable_accepted()->set_job(job);
    client_->Send(message);
    return;
  }
  client_->SetEvents({});
  answering_ = std::move(client_);
  if (taken_up) return Answer();
  owner_->WhenRecorded([this, alive = alive_] {
    if (!*alive) return;
    record_kept_ = true;
    AnswerIfKept();
  });
  const bool freezes = run.snapshot().empty() && roots_->frozen().Begun(job);
  if (!freezes) return RootIsKept();
  answer_ = loop_->After(kDurableMicros, [this] {
    answer_ = 0;
    RootIsKept();
  });
}

void AttachedRun::RootIsKept() {
  root_kept_ = true;
  AnswerIfKept();
}

void AttachedRun::AnswerIfKept() {
  if (record_kept_ && root_kept_) Answer();
}

void AttachedRun::Answer() {
  loop_->Cancel(std::exchange(answer_, 0));
  const auto client = std::move(answering_);
  if (!client) return;
  v1::HomeMessage message;
  message.mutable_accepted()->set_job(job_);
  client->Send(message);
  if (options_.wait_until_away) return owner_->WatchAway(job_, client);
  client->Close();
}

JobRun::Plan AttachedRun::PlanOf(const v1::Run& run, const v1::SubmitRequest& request, tree::TreePtr tree,
                                 const std::string& root) {
  JobRun::Plan plan;
  plan.tree = std::move(tree);
  if (request.has_snapshot()) plan.snapshot = request.snapshot();
  plan.exposed.assign(run.expose().begin(), run.expose().end());
  if (plan.tree || plan.snapshot) plan.trace = TraceOf(run.spec().command(), root);
  plan.trace_parent = telemetry::TraceParentIn(run.spec().command().environment());
  plan.explain_io = run.explain_io();
  for (const v1::NamedPath& named : run.named()) plan.told.push_back(named.path());
  plan.requeue = MayRunAgain(run.spec().scheduling());
  plan.gang = request.spec().gang();
  plan.label = run.label();
  plan.input_rank = run.input_rank();
  plan.live = request.spec().live_view();
  plan.live_paths = !plan.live && !request.spec().live_paths().empty();
  plan.away = request.spec().away() && !request.spec().keep_writes();
  plan.late = plan.tree && ComesAfterOthers(run.spec().scheduling());
  for (const v1::SecretUse& use : run.spec().secrets()) plan.secrets.push_back(use.name());
  return plan;
}

std::vector<std::string> AttachedRun::FirstToFreeze(const JobRun::Plan& plan, const std::string& directory,
                                                    Traces* traces, const std::string& root) {
  std::vector<std::string> first{ProjectOf(*plan.tree, directory)};
  if (plan.trace) {
    for (std::string& path : traces->Touched(*plan.trace)) first.push_back(std::move(path));
  }
  const char* home = ::getenv("HOME");
  const std::string prefix = root == "/" ? "" : root;
  if (home != nullptr && std::string_view(home).starts_with(prefix + "/")) first.push_back(home + prefix.size());
  return first;
}

void AttachedRun::PrepareRoot(const v1::Run& run, const tree::TreePtr& tree, const JobRoots* roots, Traces* traces,
                              const std::string& root) {
  if (!roots->frozen().enabled() || ComesAfterOthers(run.spec().scheduling())) return;
  JobRun::Plan plan;
  plan.tree = tree;
  plan.trace = TraceOf(run.spec().command(), root);
  roots->frozen().Prepare(tree, {run.expose().begin(), run.expose().end()},
                          FirstToFreeze(plan, run.spec().command().directory(), traces, root));
}

void AttachedRun::Freeze(const JobRun::Plan& plan, const std::string& directory) {
  std::vector<std::string> first = FirstToFreeze(plan, directory, traces_, files_->root());
  if (!options_.detached) return roots_->frozen().AddShort(plan.job, plan.tree, plan.exposed, std::move(first));
  roots_->frozen().Add(plan.job, plan.tree, plan.exposed, std::move(first), [this, alive = alive_] {
    if (*alive) RootIsKept();
  });
}

// The root is frozen while it is sent; the job sees the snapshot that is made of it.
void AttachedRun::GoAway(JobRun::Plan* plan, const std::string& directory,
                         std::unique_ptr<SnapshotClient::Sending> sending) {
  owner_->SendAway(job_, std::move(sending));
  if (roots_->frozen().enabled()) {
    Freeze(*plan, directory);
  } else {
    RootIsKept();
  }
  plan->tree.reset();
  plan->late = false;
}

std::function<void(const JobRun::Plan&)> AttachedRun::LateFreeze(const std::string& directory) {
  return [this, directory](const JobRun::Plan& plan) {
    if (options_.detached) roots_->frozen().Begin(plan.job);
    Freeze(plan, directory);
  };
}

Status AttachedRun::OpenOutputFiles(const v1::Run& run) {
  DetachedFiles files;
  files.stdout_path = run.stdout_path();
  files.stderr_path = run.stderr_path();
  files.directory = run.spec().command().directory();
  files.append = run.append_output();
  // Recorded before the client is told: the next home continues with these files.
  files.exposed.assign(run.expose().begin(), run.expose().end());
  const bool frozen = run.snapshot().empty() && !launch_->live() && roots_->frozen().enabled();
  const bool at_once = run.spec().away() || !ComesAfterOthers(run.spec().scheduling());
  if (frozen && at_once) roots_->frozen().Begin(job_);
  if (IsGang(run.spec().gang()) && NamesRank(files)) rank_files_ = files;
  batch_.emplace(spool_, files_, job_, std::move(files));
  batch_->Remember();
  if (!rank_files_) return batch_->WaitsForNode() ? batch_->Check() : OpenFiles("");
  VRUN_TRY(batch_->Check());
  return OpenOnlyLog();
}

// The ranks have files of their own.
Status AttachedRun::OpenOnlyLog() {
  batch_->LeaveFiles();
  VRUN_ASSIGN(DetachedStreams streams, OpenNowhere());
  TakeStreams(std::move(streams));
  return {};
}

Status AttachedRun::TakeFiles(uint64_t job, DetachedFiles files, const v1::Gang& gang) {
  job_ = job;
  if (IsGang(gang) && NamesRank(files)) rank_files_ = files;
  batch_.emplace(spool_, files_, job_, std::move(files));
  if (rank_files_) return OpenOnlyLog();
  return batch_->WaitsForNode() ? Status() : OpenFiles("");
}

Status AttachedRun::OpenFiles(const std::string& node) {
  VRUN_ASSIGN(DetachedStreams streams, batch_->Open(node));
  TakeStreams(std::move(streams));
  return {};
}

void AttachedRun::LoseFiles(const Error& why) {
  output_lost_ = why.message() + ": the output is in `vctl logs " + std::to_string(job_) + "` only";
  // The command's output needs a target.
  if (auto nowhere = OpenNowhere()) TakeStreams(std::move(*nowhere));
  OnNotice(output_lost_);
}

void AttachedRun::TakeStreams(DetachedStreams streams) {
  TakeDescriptors(std::move(streams.in), std::move(streams.out), std::move(streams.err), std::move(streams.progress));
  batch_->SetPump(pump_.get());
}

void AttachedRun::Resume(uint64_t job, JobRun* run) {
  job_ = job;
  run_ = run;
  accepted_us_ = begun_us_;
  if (run == nullptr || !run->started()) return;
  // The command already runs: set up the terminal as at its start.
  OnStarted();
}

void AttachedRun::HomeEnds() {
  if (launch_) launch_->Forget();
  launch_.reset();
  if (pump_) pump_->Close();
  for (auto& extra : extras_) extra->pump().Close();
  Answer();  // the tree is still being written
  // The client sees the connection end, starts a new home and resumes.
  if (client_) client_->Close();
}

// --- messages of the client ---

void AttachedRun::OnClientMessage(v1::ClientMessage message) {
  if (ended_) return;
  switch (message.body_case()) {
    case v1::ClientMessage::kSignal: return OnSignal(message.signal().signal(), message.signal().background());
    case v1::ClientMessage::kResize:
      if (run_ != nullptr) run_->Resize(message.resize());
      return;
    case v1::ClientMessage::kDetach:
      if (run_ == nullptr) return OnSignal(SIGHUP, false);
      return Leave(0, "");
    case v1::ClientMessage::kTerminalReady:
      if (pump_) pump_->ReleaseOutput();
      return;
    default:
      return client_->SendError(
          Error(Code::kUnsupported,
                "home does not know this message: client and home have different versions: restart home: `vctl down`"));
  }
}

void AttachedRun::OnSignal(int signal, bool background) {
  if (signal <= 0 || signal >= NSIG) return;
  if (signal == SIGTSTP) stopped_ = true;
  if (signal == SIGCONT) stopped_ = background;
  if (signal == SIGCONT && pump_) pump_->Foreground();
  bool started = run_ != nullptr && run_->started();
  if (started) return run_->SendSignal(signal, false);
  if (EndsAWaitingRun(signal)) return CancelWaiting(signal);
  // Stop signals concern only a command that has begun; others wait for it.
  if (run_ != nullptr && signal != SIGTSTP && signal != SIGCONT && signal != SIGTTIN && signal != SIGTTOU)
    run_->SendSignal(signal, false);
}

void AttachedRun::CancelWaiting(int signal) {
  if (job_ == 0) {
    // Not submitted, or not answered yet: a job that exists by now is cancelled when its number comes.
    if (launch_) launch_->Abandon(signal);
    launch_.reset();
    Outcome outcome;
    outcome.exit_status = 128 + signal;
    outcome.state = v1::CANCELLED;
    outcome.reason = "cancelled before it was submitted";
    ended_ = true;
    return TellFinished(std::move(outcome));
  }
  if (cancel_signal_ != 0) {
    return Leave(128 + signal, "not waiting any more: job " + std::to_string(job_) + " is being cancelled");
  }
  CancelNow(signal);
}

void AttachedRun::CancelNow(int signal) {
  cancel_signal_ = signal;
  controller_->Cancel(job_, signal, [this, alive = alive_, signal](Result<v1::CancelReply> reply) {
    if (!*alive || ended_) return;
    if (reply && reply->state() == v1::CANCELLED) {
      Outcome outcome;
      outcome.exit_status = 128 + signal;
      outcome.state = v1::CANCELLED;
      outcome.reason = "cancelled";
      outcome.node = run_ != nullptr ? run_->node() : "";
      ended_ = true;
      return TellFinished(std::move(outcome));
    }
    if (reply) return;  // it runs: the signal was sent, and the record will come
    // Without the controller the node can still be told.
    if (run_ != nullptr) run_->SendSignal(signal, true);
    OnNotice("cannot cancel job " + std::to_string(job_) + " at the controller: " + reply.error().message());
  });
}

void AttachedRun::OnClientGone() {
  client_.reset();
  if (pump_) pump_->ReleaseOutput();
  if (ended_) return;
  if (saved_ && raw_ && terminal_) saved_->Restore(terminal_.get());
  if (run_ == nullptr && !launch_) {
    // The client reconnected and left again: nothing has changed for the job.
    ended_ = true;
    return End();
  }
  if (options_.on_disconnect == v1::ON_DISCONNECT_CANCEL) CancelForGone();
  if (ended_) return;
  if (!options_.terminal) {
    LogInfo("job {}: the client has gone: its pipes are served to the end", job_);
    // The terminal belongs to the shell again.
    if (saved_) pump_->PauseInput();
    return;
  }
  LogInfo("job {}: the client of a terminal has gone", job_);
  // A run that does not exist yet is orphaned when it does.
  if (run_ != nullptr) owner_->Orphan(this);
}

void AttachedRun::CancelForGone() {
  LogInfo("job {}: the client has gone: cancelled", job_);
  if (run_ == nullptr) {
    ended_ = true;
    launch_->Abandon(SIGHUP);
    launch_.reset();
    return End();
  }
  // The run continues until its end is known: its writes come home.
  controller_->Cancel(job_, SIGHUP, [this, alive = alive_](Result<v1::CancelReply> reply) {
    if (!reply && *alive && run_ != nullptr && !ended_) run_->SendSignal(SIGHUP, true);
  });
}

// The client leaves, the job continues.
void AttachedRun::Leave(int exit_status, const std::string& reason) {
  Outcome outcome;
  outcome.exit_status = exit_status;
  outcome.state = run_ != nullptr && run_->started() ? v1::RUNNING : v1::PENDING;
  outcome.reason = reason;
  outcome.node = run_ != nullptr ? run_->node() : "";
  if (client_) client_->SetEvents({});
  auto client = client_;
  if (run_ != nullptr) owner_->Orphan(this);
  ended_ = true;
  client_ = client;
  TellFinished(std::move(outcome));
}

// --- JobRun::Sink ---

void AttachedRun::OnProgress(v1::JobState state, const std::string& text, const std::string& node) {
  if (batch_ && batch_->WaitsForNode() && !node.empty()) {
    if (Status opened = OpenFiles(node); !opened) LoseFiles(opened.error());
  }
  if (!client_) return;
  // RUNNING and COMPLETING are always reported: the meaning of Ctrl-C depends on them.
  bool wanted = options_.progress && !options_.quiet;
  if (!wanted && state != v1::RUNNING && state != v1::COMPLETING) return;
  v1::HomeMessage message;
  message.mutable_progress()->set_state(state);
  message.mutable_progress()->set_text(text);
  client_->Send(message);
}

void AttachedRun::OnNotice(const std::string& text) {
  LogInfo("job {}: {}", job_, text);
  if (batch_) return batch_->Note(text);
  if (!client_) return;
  v1::HomeMessage message;
  message.mutable_notice()->set_text(text);
  client_->Send(message);
}

void AttachedRun::OnWriteNotice(const std::string& text) {
  if (!batch_) return OnNotice(text);
  LogInfo("job {}: {}", job_, text);
  batch_->NoteWrite(text);
}

void AttachedRun::OnStarted() {
  if (started_us_ == 0) started_us_ = MonotonicMicros();
  if (!client_ || !options_.terminal || std::exchange(raw_, true)) return;
  v1::HomeMessage message;
  message.mutable_terminal_mode()->set_raw(true);
  client_->Send(message);
  // The remote terminal has already processed the output (a \r before each \n).
  if (pump_ && options_.terminal_ready) pump_->HoldOutput();
}

// As if the key had stopped our client: its shell gets the terminal. A client that is already stopped has requested
// this.
void AttachedRun::OnStopped() {
  if (!client_ || std::exchange(stopped_, true)) return;
  v1::HomeMessage message;
  message.mutable_stopped();
  client_->Send(message);
}

ExtraStream* AttachedRun::Extra(v1::StreamId stream) {
  for (auto& extra : extras_) {
    if (extra->stream() == stream) return extra.get();
  }
  return nullptr;
}

std::vector<v1::Descriptor> AttachedRun::Descriptors() const {
  std::vector<v1::Descriptor> out;
  for (const auto& extra : extras_) out.push_back(extra->descriptor());
  return out;
}

void AttachedRun::OnInputWanted(v1::StreamId stream, uint64_t offset) {
  if (stream > v1::STDERR) {
    if (ExtraStream* extra = Extra(stream)) extra->InputWanted(offset);
    return;
  }
  if (!pump_) return;
  if (!client_ && saved_) return;
  Status started = pump_->StartInput(offset);
  if (started) return;
  OnNotice(started.error().message());
  run_->SendInput(v1::STDIN, offset, {}, true);
}

void AttachedRun::OnInputAcked(v1::StreamId stream, uint64_t offset, bool closed, std::optional<uint64_t> taken) {
  ExtraStream* extra = stream > v1::STDERR ? Extra(stream) : nullptr;
  StdioPump* pump = extra != nullptr ? &extra->pump() : pump_.get();
  if (pump == nullptr || (stream > v1::STDERR && extra == nullptr)) return;
  if (closed) return pump->EndInput(taken);
  pump->InputAcked(offset);
}

void AttachedRun::OnDisconnected() {
  if (pump_) pump_->PauseInput();
  for (auto& extra : extras_) extra->pump().PauseInput();
}

void AttachedRun::OnOutput(v1::StreamId stream, uint64_t offset, std::string data, bool eof) {
  if (stream > v1::STDERR) {
    if (ExtraStream* extra = Extra(stream)) extra->Output(offset, std::move(data), eof);
    return;
  }
  if (!pump_) return;
  if (first_output_us_ == 0 && !data.empty()) first_output_us_ = MonotonicMicros();
  if (!spool_full_ && !data.empty()) {
    spool_->Append(job_, stream, offset, data, LogSpool::kJobBytes,
                   [this, alive = alive_](LogSpool::Appended appended) {
                     if (*alive && !appended.kept) spool_full_ = true;
                   });
  }
  uint64_t have = pump_->received(stream);
  if (offset > have) {
    OnNotice(std::to_string(offset - have) + " bytes of output were lost");
    if (output_lost_.empty()) output_lost_ = "some of its output was lost";
    pump_->SkipTo(stream, offset);
  }
  (void)pump_->Write(stream, offset, std::move(data), eof);
}

uint64_t AttachedRun::OutputWanted(v1::StreamId stream) {
  if (stream <= v1::STDERR) return pump_ ? pump_->received(stream) : 0;
  const ExtraStream* extra = Extra(stream);
  return extra != nullptr ? extra->wanted() : 0;
}

bool AttachedRun::OutputEnded(v1::StreamId stream) {
  if (stream <= v1::STDERR) return pump_ && pump_->ended(stream);
  const ExtraStream* extra = Extra(stream);
  return extra == nullptr || extra->ended();
}

bool AttachedRun::Drained() const {
  return (!pump_ || pump_->drained()) &&
         std::all_of(extras_.begin(), extras_.end(), [](const auto& extra) { return extra->pump().drained(); });
}

void AttachedRun::OnEnded(const Outcome& outcome) {
  if (std::exchange(ended_, true)) return;
  if (pump_) pump_->EndInput();
  for (auto& extra : extras_) extra->pump().EndInput();
  // Without a proper end there may be output that a slow reader has not read yet.
  if (!Drained()) {
    waiting_outcome_ = outcome;
    return;
  }
  TellFinished(outcome);
}

void AttachedRun::TellFinished(Outcome outcome) {
  if (cancel_signal_ != 0 && !outcome.record && outcome.state == v1::CANCELLED)
    outcome.exit_status = 128 + cancel_signal_;
  if (!output_lost_.empty() && outcome.exit_status == 0 && outcome.record) {
    outcome.exit_status = kExitNotStarted;
    outcome.reason = output_lost_;
  }
  // Without a record of the end the exit status is not 0, whatever failed above. Exception: the user has left a job
  // that goes on.
  if (outcome.exit_status == 0 && !outcome.record && outcome.state != v1::RUNNING && outcome.state != v1::PENDING) {
    outcome.exit_status = kExitUnknown;
  }
  if (outcome.state != v1::RUNNING && outcome.state != v1::PENDING) outcome_ = outcome;
  if (batch_) batch_->NoteEnd(outcome.reason);
  // Before the client is told of the end: a reader of its pipes must not wait for us to close them.
  if (pump_) pump_->Close();
  for (auto& extra : extras_) extra->pump().Close();
  if (client_) {
    v1::HomeMessage message;
    v1::Finished* finished = message.mutable_finished();
    if (outcome.record) {
      *finished->mutable_record() = *outcome.record;
      if (outcome.record->started_us() > 0)
        finished->set_ran_us(outcome.record->ended_us() - outcome.record->started_us());
    }
    if (outcome.record) *finished->mutable_ranks() = outcome.record->ranks();
    finished->set_exit_status(outcome.exit_status);
    finished->set_state(outcome.state);
    finished->set_reason(outcome.reason);
    finished->set_attempt(outcome.attempt);
    finished->set_job(job_);
    finished->set_node(outcome.node);
    finished->set_fetched_bytes(outcome.fetched_bytes);
    if (outcome.io) *finished->mutable_io() = *outcome.io;
    if (const tree::TreePtr whole = root_is_part_ ? roots_->current() : nullptr) {
      root_bytes_ = whole->bytes;
      root_entries_ = whole->entries;
    }
    finished->set_root_bytes(root_bytes_);
    finished->set_root_entries(root_entries_);
    if (accepted_us_ > 0 && started_us_ > accepted_us_) finished->set_queued_us(started_us_ - accepted_us_);
    if (first_output_us_ > 0) finished->set_first_output_us(first_output_us_ - begun_us_);
    client_->Send(message);
    client_->Close();
    client_.reset();
  } else if (options_.detached) {
    LogInfo("job {} ended with status {}{}{}", job_, outcome.exit_status, outcome.reason.empty() ? "" : ": ",
            outcome.reason);
  }
  End();
}

void AttachedRun::End() { owner_->Done(this); }

// --- StdioPump::Handler ---

void AttachedRun::OnInput(uint64_t offset, std::string_view data, bool eof, bool peeked) {
  if (run_ != nullptr) run_->SendInput(v1::STDIN, offset, data, eof, peeked);
}

// Reported only if somebody misses them: in `yes | vrun head -1` nobody does.
void AttachedRun::OnInputUnused(uint64_t bytes) {
  if (!client_ || options_.terminal || !SharedWithAncestors(client_->peer().pid, pump_->input())) return;
  OnNotice("stdin: the command did not read the last " + std::to_string(bytes) +
           " bytes that were read ahead for it, and they are lost to other readers: give a command that shares its "
           "stdin an empty one: `vrun -n`");
}

void AttachedRun::OnInputTakenTwice() {
  output_lost_ =
      "stdin: another process read from the same pipe at the same time: both got the same bytes: give each "
      "its own, or `vrun -n`";
  OnNotice(output_lost_);
}

void AttachedRun::OnOutputWritten(v1::StreamId stream, uint64_t offset) {
  if (options_.detached) files_->RememberOffsets(job_, pump_->written(v1::STDOUT), pump_->written(v1::STDERR));
  if (batch_) batch_->Flush();
  if (run_ != nullptr && !run_->ended()) run_->Acknowledge(stream, offset);
  TellWhenDrained();
}

void AttachedRun::TellWhenDrained() {
  if (!waiting_outcome_ || !Drained()) return;
  // Posted, because the pump is on the stack and must not be closed now.
  loop_->Post([this, alive = alive_, outcome = *std::exchange(waiting_outcome_, std::nullopt)] {
    if (*alive) TellFinished(outcome);
  });
}

void AttachedRun::OnOutputEnded(v1::StreamId) {
  if (run_ != nullptr) run_->OutputProgressed();
}

void AttachedRun::OnOutputBroken(v1::StreamId stream, const Error& reason) {
  if (!client_ && !answering_ && !options_.detached && run_ != nullptr && !ended_) {
    // The reader ended with the client: the job continues, with its output in the log. Posted, because the pump is on
    // the stack.
    loop_->Post([this, alive = alive_] {
      if (*alive && !client_ && !ended_) owner_->Orphan(this);
    });
    return;
  }
  if (run_ != nullptr) run_->CloseOutput(stream);
  if (reason.error_number() == EPIPE || reason.error_number() == EIO || reason.error_number() == ECONNRESET) return;
  output_lost_ = std::string(stream == v1::STDERR ? "stderr" : "stdout") + ": " + reason.message() +
                 ": the rest of the output is lost";
  OnNotice(output_lost_);
}

void AttachedRun::OnExtraBroken(const std::string& what) {
  output_lost_ = what;
  OnNotice(what);
}

}  // namespace vrun::home
