// SPDX-License-Identifier: Apache-2.0
#include "home/runs/runs.h"

#include <unistd.h>

#include <algorithm>

#include "base/escape.h"
#include "base/log.h"
#include "home/ahead/traces.h"
#include "home/links/controller_client.h"
#include "home/runs/command/job_environment.h"
#include "home/streams/log_spool.h"
#include "home/streams/port_forwards.h"
#include "jobs/ending.h"
#include "jobs/gang.h"
#include "telemetry/trace_context.h"
#include "tree/rules.h"

namespace vrun::home {
namespace {

constexpr int64_t kRecoverRetryMicros = 2'000'000;
constexpr int64_t kHangupMicros = 60'000'000;
constexpr int64_t kResumeRetryMicros = 500'000;
constexpr int kResumeTries = 60;
constexpr size_t kMaxOutcomes = 256;
constexpr uint64_t kReplayBytes = 1u << 20;

}  // namespace

Runs::Runs(EventLoop* loop, ControllerClient* controller, const JobRoots* roots, Traces* traces, LogSpool* spool,
           const RunFiles* files, AwayJobs* away, Makers makers)
    : loop_(loop),
      controller_(controller),
      roots_(roots),
      traces_(traces),
      spool_(spool),
      files_(files),
      away_(away),
      makers_(std::move(makers)),
      places_(files->root()),
      record_sync_(loop, [files] { return files->SyncDetached(); }) {
  away_->OnNotice([this](uint64_t job, const std::string& text) {
    const auto it = runs_.find(job);
    if (it == runs_.end()) return;
    if (it->second.attached) return it->second.attached->OnNotice(text);
    if (it->second.orphan) it->second.orphan->OnNotice(text);
  });
}

Runs::~Runs() {
  *alive_ = false;
  away_->OnNotice(nullptr);
  loop_->Cancel(recover_timer_);
  for (auto& [job, entry] : runs_) entry.run.reset();
}

// A caller on the stack may be a member of the object to destroy.
void Runs::Later(std::shared_ptr<void> dead) {
  loop_->Post([dead = std::move(dead)]() mutable { dead.reset(); });
}

std::unique_ptr<AttachedRun> Runs::Attach(std::shared_ptr<ClientConnection> client, AttachedRun::Options options) {
  return std::make_unique<AttachedRun>(loop_, controller_, roots_, traces_, spool_, files_, this, std::move(client),
                                       options);
}

Result<std::unique_ptr<AttachedRun>> Runs::MakeAttached(
    std::shared_ptr<ClientConnection> client, AttachedRun::Options options,
    const google::protobuf::RepeatedPtrField<v1::Descriptor>& extras, std::vector<UniqueFd> fds) {
  const size_t wanted = 4 + 2 * static_cast<size_t>(extras.size());
  if (fds.size() != wanted) {
    return Error(Code::kInvalid,
                 "an attached run needs " + std::to_string(wanted) + " descriptors, not " + std::to_string(fds.size()));
  }
  VRUN_ASSIGN(StreamProgressMap progress, StreamProgressMap::Map(fds[3].get()));
  auto attached = Attach(std::move(client), options);
  attached->TakeDescriptors(std::move(fds[0]), std::move(fds[1]), std::move(fds[2]), std::move(progress));
  for (size_t at = 4; const v1::Descriptor& extra : extras) {
    if (extra.number() <= 2) return Error(Code::kInvalid, "a further descriptor of the command has a number below 3");
    VRUN_ASSIGN(StreamProgressMap memory, StreamProgressMap::Map(fds[at + 1].get()));
    attached->TakeDescriptor(extra, std::move(fds[at]), std::move(memory));
    at += 2;
  }
  return attached;
}

void Runs::StartRun(std::shared_ptr<ClientConnection> client, const v1::Run& run, std::vector<UniqueFd> fds) {
  if (run.spec().command().argv_size() == 0) return client->SendError(Error(Code::kInvalid, "no command"));
  if (run.spec().command().directory().empty() || run.spec().command().directory()[0] != '/') {
    return client->SendError(Error(Code::kInvalid, "the directory of the command is not absolute"));
  }
  if (run.has_array() && !run.detached()) {
    return client->SendError(Error(Code::kInvalid, "an array runs in the background: submit it with vbatch"));
  }
  NamedCheck named = CheckNamed(run, &places_, roots_->rules().get());
  if (named.refusal) return Refuse(client.get(), run, named);
  for (const std::string& text : named.notices) {
    if (run.quiet() && !run.detached()) break;  // vbatch decides for itself
    v1::HomeMessage message;
    message.mutable_notice()->set_text(text);
    client->Send(message);
  }
  AttachedRun::Options options;
  options.quiet = run.quiet();
  options.progress = run.progress();
  options.terminal = run.spec().command().terminal() && !run.detached();
  options.detached = run.detached();
  options.on_disconnect = run.spec().scheduling().on_disconnect();
  options.terminal_ready = run.terminal_ready();
  options.wait_until_away = run.wait_until_away() && run.detached() && run.spec().away();
  if (run.spec().command().descriptors_size() > 0 && (run.detached() || MayRunAgain(run.spec().scheduling()))) {
    return client->SendError(Error(Code::kInvalid, "a command that may be started again cannot be given /dev/fd/" +
                                                       std::to_string(run.spec().command().descriptors(0).number())));
  }
  if (IsGang(run.spec().gang())) {
    if (run.spec().command().terminal()) {
      return client->SendError(Error(Code::kInvalid, "a job of several processes has no terminal: leave -T out"));
    }
    if (run.spec().command().descriptors_size() > 0) {
      return client->SendError(Error(Code::kInvalid, "a job of several processes cannot be given /dev/fd/" +
                                                         std::to_string(run.spec().command().descriptors(0).number())));
    }
  }
  v1::Run complete = run;
  complete.clear_named();
  for (const std::string& path : named.hidden) complete.add_named()->set_path(path);  // what was told
  AddDefaultVariables(run.spec().resources(), named.cache, complete.mutable_spec()->mutable_command());
  if (run.has_array()) return StartArray(std::move(client), complete);
  // Before there is a job: a port in use is told at once.
  auto ports = PortForwards::Listen(loop_, run.spec().ports());
  if (!ports) return client->SendError(ports.error());
  std::unique_ptr<AttachedRun> attached;
  if (run.detached()) {
    attached = Attach(client, options);
  } else {
    auto made = MakeAttached(client, options, run.spec().command().descriptors(), std::move(fds));
    if (!made) return client->SendError(made.error());
    attached = std::move(*made);
  }
  AttachedRun* raw = attached.get();
  launching_.push_back(std::move(attached));
  raw->StartRun(complete, *std::move(ports));
}

// As the node would, but at once and without a job.
void Runs::Refuse(ClientConnection* client, const v1::Run& run, const NamedCheck& named) {
  if (run.detached() || !named.not_found) return client->SendError(*named.refusal);
  v1::HomeMessage message;
  v1::Finished* finished = message.mutable_finished();
  finished->mutable_record()->set_kind(v1::ExitRecord::NOT_FOUND);
  finished->mutable_record()->set_reason(named.refusal->message());
  finished->set_reason(named.refusal->message());
  finished->set_exit_status(ExitStatus(finished->record()));
  finished->set_state(v1::FAILED);
  client->Send(message);
  client->Close();
}

bool Runs::OnAccepted(AttachedRun* attached, uint64_t job) {
  auto it = std::find_if(launching_.begin(), launching_.end(), [&](const auto& a) { return a.get() == attached; });
  if (it == launching_.end()) return false;
  Entry& entry = runs_[job];
  if (!entry.run) {
    if (entry.attached) Later(std::move(entry.attached));
    entry.attached = std::move(*it);
    launching_.erase(it);
    return false;
  }
  loop_->Post([this, alive = alive_, attached, job] {
    if (!*alive) return;
    auto taken = Take(attached);
    if (!taken) return;
    // A run that writes files has nothing to take over.
    if (!taken->pump()) return;
    auto run = runs_.find(job);
    if (run != runs_.end() && run->second.run) return ResumeRunning(job, std::move(taken));
    ResumeFromController(job, std::move(taken), 0);
  });
  return true;
}

std::shared_ptr<Launch> Runs::MakeLaunch(const v1::Run& run, Launch::Events events) {
  return makers_.launch(run, std::move(events));
}

JobRun* Runs::MakeRun(AttachedRun* attached, JobRun::Plan plan) {
  Entry& entry = runs_[plan.job];
  entry.run = makers_.job_run(std::move(plan), attached);
  return entry.run.get();
}

std::unique_ptr<AttachedRun> Runs::Take(AttachedRun* attached) {
  auto launching =
      std::find_if(launching_.begin(), launching_.end(), [&](const auto& a) { return a.get() == attached; });
  if (launching != launching_.end()) {
    auto taken = std::move(*launching);
    launching_.erase(launching);
    return taken;
  }
  if (auto node = replaying_.extract(attached)) return std::move(node.mapped());
  auto it = runs_.find(attached->job());
  if (it == runs_.end() || it->second.attached.get() != attached) return nullptr;
  return std::move(it->second.attached);
}

void Runs::Done(AttachedRun* attached) {
  uint64_t job = attached->job();
  auto it = runs_.find(job);
  bool current = it != runs_.end() && it->second.attached.get() == attached;
  auto taken = Take(attached);
  if (!taken) return;
  if (current) {
    if (it->second.run) Later(std::move(it->second.run));
    runs_.erase(it);
    if (taken->outcome()) RememberOutcome(job, *taken->outcome());
    files_->ForgetDetached(job);
    files_->ForgetTraced(job);
    away_->Ended(job);
    spool_->Wake(job);  // wakes readers that follow the output
  }
  Later(std::move(taken));
}

void Runs::RememberOutcome(uint64_t job, const Outcome& outcome) {
  outcomes_[job] = outcome;
  if (outcomes_.size() > kMaxOutcomes) outcomes_.erase(outcomes_.begin());
}

const Outcome* Runs::OutcomeOf(uint64_t job) const {
  const auto it = outcomes_.find(job);
  return it == outcomes_.end() ? nullptr : &it->second;
}

void Runs::Orphan(AttachedRun* attached) {
  uint64_t job = attached->job();
  auto it = runs_.find(job);
  if (it == runs_.end() || it->second.attached.get() != attached || !it->second.run) return;
  OrphanRun::Options options;
  options.hold = true;
  if (StdioPump* pump = attached->pump()) {
    options.stdout_offset = pump->written(v1::STDOUT);
    options.stderr_offset = pump->written(v1::STDERR);
  }
  if (attached->has_client())
    options.hold = false;  // the client left on purpose
  else if (attached->on_disconnect() == v1::ON_DISCONNECT_HANG_UP)
    options.hangup_micros = kHangupMicros;
  Entry& entry = it->second;
  entry.orphan = std::make_unique<OrphanRun>(loop_, controller_, spool_, job, options,
                                             [this, job](const Outcome& o) { OrphanEnded(job, o); });
  entry.orphan->Bind(entry.run.get());
  entry.run->SetSink(entry.orphan.get());
  Later(std::move(entry.attached));
}

void Runs::OrphanEnded(uint64_t job, const Outcome& outcome) {
  LogInfo("job {} ended without a client: status {}{}{}", job, outcome.exit_status, outcome.reason.empty() ? "" : ": ",
          outcome.reason);
  files_->ForgetTraced(job);
  away_->Ended(job);
  RememberOutcome(job, outcome);
  auto it = runs_.find(job);
  if (it == runs_.end()) return;
  if (it->second.run) Later(std::move(it->second.run));
  if (it->second.orphan) Later(std::move(it->second.orphan));
  runs_.erase(it);
}

// --- arrays ---

void Runs::StartArray(std::shared_ptr<ClientConnection> client, const v1::Run& run) {
  const auto at = std::make_shared<ArrayLaunch*>(nullptr);
  auto launch = std::make_unique<ArrayLaunch>(
      loop_, roots_, traces_, files_, std::move(client), run,
      ArrayLaunch::Events{
          .make_launch = makers_.launch,
          .when_recorded = [this](std::function<void()> done) { record_sync_.Then(std::move(done)); },
          .on_accepted = [this](uint64_t array) { return arrays_.contains(array); },
          .on_ready = [this](uint64_t array, ArrayRun::Elements elements) { AddArray(array, std::move(elements)); },
          .on_over =
              [this, at] {
                const auto over = std::find_if(launching_arrays_.begin(), launching_arrays_.end(),
                                               [&](const auto& other) { return other.get() == *at; });
                if (over == launching_arrays_.end()) return;
                Later(std::move(*over));
                launching_arrays_.erase(over);
              }});
  *at = launch.get();
  launching_arrays_.push_back(std::move(launch));
  (*at)->Start();
}

void Runs::AddArray(uint64_t array, ArrayRun::Elements elements) {
  auto& made = arrays_[array];
  if (made) return;
  made = std::make_unique<ArrayRun>(
      loop_, controller_, files_, array, std::move(elements),
      ArrayRun::Events{
          .on_element = [this, array](uint64_t job, uint32_t index) { BeginElement(*arrays_.at(array), job, index); },
          .on_ended = [this, array] { ArrayEnded(array); }});
  made->Start();
}

void Runs::BeginElement(const ArrayRun& array, uint64_t job, uint32_t index) {
  if (runs_.contains(job) || files_->IsWithheld(job)) return;
  // Its files must not be emptied.
  if (array.BegunEarlier(job) || files_->RecallDetached(job)) return TakeUpLater(job);
  const ArrayRun::Elements& common = array.elements();
  const DetachedFiles files = ForElement(common.files, array.array(), index);
  if (Status remembered = files_->RememberDetached(job, files, true); !remembered) {
    LogWarning("job {}: a restarted home will not continue its output files: {}", job, remembered.error().message());
  }
  if (common.traced) files_->RememberTraced(job, *common.traced);
  if (common.plan.frozen) ShareRoot(job, array.array());
  JobRun::Plan plan = common.plan;
  plan.job = job;
  (void)BeginBatch(std::move(plan), files, true);
}

void Runs::ShareRoot(uint64_t job, uint64_t array) const {
  FrozenRoots& frozen = roots_->frozen();
  if (frozen.Begun(job)) return;
  if (frozen.Has(array)) return frozen.Share(job, array);
  if (frozen.Begun(array)) frozen.Begin(job);  // it was lost with an earlier home
}

void Runs::ArrayEnded(uint64_t array) {
  files_->ForgetArray(array);
  if (roots_->frozen().Begun(array)) roots_->frozen().Forget(array);
  if (auto node = arrays_.extract(array)) Later(std::move(node.mapped()));
}

// --- a client reconnects ---

void Runs::Resume(std::shared_ptr<ClientConnection> client, const v1::Resume& resume, std::vector<UniqueFd> fds) {
  uint64_t job = resume.job();
  auto it = runs_.find(job);
  if (it != runs_.end() && ((it->second.attached && it->second.attached->has_client()) || it->second.resuming)) {
    return client->SendError(Error(Code::kExists, "job " + std::to_string(job) + ": another client is attached to it"));
  }
  AttachedRun::Options options;
  options.quiet = resume.quiet();
  options.progress = resume.progress();
  options.on_disconnect = resume.on_disconnect();
  // It is not known here whether the command has a terminal; raw mode is right exactly if both ends are terminals.
  options.terminal_ready = resume.terminal_ready();
  options.terminal = fds.size() >= 4 && ::isatty(fds[0].get()) == 1 && ::isatty(fds[1].get()) == 1;
  auto attached = MakeAttached(client, options, resume.descriptors(), std::move(fds));
  if (!attached) return client->SendError(attached.error());
  if (it != runs_.end() && it->second.run) return ResumeRunning(job, std::move(*attached));
  ResumeFromController(job, std::move(*attached), 0);
}

void Runs::ResumeRunning(uint64_t job, std::unique_ptr<AttachedRun> attached) {
  Entry& entry = runs_[job];
  entry.resuming = true;
  AttachedRun* raw = attached.get();
  entry.run->Suspend(raw);
  if (entry.attached) Later(std::move(entry.attached));
  entry.attached = std::move(attached);
  raw->Resume(job, entry.run.get());
  // The reads come after all appends of the old sink, so the log is complete for everything it acknowledged.
  Replay(job, raw, 0, [this, job, raw] {
    auto it = runs_.find(job);
    if (it == runs_.end() || it->second.attached.get() != raw) return;
    it->second.resuming = false;
    it->second.run->SetSink(raw);  // does nothing if it has ended: the client was told already
    if (it->second.orphan) Later(std::move(it->second.orphan));
  });
}

void Runs::Replay(uint64_t job, AttachedRun* attached, uint64_t position, std::function<void()> done) {
  spool_->ReadFrom(
      job, position, kReplayBytes, [this, job, attached, done = std::move(done)](Result<LogSpool::Read> read) mutable {
        bool here = replaying_.contains(attached) || (runs_.contains(job) && runs_[job].attached.get() == attached);
        if (!here) return;
        StdioPump* pump = attached->pump();
        if (!read || pump == nullptr) return done();
        for (LogSpool::Record& record : read->records) {
          if (record.note) continue;
          // Only what continues the client's data: a gap in the log is reported at the next output.
          if (record.offset > pump->received(record.stream)) {
            attached->OnOutput(record.stream, record.offset, std::move(record.data), false);
          } else {
            (void)pump->Write(record.stream, record.offset, std::move(record.data), false);
          }
        }
        if (read->at_end) return done();
        Replay(job, attached, read->next, std::move(done));
      });
}

void Runs::ResumeFromController(uint64_t job, std::unique_ptr<AttachedRun> attached, int tries) {
  AttachedRun* raw = attached.get();
  raw->Resume(job, nullptr);
  replaying_[raw] = std::move(attached);
  auto fail = [this, raw](Outcome outcome) {
    if (replaying_.contains(raw)) raw->OnEnded(outcome);
  };
  controller_->Get(job, [this, alive = alive_, raw, job, tries, fail](Result<v1::GetReply> reply) {
    if (!*alive || !replaying_.contains(raw)) return;
    auto again = [this, raw, job, tries] {
      loop_->After(kResumeRetryMicros, [this, alive = alive_, raw, job, tries] {
        if (!*alive) return;
        auto node = replaying_.extract(raw);
        if (!node) return;
        // Recovery may have resumed it meanwhile.
        auto it = runs_.find(job);
        if (it != runs_.end() && it->second.run) return ResumeRunning(job, std::move(node.mapped()));
        ResumeFromController(job, std::move(node.mapped()), tries + 1);
      });
    };
    Outcome outcome;
    outcome.reason = "job " + std::to_string(job) + ": the outcome is unknown";
    if (!reply) {
      if ((reply.error().code() == Code::kUnavailable || reply.error().code() == Code::kTimeout) &&
          tries < kResumeTries)
        return again();
      outcome.reason += ": " + reply.error().message();
      return fail(outcome);
    }
    if (auto known = outcomes_.find(job); known != outcomes_.end()) {
      outcome = known->second;
    } else if (IsEnd(reply->info().state()) || reply->info().has_exit()) {
      outcome.state = reply->info().state();
      outcome.node = reply->info().node();
      outcome.attempt = reply->info().attempt();
      outcome.reason = Escape(reply->info().reason());
      if (reply->info().has_exit()) {
        outcome.record = reply->info().exit();
        outcome.exit_status = ExitStatus(*outcome.record);
        outcome.reason = EndReason(*outcome.record);
      } else {
        outcome.exit_status = kExitNotStarted;
      }
    }
    if (outcomes_.contains(job) || IsEnd(reply->info().state())) {
      return Replay(job, raw, 0, [fail, outcome] { fail(outcome); });
    }
    if (reply->info().state() == v1::LOST && tries >= 4) return fail(outcome);
    if (tries >= kResumeTries) return fail(outcome);
    // It still runs: resume it as an orphan first, then attach this client.
    TreeFor(job, reply->info().live_view(),
            [this, alive = alive_, job, reply = *reply, again](Result<tree::TreePtr> tree) {
              if (!*alive) return;
              if (tree && !runs_.contains(job)) TakeUp(job, reply, *tree);
              again();
            });
  });
}

// --- after a restart ---

void Runs::Recover() {
  recover_timer_ = 0;
  auto later = [this] {
    if (recover_timer_ == 0) recover_timer_ = loop_->After(kRecoverRetryMicros, [this] { Recover(); });
  };
  v1::ListRequest request;
  request.set_home_id(controller_->home_id());
  controller_->Call<v1::ListRequest, v1::ListReply>(
      "List", request, 5'000'000, [this, alive = alive_, later](Result<v1::ListReply> reply) {
        if (!*alive) return;
        if (!reply) {
          bool wait = reply.error().code() == Code::kUnavailable || reply.error().code() == Code::kTimeout ||
                      reply.error().code() == Code::kAborted;
          if (!wait) LogWarning("jobs of an earlier home: {}", reply.error().message());
          return later();
        }
        std::set<uint64_t> jobs;
        for (const v1::JobInfo& info : reply->jobs()) {
          if (!IsEnd(info.state())) jobs.insert(info.job());
        }
        roots_->frozen().Retain(jobs);
        TellEnds(jobs);
        for (const auto& [job, entry] : runs_) jobs.insert(job);
        files_->ForgetTracedBut(jobs);
        for (const uint64_t job : files_->RememberedAway()) {
          if (!jobs.contains(job)) away_->Ended(job);
        }
        for (const v1::JobInfo& info : reply->jobs()) {
          uint64_t job = info.job();
          if (runs_.contains(job) || arrays_.contains(job) || IsEnd(info.state()) || files_->IsWithheld(job)) continue;
          // Its array tells of it.
          if (info.array() != 0 && jobs.contains(info.array())) continue;
          bool launching =
              !launching_.empty() || !launching_arrays_.empty();  // its answer may be on its way: not ours to resume
          if (launching) {
            later();
            continue;
          }
          TakeUpLater(job);
        }
      });
}

void Runs::TakeUpLater(uint64_t job) {
  controller_->Get(job, [this, alive = alive_, job](Result<v1::GetReply> got) {
    if (!*alive || !got || IsEnd(got->info().state())) return;
    if (got->info().array() != 0) ShareRoot(job, got->info().array());
    TreeFor(job, got->info().live_view(), [this, alive, job, got = *got](Result<tree::TreePtr> tree) {
      if (*alive && tree && !runs_.contains(job) && !arrays_.contains(job)) TakeUp(job, got, *tree);
    });
  });
}

void Runs::TellEnds(const std::set<uint64_t>& not_over) {
  for (uint64_t job : files_->RememberedDetached()) {
    if (not_over.contains(job) || runs_.contains(job) || arrays_.contains(job) || files_->IsWithheld(job)) continue;
    controller_->Get(job, [this, alive = alive_, job](Result<v1::GetReply> reply) {
      if (!*alive || runs_.contains(job) || arrays_.contains(job)) return;
      if (!launching_.empty() || !launching_arrays_.empty()) return;  // it may have just been submitted
      if (!reply && reply.error().code() == Code::kNotFound) return files_->ForgetDetached(job);
      if (!reply || !IsEnd(reply->info().state())) return;
      // Nothing is left on its node: it waits only for the controller's report.
      reply->clear_placement();
      reply->clear_placements();
      TakeUp(job, *reply, nullptr);
    });
  }
}

void Runs::TakeUpArray(uint64_t array, const v1::GetReply& reply, JobRun::Plan plan) {
  ArrayRun::Elements elements;
  if (auto files = files_->RecallDetached(array)) {
    elements.files = *std::move(files);
  } else {
    elements.files.directory = reply.info().directory();
    elements.files.stdout_path = tree::JoinPath(elements.files.directory, kElementOutput);
  }
  if (plan.trace) elements.traced = files_->RecallTraced(array);
  plan.exposed = elements.files.exposed;
  elements.plan = std::move(plan);
  AddArray(array, std::move(elements));
}

// It may be waiting for its next attempt; for a running one this makes no difference.
void Runs::TreeFor(uint64_t job, bool live, std::function<void(Result<tree::TreePtr>)> done) {
  roots_->Next(job, roots_->frozen().Has(job), live, {}, std::move(done));
}

JobRun::Plan Runs::PlanOf(uint64_t job, const v1::GetReply& reply, tree::TreePtr tree) const {
  JobRun::Plan plan;
  plan.job = job;
  if (reply.has_snapshot()) {
    plan.snapshot = reply.snapshot();
  } else {
    plan.tree = std::move(tree);
  }
  if (const auto run = plan.tree || plan.snapshot ? files_->RecallTraced(job) : std::nullopt) {
    plan.trace = TraceOf(run->spec().command(), files_->root());
    plan.trace_parent = telemetry::TraceParentIn(run->spec().command().environment());
    plan.explain_io = run->explain_io();
  }
  plan.requeue = MayRunAgain(reply.info().scheduling());
  plan.away = reply.info().has_away() && !reply.info().keep_writes();
  plan.live = reply.info().live_view();
  plan.live_paths = !plan.live && !reply.info().live_paths().empty();
  plan.gang = reply.info().gang();
  for (const v1::SecretUse& use : reply.info().secrets()) plan.secrets.push_back(use.name());
  if (auto ports = PortForwards::Listen(loop_, reply.info().ports())) {
    plan.ports = *std::move(ports);
  } else {
    LogWarning("job {}: {}", job, ports.error().message());
  }
  // The first pod may be over already.
  if (reply.placements_size() > 0) plan.placement = reply.placements(0);
  if (reply.has_placement()) plan.placement = reply.placement();
  // A root that is not frozen when the job is submitted is frozen when it starts, after other jobs. An array or a batch
  // job tells that by itself, also if those others have ended since.
  const bool batch = reply.info().has_array_info() || files_->RecallDetached(job);
  const bool freezes = batch && !plan.live && roots_->frozen().enabled();
  plan.late = plan.tree && !plan.placement && !roots_->frozen().Begun(job) &&
              (freezes || ComesAfterOthers(reply.info().scheduling()));
  plan.frozen = !plan.live && !plan.snapshot && roots_->frozen().Begun(job);
  if (plan.frozen && !roots_->frozen().Has(job)) plan.tree.reset();
  return plan;
}

Status Runs::BeginBatch(JobRun::Plan plan, const DetachedFiles& files, bool must) {
  const uint64_t job = plan.job;
  AttachedRun::Options options;
  options.detached = true;
  auto attached = Attach(nullptr, options);
  Status taken = attached->TakeFiles(job, files, plan.gang);
  if (!taken && !must) return taken;
  if (!taken) attached->LoseFiles(taken.error());
  plan.detached = true;
  plan.exposed = files.exposed;
  plan.rank_files = attached->rank_files();
  // It has not begun; it is frozen when it does.
  if (plan.late && !plan.live && roots_->frozen().enabled()) plan.freeze = attached->LateFreeze(files.directory);
  Entry& entry = runs_[job];
  entry.attached = std::move(attached);
  entry.run = makers_.job_run(std::move(plan), entry.attached.get());
  entry.attached->Resume(job, entry.run.get());
  entry.run->Start();
  return {};
}

void Runs::TakeUp(uint64_t job, const v1::GetReply& reply, tree::TreePtr tree) {
  LogInfo("job {}: taken up again", job);
  JobRun::Plan plan = PlanOf(job, reply, std::move(tree));
  if (reply.info().has_away()) TakeUpAway(job, reply);
  if (reply.info().has_array_info()) return TakeUpArray(job, reply, std::move(plan));
  if (auto files = files_->RecallDetached(job)) {
    const Status begun = BeginBatch(plan, *files, false);
    if (begun) return;
    LogWarning("job {}: {}: its output goes to the log only", job, begun.error().message());
  }
  Entry& entry = runs_[job];
  OrphanRun::Options options;
  options.hold = true;
  // Its client may have ended with the earlier home, or may be reconnecting.
  const v1::OnDisconnect wanted = reply.info().scheduling().on_disconnect();
  if (wanted == v1::ON_DISCONNECT_HANG_UP || wanted == v1::ON_DISCONNECT_CANCEL) options.hangup_micros = kHangupMicros;
  entry.orphan = std::make_unique<OrphanRun>(loop_, controller_, spool_, job, options,
                                             [this, job](const Outcome& o) { OrphanEnded(job, o); });
  entry.run = makers_.job_run(std::move(plan), entry.orphan.get());
  entry.orphan->Bind(entry.run.get());
  entry.run->Start();
}

// Another machine may have submitted it, so that its files are not known here.
void Runs::TakeUpAway(uint64_t job, const v1::GetReply& reply) {
  std::vector<std::string> first;
  if (const auto run = files_->RecallTraced(job)) {
    first = traces_->Touched(TraceOf(run->spec().command(), files_->root()));
  }
  first.push_back(reply.info().directory());
  away_->TakeUp(job, reply.snapshot().name(), first);
  if (files_->RecallDetached(job)) return;
  DetachedFiles files;
  files.directory = reply.info().directory();
  if (Status kept = files_->RememberDetached(job, files); !kept) LogWarning("job {}: {}", job, kept.error().message());
  record_sync_.Then([] {});
}

std::string Runs::LiveState(uint64_t job) const {
  const auto it = runs_.find(job);
  return it == runs_.end() || !it->second.run ? "" : it->second.run->live_state();
}

void Runs::HomeEnds() {
  for (auto& attached : launching_) attached->HomeEnds();
  // Those that are over leave the list.
  std::vector<ArrayLaunch*> arrays;
  for (const auto& launching : launching_arrays_) arrays.push_back(launching.get());
  for (ArrayLaunch* launching : arrays) launching->HomeEnds();
  for (auto& [job, entry] : runs_) {
    if (entry.attached) entry.attached->HomeEnds();
  }
}

}  // namespace vrun::home
