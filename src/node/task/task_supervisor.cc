// SPDX-License-Identifier: Apache-2.0
#include "node/task/task_supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "gpu/inject/injection.h"
#include "node/gang/gang.h"
#include "node/task/task_spec.h"

namespace vrun::node {
namespace {

constexpr int64_t kSecond = 1'000'000;

constexpr int64_t kMostLastMoments = 30 * kSecond;

// SIGTERM is sent this long before the limit, when SIGKILL follows. `notice`: how long before the limit the command's
// own signal is sent; 0: it has none.
int64_t LastMoments(int64_t limit, int64_t notice) {
  int64_t last = std::clamp(limit / 20, kSecond / 4, kMostLastMoments);
  if (notice > 0) last = std::min(last, notice / 10);
  return last;
}

// A program may say SAVED=1 as often as it likes.
constexpr int64_t kBetweenWords = kSecond;

// What an away job may write to its streams while home is off; then it waits.
constexpr uint64_t kAwayOutputBytes = 2ull << 30;
constexpr uint64_t kRankWindows = 4 * kStreamWindow;  // of all processes together, for each kind of output

// Each process has six ends of pipes here. The command's own limit comes with its request.
void RaiseFileLimit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &limit));
}

v1::StreamId StreamOf(size_t rank, v1::StreamId which) {
  return rank == 0 ? which : static_cast<v1::StreamId>(v1::FIRST_OF_RANKS + 3 * static_cast<int>(rank) + which);
}

}  // namespace

TaskSupervisor::TaskSupervisor(EventLoop* loop, TaskOptions options, sandbox::CgroupHost cgroups)
    : loop_(loop),
      options_(options),
      cgroups_(std::move(cgroups)),
      job_link_(loop, {.send =
                           [this](const v1::TaskDown& down) {
                             if (connection_) Send(down);
                             return static_cast<bool>(connection_);
                           },
                       .on_saved = [this] { OnSaved(); },
                       .writer = [this](bool error) { return WriterOf(error); }}),
      stdout_(loop, [this] { Pump(); }),
      stderr_(loop, [this] { Pump(); }),
      stdin_(loop, [this] { AcknowledgeInput(); }),
      ports_(loop,
             {.send = [this](v1::PortFrame frame) { SendPort(std::move(frame)); }, .on_drained = [this] { Pump(); }}),
      disk_(loop) {}

TaskSupervisor::~TaskSupervisor() {
  if (listener_) loop_->Remove(listener_.get());
}

// --- the agent's connection ------------------------------------------------------------------------------------------

void TaskSupervisor::Serve(UniqueFd connection) { Use(std::move(connection)); }

void TaskSupervisor::Use(UniqueFd socket) {
  loop_->Cancel(orphan_timer_);
  attached_ = told_started_ = told_exited_ = told_ready_ = false;
  told_saved_us_ = 0;
  connection_ = std::make_unique<TaskConnection>(
      loop_, std::move(socket),
      TaskConnection::Events{.on_frame = [this](Frame frame) { OnFrame(std::move(frame)); },
                             .on_writable = [this] { Pump(); },
                             .on_closed = [this] { OnClosed(); }});
  job_link_.Connected();
  Tell();
}

void TaskSupervisor::OnClosed() {
  connection_.reset();
  attached_ = false;
  if (leaving_) return;
  if (!spec_) return loop_->Stop();  // a spare supervisor that is no longer needed
  ArmOrphanTimer();
}

void TaskSupervisor::ArmOrphanTimer() {
  loop_->Cancel(orphan_timer_);
  orphan_timer_ = loop_->After(options_.orphan_micros, [this] {
    LogWarning("no agent came back within {} s", options_.orphan_micros / 1000000);
    if (record_) return Leave(false);
    Stop(Stopped::kOrphaned, SIGKILL);
  });
}

void TaskSupervisor::Listen() {
  // Relative to the working directory, which is the task directory: a socket path is limited to 107 bytes.
  Result<UniqueFd> listener = ListenUnix("sock");
  if (listener) {
    static_cast<void>(SetNonBlocking(listener->get(), true));
    Status added = loop_->Add(listener->get(), EPOLLIN, [this](uint32_t) {
      UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (socket) Use(std::move(socket));
    });
    if (added) listener_ = *std::move(listener);
  }
  if (!listener_) LogError("no socket for a later agent: {}", listener ? "" : listener.error().message());
}

void TaskSupervisor::OnFrame(Frame frame) {
  if (!spec_) return Begin(std::move(frame));
  if (leaving_) return;
  v1::TaskUp up;
  if (!up.ParseFromString(frame.bytes)) return Fail(Error(Code::kCorrupt, "a message from home does not parse"));
  OnUp(std::move(up));
}

void TaskSupervisor::OnUp(v1::TaskUp up) {
  switch (up.body_case()) {
    case v1::TaskUp::kAttach: return Attach(up.attach());
    case v1::TaskUp::kInput: {
      v1::Input* input = up.mutable_input();
      InputPump* pump = Input(input->stream());
      if (pump == nullptr) return Fail(Error(Code::kInvalid, "input of no descriptor of the command"));
      Status status = pump->Receive(input->offset(), std::move(*input->mutable_data()), input->eof(), input->peeked());
      if (!status) return Fail(status.error());
      return;
    }
    case v1::TaskUp::kAck: {
      OutputPump* output = Output(up.ack().stream());
      if (output == nullptr) return Fail(Error(Code::kInvalid, "acknowledgement of no output"));
      Status status = output->window()->Acknowledge(up.ack().offset());
      if (!status) return Fail(status.error());
      output->Resume();
      if (Run().away()) Pump();  // the next part of the spool
      return;
    }
    case v1::TaskUp::kSignal: return Signal(up.signal());
    case v1::TaskUp::kResize: {
      if (terminal_ < 0) {
        early_size_ = up.resize();
        return;
      }
      winsize size{static_cast<uint16_t>(up.resize().rows()), static_cast<uint16_t>(up.resize().columns()),
                   static_cast<uint16_t>(up.resize().x_pixels()), static_cast<uint16_t>(up.resize().y_pixels())};
      ::ioctl(terminal_, TIOCSWINSZ, &size);
      return;
    }
    case v1::TaskUp::kCloseOutput: {
      OutputPump* output = Output(up.close_output().stream());
      // A terminal is both input and output and cannot be half closed.
      if (output == nullptr || (HasTerminal() && up.close_output().stream() <= v1::STDERR)) return;
      output->Close();
      return Pump();
    }
    case v1::TaskUp::kWriteBackAck: writes_.Acknowledge(up.write_back_ack().sequence()); return Pump();
    case v1::TaskUp::kRelease:
      if (!record_) return Fail(Error(Code::kInvalid, "release of a task that has not ended"));
      return Leave(true);
    case v1::TaskUp::kGo: go_ = true; return LetGo();
    case v1::TaskUp::kExec: return job_link_.OnExec(up.exec());
    case v1::TaskUp::kMembers: return OnMembers(up.members());
    case v1::TaskUp::kPort: return ports_.OnFrame(std::move(*up.mutable_port()));
    case v1::TaskUp::BODY_NOT_SET:
      return Fail(Error(Code::kUnsupported, "a message of a kind that this node does not know: update the node"));
  }
}

void TaskSupervisor::Attach(const v1::Attach& attach) {
  Status status = stdout_.window()->SendFrom(attach.stdout_offset());
  if (status) status = stderr_.window()->SendFrom(attach.stderr_offset());
  for (const v1::StreamOffset& wanted : attach.outputs()) {
    OutputPump* output = Output(wanted.stream());
    if (status && output != nullptr) status = output->window()->SendFrom(wanted.offset());
  }
  if (status) status = writes_.Resume(attach.write_back_sequence());
  if (!status) return Fail(std::move(status).error().With("attach"));
  stdout_.Resume();
  stderr_.Resume();
  for (auto& [id, output] : more_outputs_) output->Resume();
  attached_ = true;
  ports_.Reset();
  told_started_ = told_exited_ = false;
  if (record_ && !writes_.begun()) BeginWrites();  // it failed before and is tried again
  if (attach.detached()) {
    static_cast<void>(stdin_.Receive(stdin_.window()->received(), "", true));
    for (auto& [id, input] : more_inputs_) {
      if (id >= v1::FIRST_OF_RANKS) static_cast<void>(input->Receive(input->window()->received(), "", true));
    }
  }
  v1::TaskDown down;
  down.mutable_attached()->set_input_offset(stdin_.window()->received());
  down.mutable_attached()->set_started(started_);
  for (const auto& [id, input] : more_inputs_) {
    v1::StreamOffset* wanted = down.mutable_attached()->add_inputs();
    wanted->set_stream(id);
    wanted->set_offset(input->window()->received());
  }
  Send(down);
  if (stdin_.closed() || stdin_.window()->passed() > 0) AcknowledgeInput();
  for (const auto& [id, input] : more_inputs_) {
    if (input->closed() || input->window()->passed() > 0) AcknowledgeInput(id);
  }
  if (stopped_by_ != 0) OnCommandStopped(stopped_by_);
  Pump();
}

void TaskSupervisor::Fail(const Error& error) {
  LogWarning("{}", error.message());
  v1::TaskDown down;
  down.mutable_error()->set_code(static_cast<int32_t>(error.code()));
  down.mutable_error()->set_message(error.message());
  Send(down);
}

// While a file system server is replaced, readers of a view just wait. ENOTCONN means that the view is gone for good,
// so home is not asked to retry (kUnavailable).
void TaskSupervisor::FailWrites(const Error& error) {
  const Code code = error.code() == Code::kUnavailable ? Code::kAborted : error.code();
  Fail(Error(code, error.message()).With("read what the command wrote (it is kept on the node)"));
  // Then nobody waits for this supervisor either: the agent reports where the writes are, and the job's resources are
  // free.
  if (error.error_number() != ENOTCONN || !told_exited_ || leaving_) return;
  leaving_ = true;
  loop_->Post([this] { Leave(false); });
}

void TaskSupervisor::SendPort(v1::PortFrame frame) {
  if (!attached_) return;
  v1::TaskDown down;
  *down.mutable_port() = std::move(frame);
  Send(down);
}

void TaskSupervisor::Send(const v1::TaskDown& down) {
  if (connection_) connection_->Send(down.SerializeAsString());
}

// --- the command -----------------------------------------------------------------------------------------------------

void TaskSupervisor::Begin(Frame frame) {
  spec_.emplace();
  if (!spec_->ParseFromString(frame.bytes) || frame.fds.empty() || frame.fds.size() > (spec_->live_paths() ? 3 : 2)) {
    LogError("the first frame is no task");
    return loop_->Stop();
  }
  if (const uint32_t grace_s = Run().scheduling().grace_s(); grace_s != 0) options_.grace_micros = grace_s * kSecond;
  sandbox::RootViews views;
  if (spec_->live_paths()) {
    views.live = std::move(frame.fds.back());
    frame.fds.pop_back();
  }
  if (frame.fds.empty()) return loop_->Stop();
  views.whole = std::move(frame.fds[0]);
  if (frame.fds.size() > 1) views.apart = std::move(frame.fds[1]);
  has_apart_ = static_cast<bool>(views.apart);
  MakeStreams();
  Status started = AddForGpus(views.whole.get());
  if (started) started = StartCommand(*spec_, std::move(views));
  loop_->Post([this] { Settle(); });
  if (started) return;
  job_link_.End();
  sandbox_.reset();
  Record(JudgeStartFailure({sandbox::StartFailure::Kind::kFailed, started.error().message()}));
}

Status TaskSupervisor::AddForGpus(int view) {
  if (!spec_->has_gpus()) return {};
  const auto& variables = Run().command().environment();
  return gpu::CompleteForRoot(view, !spec_->live_root(), {variables.begin(), variables.end()}, spec_->mutable_gpus());
}

Status TaskSupervisor::StartCommand(const v1::TaskSpec& in, sandbox::RootViews views) {
  if (options_.unusable) return *options_.unusable;
  VRUN_ASSIGN(sandbox::Spec spec, SandboxSpec(in, options_.grace_micros));
  VRUN_TRY(MakeDirs(spec.directory, 0700));
  spec.name = GroupName(in);
  injected_ = sandbox::InjectedInRoot(spec.injection);
  VRUN_ASSIGN(sandbox_, sandbox::Sandbox::Start(spec, std::move(views), cgroups_,
                                                [&in](const auto& upper, const auto& lower, const auto& apart) {
                                                  if (in.continues() != 0) return Status();
                                                  return PrepareUpper(upper, lower, apart);
                                                }));
  notices_ = sandbox_->notices();
  job_link_.Begin(&*spec_, sandbox_.get());
  VRUN_TRY(loop_->Add(sandbox_->start_fd(), EPOLLIN, [this](uint32_t) { OnStart(); }));
  VRUN_TRY(loop_->Add(sandbox_->control_fd(), EPOLLIN, [this](uint32_t) { OnControl(); }));
  return loop_->Add(sandbox_->pidfd(), EPOLLIN, [this](uint32_t) { OnGone(); });
}

void TaskSupervisor::OnStart() {
  loop_->Remove(sandbox_->start_fd());
  if (std::optional<sandbox::StartFailure> failure = sandbox_->FinishStart()) {
    loop_->Remove(sandbox_->control_fd());
    loop_->Remove(sandbox_->pidfd());
    job_link_.End();
    sandbox_.reset();
    if (stopped_ == Stopped::kNot) return Record(JudgeStartFailure(*failure));
    return Record(JudgeEnding(*spec_, {stopped_, cancel_signal_, {.wait_status = SIGKILL}, why_, warned_}));
  }
  if (spec_->wait_for_go() && !let_go_) return;  // killed while it waited
  started_ = true;
  started_us_ = WallMicros();
  StartStreams();
  Tell();
  job_link_.Started();
  ports_.Begin(&Run(), sandbox_.get());
  for (const v1::SendSignal& s : early_signals_) sandbox_->Signal(s.signal());
  early_signals_.clear();
  if (const int signal = sandbox_->TakeStop(); signal != 0) OnCommandStopped(signal);
  if (early_size_) {
    v1::TaskUp up;
    *up.mutable_resize() = *early_size_;
    OnUp(std::move(up));
  }
  if (Run().scheduling().limit_s() != 0) ArmLimit();
  LimitDisk();
}

void TaskSupervisor::LimitDisk() {
  const uint64_t limit = Run().tmp_bytes();
  if (limit == 0) return;
  const std::string& directory = spec_->task_directory();
  Status started = disk_.Start({directory + "/upper", directory + "/tmp"}, limit, [this] {
    if (why_.empty()) why_ = DiskReason(*spec_);
    Stop(Stopped::kTooMuchDisk, SIGKILL);
  });
  if (!started) notices_.push_back("--tmp is not enforced: " + started.error().message());
}

// The command must be gone at the limit: its own signal is sent its notice before that, SIGTERM a moment before.
void TaskSupervisor::ArmLimit() {
  // Saturates: a limit of more than 100 years is no limit.
  const int64_t limit = static_cast<int64_t>(std::min<uint64_t>(Run().scheduling().limit_s(), 3'000'000'000)) * kSecond;
  const int64_t notice = Run().scheduling().signal() != 0 ? options_.grace_micros : 0;
  if (notice > 0) {
    warn_timer_ = loop_->After(std::max<int64_t>(limit - notice, 0), [this] {
      warned_ = true;
      SendEndSignal();
    });
  }
  limit_timer_ = loop_->After(limit - LastMoments(limit, notice), [this] { Stop(Stopped::kTimeLimit, SIGTERM); });
  // Also for a command that was told to exit for another reason shortly before.
  end_timer_ = loop_->After(limit, [this] {
    if (sandbox_ && !record_) sandbox_->Kill();
  });
}

// Like sbatch: signals every process except a batch script's shell, or (B:) only the first process.
void TaskSupervisor::SendEndSignal() {
  using Target = sandbox::Sandbox::Target;
  if (!sandbox_ || record_) return;
  Target target = Run().command().batch_script() ? Target::kOthers : Target::kAll;
  if (Run().scheduling().signal_shell_only()) target = Target::kCommand;
  sandbox_->Signal(Run().scheduling().signal(), target);
}

// Not needed for the start; each step costs a fraction of a millisecond.
void TaskSupervisor::Settle() {
  if (leaving_ || ::chdir(spec_->task_directory().c_str()) != 0) return;
  Listen();
  sandbox::ForgetForeignMounts();
  sandbox::SweepCgroups(cgroups_);
  // A node short of memory should kill jobs, not their supervisors. Needs a privilege; without it, skipped.
  static_cast<void>(WriteKernelFile("/proc/self/oom_score_adj", "-500"));
}

void TaskSupervisor::Signal(const v1::SendSignal& request) {
  if (record_ || request.signal() <= 0 || request.signal() >= NSIG) return;
  if (request.by_user_cancel()) return Stop(Stopped::kCancelled, request.signal());
  if (!request.preempted().empty()) {
    if (why_.empty()) why_ = request.preempted();
    return Stop(Stopped::kPreempted, request.signal());
  }
  if (!request.gang_ended().empty()) {
    if (why_.empty()) why_ = request.gang_ended();
    return Stop(Stopped::kGangEnded, request.signal());
  }
  if (!request.resized().empty()) {
    if (why_.empty()) why_ = request.resized();
    return Stop(Stopped::kResized, request.signal());
  }
  if (!request.content_lost().empty()) {
    if (why_.empty()) why_ = request.content_lost();
    return Stop(Stopped::kContentLost, request.signal());
  }
  if (!started_) return early_signals_.push_back(request);
  sandbox_->Signal(request.signal());
  if (request.signal() != SIGCONT || std::exchange(stopped_by_, 0) == 0) return;
  // Another program used the screen meanwhile: programs redraw on SIGWINCH.
  sandbox_->Signal(SIGWINCH);
}

void TaskSupervisor::OnMembers(const std::string& bytes) {
  v1::Members members;
  if (!members.ParseFromString(bytes) || members.pods().empty() || record_) return;
  spec_->mutable_order()->mutable_pods()->Swap(members.mutable_pods());
  job_link_.MembersChanged();
}

void TaskSupervisor::Stop(Stopped why, int signal) {
  if (record_ || !sandbox_) return;
  if (stopped_ == Stopped::kNot) {
    stopped_ = why;
    cancel_signal_ = signal;
  }
  if (signal == SIGKILL || !started_) return sandbox_->Kill();
  const bool own = (why == Stopped::kPreempted || why == Stopped::kResized) && signal == Run().scheduling().signal();
  if (own) {
    SendEndSignal();
  } else if (sandbox_->spec().idle) {
    // Nobody else ends what other pods have started here, and there is no command whose end would be the pod's.
    sandbox_->Signal(signal, sandbox::Sandbox::Target::kAll);
    sandbox_->EndWhenEmpty();
  } else {
    sandbox_->Signal(signal);
  }
  // A stopped process group would not handle it.
  if (signal != SIGSTOP && signal != SIGTSTP) sandbox_->Signal(SIGCONT);
  if (kill_timer_ != 0) return;
  kill_timer_ = loop_->After(options_.grace_micros, [this] {
    if (sandbox_ && !record_) sandbox_->Kill();
  });
  // A command may save its state on its own signal and continue.
  if (!own || signal == SIGTERM) return;
  const int64_t last = std::min(kMostLastMoments, options_.grace_micros / 10);
  term_timer_ = loop_->After(options_.grace_micros - last, [this] {
    if (sandbox_ && !record_) sandbox_->Signal(SIGTERM);
  });
}

void TaskSupervisor::Terminate() {
  if (!spec_ || record_) return Leave(false);
  remove_ = false;
  leaving_ = true;
  if (sandbox_) return Stop(Stopped::kNodeStops, SIGKILL);
  Leave(false);
}

void TaskSupervisor::OnControl() {
  bool ended = sandbox_->ReadControl().has_value();
  if (sandbox_->TakePrepared()) {
    prepared_ = true;
    LetGo();
    Tell();
  }
  for (const sandbox::ProcessEnd& end : sandbox_->TakeRankEnds()) OnRankEnd(end);
  job_link_.OnControl();
  ports_.OnControl();
  if (sandbox_->control_closed()) loop_->Remove(sandbox_->control_fd());
  if (ended) return Ended();
  if (const int signal = sandbox_->TakeStop(); signal != 0) OnCommandStopped(signal);
}

// Without a terminal, whoever stopped the command knows it and continues it.
void TaskSupervisor::OnCommandStopped(int signal) {
  if (!HasTerminal()) return;
  stopped_by_ = signal;
  if (!attached_) return;  // sent at the next Attach
  v1::TaskDown down;
  down.mutable_stopped();
  Send(down);
}

void TaskSupervisor::OnGone() {
  loop_->Remove(sandbox_->pidfd());
  if (!sandbox_->control_closed()) loop_->Remove(sandbox_->control_fd());
  sandbox::Ending ending = sandbox_->Reap();
  for (const sandbox::ProcessEnd& end : sandbox_->TakeRankEnds()) ranks_->OnEnd(end, stopped_ != Stopped::kNot);
  if (!record_) {
    if (!started_ && sandbox_->start_fd() >= 0) loop_->Remove(sandbox_->start_fd());
    Drain();
    Record(JudgeEnding(*spec_, Facts(ending)));
  }
  job_link_.End();
  sandbox_.reset();
}

void TaskSupervisor::Ended() {
  if (record_) return;
  Drain();
  Record(JudgeEnding(*spec_, Facts(*sandbox_->ReadControl())));
}

EndingFacts TaskSupervisor::Facts(const sandbox::Ending& ending) const {
  EndingFacts facts{stopped_, cancel_signal_, ending, why_, warned_};
  if (ranks_) facts.ranks = ranks_->facts();
  return facts;
}

void TaskSupervisor::LetGo() {
  if (!prepared_ || !go_ || let_go_ || !sandbox_) return;
  let_go_ = true;
  sandbox_->Go();
}

void TaskSupervisor::OnRankEnd(const sandbox::ProcessEnd& end) {
  if (!ranks_) return;
  switch (ranks_->OnEnd(end, stopped_ != Stopped::kNot)) {
    case TaskRanks::Then::kNothing: return;
    case TaskRanks::Then::kEndOthers: return EndRanks();
    case TaskRanks::Then::kWaitForOthers:
      late_timer_ = loop_->After(ranks_->wait_s() * kSecond, [this] {
        if (sandbox_ && !record_ && ranks_->OthersAreLate()) EndRanks();
      });
  }
}

// Those that are left: one has failed, or they are late.
void TaskSupervisor::EndRanks() {
  sandbox_->Signal(SIGTERM);
  sandbox_->Signal(SIGCONT);
  if (kill_timer_ != 0) return;
  kill_timer_ = loop_->After(options_.grace_micros, [this] {
    if (sandbox_ && !record_) sandbox_->Kill();
  });
}

void TaskSupervisor::OnSaved() {
  const v1::Scheduling& wishes = Run().scheduling();
  if (saved_us_ == 0 && !wishes.saves() && wishes.save_period_seconds() <= 0) {
    notices_.push_back(
        "the program says that it has saved its state (SAVED=1), but nobody asks it to before it is preempted: submit "
        "the "
        "job with --checkpoint");
  }
  saved_us_ = WallMicros();
  // It has done what the grace is for.
  const bool leaves = stopped_ == Stopped::kPreempted || stopped_ == Stopped::kResized;
  if (leaves && sandbox_ && !record_) sandbox_->Kill();
  if (saved_timer_ == 0) Tell();
}

// Sends the rest of the output while the record is written.
void TaskSupervisor::Drain() {
  stdout_.Drain();
  stderr_.Drain();
  for (auto& [id, output] : more_outputs_) output->Drain();
  terminal_ = -1;
  job_link_.Drain();
  ports_.End();
  Pump();
}

void TaskSupervisor::Record(v1::ExitRecord record) {
  for (EventLoop::TimerId timer :
       {warn_timer_, limit_timer_, end_timer_, term_timer_, kill_timer_, late_timer_, saved_timer_})
    loop_->Cancel(timer);
  disk_.Stop();
  job_link_.End();
  record.set_job(Place().job());
  record.set_attempt(Place().attempt());
  record.set_pod(Place().pod());
  record.set_saved_us(saved_us_);
  if (ranks_ && record.reason().empty()) record.set_reason(ranks_->late());
  record.set_started_us(started_us_);
  record.set_ended_us(WallMicros());
  record.set_node(spec_->node());
  Status written = WriteJournal(spec_->task_directory(), record);
  // Report the end even if the disk is full; only after a restart of the node would it be unknown.
  if (!written) LogError("{}", written.error().message());
  record_ = std::move(record);
  CloseStreams();
  if (stopped_ == Stopped::kOrphaned || leaving_) return Leave(false);
  AcknowledgeInput();
  for (const auto& [id, input] : more_inputs_) AcknowledgeInput(id);
  Tell();
  BeginWrites();
  Pump();
}

void TaskSupervisor::BeginWrites() {
  std::optional<CarryOptions> options;
  if (started_ && !Run().discard_writes() && !spec_->live_root()) {
    options.emplace();
    options->upper = spec_->task_directory() + "/upper";
    options->lower = spec_->task_directory() + "/lower";
    if (has_apart_) options->apart = spec_->task_directory() + "/apart";
    options->job = Place().job();
    options->ids = IdsOf(*spec_);
    options->skip.insert(options->skip.end(), injected_.begin(), injected_.end());
  }
  if (options && !spec_->kept_directory().empty()) return BeginKeeping(*std::move(options));
  Status begun = writes_.Begin(std::move(options));
  if (!begun) FailWrites(begun.error());
}

// Does not need home, which may be offline. It needs the root, which is mounted now.
void TaskSupervisor::BeginKeeping(CarryOptions options) {
  if (keeping_) return;
  auto carry = Carry::Open(std::move(options));
  if (!carry) return FailWrites(carry.error());
  auto writer = KeptWriter::Create(spec_->task_directory() + "/kept", *std::move(carry));
  if (!writer) return FailWrites(writer.error());
  keeping_ = *std::move(writer);
  GoOnKeeping();
}

void TaskSupervisor::GoOnKeeping() {
  if (!keeping_ || leaving_) return;
  Result<bool> more = keeping_->Step();
  if (more && *more) {
    loop_->Post([this] { GoOnKeeping(); });
    return;
  }
  v1::Kept kept;
  kept.set_job(Place().job());
  kept.set_attempt(Place().attempt());
  kept.set_pod(Place().pod());
  kept.set_kept_us(WallMicros());
  kept.set_root(spec_->kept_root());
  kept.set_continues(spec_->continues());
  const bool goes_on = record_->kind() == v1::ExitRecord::PREEMPTED_BY_JOB;
  Status kept_all =
      more ? keeping_->Finish(&kept, spec_->kept_directory(), goes_on ? spec_->task_directory() + "/upper" : "")
           : Status(tl::unexpected(more.error()));
  keeping_.reset();
  if (!kept_all) return FailWrites(kept_all.error());
  v1::WriteBackEnd end;
  end.set_kept(true);
  end.set_entries(kept.entries());
  end.set_files(kept.files());
  writes_.BeginKept(std::move(end));
  Pump();
}

void TaskSupervisor::Leave(bool remove) {
  leaving_ = true;
  if (connection_) connection_->SendRest();
  if (sandbox_) {
    if (!sandbox_->control_closed()) loop_->Remove(sandbox_->control_fd());
    loop_->Remove(sandbox_->pidfd());
    job_link_.End();
    sandbox_.reset();  // waits for init to exit, removes the control groups
  }
  if (spec_) {
    std::string directory = spec_->task_directory();
    ::umount2((directory + "/lower").c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
    if (has_apart_) ::umount2((directory + "/apart").c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
    ::unlink((directory + "/sock").c_str());
    if (remove) {
      if (::chdir("/") != 0) LogWarning("leave the task directory: {}", errno);
      Status removed = RemoveTree(directory);
      if (!removed) LogError("{}", removed.error().message());
    }
  }
  loop_->Stop();
}

// --- streams ---------------------------------------------------------------------------------------------------------

void TaskSupervisor::MakeStreams() {
  for (const v1::Descriptor& d : Run().command().descriptors()) {
    const auto id = static_cast<v1::StreamId>(d.number());
    if (d.number() <= 2) continue;  // SandboxSpec refuses it
    if (d.output())
      more_outputs_[id] = std::make_unique<OutputPump>(loop_, [this] { Pump(); });
    else
      more_inputs_[id] = std::make_unique<InputPump>(loop_, [this, id] { AcknowledgeInput(id); });
  }
  const size_t ranks = std::min<size_t>(Gang::ProcessesHere(spec_->order()), sandbox::kMostRanks);
  if (ranks < 2) return SpoolStreams();
  ranks_.emplace(spec_->order());
  RaiseFileLimit();
  for (size_t rank = 1; rank < ranks; ++rank) {
    const v1::StreamId in = StreamOf(rank, v1::STDIN);
    more_inputs_[in] = std::make_unique<InputPump>(loop_, [this, in] { AcknowledgeInput(in); });
    for (v1::StreamId which : {v1::STDOUT, v1::STDERR}) {
      more_outputs_[StreamOf(rank, which)] = std::make_unique<OutputPump>(loop_, [this] { Pump(); });
    }
  }
  const uint64_t limit = std::clamp<uint64_t>(kRankWindows / ranks, kStreamMessage, kStreamWindow);
  stdout_.window()->SetLimit(limit);
  stderr_.window()->SetLimit(limit);
  for (auto& [id, output] : more_outputs_) output->window()->SetLimit(limit);
  SpoolStreams();
}

// The output of an away job is kept on this node until home is back. Its files have no names: only this process, which
// stays until then, can send them.
void TaskSupervisor::SpoolStreams() {
  if (!Run().away()) return;
  const uint64_t bytes = kAwayOutputBytes / (2 + more_outputs_.size());
  const auto spool = [&](OutputPump* output) {
    UniqueFd file(::open(spec_->task_directory().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (!file) return LogWarning("a spool for the output: {}", ErrnoError("open").message());
    output->window()->SpoolTo(std::move(file), std::max(bytes, kStreamWindow));
  };
  spool(&stdout_);
  spool(&stderr_);
  for (auto& [id, output] : more_outputs_) spool(output.get());
}

void TaskSupervisor::StartStreams() {
  UniqueFd output = sandbox_->TakeOutput();
  if (HasTerminal()) terminal_ = output.get();
  stdout_.Start(std::move(output));
  stderr_.Start(sandbox_->TakeError());
  stdin_.Start(sandbox_->TakeInput(), HasTerminal());
  for (const v1::Descriptor& d : Run().command().descriptors()) {
    const auto id = static_cast<v1::StreamId>(d.number());
    if (d.output())
      more_outputs_[id]->Start(sandbox_->TakeDescriptor(d.number()));
    else
      more_inputs_[id]->Start(sandbox_->TakeDescriptor(d.number()), false);
  }
  for (size_t rank = 1; rank <= sandbox_->spec().more_ranks.size(); ++rank) {
    sandbox::ProcessStreams streams = sandbox_->TakeStreamsOf(rank);
    more_outputs_[StreamOf(rank, v1::STDOUT)]->Start(std::move(streams.output));
    more_outputs_[StreamOf(rank, v1::STDERR)]->Start(std::move(streams.error));
    more_inputs_[StreamOf(rank, v1::STDIN)]->Start(std::move(streams.input), false);
  }
}

// For a process of another pod: the streams of this pod's first one, unless nobody reads them any more.
UniqueFd TaskSupervisor::WriterOf(bool error) {
  UniqueFd writer;
  const int ours = error ? stderr_.fd() : stdout_.fd();
  if (terminal_ >= 0) {
    writer.Reset(::ioctl(terminal_, TIOCGPTPEER, O_WRONLY | O_NOCTTY | O_CLOEXEC));
  } else if (ours >= 0) {
    writer.Reset(::open(("/proc/self/fd/" + std::to_string(ours)).c_str(), O_WRONLY | O_CLOEXEC));
  }
  if (!writer) writer.Reset(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  return writer;
}

void TaskSupervisor::CloseStreams() {
  stdin_.Close();
  stdout_.Close();
  stderr_.Close();
  for (auto& [id, input] : more_inputs_) input->Close();
  for (auto& [id, output] : more_outputs_) output->Close();
}

OutputPump* TaskSupervisor::Output(v1::StreamId id) {
  if (id == v1::STDOUT) return &stdout_;
  if (id == v1::STDERR) return &stderr_;
  const auto it = more_outputs_.find(id);
  return it == more_outputs_.end() ? nullptr : it->second.get();
}

InputPump* TaskSupervisor::Input(v1::StreamId id) {
  if (id == v1::STDIN) return &stdin_;
  const auto it = more_inputs_.find(id);
  return it == more_inputs_.end() ? nullptr : it->second.get();
}

bool TaskSupervisor::OutputEndSent() {
  return stdout_.window()->end_sent() && stderr_.window()->end_sent() &&
         std::all_of(more_outputs_.begin(), more_outputs_.end(),
                     [](const auto& output) { return output.second->window()->end_sent(); });
}

void TaskSupervisor::AcknowledgeInput(v1::StreamId id) {
  if (!attached_ || !connection_) return;
  const InputPump& input = *Input(id);
  v1::TaskDown down;
  v1::InputAck* ack = down.mutable_input_ack();
  ack->set_stream(id);
  ack->set_offset(input.acknowledged());
  ack->set_closed(input.closed());
  if (input.closed()) ack->set_taken(input.taken());
  Send(down);
}

void TaskSupervisor::Tell() {
  if (!connection_) return;
  v1::TaskDown down;
  for (; attached_ && told_notices_ < notices_.size(); ++told_notices_) {
    down.mutable_notice()->set_text(notices_[told_notices_]);
    Send(down);
  }
  if (prepared_ && !go_ && !told_ready_) {
    told_ready_ = true;
    down.set_ready(true);
    Send(down);
  }
  if (saved_us_ > told_saved_us_) {
    told_saved_us_ = saved_us_;
    down.mutable_word()->set_saved(true);
    down.mutable_word()->set_at_us(saved_us_);
    Send(down);
    loop_->Cancel(saved_timer_);
    saved_timer_ = loop_->After(kBetweenWords, [this] {
      saved_timer_ = 0;
      Tell();
    });
  }
  if (started_ && !told_started_) {
    told_started_ = true;
    down.mutable_started();
    Send(down);
  }
  // The output of an away job waits for home, and the end of the job must not.
  bool output_told = !attached_ || (OutputEndSent() && ports_.Drained()) || Run().away();
  if (record_ && !told_exited_ && output_told) {
    told_exited_ = true;
    *down.mutable_exited()->mutable_record() = *record_;
    Send(down);
  }
}

bool TaskSupervisor::PumpOutput(OutputPump* pump, v1::StreamId id) {
  std::optional<OutputWindow::Piece> piece = pump->window()->Next();
  if (!piece) return false;
  v1::TaskDown down;
  v1::Output* output = down.mutable_output();
  output->set_stream(id);
  output->set_offset(piece->offset);
  output->set_data(piece->data.data(), piece->data.size());
  output->set_eof(piece->end);
  Send(down);
  return true;
}

// Each once, from the one after the last that had its turn: they may be many.
bool TaskSupervisor::PumpMoreOutputs() {
  bool any = false;
  for (size_t i = 0; i < more_outputs_.size() && connection_->room(); ++i) {
    auto next = more_outputs_.upper_bound(last_pumped_);
    if (next == more_outputs_.end()) next = more_outputs_.begin();
    last_pumped_ = next->first;
    any |= PumpOutput(next->second.get(), next->first);
  }
  return any;
}

bool TaskSupervisor::PumpWrites() {
  if (!told_exited_) return false;
  Result<std::optional<v1::TaskDown>> next = writes_.Next();
  if (next && *next) {
    Send(**next);
    return true;
  }
  if (next) return false;
  FailWrites(next.error());
  attached_ = false;  // until home attaches again
  return false;
}

void TaskSupervisor::Pump() {
  if (!connection_) return;
  Tell();
  if (!attached_) return;
  // One piece of each in turn, so that neither output waits for the other.
  for (bool any = true; any && connection_->room();) {
    any = PumpOutput(&stdout_, v1::STDOUT);
    any |= PumpOutput(&stderr_, v1::STDERR);
    any |= PumpMoreOutputs();
    Tell();
  }
  while (attached_ && connection_->room() && PumpWrites()) {
  }
}

}  // namespace vrun::node
