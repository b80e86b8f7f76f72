// SPDX-License-Identifier: Apache-2.0
// One job from its submission to its release: finds the node, attaches, applies the writes, survives lost connections.
//
//   Start ─▶ waiting ──placement──▶ attaching ──Attached──▶ running ──Exited──▶ ending ──all home──▶ Release, OnEnded
//              ▲ Watch                  ▲                      │
//              └── PENDING, LOST, end   └──── backoff ◀────────┘ connection lost
//
// A job that may be requeued goes through this once for each attempt: when one has given its room to another job, and
// all that it has said and written is home, it is released, the tree is made current (of a frozen root: gets what the
// job has written), and the job waits again. The sink
// sees one stream of each kind all the time: an attempt's offsets begin where the last one ended (bases_), and the end
// of an output is told when it is known that no attempt follows.
//
// The streams belong to the Sink, which may be exchanged while the job runs (a client that comes back). Nothing is
// acknowledged to the node here but writes; output is acknowledged by the sink when it has it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "home/controller_client.h"
#include "home/live_writes.h"
#include "home/node_links.h"
#include "home/run_files.h"
#include "home/services.h"
#include "home/snapshot_table.h"
#include "home/trace.h"
#include "home/write_back.h"
#include "proto/control.pb.h"
#include "proto/task.pb.h"

namespace vrun::home {

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
    // What became of something that the job wrote is not what its user will expect.
    virtual void OnWriteNotice(const std::string& text) { OnNotice(text); }
    // The command runs, or will at once. Also after each reconnection.
    virtual void OnStarted() = 0;
    // The command, which has a terminal, was stopped by a key.
    virtual void OnStopped() {}
    // The node wants stdin, or another descriptor that the command reads, from here on.
    virtual void OnInputWanted(v1::StreamId stream, uint64_t offset) = 0;
    // `closed`: it reads no more, and `taken`, when it is known, is where it stopped.
    virtual void OnInputAcked(v1::StreamId stream, uint64_t offset, bool closed, std::optional<uint64_t> taken) = 0;
    // The sink's descriptors above 2.
    virtual std::vector<v1::Descriptor> Descriptors() const { return {}; }
    virtual void OnDisconnected() = 0;
    virtual void OnOutput(v1::StreamId stream, uint64_t offset, std::string data, bool eof) = 0;
    // From where output is wanted at the next Attach.
    virtual uint64_t OutputWanted(v1::StreamId stream) = 0;
    // All of the stream and its end were passed on.
    virtual bool OutputEnded(v1::StreamId stream) = 0;
    // Last call.
    virtual void OnEnded(const Outcome& outcome) = 0;
  };

  struct Plan {
    uint64_t job = 0;
    std::optional<v1::Placement> placement;
    tree::SnapshotPtr tree;  // home's own; null: it runs in a snapshot
    std::optional<v1::SnapshotReference> snapshot;
    std::vector<std::string> exposed;
    bool detached = false;              // no stdin
    std::optional<TraceSubject> trace;  // none: it is not traced
    bool explain_io = false;            // the outcome is to have the node's report
    bool requeue = false;               // it may be stopped and started again
    bool frozen = false;                // FrozenRoots has its tree; without one it is lost
    bool live = false;                  // its root is a live view
    // It comes after other jobs: its root is the one of when it starts, which has what they wrote. `freeze` is told
    // then (null: it is not frozen).
    bool late = false;
    std::function<void(const Plan&)> freeze;
  };
  static constexpr int64_t kReconnectMicros = 10 * 60 * 1'000'000LL;

  // `sink` must live until OnEnded, SetSink or the destruction of the run.
  JobRun(const Services* services, Plan plan, Sink* sink);
  ~JobRun();
  void Start();

  uint64_t job() const { return plan_.job; }
  bool started() const { return started_; }
  bool exited() const { return record_.has_value(); }
  bool ended() const { return ended_; }
  // Of its live view, as far as this end of the connection knows; "": all is well, or it has none.
  std::string live_state() const;
  const std::string& node() const { return plan_.placement ? plan_.placement->node() : no_node_; }

  // The streams go to somebody else, from where it says. Attaches again.
  void SetSink(Sink* sink);
  // The streams will go to `sink`, but there is no connection before SetSink: what the old sink has is all that it
  // gets.
  void Suspend(Sink* sink);
  Sink* sink() const { return sink_; }

  // Ignored while there is no connection, but for signals, sizes and closed outputs, which are sent when there is one.
  // `peeked`: see task.proto, Input.
  void SendInput(v1::StreamId stream, uint64_t offset, std::string_view data, bool eof, bool peeked = false);
  void Acknowledge(v1::StreamId stream, uint64_t offset);
  void SendSignal(int signal, bool by_user_cancel);
  void Resize(const v1::TerminalSize& size);
  void CloseOutput(v1::StreamId stream);
  // The sink has passed on an end: perhaps that was all.
  void OutputProgressed() { MaybeFinish(); }

  // A file that is there while a job's writes are kept on its node because they could not be applied.
  static std::string WithheldPath(const Services& services, uint64_t job);

 private:
  void OpenWatch();
  void OnWatchEvent(const v1::JobEvent& event);
  void OnWatchClosed();
  void WatchSoon();  // unless we are attached by then
  void SettleFromWatch();
  void Place(const v1::Placement& placement);
  // The node of the same attempt may be reached elsewhere: it was started again.
  void Readdress(const v1::Placement& placement);
  void Connect();
  void Disconnect();
  void Retry(int64_t delay_micros);
  void OnTaskMessage(v1::TaskDown message);
  void OnTaskClosed(const Error& reason);
  void OnTaskError(const v1::Error& error);
  void FailFor(const std::string& lost);
  void OnAttached(const v1::Attached& attached);
  std::unique_ptr<NodeLinks::ContentUse> UseContent();
  void OnWrite(v1::WriteBack message);
  void OnWriteBackEnd(const v1::WriteBackEnd& end);
  // It stays on the node.
  void OnKept(const v1::WriteBackEnd& end);
  void ListenTo(uint64_t view);
  uint64_t LiveFailed() const;
  void MarkLive(uint32_t attempt);
  LiveWrites::Mark MarkOf(uint64_t view) const;
  void MakeWriteBack();
  std::string ApplyJournalPath() const;
  bool Complete() const;
  void MaybeFinish();
  // What became of the command's writes, as it is in the record at the node, too.
  void AddToOutcome(Outcome* outcome);
  // What may come again and again is told once, and how often it came at the end.
  void NoticeOnce(const std::string& text);
  // Of an attempt that had to leave.
  bool Preempted() const { return record_ && record_->kind() == v1::ExitRecord::PREEMPTED_BY_JOB; }
  void MaybeRestart();
  bool Drained() const;
  // The attempt is over; the job waits for the next.
  void Restart(const std::string& notice);
  // Place, when the tree of now has come.
  void PlaceLate(const v1::Placement& placement);
  void NextTree(std::function<void(Result<tree::SnapshotPtr>)> done);
  void BeginAttempt(uint32_t attempt);
  void OnOutput(v1::Output output);
  void OnInputAck(const v1::InputAck& ack);
  void WantInputs(const v1::Attached* attached);
  void OnExited(const v1::ExitRecord& record);
  void FinishWithout(const std::string& reason);
  void Finish(Outcome outcome);
  // Waits a moment for the node's report of its reads.
  void AwaitReport(Outcome outcome);
  void Reported(std::optional<v1::IoReport> report);
  void Send(const v1::TaskUp& message);

  const Services* const services_;
  Plan plan_;
  Sink* sink_;
  SnapshotTable::Pin pin_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  const std::string no_node_;

  std::unique_ptr<WatchStream> watch_;
  EventLoop::TimerId watch_timer_ = 0;
  std::optional<v1::JobEvent> last_event_;
  EventLoop::TimerId settle_timer_ = 0;
  EventLoop::TimerId report_timer_ = 0;
  std::optional<Outcome> unreported_;  // complete, but for the report

  std::unique_ptr<TaskStream> task_;
  std::unique_ptr<NodeLinks::ContentUse> content_;
  std::vector<std::string> content_addresses_;
  size_t next_address_ = 0;
  EventLoop::TimerId retry_timer_ = 0;
  int64_t lost_since_ = 0;
  int64_t delay_ = 0;
  bool attached_ = false;
  bool ever_attached_ = false;
  bool told_lost_ = false;
  std::string last_error_;
  std::optional<Error> fatal_;

  bool started_ = false;
  std::optional<v1::ExitRecord> record_;
  std::unique_ptr<WriteBack> write_back_;
  bool writing_ = false;
  bool write_back_done_ = false;
  std::string kept_on_;  // the node that has what an earlier attempt wrote
  uint64_t write_back_failed_ = 0;
  v1::Release release_;                      // what the node is told at the end
  std::map<std::string, uint64_t> notices_;  // how often
  // The live view that it runs in.
  uint64_t live_view_ = 0;
  uint64_t live_listener_ = 0;
  uint32_t live_marked_ = 0;                         // the attempt of which live_marks_ are
  std::map<uint64_t, LiveWrites::Mark> live_marks_;  // when its node was last asked to start it: what was others'
  bool live_told_ = false;                           // the node has said what home has to wait for
  int blocked_times_ = 0;
  bool ended_ = false;
  bool suspended_ = false;

  std::vector<v1::SendSignal> signals_;  // not sent yet
  std::optional<v1::TerminalSize> size_;
  bool closed_[2] = {false, false};
  std::set<v1::StreamId> closed_more_;  // of those above 2

  StreamBases bases_;
  uint64_t received_[2] = {0, 0};  // of the job's outputs
  uint64_t acked_[2] = {0, 0};     // passed on
  uint64_t input_acked_ = 0;
  std::optional<uint64_t> input_taken_;  // where the command stopped reading stdin
  bool eof_held_[2] = {false, false};
  bool between_ = false;  // one attempt is over, the next has not been placed
  bool releasing_ = false;
  uint64_t fetched_before_ = 0;  // by earlier attempts
};

}  // namespace vrun::home
