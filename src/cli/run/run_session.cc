// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_session.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "cli/base/exit_status.h"
#include "cli/base/table.h"

namespace vrun::cli {
namespace {

constexpr int64_t kSecond = 1000 * 1000;
constexpr int64_t kInterruptWindow = 2 * kSecond;
constexpr int64_t kSilence = 2 * kSecond;
constexpr int64_t kForegroundLook = 200 * 1000;
constexpr int64_t kCancelPatience = 10 * kSecond;
constexpr int64_t kFirstBackoff = 50 * 1000;
constexpr int64_t kLongestBackoff = 2 * kSecond;
constexpr int kMaxLossesWithoutJob = 4;
constexpr size_t kMaxUnsent = 64;

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGWINCH};

// Signals that our parent ignores stay ignored: nohup, and the background jobs of a script, ignore the terminal's keys
// and hang-up. Without a terminal these three signals are sent on purpose.
bool StaysIgnored(int number) {
  if (number != SIGINT && number != SIGQUIT && number != SIGHUP) return true;
  return static_cast<bool>(UniqueFd(::open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC)));
}

}  // namespace

RunSession::RunSession(const HomeConnection& home, Options options)
    : home_(home), options_(std::move(options)), terminal_(options_.stdio[0]) {
  ::sigemptyset(&handled_);
  ::sigemptyset(&old_mask_);
}

RunSession::~RunSession() {
  terminal_.Leave();
  if (blocked_) ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

RunOutcome RunSession::Go() {
  began_ = MonotonicMicros();
  Status ready = Prepare();
  if (!ready) {
    End(kExitNotStarted, v1::FAILED, ready.error().message());
    return *outcome_;
  }
  auto socket = home_.ConnectOrStart();
  if (!socket) {
    End(kExitNotStarted, v1::FAILED, socket.error().message());
    return *outcome_;
  }
  socket_ = *std::move(socket);
  BlockSignals();
  sent_after_ = MonotonicMicros() - began_;
  Status sent = SendRequest();
  if (!sent) OnLost(sent.error().message());
  Loop();
  line_->Stop();
  terminal_.Leave();
  outcome_->job = job_;
  outcome_->sent_after_us = sent_after_;
  return *outcome_;
}

Status RunSession::Prepare() {
  for (int i = 0; i < 3; ++i) was_terminal_[i] = ::isatty(options_.stdio[i]) == 1;
  VRUN_ASSIGN(memory_, CreateStreamProgress());
  for (size_t i = 0; i < options_.descriptors.size(); ++i) {
    VRUN_ASSIGN(more_memory_.emplace_back(), CreateStreamProgress());
  }
  VRUN_ASSIGN(StreamProgressMap map, StreamProgressMap::Map(memory_.get()));
  shared_.emplace(std::move(map));
  ProgressLineWriter::Options line;
  line.quiet = options_.quiet;
  line.terminal = options_.updating_line;
  line.fd = options_.stdio[2];
  if (line.terminal) line.columns = TerminalColumns(line.fd);
  line_.emplace(line, &**shared_, began_);
  line_->Say("waiting for home");
  return {};
}

void RunSession::BlockSignals() {
  for (int s : kForwarded) {
    struct sigaction now;
    if (::sigaction(s, nullptr, &now) == 0 && now.sa_handler == SIG_IGN && StaysIgnored(s)) continue;
    ::sigaddset(&handled_, s);
  }
  ::sigprocmask(SIG_BLOCK, &handled_, &old_mask_);
  blocked_ = true;
  signal_fd_ = UniqueFd(::signalfd(-1, &handled_, SFD_CLOEXEC | SFD_NONBLOCK));
  RestoreTerminalOnFatalSignals(handled_);
}

// --- sending

Status RunSession::Send(const v1::ClientMessage& message) {
  if (!socket_) return Error(Code::kUnavailable, "home is not connected");
  return SendMessage(socket_.get(), message);
}

Status RunSession::SendRequest() {
  v1::ClientMessage message;
  if (job_ == 0) {
    // The same request_id: if home and the controller had accepted it, they answer with the same job.
    *message.mutable_run() = options_.request;
    message.mutable_run()->set_terminal_ready(true);
  } else {
    v1::Resume* resume = message.mutable_resume();
    resume->set_job(job_);
    resume->set_quiet(options_.quiet);
    resume->set_progress(!options_.quiet);
    resume->set_terminal_ready(true);
    *resume->mutable_descriptors() = options_.request.spec().command().descriptors();
    resume->set_on_disconnect(options_.request.spec().scheduling().on_disconnect());
  }
  std::vector<int> fds = {options_.stdio[0], options_.stdio[1], options_.stdio[2], memory_.get()};
  for (size_t i = 0; i < options_.descriptors.size(); ++i) {
    fds.push_back(options_.descriptors[i]);
    fds.push_back(more_memory_[i].get());
  }
  return SendMessage(socket_.get(), message, fds);
}

void RunSession::SendSignal(int number, bool background) {
  v1::ClientMessage message;
  message.mutable_signal()->set_signal(number);
  message.mutable_signal()->set_background(background);
  if (!Send(message) && unsent_.size() < kMaxUnsent) unsent_.push_back(std::move(message));
}

void RunSession::SendSize() {
  if (!options_.request.spec().command().terminal()) return;
  v1::ClientMessage message;
  *message.mutable_resize() = CurrentTerminalSize();
  (void)Send(message);  // after a reconnection the size is sent again
}

// --- the loop

void RunSession::Loop() {
  while (!outcome_) {
    if (lost_at_ != 0 && MonotonicMicros() >= next_try_) Reconnect();
    if (outcome_) return;
    int64_t wait = Tick();
    if (outcome_) return;
    pollfd p[2] = {{signal_fd_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
    int timeout = wait < 0 ? -1 : static_cast<int>(std::min<int64_t>(wait / 1000 + 1, 60 * 1000));
    int n = ::poll(p, 2, timeout);
    if (n < 0 && errno != EINTR) return End(kExitUnknown, v1::LOST, ErrnoError("poll").message());
    if (n <= 0) continue;
    // This order matters: the meaning of a signal depends on whether the command is running.
    if (p[1].revents != 0) ReadSocket();
    if (!outcome_ && p[0].revents != 0) ReadSignals();
  }
}

int64_t RunSession::Tick() {
  int64_t now = MonotonicMicros();
  int64_t wait = line_->Tick(now);
  auto at = [&](int64_t when) {
    int64_t left = std::max<int64_t>(0, when - now);
    wait = wait < 0 ? left : std::min(wait, left);
  };
  if (cancel_until_ != 0 && !started_) {
    if (now >= cancel_until_) {
      End(kExitSignal + cancel_signal_, v1::CANCELLED,
          JobText() + ": its cancellation is not confirmed: look with `vctl jobs`");
      return -1;
    }
    at(cancel_until_);
  }
  // `fg` of a running job sends no signal.
  if (remote_raw_ && started_ && !completing_ && options_.local_terminal && !terminal_.raw()) {
    if (!InBackground(options_.stdio[0])) GoOn();
    if (!terminal_.raw()) at(now + kForegroundLook);
  }
  if (completing_since_ != 0 && !options_.quiet) {
    if (now >= completing_since_ + kSilence) {
      completing_since_ = 0;
      line_->Print("vrun: " + JobText() + ": the command is over, what it wrote is on its way home", terminal_.raw());
    } else {
      at(completing_since_ + kSilence);
    }
  }
  if (lost_at_ != 0) {
    if (now >= lost_at_ + kSilence && !loss_told_) {
      loss_told_ = true;
      line_->Print("vrun: home is away: " + (last_failure_.empty() ? "its daemon ended" : last_failure_) + ": " +
                       JobText() + " goes on, trying again for " +
                       std::to_string(options_.resume_limit_us / kSecond / 60) + " min",
                   terminal_.raw());
    }
    if (!loss_told_) at(lost_at_ + kSilence);
    at(next_try_);
  }
  return wait;
}

void RunSession::ReadSocket() {
  auto open = reader_.ReadAvailable(socket_.get(), [&](Frame frame) {
    if (outcome_) return;
    auto message = ParseHomeMessage(frame.bytes);
    if (!message) {
      End(started_ ? kExitUnknown : kExitNotStarted, v1::LOST, message.error().message());
      return;
    }
    OnMessage(*message);
  });
  if (outcome_) return;
  if (!open) {
    OnLost(open.error().message());
  } else if (!*open) {
    OnLost("");
  }
}

// --- messages

void RunSession::OnMessage(const v1::HomeMessage& message) {
  if (lost_at_ != 0) {
    if (loss_told_) line_->Print("vrun: home is back", terminal_.raw());
    lost_at_ = 0;
    loss_told_ = false;
    backoff_ = 0;
  }
  switch (message.body_case()) {
    case v1::HomeMessage::kAccepted: job_ = message.accepted().job(); break;
    case v1::HomeMessage::kProgress: OnProgress(message.progress()); break;
    case v1::HomeMessage::kNotice: line_->Print("vrun: " + SafeLine(message.notice().text()), terminal_.raw()); break;
    case v1::HomeMessage::kTerminalMode:
      remote_raw_ = message.terminal_mode().raw();
      if (remote_raw_) OnStarted();
      SetTerminal();
      if (remote_raw_) {
        v1::ClientMessage ready;
        ready.mutable_terminal_ready();
        (void)Send(ready);
      }
      break;
    case v1::HomeMessage::kStopped: StopAndContinue(true); break;
    case v1::HomeMessage::kFinished: OnFinished(message.finished()); break;
    case v1::HomeMessage::kError: OnError(message.error()); break;
    default:
      End(started_ ? kExitUnknown : kExitNotStarted, v1::LOST,
          "home: sent a message that this client does not understand: stop it with `vctl down`");
  }
}

void RunSession::OnProgress(const v1::Progress& progress) {
  line_->Update(progress);
  completing_since_ = 0;
  if (progress.state() == v1::RUNNING) OnStarted();
  if (progress.state() == v1::COMPLETING) {
    OnStarted();
    completing_since_ = MonotonicMicros();
    if (!completing_) interrupts_ = 0;  // they were meant for the command
  }
  completing_ = progress.state() == v1::COMPLETING;
  SetTerminal();
}

// After the command has ended, keys are for us. Its output may still be on its way to the terminal.
void RunSession::SetTerminal() {
  if (remote_raw_ && !completing_ && options_.local_terminal) {
    (void)terminal_.Enter();
  } else if (completing_) {
    terminal_.LeaveInput();
  } else {
    terminal_.Leave();
  }
}

void RunSession::OnStarted() {
  if (started_) return;
  started_ = true;
  line_->Stop();
  // The key came too late to cancel: home has passed it to the command as the first of the sequence.
  if (cancel_signal_ == SIGINT) {
    interrupts_ = 1;
    last_interrupt_ = MonotonicMicros();
  }
  cancel_signal_ = 0;
  cancel_until_ = 0;
}

void RunSession::OnFinished(const v1::Finished& finished) {
  if (job_ == 0) job_ = finished.job();
  bool has_record = finished.has_record();
  int status = finished.exit_status();
  if (status < 0 || status > 255) status = has_record ? ExitStatus(finished.record()) : kExitUnknown;
  bool success = has_record && finished.record().kind() == v1::ExitRecord::EXITED && finished.record().exit_code() == 0;
  if (status == 0 && !success) status = has_record ? ExitStatus(finished.record()) : kExitUnknown;
  v1::JobState state = finished.state();
  if (state == v1::CANCELLED && cancel_signal_ != 0 && !started_) status = kExitSignal + cancel_signal_;
  std::string reason = finished.reason().empty() && has_record ? EndReason(finished.record()) : finished.reason();
  reason = SafeLine(reason);
  if (reason.empty() && state == v1::CANCELLED && !started_) reason = JobText() + ": cancelled before it started";
  if (!has_record && status == kExitUnknown) {
    reason = JobText() + ": " + (reason.empty() ? "its result is unknown" : reason) + ": ask later with `vctl job " +
             std::to_string(job_) + "`";
  }
  End(status, state, std::move(reason));
  outcome_->finished = finished;
}

void RunSession::OnError(const v1::Error& error) {
  std::string reason = FromWire(error).message();
  if (!started_) return End(kExitNotStarted, v1::FAILED, std::move(reason));
  End(kExitUnknown, v1::LOST, JobText() + ": " + reason);
}

void RunSession::End(int status, v1::JobState state, std::string reason) {
  if (outcome_) return;
  outcome_.emplace();
  outcome_->exit_status = status;
  outcome_->state = state;
  outcome_->reason = std::move(reason);
  outcome_->job = job_;
}

std::string RunSession::JobText() const { return job_ == 0 ? "the job" : "job " + std::to_string(job_); }

// --- losing home and reconnecting

void RunSession::OnLost(const std::string& why) {
  socket_.Reset();
  reader_ = FrameReader();
  int64_t now = MonotonicMicros();
  if (lost_at_ == 0) lost_at_ = now;
  last_failure_ = why;
  if (job_ == 0 && ++losses_without_job_ >= kMaxLossesWithoutJob) {
    return End(kExitUnknown, v1::LOST,
               "home stopped several times while it accepted the run: it may or may not be submitted: check with "
               "`vctl jobs` and in " +
                   home_.places().log_dir + "/home.log");
  }
  if (cancel_signal_ != 0 && !started_ && job_ == 0) {
    return End(kExitSignal + cancel_signal_, v1::CANCELLED, "");
  }
  next_try_ = now + backoff_;
  backoff_ = std::clamp(backoff_ * 2, kFirstBackoff, kLongestBackoff);
}

void RunSession::Reconnect() {
  int64_t now = MonotonicMicros();
  if (now - lost_at_ > options_.resume_limit_us) {
    return End(kExitUnknown, v1::LOST,
               JobText() + ": its result is unknown: home could not be reached for " +
                   std::to_string(options_.resume_limit_us / kSecond) + " s (" +
                   (last_failure_.empty() ? "it ended" : last_failure_) + "): ask later with `vctl job " +
                   std::to_string(job_) + "`");
  }
  auto socket = home_.ConnectOrStart(signal_fd_.get());
  if (!socket) {
    // A signal ends the wait at once and is handled first. Then the next try is due.
    bool interrupted = socket.error().code() == Code::kAborted;
    if (!interrupted) last_failure_ = socket.error().message();
    next_try_ = MonotonicMicros() + (interrupted ? kFirstBackoff : backoff_);
    if (!interrupted) backoff_ = std::clamp(backoff_ * 2, kFirstBackoff, kLongestBackoff);
    return;
  }
  socket_ = *std::move(socket);
  Status sent = SendRequest();
  while (sent && !unsent_.empty()) {
    sent = Send(unsent_.front());
    if (sent) unsent_.pop_front();
  }
  if (!sent) return OnLost(sent.error().message());
  SendSize();
  // Connected, but lost_at_ stays until home answers. Otherwise a home that crashes on our request would be retried
  // forever.
  next_try_ = lost_at_ + options_.resume_limit_us + 1;
}

// --- signals

void RunSession::ReadSignals() {
  signalfd_siginfo info;
  while (!outcome_ && ::read(signal_fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    OnSignal(static_cast<int>(info.ssi_signo));
  }
}

void RunSession::OnSignal(int number) {
  switch (number) {
    case SIGINT: return OnInterrupt();
    case SIGWINCH: return SendSize();
    case SIGTSTP: SendSignal(SIGTSTP); return StopAndContinue(false);
    case SIGCONT: return GoOn();
    default:
      if (number == SIGHUP && (options_.hangup_disconnects || TerminalIsGone())) return Disconnect();
      if (!started_) return CancelWaiting(number);
      if (completing_ && number != SIGUSR1 && number != SIGUSR2) return StopWaiting();
      SendSignal(number);
  }
}

void RunSession::OnInterrupt() {
  if (!started_) return CancelWaiting(SIGINT);
  int64_t now = MonotonicMicros();
  interrupts_ = interrupts_ > 0 && now - last_interrupt_ <= kInterruptWindow ? interrupts_ + 1 : 1;
  last_interrupt_ = now;
  if (completing_) {
    if (interrupts_ > 1) return StopWaiting();
    completing_since_ = 0;
    return line_->Print("vrun: " + JobText() +
                            ": the command is over, what it wrote is on its way home: once more to " +
                            "stop waiting for it",
                        terminal_.raw());
  }
  if (interrupts_ == 1) return SendSignal(SIGINT);
  if (interrupts_ == 2) return SendSignal(SIGTERM);
  StopWaiting();
}

void RunSession::StopWaiting() {
  v1::ClientMessage message;
  message.mutable_detach();
  (void)Send(message);
  const std::string id = std::to_string(job_);
  const std::string goes_on = completing_ ? "what it wrote comes home without you: `vctl job " + id + "`"
                                          : "it may go on: `vctl logs -f " + id + "` or `vctl cancel " + id + "`";
  End(kExitUnknown, completing_ ? v1::COMPLETING : v1::RUNNING, JobText() + ": not waited for any more: " + goes_on);
}

bool RunSession::TerminalIsGone() const {
  for (int i = 0; i < 3; ++i) {
    pollfd p{options_.stdio[i], 0, 0};
    if (was_terminal_[i] && ::poll(&p, 1, 0) == 1 && (p.revents & POLLHUP) != 0) return true;
  }
  return false;
}

// Home treats the job as if we were killed.
void RunSession::Disconnect() {
  socket_.Reset();
  End(kExitSignal + SIGHUP, started_ ? v1::RUNNING : v1::PENDING, JobText() + ": hung up (see --on-disconnect)");
}

void RunSession::CancelWaiting(int number) {
  bool again = cancel_signal_ != 0;
  if (!again) cancel_signal_ = number;
  if (again || (!socket_ && job_ == 0)) {
    std::string reason = job_ == 0 ? "" : JobText() + ": its cancellation is not confirmed: look with `vctl jobs`";
    return End(kExitSignal + number, v1::CANCELLED, std::move(reason));
  }
  cancel_until_ = MonotonicMicros() + kCancelPatience;
  line_->Say("cancelling");
  SendSignal(number);
}

void RunSession::StopAndContinue(bool by_key) {
  line_->Erase();
  terminal_.Leave();
  if (by_key)
    StopAsByKey();
  else
    ::raise(SIGSTOP);
  // We continue on SIGCONT, which is now pending in the signal descriptor. If it is not, nothing has stopped us.
  sigset_t pending;
  if (::sigpending(&pending) == 0 && ::sigismember(&pending, SIGCONT) != 1) GoOn();
}

void RunSession::GoOn() {
  if (remote_raw_ && options_.local_terminal) {
    terminal_.Resume();
    (void)terminal_.Enter();
    if (completing_) terminal_.LeaveInput();
  }
  SendSignal(SIGCONT, ::isatty(options_.stdio[0]) == 1 && InBackground(options_.stdio[0]));
  SendSize();
}

}  // namespace vrun::cli
