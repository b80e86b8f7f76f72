// SPDX-License-Identifier: Apache-2.0
#include "node/agent/attempt.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>

#include <filesystem>
#include <system_error>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "node/gang/gang.h"
#include "proto/fsctl.pb.h"

namespace vrun::node {
namespace {

constexpr int64_t kAttachTimeoutMicros = 60'000'000;
constexpr int64_t kAwayAttachTimeoutMicros = 600'000'000;  // the snapshot store may be down for a while

// The field number of a message that is a single oneof, read from its first byte: bulk messages are relayed unparsed.
int OneofField(std::string_view frame) { return frame.empty() ? 0 : static_cast<uint8_t>(frame[0]) >> 3; }

// "" if it has none. Blocks for a name that no file of the host knows; nodes are usually configured with addresses.
std::string NumericAddress(std::string host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (host.empty() || ::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return "";
  char text[INET6_ADDRSTRLEN] = "";
  static_cast<void>(::getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST));
  ::freeaddrinfo(found);
  return text;
}

std::vector<uint32_t> PortsOf(const std::vector<std::string>& addresses) {
  std::vector<uint32_t> ports;
  for (const std::string& a : addresses) {
    ports.push_back(static_cast<uint32_t>(std::strtoul(a.substr(a.rfind(':') + 1).c_str(), nullptr, 10)));
  }
  return ports;
}

// With 0, or as a pod that was told to leave its job.
bool IsWell(const v1::ExitRecord& record) {
  return record.kind() == v1::ExitRecord::LEFT_GANG ||
         (record.kind() == v1::ExitRecord::EXITED && record.exit_code() == 0);
}

void SetFailed(const std::string& why, v1::ExitRecord* record) {
  record->set_kind(v1::ExitRecord::EXITED);
  record->set_exit_code(125);
  record->set_signal(0);
  record->set_reason(why);
}

std::string Text(const std::string& what, const Error& error) { return what + ": " + error.message(); }

}  // namespace

std::string WritesKeptIn(const std::string& task_directory, const std::string& node) {
  namespace fs = std::filesystem;
  for (const char* place : {"/upper", "/kept"}) {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(task_directory + place, error)) {
      // Empty directories are what was mounted on.
      if (entry.symlink_status(error).type() == fs::file_type::directory && fs::is_empty(entry.path(), error)) continue;
      return "they are kept on " + node + " in " + Escape(task_directory) + place;
    }
  }
  return "";
}

Attempt::Attempt(AttemptHost* host, v1::StartAttempt order)
    : host_(host), order_(std::move(order)), spans_(order_, false) {
  report_.set_job(job());
  report_.set_attempt(attempt());
  report_.set_pod(key().pod);
  report_.set_epoch(epoch());
  report_.set_state(v1::STARTING);
  Error unused(Code::kOk, "");
  host_->FsServer(tenant(), &unused);  // started early; an error will show again when the view is opened
  const bool away = order_.spec().away();
  if (away && !order_.spec().discard_writes()) order_.mutable_spec()->set_keep_writes(true);
  attach_timer_ = host_->loop()->After(away ? kAwayAttachTimeoutMicros : kAttachTimeoutMicros, [this, away] {
    attach_timer_ = 0;
    Fail(v1::ExitRecord::START_FAILED,
         away ? "neither home nor the snapshot store attached within 10 minutes: does `vrund snapshots` run?"
              : "home did not attach within 60 s: is the home daemon still running?");
  });
}

Attempt::Attempt(AttemptHost* host, v1::StartAttempt order, std::unique_ptr<SupervisorLink> supervisor,
                 std::vector<std::string> content_addresses, uint64_t lease, uint64_t live_view, uint64_t paths_lease)
    : host_(host),
      order_(std::move(order)),
      spans_(order_, true),
      state_(State::kRunning),
      supervisor_(std::move(supervisor)),
      content_addresses_(std::move(content_addresses)),
      lease_(lease),
      live_view_(live_view),
      paths_lease_(paths_lease),
      run_began_(true) {
  report_.set_job(job());
  report_.set_attempt(attempt());
  report_.set_pod(key().pod);
  report_.set_epoch(epoch());
  go_ = waits_for_go() && PathExists(directory() + "/go");
  // The supervisor says at once whether the command runs, or is ready.
  report_.set_state(waits_for_go() && !go_ ? v1::STARTING : v1::RUNNING);
  BindSupervisor();
}

Attempt::~Attempt() {
  *alive_ = false;
  host_->loop()->Cancel(attach_timer_);
  if (home_) home_->SetEvents({});
  if (stand_in_) stand_in_->SetEvents({});
}

std::string Attempt::directory() const { return host_->tasks_directory() + "/" + key().Name(); }

bool Attempt::Proves(const v1::Attach& attach) const {
  // The token is the right to this attempt. Compared in constant time, because anyone who reaches the port may try.
  const std::string& token = order_.placement().token();
  unsigned difference = token.size() != attach.token().size() || token.empty();
  for (size_t i = 0; i < token.size() && i < attach.token().size(); ++i) {
    difference |= static_cast<unsigned>(token[i] ^ attach.token()[i]);
  }
  return difference == 0 && attach.home_id() == home_id();
}

void Attempt::TakeAttach(const v1::Attach& attach) {
  host_->loop()->Cancel(std::exchange(attach_timer_, 0));
  v1::TaskUp up;
  *up.mutable_attach() = attach;
  attach_frame_ = up.SerializeAsString();
}

void Attempt::TellContent(HomeStream* stream) const {
  v1::TaskDown down;
  down.mutable_attached()->mutable_content_addresses()->Add(content_addresses_.begin(), content_addresses_.end());
  stream->Send(down);
}

void Attempt::AttachStandIn(const std::shared_ptr<HomeStream>& stream, const v1::Attach& attach) {
  if (!Proves(attach) || !order_.spec().away()) {
    return stream->Fail(Error(Code::kDenied, "job " + std::to_string(job()) + ": not an away job with this token"));
  }
  if (stand_in_) stand_in_->SetEvents({});
  stand_in_ = stream;
  std::weak_ptr<bool> alive = alive_;
  stream->SetEvents({.on_frame = [](const std::string&) {},
                     .on_closed =
                         [this, alive, raw = stream.get()] {
                           if (!alive.expired() && stand_in_.get() == raw) stand_in_.reset();
                         }});
  if (!content_addresses_.empty()) TellContent(stream.get());
  if (state_ != State::kWaiting) return;
  TakeAttach(attach);
  FirstAttach(attach);
}

void Attempt::Attach(const std::shared_ptr<HomeStream>& stream, const v1::Attach& attach) {
  // A token that got out is of no use with another certificate.
  if (!Proves(attach) || stream->peer().name != order_.user()) {
    return stream->Fail(Error(Code::kDenied, "job " + std::to_string(job()) + ": the token is not this attempt's"));
  }
  if (home_ && home_ != stream) {
    home_->SetEvents({});
    home_->Fail(Error(Code::kAborted, "another home stream attached to this job"));
  }
  home_ = stream;
  std::weak_ptr<bool> alive = alive_;
  stream->SetEvents({.on_frame =
                         [this, alive](std::string frame) {
                           if (!alive.expired()) OnHomeFrame(std::move(frame));
                         },
                     .on_closed =
                         [this, alive, raw = stream.get()] {
                           if (!alive.expired() && home_.get() == raw) home_.reset();
                         }});
  TakeAttach(attach);
  switch (state_) {
    case State::kWaiting: return FirstAttach(attach);
    case State::kOpening:  // home reconnected before the command began
      before_start_.clear();
      return TellContent(home_.get());
    case State::kRunning: return supervisor_->Send(attach_frame_);
    case State::kExited:
      if (supervisor_) return supervisor_->Send(attach_frame_);
      return SendRecordHome();
    case State::kOver: return SendRecordHome();
  }
}

void Attempt::FirstAttach(const v1::Attach& attach) {
  // Must precede the server's look at the ids.
  const v1::Identity& identity = order_.spec().command().identity();
  std::vector<uint32_t> ids(identity.groups().begin(), identity.groups().end());
  ids.insert(ids.end(), {identity.uid(), identity.gid()});
  Result<UidRanges::Range> uids = host_->Uids(tenant(), ids);
  if (!uids) return CannotStart("cannot give its user ids", uids.error());
  Error error(Code::kOk, "");
  FsClient* fs = host_->FsServer(tenant(), &error);
  if (fs == nullptr) return CannotStart("cannot start the file system server", error);
  state_ = State::kOpening;
  spans_.Step(AttemptSpans::kMount);
  std::weak_ptr<bool> alive = alive_;
  fs->WhenListening([this, alive](const std::vector<std::string>& addresses) {
    if (alive.expired()) return;
    content_addresses_ = addresses;
    if (home_) TellContent(home_.get());
    if (stand_in_) TellContent(stand_in_.get());
  });
  fs->AllowToken(tenant().home_id, attach.token(), key());
  run_began_ = true;
  lease_ = host_->NextLease();
  PrepareGpus();
  OpenView(attach, fs, *uids);
}

void Attempt::OpenView(const v1::Attach& attach, FsClient* fs, const UidRanges::Range& uids) {
  std::weak_ptr<bool> alive = alive_;
  if (!order_.spec().live_view()) {
    return fs->OpenView(
        attach.tree(), attach.apart(), lease_, [this, alive, attach, fs, uids](Result<std::vector<UniqueFd>> mounts) {
          if (alive.expired()) return;
          const bool more = mounts && state_ == State::kOpening && !order_.spec().live_paths().empty();
          more ? OpenLivePaths(attach, fs, uids, *std::move(mounts)) : ViewOpened(std::move(mounts), uids);
        });
  }
  fs->OpenLiveView(attach.tree(), attach.tree_serial(), lease_,
                   [this, alive, uids](Result<uint64_t> view, std::vector<UniqueFd> mounts) {
                     if (alive.expired()) return;
                     if (!view) return ViewOpened(view.error(), uids);
                     live_view_ = *view;
                     ViewOpened(std::move(mounts), uids);
                   });
}

void Attempt::OpenLivePaths(const v1::Attach& attach, FsClient* fs, const UidRanges::Range& uids,
                            std::vector<UniqueFd> mounts) {
  paths_lease_ = host_->NextLease();
  auto kept = std::make_shared<std::vector<UniqueFd>>(std::move(mounts));
  fs->OpenLiveView(
      attach.live_tree(), attach.live_tree_serial(), paths_lease_,
      [this, alive = std::weak_ptr<bool>(alive_), uids, kept](Result<uint64_t> view, std::vector<UniqueFd> live) {
        if (alive.expired()) return;
        if (view && live.size() != 1) view = Error(Code::kInternal, "a live view without a mount");
        if (!view) return ViewOpened(view.error(), uids);
        kept->push_back(std::move(live[0]));
        ViewOpened(std::move(*kept), uids);
      });
}

std::vector<uint64_t> Attempt::Leases() const {
  std::vector<uint64_t> leases;
  for (const uint64_t lease : {lease_, paths_lease_}) {
    if (lease != 0) leases.push_back(lease);
  }
  return leases;
}

void Attempt::ViewOpened(Result<std::vector<UniqueFd>> mounts, const UidRanges::Range& uids) {
  if (state_ != State::kOpening) return;  // cancelled meanwhile
  if (!mounts) return CannotStart("cannot mount the root", mounts.error());
  opened_ = {std::move(*mounts), uids};
  StartIfPrepared();
}

void Attempt::PrepareGpus() {
  if (order_.placement().gpu_mask() != 0) spans_.GpusBegin();
  const bool asked = host_->PrepareGpus(order_, [this, alive = std::weak_ptr(alive_)](Result<v1::GpuInjection> made) {
    if (alive.expired() || state_ != State::kOpening) return;
    spans_.GpusEnd();
    if (!made) return CannotStart("cannot prepare its GPUs", made.error());
    gpus_ = std::move(*made);
    StartIfPrepared();
  });
  if (!asked) gpus_.emplace();
}

void Attempt::StartIfPrepared() {
  if (!gpus_ || !opened_) return;
  Opened opened = *std::exchange(opened_, std::nullopt);
  spans_.Step(AttemptSpans::kSandbox);
  const Status started = StartSupervisor(std::move(opened.mounts), opened.uids);
  if (!started) CannotStart("cannot start the command", started.error());
}

void Attempt::CannotStart(const char* what, const Error& why) {
  Fail(v1::ExitRecord::START_FAILED, "node " + host_->node_name() + ": " + Text(what, why));
}

void Attempt::NamePods(v1::TaskSpec* spec) const {
  // A node that was configured with a name: /etc/hosts needs an address, and the supervisor has no resolver.
  for (v1::GangPod& pod : *spec->mutable_order()->mutable_pods()) pod.set_host(NumericAddress(pod.host()));
  // Before this host's own lines, which may have a loopback address for its name: other pods cannot reach that.
  if (Gang::Is(order_)) spec->set_hosts(Gang(spec->order(), host_->node_name()).HostsLines());
  spec->mutable_hosts()->append(host_->hosts());
}

Status Attempt::StartSupervisor(std::vector<UniqueFd> mounts, const UidRanges::Range& uids) {
  VRUN_TRY(MakeDirs(directory(), 0700));
  v1::TaskSpec spec;
  *spec.mutable_order() = order_;
  spans_.PutInto(spec.mutable_order()->mutable_spec()->mutable_command());
  spec.set_task_directory(directory());
  spec.set_uid_base(uids.base);
  spec.mutable_high_ids()->Add(uids.high.begin(), uids.high.end());
  spec.set_node(host_->node_name());
  spec.set_live_root(live_view_ != 0);
  spec.set_live_paths(paths_lease_ != 0);
  const CpuList cpus = host_->GiveCpus(key(), order_.spec().resources().milli_cpus());
  spec.mutable_cpus()->Add(cpus.begin(), cpus.end());
  if (gpus_->ByteSizeLong() != 0) *spec.mutable_gpus() = std::move(*gpus_);
  NamePods(&spec);
  VRUN_ASSIGN(*spec.mutable_isolation(), host_->Isolate(order_.spec().resources(), PortsOf(content_addresses_)));
  spec.set_wait_for_go(waits_for_go());
  if (order_.spec().keep_writes()) VRUN_TRY(KeepWrites(&spec));
  if (v1::TaskUp up; order_.spec().secrets_size() > 0 && up.ParseFromString(attach_frame_)) {
    *spec.mutable_secrets() = std::move(*up.mutable_attach()->mutable_secrets());
  }
  VRUN_ASSIGN(supervisor_, host_->TakeSupervisor());
  BindSupervisor();
  state_ = State::kRunning;
  supervisor_->Send(spec.SerializeAsString(), std::move(mounts));
  supervisor_->Send(attach_frame_);
  for (const std::string& frame : before_start_) supervisor_->Send(frame);
  before_start_.clear();
  // What a later agent needs to adopt the task (agent.cc, Recover). Not synced: after a power loss there is no
  // supervisor to adopt.
  // The supervisor has the environment and the script, in memory. They never reach the disk, but for the name of the
  // caller's trace.
  order_.mutable_spec()->mutable_command()->clear_environment();
  if (!spans_.caller().empty()) order_.mutable_spec()->mutable_command()->add_environment(spans_.caller());
  order_.mutable_spec()->mutable_command()->clear_script();
  VRUN_ASSIGN(UniqueFd order, OpenFile(directory() + "/order", O_WRONLY | O_CREAT | O_TRUNC, 0600));
  VRUN_TRY(WriteAll(order.get(), order_.SerializeAsString()));
  std::string leases = std::to_string(lease_) + " " + std::to_string(live_view_) + " " + FormatCpuList(cpus) + "\n" +
                       std::to_string(paths_lease_) + "\n";
  for (const std::string& a : content_addresses_) leases += a + "\n";
  VRUN_ASSIGN(UniqueFd lease, OpenFile(directory() + "/lease", O_WRONLY | O_CREAT | O_TRUNC, 0600));
  return WriteAll(lease.get(), leases);
}

Status Attempt::KeepWrites(v1::TaskSpec* spec) {
  v1::TaskUp up;
  if (!up.ParseFromString(attach_frame_)) return Error(Code::kInternal, "the attach does not parse");
  // The job's own home, even if its root's content belongs to another.
  const std::string owner = Tenant{order_.user(), order_.home_id()}.Key();
  spec->set_kept_directory(host_->kept()->PathOf(owner, key()));
  spec->set_kept_root(up.attach().tree() + up.attach().apart());
  if (attempt() < 2) return {};
  VRUN_ASSIGN(uint32_t before, host_->kept()->TakeUpper(owner, key(), spec->kept_root(), directory() + "/upper"));
  spec->set_continues(before);
  return {};
}

void Attempt::BindSupervisor() {
  std::weak_ptr<bool> alive = alive_;
  supervisor_->SetEvents({.on_frame =
                              [this, alive](std::string f) {
                                if (!alive.expired()) OnSupervisorFrame(std::move(f));
                              },
                          .on_closed =
                              [this, alive] {
                                // Posted, because the link is still on the stack.
                                host_->loop()->Post([this, alive] {
                                  if (!alive.expired()) OnSupervisorClosed();
                                });
                              }});
}

void Attempt::OnHomeFrame(std::string frame) {
  if (OneofField(frame) == v1::TaskUp::kRelease) {
    released_ = true;
    v1::TaskUp up;
    if (up.ParseFromString(frame)) AddToRecord(up.release());
    // The record must outlive the task's directory, which the supervisor removes then.
    report_.set_state(EndState());
    return host_->Report(report_, [this, alive = std::weak_ptr(alive_), frame = std::move(frame)] {
      if (alive.expired()) return;
      supervisor_ ? supervisor_->Send(frame) : Finish();
    });
  }
  switch (OneofField(frame)) {
    case v1::TaskUp::kAttach: return;  // only the first message of a stream attaches
    case v1::TaskUp::kGo:
    case v1::TaskUp::kMembers:
    case v1::TaskUp::kExec: return;  // only this agent's
    default: break;
  }
  if (state_ == State::kOpening) {
    before_start_.push_back(std::move(frame));
  } else if (supervisor_) {
    supervisor_->Send(std::move(frame));
  }
}

// Adds the result of the command's writes, which only home knows.
void Attempt::AddToRecord(const v1::Release& release) {
  v1::ExitRecord* exit = report_.mutable_exit();
  exit->set_conflicts(release.conflicts());
  *exit->mutable_conflict() = release.conflict();
  if (!release.failed().empty() && IsWell(*exit)) SetFailed(release.failed(), exit);
}

void Attempt::OnSupervisorFrame(std::string frame) {
  switch (OneofField(frame)) {
    case v1::TaskDown::kAttached: {
      v1::TaskDown down;
      if (!down.ParseFromString(frame)) return;
      auto* addresses = down.mutable_attached()->mutable_content_addresses();
      addresses->Clear();
      addresses->Add(content_addresses_.begin(), content_addresses_.end());
      frame = down.SerializeAsString();
      break;
    }
    case v1::TaskDown::kStarted: {
      spans_.Runs();
      SetState(v1::RUNNING);
      v1::TaskDown down;
      if (live_view_ == 0 || !down.ParseFromString(frame)) break;
      down.mutable_started()->set_view(live_view_);
      frame = down.SerializeAsString();
      break;
    }
    case v1::TaskDown::kReady:
      if (go_) return SendGo();  // an earlier agent got it, but ended before it had passed it on
      spans_.Step(AttemptSpans::kGang);
      report_.set_ready(true);
      return host_->Report(report_);
    case v1::TaskDown::kWord: {
      v1::TaskDown down;
      if (!down.ParseFromString(frame)) return;
      v1::JobWord* word = down.mutable_word();
      word->set_job(job());
      word->set_attempt(attempt());
      word->set_pod(key().pod);
      return host_->Pass(*word);
    }
    case v1::TaskDown::kExec: {
      v1::TaskDown down;
      if (!down.ParseFromString(frame)) return;
      v1::ExecInPod* exec = down.mutable_exec();
      exec->set_job(job());
      exec->set_attempt(attempt());
      exec->ended() ? exec->set_pod(key().pod) : exec->set_from_pod(key().pod);
      return host_->Pass(*exec);
    }
    case v1::TaskDown::kWriteBackEnd: {
      if (order_.spec().keep_writes()) host_->KeptMore();
      if (live_view_ == 0 && paths_lease_ == 0) break;
      v1::TaskDown down;
      if (!down.ParseFromString(frame)) return;
      return PublishWrites(down.write_back_end());
    }
    case v1::TaskDown::kExited: {
      v1::TaskDown down;
      if (!down.ParseFromString(frame) || !down.exited().has_record()) {
        LogError("job {}: an exit record that does not parse", job());
        return;
      }
      if (state_ != State::kExited) {
        state_ = State::kExited;
        *report_.mutable_exit() = down.exited().record();
        spans_.Ended(report_.exit());
        EndRun();
        SetState(v1::COMPLETING);
      }
      if (superseded_ && !home_) return ForgetIfSuperseded();
      break;
    }
    default: break;
  }
  if (home_) home_->Send(std::move(frame));
}

void Attempt::PublishWrites(v1::WriteBackEnd end) {
  const auto told = [this, end, alive = std::weak_ptr(alive_), home = std::weak_ptr(home_)](Result<v1::FsReply> reply) {
    // Home has reconnected: the supervisor sends the end again.
    if (alive.expired() || !home_ || home_ != home.lock()) return;
    v1::TaskDown down;
    if (reply) {
      const auto& published = reply->view_published();
      v1::WriteBackEnd* out = down.mutable_write_back_end();
      if (live_view_ == 0) {
        *out = end;
        out->set_also_view(published.view());
        out->set_also_sequence(published.sequence());
      } else {
        out->set_view(published.view());
        out->set_sequence(published.sequence());
      }
      return home_->Send(down);
    }
    const Code code = reply.error().code() == Code::kUnavailable ? Code::kAborted : reply.error().code();
    down.mutable_error()->set_code(static_cast<int>(code));
    down.mutable_error()->set_message("the command's last writes may be missing at home: " + reply.error().message());
    home_->Send(down);
  };
  Error error(Code::kOk, "");
  FsClient* fs = host_->FsServer(tenant(), &error);
  if (fs == nullptr) return told(error);
  fs->PublishView(live_view_ != 0 ? lease_ : paths_lease_, told);
}

void Attempt::OnSupervisorClosed() {
  supervisor_.reset();
  if (released_) return Finish();
  if (state_ == State::kExited) {
    // The supervisor wrote its record and died before the writes were home: they are still in its directory.
    std::string text = "the task supervisor ended before all writes were home: they are kept on " + host_->node_name() +
                       " in " + Escape(directory()) + "/upper";
    LogError("job {}: {}", job(), text);
    v1::ExitRecord* exit = report_.mutable_exit();
    // Not a success, although the command exited with 0.
    if (IsWell(*exit)) {
      SetFailed(text, exit);
    } else if (exit->reason().empty()) {
      exit->set_reason(text);
    }
    report_.set_state(EndState());
    host_->Report(report_);
    if (home_) home_->Fail(Error(Code::kInternal, text));
    return Finish();
  }
  const std::string kept = WritesKeptIn(directory(), host_->node_name());
  std::function<void()> remove = [directory = directory()] {
    if (Status removed = RemoveTree(directory); !removed) LogError("{}", removed.error().message());
  };
  Fail(v1::ExitRecord::START_FAILED,
       "the task supervisor died: see the node's log" + (kept.empty() ? "" : "; its writes are not home: " + kept), 0,
       kept.empty() ? std::move(remove) : nullptr);
}

void Attempt::Stop(const v1::StopAttempt& stop) {
  const int signal = stop.signal() ? stop.signal() : SIGTERM;
  if (state_ == State::kWaiting || state_ == State::kOpening) {
    if (!stop.preempted().empty()) return Fail(v1::ExitRecord::PREEMPTED_BY_JOB, stop.preempted());
    if (!stop.gang_ended().empty()) return Fail(v1::ExitRecord::GANG_ENDED, stop.gang_ended());
    if (!stop.resized().empty()) return Fail(v1::ExitRecord::LEFT_GANG, stop.resized());
    return Fail(v1::ExitRecord::CANCELLED_BY_USER, "cancelled before it started", signal);
  }
  superseded_ = superseded_ || stop.superseded();
  ForgetIfSuperseded();
  if (!supervisor_ || state_ != State::kRunning) return;
  v1::TaskUp up;
  up.mutable_signal()->set_signal(superseded_ ? SIGKILL : signal);
  up.mutable_signal()->set_by_user_cancel(stop.preempted().empty() && stop.gang_ended().empty() &&
                                          stop.resized().empty());
  up.mutable_signal()->set_preempted(stop.preempted());
  up.mutable_signal()->set_gang_ended(stop.gang_ended());
  up.mutable_signal()->set_resized(stop.resized());
  supervisor_->Send(up.SerializeAsString());
}

// As home does when it has everything.
void Attempt::ForgetIfSuperseded() {
  if (!superseded_ || !supervisor_ || state_ != State::kExited || home_ || released_) return;
  v1::TaskUp up;
  up.mutable_release();
  OnHomeFrame(up.SerializeAsString());
}

void Attempt::Go() {
  if (go_ || !waits_for_go() || state_ != State::kRunning) return;
  go_ = true;
  // Before the supervisor gets it: a later agent must not report that this pod still waits. Not synced: see
  // StartSupervisor.
  if (auto made = OpenFile(directory() + "/go", O_WRONLY | O_CREAT, 0600); !made) {
    LogWarning("job {}: {}", job(), made.error().message());
  }
  SendGo();
}

void Attempt::SendGo() {
  if (!supervisor_) return;
  v1::TaskUp up;
  up.set_go(true);
  supervisor_->Send(up.SerializeAsString());
}

void Attempt::SetMembers(const v1::Members& members) {
  *order_.mutable_pods() = members.pods();
  if (!supervisor_ || state_ != State::kRunning) return;
  v1::Members told = members;
  for (v1::GangPod& pod : *told.mutable_pods()) pod.set_host(NumericAddress(pod.host()));
  v1::TaskUp up;
  up.set_members(told.SerializeAsString());
  supervisor_->Send(up.SerializeAsString());
}

void Attempt::Exec(const v1::ExecInPod& exec) {
  if (supervisor_ && state_ == State::kRunning) {
    v1::TaskUp up;
    *up.mutable_exec() = exec;
    return supervisor_->Send(up.SerializeAsString());
  }
  if (exec.ended()) return;
  v1::ExecInPod answer = AnswerTo(exec);
  answer.set_problem("pod " + std::to_string(key().pod) + " of the job does not run");
  host_->Pass(answer);
}

void Attempt::Abandon() {
  if (supervisor_) supervisor_->Kill();
}

void Attempt::Notice(const std::string& text, bool content_lost) {
  if (!home_) return;
  v1::TaskDown down;
  down.mutable_notice()->set_text(text);
  down.mutable_notice()->set_content_lost(content_lost);
  home_->Send(down);
}

void Attempt::FsServerDied() {
  lease_ = paths_lease_ = 0;
  if (state_ == State::kOpening) return;  // the pending OpenView fails by itself
  if (state_ == State::kRunning) Notice("the file system server died: reads of files that are not cached fail");
}

void Attempt::Fail(v1::ExitRecord::Kind kind, const std::string& reason, int signal, std::function<void()> kept) {
  if (state_ == State::kExited || state_ == State::kOver) return;
  v1::ExitRecord* record = report_.mutable_exit();
  record->set_job(job());
  record->set_attempt(attempt());
  record->set_pod(key().pod);
  record->set_kind(kind);
  record->set_signal(signal);
  record->set_reason(reason);
  record->set_ended_us(WallMicros());
  record->set_node(host_->node_name());
  spans_.Ended(*record);
  LogWarning("job {} attempt {}: {}", job(), attempt(), reason);
  state_ = State::kExited;
  supervisor_.reset();
  report_.set_state(EndState());
  host_->Report(report_, std::move(kept));
  if (home_) SendRecordHome();
  Finish();
}

void Attempt::SendRecordHome() {
  v1::TaskDown down;
  down.mutable_attached();
  home_->Send(down);
  *down.mutable_exited()->mutable_record() = report_.exit();
  home_->Send(down);
  down.mutable_write_back_end();
  home_->Send(down);
}

void Attempt::SetState(v1::JobState state) {
  if (report_.state() == state) return;
  report_.set_state(state);
  report_.clear_ready();
  host_->Report(report_);
}

v1::JobState Attempt::EndState() const {
  const v1::ExitRecord& record = report_.exit();
  switch (record.kind()) {
    case v1::ExitRecord::EXITED: return record.exit_code() == 0 ? v1::COMPLETED : v1::FAILED;
    case v1::ExitRecord::CANCELLED_BY_USER: return v1::CANCELLED;
    case v1::ExitRecord::PREEMPTED_BY_JOB: return v1::PREEMPTED;
    case v1::ExitRecord::LEFT_GANG: return v1::COMPLETED;
    case v1::ExitRecord::TIME_LIMIT: return v1::TIMEOUT;
    case v1::ExitRecord::OUT_OF_MEMORY_KILL: return v1::OUT_OF_MEMORY;
    default: return v1::FAILED;
  }
}

void Attempt::EndRun() {
  host_->FreeCpus(key());
  host_->ReleaseGpus(key());
  if (!std::exchange(run_began_, false)) return;
  Error unused(Code::kOk, "");
  if (FsClient* fs = host_->FsServer(tenant(), &unused)) fs->EndRun(key());
}

void Attempt::Finish() {
  if (state_ == State::kOver) return;
  state_ = State::kOver;
  EndRun();
  for (const uint64_t lease : Leases()) {
    Error unused(Code::kOk, "");
    if (FsClient* fs = host_->FsServer(tenant(), &unused)) fs->CloseView(lease);
  }
  lease_ = paths_lease_ = 0;
  host_->Over(key());
}

}  // namespace vrun::node
