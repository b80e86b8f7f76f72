// SPDX-License-Identifier: Apache-2.0
// One job from submission to its end, as its sink sees it: a stream of each kind, notices, and an outcome.
//
// Implemented by PodRun (one sandbox on one node) and GangRun (a PodRun for each pod). The streams belong to the Sink,
// which may be exchanged while the job runs (a client that reconnects).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "home/ahead/trace.h"
#include "home/runs/run_files.h"
#include "proto/control.pb.h"
#include "proto/task.pb.h"
#include "tree/tree.h"

namespace vrun::home {

class PortForwards;

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
  bool superseded = false;  // JobRun::Plan::one_attempt: the job goes on without this attempt
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
    // All of it is home. The node is told so next, and forgets it.
    virtual void OnReleasing(const Outcome& /*outcome*/) {}
    // Last call.
    virtual void OnEnded(const Outcome& outcome) = 0;
  };

  struct Plan {
    uint64_t job = 0;
    std::optional<v1::Placement> placement;  // of a gang: of any of its pods
    tree::TreePtr tree;                      // of home; null: it runs in a snapshot
    std::optional<v1::SnapshotReference> snapshot;
    std::vector<std::string> exposed;
    std::vector<std::string> told;      // private files that it names, which its user was told before
    bool detached = false;              // no stdin
    std::optional<TraceSubject> trace;  // none: not traced
    // TRACEPARENT of its environment; "": none; nullopt: home was restarted and does not know
    std::optional<std::string> trace_parent;
    bool explain_io = false;  // add the node's report to the outcome
    bool requeue = false;     // it may be stopped and started again
    bool frozen = false;      // its tree is in FrozenRoots; without the tree the job is lost
    bool live = false;        // its root is a live view
    bool live_paths = false;  // directories of its frozen root are
    bool away = false;        // the writes that it keeps on its nodes come home when it has ended
    // The job depends on other jobs: its root is made when it starts and has what they wrote. `freeze` gets that tree
    // (null: it is not frozen).
    bool late = false;
    std::function<void(const Plan&)> freeze;
    std::vector<std::string> secrets;     // names; each attempt gets the values that they have when it starts
    std::shared_ptr<PortForwards> ports;  // its published ports; null: none. Of a gang: the first pod's

    // --- of a gang (jobs/gang.h) ---
    v1::Gang gang;
    bool label = false;      // as in v1::Run
    int32_t input_rank = 0;  // as in v1::Run
    // Each rank writes files of its own (RunFiles, PerRank). The sink gets all output too.
    std::optional<DetachedFiles> rank_files;
    // For a PodRun: one pod of a gang. The run ends with its attempt, whatever becomes of the job, and its streams
    // begin at 0.
    bool one_attempt = false;
  };
  // How long a node that does not answer is tried.
  static constexpr int64_t kReconnectMicros = 10 * 60 * 1'000'000LL;

  virtual ~JobRun() = default;
  virtual void Start() = 0;

  virtual uint64_t job() const = 0;
  // The command runs, or has run in the present attempt.
  virtual bool started() const = 0;
  virtual bool ended() const = 0;
  // Another attempt has begun: ends what still runs of this one, as far as its node is heard.
  virtual void EndOnNode(const std::string& /*reason*/) {}
  // State of its live view, as far as this side of the connection knows; "": all is well, or it has none.
  virtual std::string live_state() const = 0;
  // Of a gang: all of them, separated by commas.
  virtual const std::string& node() const = 0;

  // Replaces the sink and attaches again, from the offsets that the new sink wants.
  virtual void SetSink(Sink* sink) = 0;
  // The streams will go to `sink`, but there is no connection before SetSink: the old sink gets nothing more.
  virtual void Suspend(Sink* sink) = 0;

  // Ignored while disconnected, except signals, sizes and closed outputs, which are sent after reconnecting. `peeked`:
  // see task.proto, Input.
  virtual void SendInput(v1::StreamId stream, uint64_t offset, std::string_view data, bool eof,
                         bool peeked = false) = 0;
  virtual void Acknowledge(v1::StreamId stream, uint64_t offset) = 0;
  virtual void SendSignal(int signal, bool by_user_cancel) = 0;
  virtual void Resize(const v1::TerminalSize& size) = 0;
  virtual void CloseOutput(v1::StreamId stream) = 0;
  // The sink has passed on the end of an output: the run may be complete.
  virtual void OutputProgressed() = 0;
};

}  // namespace vrun::home
