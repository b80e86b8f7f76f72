// SPDX-License-Identifier: Apache-2.0
// One sandbox on one node, from submission to release: finds the node, attaches, applies the writes, survives lost
// connections. It is the whole of a job with one pod, or one pod of a gang for the time of an attempt.
//
//   Start ─▶ waiting ──placement──▶ attaching ──Started──▶ running ──Exited──▶ ending ──all home──▶ Release, OnEnded
//              ▲ Watch                  │                     │                  │
//              └─────── leaving ◀───────┴──── lost its node ──┴─── preempted ────┘
//
// A lost connection changes no state: the run reconnects and attaches again, with growing delay.
//
// A job that may be requeued goes through this once per attempt. A preempted attempt is released when all its output
// and writes are home. Then the tree is made current (a frozen root gets what the job has written), and the job waits
// again. The sink sees one continuous stream of each kind: an attempt's offsets begin where the last attempt's ended
// (JobAttempt::bases), and the end of an output is passed on only when it is known that no attempt follows.
//
// The streams belong to the Sink, which may be exchanged while the job runs (a client that reconnects). This class
// acknowledges only writes to the node; the sink acknowledges output when it has it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "home/kept/kept_carry.h"
#include "home/links/controller_client.h"
#include "home/links/node_links.h"
#include "home/root/tree_table.h"
#include "home/runs/job_roots.h"
#include "home/runs/job_run.h"
#include "home/runs/pod/job_attempt.h"
#include "home/runs/pod/pod_spans.h"
#include "home/serve/live_writes.h"
#include "proto/control.pb.h"
#include "proto/task.pb.h"

namespace vrun::home {

class SnapshotClient;
class Traces;

// Loop thread only.
class PodRun : public JobRun {
 public:
  // None is owned; all outlive it, and `sink` lives until OnEnded or SetSink. `conflicts_fail`: a job whose writes
  // conflict with home's counts as failed.
  PodRun(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes, SnapshotClient* snapshots,
         const JobRoots* roots, LiveWrites* live_writes, Traces* traces, const RunFiles* files, bool conflicts_fail,
         Plan plan, Sink* sink);
  ~PodRun() override;

  // --- JobRun ---
  void Start() override;
  uint64_t job() const override { return plan_.job; }
  bool started() const override {
    return state_ == State::kRunning || state_ == State::kEnding || state_ == State::kReporting;
  }
  bool ended() const override { return state_ == State::kEnded; }
  std::string live_state() const override;
  const std::string& node() const override { return placement_.node(); }
  void SetSink(Sink* sink) override;
  void Suspend(Sink* sink) override;
  void EndOnNode(const std::string& reason) override;
  void SendInput(v1::StreamId stream, uint64_t offset, std::string_view data, bool eof, bool peeked) override;
  void Acknowledge(v1::StreamId stream, uint64_t offset) override;
  void SendSignal(int signal, bool by_user_cancel) override;
  void Resize(const v1::TerminalSize& size) override;
  void CloseOutput(v1::StreamId stream) override;
  void OutputProgressed() override { MaybeFinish(); }

 private:
  enum class State {
    kWaiting,    // for a placement, which the watch reports
    kPreparing,  // placed; the current root is being made (Plan::late)
    kAttaching,  // there is an attempt; its command is not known to run
    kRunning,
    kEnding,     // the exit record is here; output and writes may still flow
    kLeaving,    // the attempt is over; the root for the next one is being made
    kReporting,  // released; the node's report of its reads may still come
    kEnded,
  };

  void OpenWatch();
  void OnWatchEvent(const v1::JobEvent& event);
  void OnWatchClosed();
  void WatchSoon();  // unless attached by then
  void SettleFromWatch();
  void Place(const v1::Placement& placement);
  // Places the job when the current tree is ready.
  void PrepareLate();
  // The node of the same attempt has a new address: it was restarted.
  void Readdress(const v1::Placement& placement);
  void Connect();
  // Makes the tree that live paths begin with, then connects.
  void PrepareLivePaths();
  void Disconnect();
  void Retry();
  void OnTaskMessage(v1::TaskDown message);
  void OnTaskClosed(const Error& reason);
  void OnTaskError(const v1::Error& error);
  void FailFor(const std::string& lost);
  void OnAttached(const v1::Attached& attached);
  std::unique_ptr<NodeLinks::ContentUse> UseContent();
  NodeLinks::ContentJob ContentOfJob();
  void TellWithheld(const std::string& path);
  void OnWrite(v1::WriteBack message);
  void OnWriteBackEnd(const v1::WriteBackEnd& end);
  void AwaitLivePaths(const v1::WriteBackEnd& end);
  // The writes are kept on the node.
  void OnKept(const v1::WriteBackEnd& end);
  void CarryHome();  // what was kept
  bool OutputsEnded() const;
  void ListenTo(uint64_t view);
  uint64_t LiveFailed() const;
  void MarkLive();
  LiveWrites::Mark MarkOf(uint64_t view) const;
  void MakeWriteBack();
  uint32_t pod() const { return placement_.pod(); }
  std::string ApplyJournal() const;
  bool Complete() const;
  void MaybeFinish();
  // Adds what happened to the command's writes, as it is also in the record at the node.
  void AddToOutcome(Outcome* outcome);
  // Reports a repeated notice once, and at the end how often it came.
  void NoticeOnce(const std::string& text);
  bool Attached() const { return attempt_ && attempt_->task && attempt_->attached; }
  // It will be started again, and this run waits for that.
  bool Preempted() const { return attempt_ && attempt_->preempted() && !plan_.one_attempt; }
  bool MayFollow() const { return plan_.requeue && !plan_.one_attempt; }
  void Supersede(const std::string& reason);
  void BeginRunning();
  void MaybeRestart();
  bool Drained() const;
  // The attempt is over; the job waits for the next.
  void Restart(const std::string& notice);
  void BeginAttempt();
  void TakeAsPassedOn();
  void OnOutput(v1::Output output);
  void OnInputAck(const v1::InputAck& ack);
  void WantInputs(const v1::Attached* attached);
  void OnExited(const v1::ExitRecord& record);
  void FinishWithout(const std::string& reason);
  void Finish(Outcome outcome);
  // Waits briefly for the node's report of its reads.
  void AwaitReport(Outcome outcome);
  void Reported(std::optional<v1::IoReport> report);
  void Send(const v1::TaskUp& message);
  void ConnectPorts();
  void EndPorts();

  EventLoop* const loop_;
  ControllerClient* const controller_;
  NodeLinks* const nodes_;
  SnapshotClient* const snapshots_;
  const JobRoots* const roots_;
  LiveWrites* const live_writes_;
  Traces* const traces_;
  const RunFiles* const files_;
  const bool conflicts_fail_;
  Plan plan_;
  PodSpans spans_;
  TreeTable::Pin pin_;
  tree::TreePtr live_tree_;  // for live paths; null: not made yet
  TreeTable::Pin live_pin_;
  State state_ = State::kWaiting;
  v1::Placement placement_;              // the latest; empty: none yet
  std::unique_ptr<JobAttempt> attempt_;  // of placement_; null: not started, or over
  Sink* sink_;
  bool suspended_ = false;  // the sink is being exchanged: no connection before SetSink
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  std::unique_ptr<WatchStream> watch_;
  EventLoop::TimerId watch_timer_ = 0;
  std::optional<v1::JobEvent> last_event_;
  EventLoop::TimerId settle_timer_ = 0;
  EventLoop::TimerId report_timer_ = 0;
  std::optional<Outcome> unreported_;  // complete except for the report

  // Across all attempts.
  bool ever_attached_ = false;  // a node may have started the command
  uint64_t fetched_before_ = 0;
  std::unique_ptr<KeptCarry> carry_;         // of an away job that has ended
  bool carries_ = false;                     // as soon as the output is here, since notes about writes follow it
  bool settles_ = false;                     // when that is here, by what the controller knows
  std::string left_on_node_;                 // what of that could not be applied, for people
  std::string kept_on_;                      // the node that has kept writes of an earlier attempt
  v1::Release release_;                      // sent to the node at the end
  std::map<std::string, uint64_t> notices_;  // how often
  uint64_t input_acked_ = 0;
  std::optional<uint64_t> input_taken_;  // where the command stopped reading stdin

  // The live view that the job runs in; between attempts that of the last one.
  uint64_t live_view_ = 0;
  uint64_t live_listener_ = 0;
  std::map<uint64_t, LiveWrites::Mark> live_marks_;  // at the start of the attempt: earlier events belong to others

  // From the user, for the node of this attempt and of the next.
  std::vector<v1::SendSignal> signals_;  // not sent yet
  std::optional<v1::TerminalSize> size_;
  std::set<v1::StreamId> closed_;   // outputs
  std::set<std::string> withheld_;  // paths of private files that were told
};

}  // namespace vrun::home
