// SPDX-License-Identifier: Apache-2.0
// A job of several processes: a run for each pod, joined so that the sink sees one job.
//
//   waiting ──placed──▶ active: a PodRun per pod ──all over──▶ over ──the controller says it goes on──▶ waiting
//                                                               └──────── otherwise ──▶ OnEnded
//
// A PodRun lives for one attempt. This class follows the job from attempt to attempt with a watch of its own, which is
// open all the time: what the end of a pod means for the job is decided by the controller (the other pods are stopped
// because one has failed, or because a node is lost and the job is started again).
//
// Output is merged by lines (MergedStreams), stdin goes to the ranks that shall have it (GangInput), signals go to all.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "home/links/controller_client.h"
#include "home/root/tree_table.h"
#include "home/runs/gang/gang_input.h"
#include "home/runs/gang/merge_journal.h"
#include "home/runs/gang/merged_streams.h"
#include "home/runs/gang/rank_files.h"
#include "home/runs/job_roots.h"
#include "home/runs/job_run.h"

namespace vrun::home {

// Loop thread only.
class GangRun : public JobRun {
 public:
  using MakePod = std::function<std::unique_ptr<JobRun>(Plan plan, Sink* sink)>;

  // None is owned; all outlive it, and `sink` lives until OnEnded or SetSink.
  GangRun(EventLoop* loop, ControllerClient* controller, const JobRoots* roots, const RunFiles* files, MakePod make_pod,
          Plan plan, Sink* sink);
  ~GangRun() override;

  // --- JobRun ---
  void Start() override;
  uint64_t job() const override { return plan_.job; }
  bool started() const override;
  bool ended() const override { return state_ == State::kEnded; }
  std::string live_state() const override;
  const std::string& node() const override { return nodes_; }
  void SetSink(Sink* sink) override;
  void Suspend(Sink* sink) override;
  void SendInput(v1::StreamId stream, uint64_t offset, std::string_view data, bool eof, bool peeked) override;
  void Acknowledge(v1::StreamId stream, uint64_t offset) override;
  void SendSignal(int signal, bool by_user_cancel) override;
  void Resize(const v1::TerminalSize&) override {}  // a gang has no terminal
  void CloseOutput(v1::StreamId stream) override;
  void OutputProgressed() override {}

 private:
  class Pod;
  enum class State {
    kWaiting,    // for a placement
    kPreparing,  // placed; the placements of all pods, or the root, are not known yet
    kActive,
    kOver,     // all pods have ended; it is not known whether the job goes on
    kLeaving,  // it goes on; the root for the next attempt is being made
    kEnded,
  };

  void OpenWatch();
  void OnWatchEvent(const v1::JobEvent& event);
  void OnPlaced(const v1::JobEvent& event);
  void FetchPlacements();
  void OnPlacements(std::vector<v1::Placement> placements);
  void PrepareLate(std::vector<v1::Placement> placements);
  void BeginAttempt(const std::vector<v1::Placement>& placements);
  // Of an elastic gang: pods that were added to the attempt, so that it has, or has had, `pods` of them.
  void FetchJoined(uint32_t pods);
  void Join(const std::vector<v1::Placement>& placements, uint32_t pods);
  std::unique_ptr<Pod> MakePodOf(const v1::Placement& placement);
  void TellQueued(const v1::JobEvent& event);

  // --- events of pods ---
  void OnPodProgress(Pod* pod, v1::JobState state);
  void OnPodStarted(Pod* pod);
  void OnPodOutput(Pod* pod, v1::StreamId stream, uint64_t offset, std::string data, bool eof);
  void OnPodReleasing(const Pod& pod, const Outcome& outcome);
  void OnPodEnded(Pod* pod);
  void NoticeOnce(const std::string& text, bool of_writes);

  // The pod could not be added to the attempt, so that its end says nothing about the job.
  bool NeverJoined(const Pod& pod) const;
  // These are the records of all pods that count.
  bool AllRecords(const std::vector<v1::ExitRecord>& records) const;
  // All pods have ended.
  void Decide();
  bool AllOver() const;
  bool MayGoOn() const;
  void GoOn();
  Outcome Combined() const;
  void FinishFromController(const v1::JobEvent& event);
  void Finish(Outcome outcome);
  void DropPods();
  std::vector<v1::ExitRecord> Records() const;
  template <typename F>
  void ForPods(F f);

  EventLoop* const loop_;
  ControllerClient* const controller_;
  const JobRoots* const roots_;
  const RunFiles* const files_;
  const MakePod make_pod_;
  Plan plan_;
  TreeTable::Pin pin_;
  State state_ = State::kWaiting;
  Sink* sink_;
  bool suspended_ = false;  // the sink is being exchanged
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  std::unique_ptr<WatchStream> watch_;
  EventLoop::TimerId watch_timer_ = 0;
  EventLoop::TimerId fetch_timer_ = 0;
  std::optional<v1::JobEvent> last_event_;
  bool fetching_joined_ = false;

  // The present or last attempt.
  uint32_t attempt_ = 0;
  uint64_t epoch_ = 0;
  std::string nodes_;  // separated by commas
  std::vector<std::unique_ptr<Pod>> pods_;
  bool told_running_ = false;
  bool told_completing_ = false;
  // Across attempts.
  uint64_t fetched_before_ = 0;
  std::set<std::string> notices_;
  std::vector<v1::SendSignal> signals_;  // from the user, before there are pods
  std::set<v1::StreamId> closed_;        // outputs

  MergeJournal journal_;
  MergedStreams output_;
  GangInput input_;
  std::unique_ptr<RankFiles> rank_files_;
};

}  // namespace vrun::home
