// SPDX-License-Identifier: Apache-2.0
// One job from submission to release: finds the node, attaches, applies the writes, survives lost connections.
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
#include "home/ahead/trace.h"
#include "home/links/controller_client.h"
#include "home/links/node_links.h"
#include "home/root/tree_table.h"
#include "home/runs/job_attempt.h"
#include "home/runs/job_roots.h"
#include "home/serve/live_writes.h"
#include "proto/control.pb.h"
#include "proto/task.pb.h"

namespace vrun::home {

class SnapshotClient;
class Traces;

// How a run ended, for the client.
struct Outcome {
  std::optional<v1::ExitRecord> record;  // none: unknown; exit_status is not 0 then
  int exit_status = 255;
  v1::JobState state = v1::LOST;
  std::string reason;
  std::string node;
  uint32_t attempt = 0;
  uint64_t fetched_bytes = 0;
  std::optional<v1::IoReport> io;
};

// Loop thread only.
class JobRun {
 public:
  class Sink {
   public:
    virtual ~Sink() = default;
    virtual void OnProgress(v1::JobState state, const std::string& text, const std::string& node) = 0;
    virtual void OnNotice(const std::string& text) = 0;
    // Something that the job wrote did not end up as its user will expect.
    virtual void OnWriteNotice(const std::string& text) { OnNotice(text); }
    // The command runs, or will at once. Also called after each reconnection.
    virtual void OnStarted() = 0;
    // The command has a terminal and was stopped by a key.
    virtual void OnStopped() {}
    // The node wants stdin, or another input descriptor, from this offset on.
    virtual void OnInputWanted(v1::StreamId stream, uint64_t offset) = 0;
    // `closed`: the command reads no more; `taken`, if known, is where it stopped.
    virtual void OnInputAcked(v1::StreamId stream, uint64_t offset, bool closed, std::optional<uint64_t> taken) = 0;
    // The sink's descriptors above 2.
    virtual std::vector<v1::Descriptor> Descriptors() const { return {}; }
    virtual void OnDisconnected() = 0;
    virtual void OnOutput(v1::StreamId stream, uint64_t offset, std::string data, bool eof) = 0;
    // The offset from which output is wanted at the next Attach.
    virtual uint64_t OutputWanted(v1::StreamId stream) = 0;
    // The whole stream and its end were passed on.
    virtual bool OutputEnded(v1::StreamId stream) = 0;
    // Last call.
    virtual void OnEnded(const Outcome& outcome) = 0;
  };

  struct Plan {
    uint64_t job = 0;
    std::optional<v1::Placement> placement;
    tree::TreePtr tree;  // of home; null: it runs in a snapshot
    std::optional<v1::SnapshotReference> snapshot;
    std::vector<std::string> exposed;
    bool detached = false;              // no stdin
    std::optional<TraceSubject> trace;  // none: not traced
    bool explain_io = false;            // add the node's report to the outcome
    bool requeue = false;               // it may be stopped and started again
    bool frozen = false;                // its tree is in FrozenRoots; without the tree the job is lost
    bool live = false;                  // its root is a live view
    // The job depends on other jobs: its root is made when it starts and has what they wrote. `freeze` gets that tree
    // (null: it is not frozen).
    bool late = false;
    std::function<void(const Plan&)> freeze;
  };
  static constexpr int64_t kReconnectMicros = 10 * 60 * 1'000'000LL;

  // None is owned; all outlive it, and `sink` lives until OnEnded or SetSink. `conflicts_fail`: a job whose writes
  // conflict with home's counts as failed.
  JobRun(EventLoop* loop, ControllerClient* controller, NodeLinks* nodes, SnapshotClient* snapshots,
         const JobRoots* roots, LiveWrites* live_writes, Traces* traces, const RunFiles* files, bool conflicts_fail,
         Plan plan, Sink* sink);
  ~JobRun();
  void Start();

  uint64_t job() const { return plan_.job; }
  // The command runs, or has run in the present attempt.
  bool started() const { return state_ == State::kRunning || state_ == State::kEnding || state_ == State::kReporting; }
  bool ended() const { return state_ == State::kEnded; }
  // State of its live view, as far as this side of the connection knows; "": all is well, or it has none.
  std::string live_state() const;
  const std::string& node() const { return placement_.node(); }

  // Replaces the sink and attaches again, from the offsets that the new sink wants.
  void SetSink(Sink* sink);
  // The streams will go to `sink`, but there is no connection before SetSink: the old sink gets nothing more.
  void Suspend(Sink* sink);
  Sink* sink() const { return sink_; }

  // Ignored while disconnected, except signals, sizes and closed outputs, which are sent after reconnecting. `peeked`:
  // see task.proto, Input.
  void SendInput(v1::StreamId stream, uint64_t offset, std::string_view data, bool eof, bool peeked = false);
  void Acknowledge(v1::StreamId stream, uint64_t offset);
  void SendSignal(int signal, bool by_user_cancel);
  void Resize(const v1::TerminalSize& size);
  void CloseOutput(v1::StreamId stream);
  // The sink has passed on the end of an output: the run may be complete.
  void OutputProgressed() { MaybeFinish(); }

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
  void Disconnect();
  void Retry();
  void OnTaskMessage(v1::TaskDown message);
  void OnTaskClosed(const Error& reason);
  void OnTaskError(const v1::Error& error);
  void FailFor(const std::string& lost);
  void OnAttached(const v1::Attached& attached);
  std::unique_ptr<NodeLinks::ContentUse> UseContent();
  void OnWrite(v1::WriteBack message);
  void OnWriteBackEnd(const v1::WriteBackEnd& end);
  // The writes are kept on the node.
  void OnKept(const v1::WriteBackEnd& end);
  void ListenTo(uint64_t view);
  uint64_t LiveFailed() const;
  void MarkLive();
  LiveWrites::Mark MarkOf(uint64_t view) const;
  void MakeWriteBack();
  std::string ApplyJournal() const { return std::to_string(plan_.job); }
  bool Complete() const;
  void MaybeFinish();
  // Adds what happened to the command's writes, as it is also in the record at the node.
  void AddToOutcome(Outcome* outcome);
  // Reports a repeated notice once, and at the end how often it came.
  void NoticeOnce(const std::string& text);
  bool Attached() const { return attempt_ && attempt_->task && attempt_->attached; }
  bool Preempted() const { return attempt_ && attempt_->preempted(); }
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
  TreeTable::Pin pin_;
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
  std::set<v1::StreamId> closed_;  // outputs
};

}  // namespace vrun::home
