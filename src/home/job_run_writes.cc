// SPDX-License-Identifier: Apache-2.0
// JobRun: what the command has written comes home: a batch job's when it is over, a live job's all the time.
#include <utility>

#include "base/clock.h"
#include "base/files.h"
#include "home/frozen_roots.h"
#include "home/job_run.h"
#include "home/live_writes.h"
#include "home/tree_restore.h"

namespace vrun::home {
namespace {

// The node says every second that its live view is not.
constexpr int64_t kViewBehindMicros = 3'000'000;
constexpr int kMostConflicts = 20;  // of which the paths are in the record
constexpr int kMaxBlocked = 60;     // times 5 s
constexpr int64_t kBlockedRetryMicros = 5'000'000;

}  // namespace

std::string JobRun::ApplyJournalPath() const {
  return services_->state_directory + "/apply/" + std::to_string(plan_.job);
}

void JobRun::MakeWriteBack() {
  if (write_back_) return;
  ApplyOptions options;
  options.root = services_->root;
  options.job = plan_.job;
  if (plan_.placement) options.attempt = plan_.placement->attempt();
  options.rules = [trees = services_->trees] { return trees->rules(); };
  options.exposed = plan_.exposed;
  // Without a journal (a read-only or full state directory) it works in memory.
  if (MakeDirs(services_->state_directory + "/apply", 0700)) options.journal = ApplyJournalPath();
  if (plan_.tree) {
    options.restore = [tree = plan_.tree, files = services_->files](const std::string& path, int directory,
                                                                    const std::string& name, const auto& made) {
      return RestoreFromTree(*tree, *files, path, directory, name, made);
    };
  }
  if (plan_.frozen && plan_.requeue) options.applied = services_->frozen->Recorder(plan_.job);
  write_back_ = std::make_unique<WriteBack>(
      services_->loop, std::move(options),
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
                                              ": the command's writes wait on the node: make room at home");
                              Disconnect();
                              bool patient = ++blocked_times_ < kMaxBlocked;
                              write_back_->Restart(patient);
                              if (retry_timer_ != 0) return;
                              retry_timer_ = services_->loop->After(kBlockedRetryMicros, [this] {
                                retry_timer_ = 0;
                                Connect();
                              });
                            },
                        .on_finished =
                            [this](uint64_t failed) {
                              write_back_done_ = true;
                              write_back_failed_ = failed;
                              MaybeFinish();
                            }});
}

void JobRun::OnWrite(v1::WriteBack message) {
  if (!std::exchange(writing_, true)) sink_->OnProgress(v1::COMPLETING, "writing home", node());
  MakeWriteBack();
  write_back_->Apply(std::move(message));
}

void JobRun::OnWriteBackEnd(const v1::WriteBackEnd& end) {
  if (write_back_done_) return MaybeFinish();
  if (end.kept()) return OnKept(end);
  if (end.view() == 0) {
    MakeWriteBack();
    return write_back_->End();
  }
  ListenTo(end.view());
  if (std::exchange(live_told_, true)) return;  // told again after a reconnection, of the same view
  sink_->OnProgress(v1::COMPLETING, "writing home", node());
  services_->live_writes->WhenDurable(end.view(), end.sequence(), [this, loop = services_->loop, alive = alive_] {
    loop->Post([this, alive] {
      if (!*alive) return;
      write_back_done_ = true;
      MaybeFinish();
    });
  });
}

std::string JobRun::live_state() const {
  if (!plan_.live || !started_ || ended_) return "";
  std::string state;
  const int64_t shown = content_ ? content_->shown_micros() : 0;
  const int64_t behind = shown == 0 ? 0 : MonotonicMicros() - shown;
  if (behind > kViewBehindMicros) state = "behind home by " + std::to_string(behind / 1'000'000) + " s";
  if (content_ && content_->connected()) return state;
  return (state.empty() ? state : state + ": ") +
         "no connection to its node: it does not see what changes at home, and what it writes waits there";
}

uint64_t JobRun::LiveFailed() const {
  return live_view_ == 0 ? 0 : services_->live_writes->Failed(live_view_) - MarkOf(live_view_).failed;
}

// Before the node can start it: its first writes may be here before we hear that it runs.
void JobRun::MarkLive(uint32_t attempt) {
  if (std::exchange(live_marked_, attempt) == attempt) return;
  services_->live_writes->Expect(plan_.job);
  auto marks = services_->live_writes->Marks();
  if (live_view_ != 0) marks[live_view_] = MarkOf(live_view_);  // of the attempt before, in which it listens on
  live_marks_ = std::move(marks);
}

LiveWrites::Mark JobRun::MarkOf(uint64_t view) const {
  const auto it = live_marks_.find(view);
  return it == live_marks_.end() ? LiveWrites::Mark{} : it->second;
}

// What cannot be applied is told to all who run in the view: nobody knows whose it was.
void JobRun::ListenTo(uint64_t view) {
  if (view == 0 || view == live_view_) return;
  if (live_view_ != 0) services_->live_writes->Unlisten(live_view_, live_listener_);
  live_view_ = view;
  live_listener_ = services_->live_writes->Listen(
      view, plan_.job, MarkOf(view).told, [this, loop = services_->loop, alive = alive_](const std::string& text) {
        loop->Post([this, alive, text] {
          if (*alive && !ended_) NoticeOnce(text);
        });
      });
}

}  // namespace vrun::home
