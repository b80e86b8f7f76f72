// SPDX-License-Identifier: Apache-2.0
// PodRun: brings the command's writes home, for a batch job at its end, for a live job continuously.
#include <utility>

#include "base/clock.h"
#include "home/runs/pod/pod_run.h"
#include "home/serve/live_writes.h"

namespace vrun::home {
namespace {

// The node reports every second that its live view is current.
constexpr int64_t kViewBehindMicros = 3'000'000;
constexpr int kMostConflicts = 20;  // whose paths are in the record
constexpr int kMaxBlocked = 60;     // times 5 s
constexpr int64_t kBlockedRetryMicros = 5'000'000;

}  // namespace

// JOB, or JOB.POD for the further pods of a gang.
std::string PodRun::ApplyJournal() const {
  return std::to_string(plan_.job) + (pod() == 0 ? "" : "." + std::to_string(pod()));
}

void PodRun::MakeWriteBack() {
  if (attempt_->write_back) return;
  ApplyOptions options;
  options.root = files_->root();
  options.job = plan_.job;
  options.attempt = placement_.attempt();
  options.pod = pod();
  options.exposed = plan_.exposed;
  options.journal = files_->MakeApplyJournal(ApplyJournal());
  roots_->AddTo(&options, plan_.tree);
  if (plan_.frozen && plan_.requeue) options.applied = roots_->frozen().Recorder(plan_.job);
  attempt_->write_back = std::make_unique<WriteBack>(
      loop_, std::move(options),
      WriteBack::Events{.on_acknowledge =
                            [this](uint64_t sequence) {
                              v1::TaskUp up;
                              up.mutable_write_back_ack()->set_sequence(sequence);
                              Send(up);
                            },
                        .on_notice = [this](std::string text) { sink_->OnWriteNotice(text); },
                        .on_conflict =
                            [this](std::string path) {
                              release_.set_conflicts(release_.conflicts() + 1);
                              if (release_.conflict_size() < kMostConflicts) release_.add_conflict(std::move(path));
                            },
                        .on_blocked =
                            [this](Error error) {
                              sink_->OnNotice(error.message() +
                                              ": the command's writes wait on the node: free space at home");
                              Disconnect();
                              bool patient = ++attempt_->blocked_times < kMaxBlocked;
                              attempt_->write_back->Restart(patient);
                              if (attempt_->retry_timer != 0) return;
                              attempt_->retry_timer = loop_->After(kBlockedRetryMicros, [this] {
                                attempt_->retry_timer = 0;
                                Connect();
                              });
                            },
                        .on_finished =
                            [this](uint64_t failed) {
                              attempt_->writes = JobAttempt::Writes::kFinished;
                              attempt_->failed_writes = failed;
                              MaybeFinish();
                            }});
}

// Home may come back, or reconnect, at any moment: what was applied is recognised, and what was not is still on its
// node.
void PodRun::CarryHome() {
  if (carry_) return;
  sink_->OnProgress(v1::COMPLETING, "writing home", node());
  ApplyOptions options;
  options.root = files_->root();
  options.job = plan_.job;
  options.exposed = plan_.exposed;
  roots_->AddTo(&options, plan_.tree);
  carry_ = std::make_unique<KeptCarry>(
      loop_, controller_, nodes_, plan_.job, pod(), node(), std::move(options),
      files_->MakeApplyJournal(ApplyJournal() + ".kept"),
      KeptCarry::Events{.on_notice = [this](std::string text) { sink_->OnWriteNotice(text); },
                        .on_conflict =
                            [this](std::string path) {
                              release_.set_conflicts(release_.conflicts() + 1);
                              if (release_.conflict_size() < kMostConflicts) release_.add_conflict(std::move(path));
                            },
                        .on_finished =
                            [this](uint64_t left) {
                              if (left > 0) {
                                left_on_node_ = std::to_string(left) +
                                                " of the command's writes could not be applied at home: they stay on "
                                                "their node until `vctl job " +
                                                std::to_string(plan_.job) + " pull`";
                                sink_->OnNotice(left_on_node_);
                              }
                              if (!attempt_) return;
                              attempt_->writes = JobAttempt::Writes::kFinished;
                              if (std::exchange(settles_, false)) return SettleFromWatch();
                              MaybeFinish();
                            }});
}

void PodRun::OnWrite(v1::WriteBack message) {
  if (attempt_->writes == JobAttempt::Writes::kNone) {
    attempt_->writes = JobAttempt::Writes::kComing;
    sink_->OnProgress(v1::COMPLETING, "writing home", node());
  }
  MakeWriteBack();
  attempt_->write_back->Apply(std::move(message));
}

void PodRun::AwaitLivePaths(const v1::WriteBackEnd& end) {
  ListenTo(end.also_view());
  attempt_->paths_home = false;
  const auto durable = [this, alive = alive_, attempt = placement_.attempt()] {
    if (!*alive || !attempt_ || placement_.attempt() != attempt) return;
    attempt_->paths_home = true;
    MaybeFinish();
  };
  live_writes_->WhenDurable(end.also_view(), end.also_sequence(), [loop = loop_, durable] { loop->Post(durable); });
}

void PodRun::OnWriteBackEnd(const v1::WriteBackEnd& end) {
  if (end.also_view() != 0) AwaitLivePaths(end);
  if (attempt_->writes == JobAttempt::Writes::kFinished) return MaybeFinish();
  if (end.kept()) return OnKept(end);
  if (end.view() == 0) {
    MakeWriteBack();
    return attempt_->write_back->End();
  }
  ListenTo(end.view());
  // Sent again after a reconnection, for the same view.
  if (std::exchange(attempt_->writes, JobAttempt::Writes::kSyncing) == JobAttempt::Writes::kSyncing) return;
  sink_->OnProgress(v1::COMPLETING, "writing home", node());
  const auto durable = [this, alive = alive_, attempt = placement_.attempt()] {
    if (!*alive || !attempt_ || placement_.attempt() != attempt) return;
    attempt_->writes = JobAttempt::Writes::kFinished;
    MaybeFinish();
  };
  live_writes_->WhenDurable(end.view(), end.sequence(), [loop = loop_, durable] { loop->Post(durable); });
}

std::string PodRun::live_state() const {
  if (!plan_.live || !started()) return "";
  std::string state;
  const NodeLinks::ContentUse* content = attempt_->content.get();
  const int64_t shown = content != nullptr ? content->shown_micros() : 0;
  const int64_t behind = shown == 0 ? 0 : MonotonicMicros() - shown;
  if (behind > kViewBehindMicros) state = "behind home by " + std::to_string(behind / 1'000'000) + " s";
  if (content != nullptr && content->connected()) return state;
  return (state.empty() ? state : state + ": ") +
         "no connection to its node: it does not see changes at home, and its writes wait there";
}

uint64_t PodRun::LiveFailed() const {
  return live_view_ == 0 ? 0 : live_writes_->Failed(live_view_) - MarkOf(live_view_).failed;
}

// Before the node can start it: its first writes may arrive before we know that it runs.
void PodRun::MarkLive() {
  live_writes_->Expect(plan_.job);
  auto marks = live_writes_->Marks();
  // the view of the attempt before, which still has our listener
  if (live_view_ != 0) marks[live_view_] = MarkOf(live_view_);
  live_marks_ = std::move(marks);
}

LiveWrites::Mark PodRun::MarkOf(uint64_t view) const {
  const auto it = live_marks_.find(view);
  return it == live_marks_.end() ? LiveWrites::Mark{} : it->second;
}

// Failures are reported to all jobs in the view, since nobody knows whose write it was.
void PodRun::ListenTo(uint64_t view) {
  if (view == 0 || view == live_view_) return;
  if (live_view_ != 0) live_writes_->Unlisten(live_view_, live_listener_);
  live_view_ = view;
  live_listener_ = live_writes_->Listen(view, plan_.job, MarkOf(view).told,
                                        [this, loop = loop_, alive = alive_](const std::string& text) {
                                          loop->Post([this, alive, text] {
                                            if (*alive && !ended()) NoticeOnce(text);
                                          });
                                        });
}

}  // namespace vrun::home
