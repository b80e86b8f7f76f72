// SPDX-License-Identifier: Apache-2.0
#include "home/runs/gang/gang_run.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/escape.h"
#include "base/log.h"
#include "home/frozen/frozen_roots.h"
#include "home/runs/gang/gang_pod.h"
#include "home/runs/gang/rank_streams.h"
#include "jobs/ending.h"
#include "jobs/gang.h"

namespace vrun::home {
namespace {

constexpr int64_t kGangWatchRetryMicros = 500'000;
constexpr int64_t kFetchRetryMicros = 100'000;
constexpr size_t kMostNotices = 10'000;
constexpr size_t kMostNodesInText = 4;

uint32_t MostRanks(const v1::Gang& gang) { return PodNumbers(gang) * RanksPerPod(gang); }

// For people: "n1, n2 and 14 more".
std::string NodesText(const std::vector<std::string>& nodes) {
  std::string out;
  const size_t most = nodes.size() > kMostNodesInText ? kMostNodesInText - 1 : nodes.size();
  for (size_t i = 0; i < most; ++i) {
    const bool last = i + 1 == nodes.size() && i > 0;
    out += (i == 0 ? "" : last ? " and " : ", ") + Escape(nodes[i]);
  }
  if (most < nodes.size()) out += " and " + std::to_string(nodes.size() - most) + " more";
  return out;
}

}  // namespace

GangRun::GangRun(EventLoop* loop, ControllerClient* controller, const JobRoots* roots, const RunFiles* files,
                 MakePod make_pod, Plan plan, Sink* sink)
    : loop_(loop),
      controller_(controller),
      roots_(roots),
      files_(files),
      make_pod_(std::move(make_pod)),
      plan_(std::move(plan)),
      sink_(sink),
      journal_(files->MergeJournal(plan_.job), MostRanks(plan_.gang)),
      output_(&journal_, journal_.found() ? journal_.settings().label != 0 : plan_.label,
              {.on_merged = [this](v1::StreamId stream, uint64_t offset,
                                   std::string data) { sink_->OnOutput(stream, offset, std::move(data), false); },
               .on_passed =
                   [this](uint32_t pod, v1::StreamId stream, uint64_t offset) {
                     if (pod < pods_.size()) pods_[pod]->Passed(stream, offset);
                   }}),
      input_(journal_.found() ? journal_.settings().input_rank : plan_.input_rank,
             {.send =
                  [this](uint32_t pod, v1::StreamId stream, uint64_t offset, std::string_view data, bool eof,
                         bool peeked) {
                    if (pod < pods_.size()) pods_[pod]->run()->SendInput(stream, offset, data, eof, peeked);
                  },
              .wanted =
                  [this](uint64_t offset) {
                    if (!suspended_) sink_->OnInputWanted(v1::STDIN, offset);
                  },
              .acked =
                  [this](uint64_t offset, bool closed, std::optional<uint64_t> taken) {
                    // What this attempt does not read, the next one may.
                    const bool over = closed && !plan_.requeue;
                    sink_->OnInputAcked(v1::STDIN, offset, over, over ? taken : std::nullopt);
                  },
              .paused =
                  [this] {
                    if (!suspended_) sink_->OnDisconnected();
                  }}) {
  if (!journal_.found()) {
    journal_.settings() = {.label = plan_.label ? 1u : 0u, .input_rank = plan_.input_rank};
    for (v1::StreamId stream : {v1::STDOUT, v1::STDERR}) {
      journal_.SetBase(stream == v1::STDERR, sink_->OutputWanted(stream));
    }
  }
  if (plan_.tree) pin_ = roots_->Pin(plan_.tree, plan_.exposed);
  if (!plan_.rank_files) return;
  rank_files_ = std::make_unique<RankFiles>(
      loop_, files_, plan_.job, *plan_.rank_files,
      RankFiles::Events{.on_written =
                            [this](uint32_t pod, v1::StreamId stream, uint64_t offset, std::string data, bool eof) {
                              output_.Add(pod, stream, offset, data, eof);
                              if (pod < pods_.size()) pods_[pod]->Progressed();
                            },
                        .on_notice = [this](std::string text) { sink_->OnNotice(text); }});
}

GangRun::~GangRun() {
  *alive_ = false;
  for (EventLoop::TimerId timer : {watch_timer_, fetch_timer_}) loop_->Cancel(timer);
}

void GangRun::Start() {
  OpenWatch();
  if (!plan_.placement) return;
  state_ = State::kPreparing;
  epoch_ = plan_.placement->epoch();
  FetchPlacements();
}

template <typename F>
void GangRun::ForPods(F f) {
  for (auto& pod : pods_) {
    if (!pod->outcome()) f(pod.get());
  }
}

// --- events of the controller ---

void GangRun::OpenWatch() {
  if (watch_ || ended()) return;
  auto closed = [this](const Error&) {
    watch_.reset();
    // Nothing more is to be asked about a job that is over.
    const bool over = state_ == State::kActive && last_event_ && IsEnd(last_event_->state());
    if (ended() || over || watch_timer_ != 0) return;
    watch_timer_ = loop_->After(kGangWatchRetryMicros, [this] {
      watch_timer_ = 0;
      OpenWatch();
    });
  };
  watch_ = controller_->Watch(plan_.job, 0,
                              {.on_message = [this](v1::JobEvent event) { OnWatchEvent(event); }, .on_closed = closed});
  if (!watch_) closed(Error(Code::kUnavailable, ""));
}

void GangRun::OnWatchEvent(const v1::JobEvent& event) {
  if (ended()) return;
  last_event_ = event;
  LogDebug("job {}: the controller says {}", plan_.job, v1::JobState_Name(event.state()));
  if (state_ == State::kLeaving) return;  // looked at again when the next attempt may begin
  if (event.has_placement()) return OnPlaced(event);
  if (event.state() == v1::PENDING) {
    // While pods are active this is only about the first one; each of the others follows its own.
    if (state_ == State::kOver) return GoOn();
    if (state_ == State::kWaiting) TellQueued(event);
    return;
  }
  // A lost node is no end: the controller stops the other pods, and decides.
  if (!IsEnd(event.state())) return;
  if (state_ == State::kWaiting || state_ == State::kPreparing || state_ == State::kOver) FinishFromController(event);
}

void GangRun::TellQueued(const v1::JobEvent& event) {
  std::string text = "queued";
  if (event.queue_position() > 0) text += ", number " + std::to_string(event.queue_position());
  if (!event.reason().empty()) text += ": " + Escape(event.reason());
  sink_->OnProgress(v1::PENDING, text, "");
}

void GangRun::OnPlaced(const v1::JobEvent& event) {
  // Of an attempt whose writes are still on their way home.
  if (event.state() == v1::PENDING && event.placement().epoch() <= epoch_) {
    if (state_ == State::kWaiting) TellQueued(event);
    return;
  }
  if (event.placement().epoch() <= epoch_) {
    if (state_ == State::kOver && IsEnd(event.state())) FinishFromController(event);
    if (state_ == State::kActive && event.placement().epoch() == epoch_ && event.pods() > pods_.size()) {
      FetchJoined(event.pods());
    }
    return;
  }
  if (IsEnd(event.state())) return FinishFromController(event);
  if (state_ == State::kActive) {
    for (const auto& pod : pods_) {
      if (!pod->outcome() && pod->run() != nullptr) pod->run()->EndOnNode("the job runs in another attempt");
    }
    DropPods();
  }
  if (state_ == State::kActive || state_ == State::kOver) return GoOn();
  epoch_ = event.placement().epoch();
  state_ = State::kPreparing;
  FetchPlacements();
}

void GangRun::FetchPlacements() {
  loop_->Cancel(std::exchange(fetch_timer_, 0));
  controller_->Get(plan_.job, [this, alive = alive_, epoch = epoch_](Result<v1::GetReply> reply) {
    if (!*alive || state_ != State::kPreparing || epoch != epoch_) return;
    std::vector<v1::Placement> placements;
    if (reply) {
      placements.assign(reply->placements().begin(), reply->placements().end());
      if (placements.empty() && reply->has_placement()) placements.push_back(reply->placement());
    }
    if (reply && placements.empty()) {  // it has lost them again
      state_ = State::kWaiting;
      if (last_event_) OnWatchEvent(v1::JobEvent(*last_event_));
      return;
    }
    const bool right = !placements.empty() && std::all_of(placements.begin(), placements.end(),
                                                          [&](const auto& p) { return p.epoch() == epoch_; });
    if (right) return OnPlacements(std::move(placements));
    // Unreachable, or it has gone on: the watch tells that.
    fetch_timer_ = loop_->After(kFetchRetryMicros, [this] {
      fetch_timer_ = 0;
      if (state_ == State::kPreparing) FetchPlacements();
    });
  });
}

// Of an attempt that is being ended, the controller may not know the places of pods that are already over.
void GangRun::OnPlacements(std::vector<v1::Placement> placements) {
  std::sort(placements.begin(), placements.end(), [](const auto& a, const auto& b) { return a.pod() < b.pod(); });
  const uint32_t last = placements.back().pod();
  if (last >= PodNumbers(plan_.gang)) {
    Outcome outcome;
    outcome.reason = "the controller has placed more pods than the job may have";
    outcome.exit_status = kExitNotStarted;
    outcome.state = v1::FAILED;
    return Finish(std::move(outcome));
  }
  std::vector<v1::Placement> all(last + 1);
  for (uint32_t pod = 0; pod <= last; ++pod) {
    all[pod].set_pod(pod);
    all[pod].set_attempt(placements[0].attempt());
    all[pod].set_epoch(placements[0].epoch());
  }
  for (v1::Placement& p : placements) all[p.pod()] = std::move(p);
  if (plan_.late) return PrepareLate(std::move(all));
  BeginAttempt(all);
}

void GangRun::PrepareLate(std::vector<v1::Placement> placements) {
  const auto prepared = [this, alive = alive_, epoch = epoch_,
                         placements = std::move(placements)](Result<tree::TreePtr> tree) {
    if (!*alive || state_ != State::kPreparing || epoch != epoch_) return;
    if (!tree) {
      Outcome outcome;
      outcome.reason = tree.error().message();
      outcome.exit_status = kExitNotStarted;
      outcome.state = v1::FAILED;
      return Finish(std::move(outcome));
    }
    plan_.late = false;
    plan_.tree = std::move(*tree);
    pin_ = roots_->Pin(plan_.tree, plan_.exposed);
    plan_.frozen = plan_.freeze != nullptr;
    if (plan_.frozen) plan_.freeze(plan_);
    BeginAttempt(placements);
  };
  plan_.live ? roots_->Known(prepared) : roots_->Current(plan_.exposed, prepared);
}

void GangRun::BeginAttempt(const std::vector<v1::Placement>& placements) {
  attempt_ = placements[0].attempt();
  const uint32_t pods = static_cast<uint32_t>(placements.size());
  const uint32_t ranks = RanksPerPod(plan_.gang);
  const bool known = journal_.attempt() == attempt_;  // an earlier home has begun it
  if (!known) journal_.settings().input_base = input_.acked();
  input_.BeginAttempt(pods, ranks, journal_.settings().input_base);
  std::vector<std::string> nodes;
  for (const v1::Placement& p : placements) nodes.push_back(p.node());
  nodes_.clear();
  for (const std::string& node : nodes) {
    if (!node.empty()) nodes_ += (nodes_.empty() ? "" : ",") + node;
  }
  if (rank_files_) rank_files_->BeginAttempt(nodes, ranks, !known && attempt_ == 1);
  told_running_ = told_completing_ = false;
  pods_.clear();
  for (const v1::Placement& placement : placements) pods_.push_back(MakePodOf(placement));
  output_.BeginAttempt(attempt_, pods, ranks);
  state_ = State::kActive;
  sink_->OnProgress(v1::STARTING,
                    "starting " + std::to_string(pods) + (pods == 1 ? " pod on " : " pods on ") + NodesText(nodes),
                    nodes_);
  for (v1::StreamId stream : closed_) CloseOutput(stream);
  for (const v1::SendSignal& signal : std::exchange(signals_, {})) {
    ForPods([&](Pod* pod) { pod->run()->SendSignal(signal.signal(), signal.by_user_cancel()); });
  }
  // What an earlier home has brought home is not on the nodes any more.
  if (known) {
    for (const v1::ExitRecord& record : files_->RecallPodEnds(plan_.job, attempt_)) {
      if (record.pod() < pods) pods_[record.pod()]->SetEnded(record);
    }
  }
  for (uint32_t pod = 0; pod < pods; ++pod) {
    if (placements[pod].addresses_size() == 0 && placements[pod].node().empty()) pods_[pod]->Abandon();
    if (!pods_[pod]->outcome()) continue;
    output_.Drop(pod);
    input_.Ended(pod);
  }
  ForPods([&](Pod* pod) {
    pod->run()->Start();
    if (suspended_) pod->run()->Suspend(pod);
  });
  if (AllOver()) return Decide();
  // Others may have been added while the places of these were being asked for.
  if (last_event_ && last_event_->has_placement()) OnPlaced(v1::JobEvent(*last_event_));
}

std::unique_ptr<GangRun::Pod> GangRun::MakePodOf(const v1::Placement& placement) {
  Plan plan = plan_;
  plan.placement = placement;
  plan.one_attempt = true;
  plan.freeze = nullptr;
  // Pods of the same command read the same files: the first one's trace is enough.
  if (placement.pod() != 0) {
    plan.trace.reset();
    plan.explain_io = false;
    plan.ports.reset();
  }
  auto pod = std::make_unique<Pod>(this, placement.pod(), RanksPerPod(plan_.gang));
  pod->SetRun(make_pod_(std::move(plan), pod.get()));
  return pod;
}

void GangRun::FetchJoined(uint32_t pods) {
  if (fetching_joined_ || pods > PodNumbers(plan_.gang)) return;
  fetching_joined_ = true;
  controller_->Get(plan_.job, [this, alive = alive_, epoch = epoch_, pods](Result<v1::GetReply> reply) {
    if (!*alive) return;
    fetching_joined_ = false;
    if (state_ != State::kActive || epoch != epoch_) return;
    if (reply) return Join({reply->placements().begin(), reply->placements().end()}, pods);
    fetch_timer_ = loop_->After(kFetchRetryMicros, [this, epoch, pods] {
      fetch_timer_ = 0;
      if (state_ == State::kActive && epoch == epoch_) FetchJoined(pods);
    });
  });
}

void GangRun::Join(const std::vector<v1::Placement>& placements, uint32_t pods) {
  const auto first = static_cast<uint32_t>(pods_.size());
  const uint32_t ranks = RanksPerPod(plan_.gang);
  const std::vector<v1::ExitRecord> ends = files_->RecallPodEnds(plan_.job, attempt_);
  std::vector<std::string> nodes;
  for (uint32_t number = first; number < pods; ++number) {
    const auto place = std::find_if(placements.begin(), placements.end(),
                                    [&](const v1::Placement& p) { return p.pod() == number && p.epoch() == epoch_; });
    v1::Placement none;
    none.set_pod(number);
    none.set_attempt(attempt_);
    none.set_epoch(epoch_);
    const bool known = place != placements.end();
    pods_.push_back(MakePodOf(known ? *place : none));
    nodes.push_back(known ? place->node() : "");
    if (known) nodes_ += "," + place->node();
    const auto end = std::find_if(ends.begin(), ends.end(), [&](const auto& r) { return r.pod() == number; });
    if (end != ends.end()) {
      pods_.back()->SetEnded(*end);
    } else if (!known) {
      pods_.back()->Abandon();  // it has come and gone
    }
  }
  if (pods_.size() == first) return;
  if (rank_files_) rank_files_->AddPods(nodes);
  output_.AddPods(static_cast<uint32_t>(nodes.size()));
  for (uint32_t number = first; number < pods_.size(); ++number) {
    Pod* const pod = pods_[number].get();
    if (pod->outcome()) {
      output_.Drop(number);
      continue;
    }
    for (v1::StreamId stream : closed_) {
      for (uint32_t rank = 0; rank < ranks; ++rank) pod->run()->CloseOutput(RankStream(rank, stream));
    }
    pod->run()->Start();
    if (suspended_) pod->run()->Suspend(pod);
  }
  if (last_event_ && last_event_->has_placement()) OnPlaced(v1::JobEvent(*last_event_));
}

// --- events of the pods ---

void GangRun::OnPodProgress(Pod* pod, v1::JobState state) {
  if (state != v1::COMPLETING) return;
  pod->set_completing();
  const bool all = std::all_of(pods_.begin(), pods_.end(), [](const auto& p) { return p->completing(); });
  if (all && !std::exchange(told_completing_, true)) sink_->OnProgress(v1::COMPLETING, "writing home", nodes_);
}

void GangRun::OnPodStarted(Pod*) {
  // The first one is enough: all start together, and keys are for the command from now on.
  if (std::exchange(told_running_, true)) return;
  std::vector<std::string> nodes;
  for (const auto& p : pods_) nodes.push_back(p->run()->node());
  sink_->OnProgress(v1::RUNNING, "running on " + NodesText(nodes), nodes_);
  sink_->OnStarted();
}

void GangRun::OnPodOutput(Pod* pod, v1::StreamId stream, uint64_t offset, std::string data, bool eof) {
  if (rank_files_) return rank_files_->Add(pod->number(), stream, offset, std::move(data), eof);
  output_.Add(pod->number(), stream, offset, data, eof);
}

// Pods in one view, or with the same trouble, say the same.
void GangRun::NoticeOnce(const std::string& text, bool of_writes) {
  if (notices_.size() >= kMostNotices) notices_.clear();
  if (!notices_.insert(text).second) return;
  of_writes ? sink_->OnWriteNotice(text) : sink_->OnNotice(text);
}

void GangRun::OnPodEnded(Pod* pod) {
  if (state_ != State::kActive) return;
  const Outcome& outcome = *pod->outcome();
  output_.Drop(pod->number());
  input_.Ended(pod->number());
  OnPodProgress(pod, v1::COMPLETING);
  const bool lost = !outcome.record && !outcome.superseded && outcome.state == v1::LOST;
  const bool decided = last_event_ && (IsEnd(last_event_->state()) || last_event_->state() == v1::PENDING);
  if (lost && !decided && !plan_.requeue && !IsElastic(plan_.gang)) {
    // Nobody here can follow this pod any more. The job goes on without us, as a job of one pod would.
    DropPods();
    return Finish(Combined());
  }
  if (AllOver()) Decide();
}

// Before the node forgets it: a home that is killed at this moment asks the node for it again, or knows it.
void GangRun::OnPodReleasing(const Pod& pod, const Outcome& outcome) {
  if (!outcome.record || outcome.exit_status != ExitStatus(*outcome.record)) return;
  v1::ExitRecord record = *outcome.record;
  record.set_pod(pod.number());
  record.set_attempt(attempt_);
  files_->RememberPodEnd(plan_.job, record);
}

bool GangRun::AllOver() const {
  return std::all_of(pods_.begin(), pods_.end(), [](const auto& p) { return p->outcome().has_value(); });
}

void GangRun::DropPods() {
  ForPods([](Pod* pod) { pod->Abandon(); });
}

// --- the end ---

std::vector<v1::ExitRecord> GangRun::Records() const {
  std::vector<v1::ExitRecord> records;
  for (const auto& pod : pods_) {
    if (!pod->outcome() || !pod->outcome()->record || NeverJoined(*pod)) continue;
    records.push_back(*pod->outcome()->record);
    records.back().set_pod(pod->number());
  }
  return records;
}

// While the others run, the controller goes on without a pod that it has added and that cannot start. Before they run,
// and later, that ends the attempt.
bool GangRun::NeverJoined(const Pod& pod) const {
  const std::optional<Outcome>& outcome = pod.outcome();
  if (!IsElastic(plan_.gang) || !outcome) return false;
  if (outcome->superseded && !outcome->record) return pod.number() > 0 && pod.run()->node().empty();
  const auto ran = [](const std::unique_ptr<Pod>& other) {
    return other->outcome() && other->outcome()->record && other->outcome()->record->started_us() != 0;
  };
  return outcome->record && outcome->record->kind() == v1::ExitRecord::START_FAILED &&
         outcome->record->started_us() == 0 && std::any_of(pods_.begin(), pods_.end(), ran);
}

bool GangRun::AllRecords(const std::vector<v1::ExitRecord>& records) const {
  const auto never = std::count_if(pods_.begin(), pods_.end(), [this](const auto& pod) { return NeverJoined(*pod); });
  return records.size() + static_cast<size_t>(never) == pods_.size();
}

// The controller may start the job again. If it may not, nobody needs to be asked.
bool GangRun::MayGoOn() const {
  const std::vector<v1::ExitRecord> records = Records();
  if (!AllRecords(records)) return true;
  const bool none_ran = std::all_of(records.begin(), records.end(), [](const auto& r) { return r.started_us() == 0; });
  if (none_ran && std::any_of(records.begin(), records.end(), [](const v1::ExitRecord& r) {
        return r.kind() == v1::ExitRecord::START_FAILED || r.kind() == v1::ExitRecord::GANG_ENDED;
      })) {
    return true;
  }
  if (!plan_.requeue) return false;
  return std::any_of(records.begin(), records.end(),
                     [](const v1::ExitRecord& r) { return r.kind() == v1::ExitRecord::PREEMPTED_BY_JOB; }) ||
         std::all_of(records.begin(), records.end(), [](const v1::ExitRecord& r) {
           return r.kind() == v1::ExitRecord::GANG_ENDED || ExitStatus(r) == 0;
         });
}

void GangRun::Decide() {
  for (const auto& pod : pods_) {
    // The next attempt would not find what this one has saved.
    const Outcome& outcome = *pod->outcome();
    if (outcome.record && outcome.state == v1::FAILED && ExitStatus(*outcome.record) == 0) return Finish(Combined());
  }
  const std::vector<v1::ExitRecord> records = Records();
  const bool all_well = AllRecords(records) &&
                        std::all_of(records.begin(), records.end(), [](const auto& r) { return ExitStatus(r) == 0; });
  if (all_well || !MayGoOn()) return Finish(Combined());
  state_ = State::kOver;
  sink_->OnProgress(v1::COMPLETING, "waiting for the controller", nodes_);
  if (last_event_) OnWatchEvent(v1::JobEvent(*last_event_));
}

void GangRun::GoOn() {
  std::string reason;
  for (const auto& pod : pods_) {
    if (!pod->outcome()) continue;
    const auto& record = pod->outcome()->record;
    if (record && !record->reason().empty()) reason = Escape(record->reason());
    if (reason.empty() && !record) reason = pod->outcome()->reason;
    fetched_before_ += pod->outcome()->fetched_bytes;
  }
  if (!pods_.empty()) {
    sink_->OnNotice((reason.empty() ? "stopped" : reason) + ": job " + std::to_string(plan_.job) +
                    " waits, and is started again from its beginning");
  }
  state_ = State::kLeaving;
  loop_->Cancel(std::exchange(fetch_timer_, 0));
  sink_->OnDisconnected();
  sink_->OnProgress(v1::PENDING, "queued again", "");
  // Posted, because a pod may be our caller. All of them have ended, so the root has what they wrote.
  loop_->Post([this, alive = alive_] {
    if (!*alive || ended()) return;
    pods_.clear();
    roots_->Next(plan_.job, plan_.frozen, plan_.live, plan_.exposed, [this, alive](Result<tree::TreePtr> tree) {
      if (!*alive || ended()) return;
      if (tree && !plan_.snapshot) {
        plan_.tree = std::move(*tree);
        pin_ = roots_->Pin(plan_.tree, plan_.exposed);
      } else if (!tree) {
        LogWarning("job {}: the tree is that of the last attempt: {}", plan_.job, tree.error().message());
      }
      state_ = State::kWaiting;
      if (last_event_) OnWatchEvent(v1::JobEvent(*last_event_));
    });
  });
}

Outcome GangRun::Combined() const {
  Outcome outcome;
  for (const auto& pod : pods_) {
    if (!pod->outcome()) continue;
    outcome.fetched_bytes += pod->outcome()->fetched_bytes;
    if (pod->outcome()->io) outcome.io = pod->outcome()->io;
  }
  const std::vector<v1::ExitRecord> records = Records();
  if (!records.empty()) {
    outcome.record = GangRecord(records, plan_.gang);
    outcome.exit_status = ExitStatus(*outcome.record);
    outcome.reason = EndReason(*outcome.record);
    outcome.state = EndState(*outcome.record);
  }
  for (const auto& pod : pods_) {
    if (!pod->outcome() || NeverJoined(*pod)) continue;
    const Outcome& one = *pod->outcome();
    // Its command has ended well, but its output or writes are not home.
    const bool incomplete = one.record && ExitStatus(*one.record) == 0 && one.exit_status != 0;
    const bool missing = !one.record && !one.superseded;
    if (!incomplete && !missing) continue;
    if (outcome.exit_status != 0 && !records.empty() && !missing) continue;
    outcome.exit_status = one.exit_status;
    outcome.state = one.state;
    outcome.reason = one.reason;
    if (missing) outcome.record.reset();
    break;
  }
  return outcome;
}

void GangRun::FinishFromController(const v1::JobEvent& event) {
  Outcome outcome = Combined();
  if (Records().empty()) {
    outcome.record.reset();
    if (event.has_exit()) outcome.record = event.exit();
    outcome.exit_status = event.has_exit() ? ExitStatus(event.exit()) : kExitNotStarted;
  }
  outcome.state = event.state();
  // The controller knows what a pod without a record has died of.
  if (!event.reason().empty()) {
    outcome.reason = Escape(event.reason());
  } else if (outcome.reason.empty() && !outcome.record) {
    outcome.reason = "the job was cancelled before it started";
  }
  if (outcome.exit_status == 0 && event.state() != v1::COMPLETED) outcome.exit_status = kExitNotStarted;
  Finish(std::move(outcome));
}

void GangRun::Finish(Outcome outcome) {
  if (std::exchange(state_, State::kEnded) == State::kEnded) return;
  if (plan_.frozen) roots_->frozen().Forget(plan_.job);
  files_->ForgetGang(plan_.job);
  outcome.node = nodes_;
  outcome.attempt = attempt_;
  outcome.superseded = false;
  outcome.fetched_bytes += fetched_before_;
  for (EventLoop::TimerId* timer : {&watch_timer_, &fetch_timer_}) loop_->Cancel(std::exchange(*timer, 0));
  // Posted, because callers on the stack may not expect the run, its watch and its pods to be destroyed.
  loop_->Post([this, alive = alive_, outcome = std::move(outcome)] {
    if (!*alive) return;
    watch_.reset();
    for (v1::StreamId stream : {v1::STDOUT, v1::STDERR}) sink_->OnOutput(stream, output_.end(stream), "", true);
    sink_->OnInputAcked(v1::STDIN, input_.acked(), true, std::nullopt);
    sink_->OnEnded(outcome);
  });
}

// --- calls of the sink ---

bool GangRun::started() const {
  // Afterwards keys are for the waiting job.
  if (state_ != State::kActive) return false;
  return std::any_of(pods_.begin(), pods_.end(), [](const auto& p) { return p->run()->started(); });
}

std::string GangRun::live_state() const {
  std::string out;
  for (const auto& pod : pods_) {
    const std::string state = pod->run()->live_state();
    if (!state.empty()) out += (out.empty() ? "" : "; ") + Escape(pod->run()->node()) + ": " + state;
  }
  return out;
}

void GangRun::Suspend(Sink* sink) {
  sink_ = sink;
  if (ended()) return;
  suspended_ = true;
  ForPods([](Pod* pod) { pod->run()->Suspend(pod); });
}

// Everything that the new sink does not have comes again from the nodes, in the order in which it was merged.
void GangRun::SetSink(Sink* sink) {
  sink_ = sink;
  suspended_ = false;
  if (ended()) return;
  // Before the pods ask what is wanted.
  output_.Repeat(sink->OutputWanted(v1::STDOUT), sink->OutputWanted(v1::STDERR));
  if (rank_files_) rank_files_->Repeat();
  ForPods([](Pod* pod) { pod->run()->SetSink(pod); });
}

void GangRun::SendInput(v1::StreamId stream, uint64_t offset, std::string_view data, bool eof, bool peeked) {
  if (stream == v1::STDIN) input_.Add(offset, data, eof, peeked);
}

void GangRun::Acknowledge(v1::StreamId stream, uint64_t offset) {
  if (stream == v1::STDOUT || stream == v1::STDERR) output_.Passed(stream, offset);
}

void GangRun::SendSignal(int signal, bool by_user_cancel) {
  if (pods_.empty()) {
    v1::SendSignal kept;
    kept.set_signal(signal);
    kept.set_by_user_cancel(by_user_cancel);
    if (signals_.size() < 64) signals_.push_back(std::move(kept));
    return;
  }
  ForPods([&](Pod* pod) {
    // A launcher passes signals on to what it has started.
    if (plan_.gang.launcher() && pod->number() != 0 && !by_user_cancel) return;
    pod->run()->SendSignal(signal, by_user_cancel);
  });
}

void GangRun::CloseOutput(v1::StreamId stream) {
  closed_.insert(stream);
  for (uint32_t rank = 0; rank < RanksPerPod(plan_.gang); ++rank) {
    ForPods([&](Pod* pod) { pod->run()->CloseOutput(RankStream(rank, stream)); });
  }
}

}  // namespace vrun::home
