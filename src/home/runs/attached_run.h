// SPDX-License-Identifier: Apache-2.0
// A run whose streams go to descriptors: of a waiting client (vrun), or files (vbatch).
//
// When the client ends before the run
//   Detach, or the third Ctrl-C:     the job continues; its output goes to the log.
//   killed, CANCEL:                  the job is cancelled.
//   killed, a terminal:              the terminal is restored and released at once; the job continues, and its output
//                                    goes to the log. HANG_UP: only for 60 s, in which a client may resume it; then it
//                                    is cancelled with SIGHUP, as if its terminal had hung up.
//   killed, only pipes and files:    home keeps them open and continues: the reader gets all of the output.
// This is the same while the job waits and while it runs. The choice is Scheduling.on_disconnect.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "home/runs/batch_output.h"
#include "home/runs/job_roots.h"
#include "home/runs/job_run.h"
#include "home/runs/launch.h"
#include "home/streams/client_connection.h"
#include "home/streams/extra_stream.h"
#include "home/streams/foreground.h"
#include "home/streams/stdio_pump.h"
#include "proto/local.pb.h"

namespace vrun::home {

class ControllerClient;
class Traces;

// Loop thread only.
class AttachedRun : public JobRun::Sink, public StdioPump::Handler, public ExtraStream::Owner {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // The job has a number now. True: there is already a run for it (the client sent its request again after a crash of
    // home), which `attached` will take over by Resume.
    virtual bool OnAccepted(AttachedRun* attached, uint64_t job) = 0;
    virtual std::shared_ptr<Launch> MakeLaunch(const v1::Run& run, Launch::Events events) = 0;
    // The job can begin: creates the JobRun with `attached` as its sink.
    virtual JobRun* MakeRun(AttachedRun* attached, JobRun::Plan plan) = 0;
    // The client has left and the job continues: replaces its sink. `attached` is destroyed later.
    virtual void Orphan(AttachedRun* attached) = 0;
    // The run is over. `attached` is destroyed later.
    virtual void Done(AttachedRun* attached) = 0;
    virtual PipeTurns* pipe_turns() = 0;
    // Calls back when what RunFiles remembers by now is on the disk.
    virtual void WhenRecorded(std::function<void()> done) = 0;
    // The root of an away job is frozen and being sent.
    virtual void SendAway(uint64_t job, std::unique_ptr<SnapshotClient::Sending> sending) = 0;
    // A client that waits until the job needs nothing of this machine.
    virtual void WatchAway(uint64_t job, const std::shared_ptr<ClientConnection>& client) = 0;
  };
  struct Options {
    bool quiet = false;
    bool progress = false;
    bool terminal = false;  // the command has a pty
    bool detached = false;
    bool wait_until_away = false;  // as in v1::Run
    bool terminal_ready = false;   // the client confirms that its terminal has the requested mode
    v1::OnDisconnect on_disconnect = v1::ON_DISCONNECT_UNSPECIFIED;
  };

  // None but the client is owned; all outlive it.
  AttachedRun(EventLoop* loop, ControllerClient* controller, const JobRoots* roots, Traces* traces, LogSpool* spool,
              const RunFiles* files, Owner* owner, std::shared_ptr<ClientConnection> client, Options options);
  ~AttachedRun() override;

  // For a batch job accepted by an earlier home: opens its output files. Files whose names contain the node are opened
  // when the job has one.
  Status TakeFiles(uint64_t job, DetachedFiles files, const v1::Gang& gang);
  // The files cannot be opened: the output goes to the log only, and the job has not succeeded.
  void LoseFiles(const Error& why);
  // Files of a gang's ranks (JobRun::Plan); none: the output is one stream.
  const std::optional<DetachedFiles>& rank_files() const { return rank_files_; }
  // stdin, stdout, stderr and the map of their offsets.
  void TakeDescriptors(UniqueFd in, UniqueFd out, UniqueFd err, StreamProgressMap progress);
  // A further descriptor of the command, above 2.
  void TakeDescriptor(const v1::Descriptor& descriptor, UniqueFd fd, StreamProgressMap progress);
  // Starts a new run.
  // `ports`: JobRun::Plan::ports.
  void StartRun(const v1::Run& run, std::shared_ptr<PortForwards> ports);
  // Takes over an existing run: `job` is its number; `run` is null if it has already ended.
  void Resume(uint64_t job, JobRun* run);
  // What is known of a job when it is submitted, without its placement and streams. `root`: as RunFiles::root.
  static JobRun::Plan PlanOf(const v1::Run& run, const v1::SubmitRequest& request, tree::TreePtr tree,
                             const std::string& root);
  // What FrozenRoots holds first: what is likely to change soonest. The project, files that earlier runs of this kind
  // touched, and the user's own files.
  static std::vector<std::string> FirstToFreeze(const JobRun::Plan& plan, const std::string& directory, Traces* traces,
                                                const std::string& root);
  // FrozenRoots::Prepare for a batch job that will see this tree, unless its root is not frozen at its submission.
  static void PrepareRoot(const v1::Run& run, const tree::TreePtr& tree, const JobRoots* roots, Traces* traces,
                          const std::string& root);
  // Plan::freeze of a job in `directory` whose root is made when it starts.
  std::function<void(const JobRun::Plan&)> LateFreeze(const std::string& directory);
  // Home exits; the job continues.
  void HomeEnds();

  uint64_t job() const { return job_; }
  bool has_client() const { return client_ != nullptr; }
  v1::OnDisconnect on_disconnect() const { return options_.on_disconnect; }
  StdioPump* pump() { return pump_.get(); }
  // How the job ended, as the client was told. None: it has not ended, or continues without this client.
  const std::optional<Outcome>& outcome() const { return outcome_; }

  // --- JobRun::Sink ---
  void OnProgress(v1::JobState state, const std::string& text, const std::string& node) override;
  void OnNotice(const std::string& text) override;
  void OnWriteNotice(const std::string& text) override;
  void OnStarted() override;
  void OnStopped() override;
  void OnInputWanted(v1::StreamId stream, uint64_t offset) override;
  void OnInputAcked(v1::StreamId stream, uint64_t offset, bool closed, std::optional<uint64_t> taken) override;
  std::vector<v1::Descriptor> Descriptors() const override;
  void OnDisconnected() override;
  void OnOutput(v1::StreamId stream, uint64_t offset, std::string data, bool eof) override;
  uint64_t OutputWanted(v1::StreamId stream) override;
  bool OutputEnded(v1::StreamId stream) override;
  void OnEnded(const Outcome& outcome) override;

  // --- StdioPump::Handler ---
  void OnInput(uint64_t offset, std::string_view data, bool eof, bool peeked) override;
  void OnInputUnused(uint64_t bytes) override;
  void OnInputTakenTwice() override;
  void OnOutputWritten(v1::StreamId stream, uint64_t offset) override;
  void OnOutputEnded(v1::StreamId stream) override;
  void OnOutputBroken(v1::StreamId stream, const Error& reason) override;

  // --- ExtraStream::Owner ---
  void SendInput(v1::StreamId stream, uint64_t offset, std::string_view data, bool eof) override {
    if (run_ != nullptr) run_->SendInput(stream, offset, data, eof);
  }
  void Acknowledge(v1::StreamId stream, uint64_t offset) override {
    if (run_ != nullptr && !run_->ended()) run_->Acknowledge(stream, offset);
  }
  void CloseOutput(v1::StreamId stream) override {
    if (run_ != nullptr) run_->CloseOutput(stream);
  }
  void OutputProgressed() override {
    if (run_ != nullptr) run_->OutputProgressed();
  }
  void OnExtraBroken(const std::string& what) override;
  void OnExtraWritten() override { TellWhenDrained(); }

 private:
  void OnClientMessage(v1::ClientMessage message);
  void OnClientGone();
  void OnSignal(int signal, bool background);
  void CancelWaiting(int signal);
  void CancelNow(int signal);
  void CancelForGone();
  void Accepted(const v1::Run& run, uint64_t job);
  Status OpenOutputFiles(const v1::Run& run);
  Status OpenFiles(const std::string& node);
  Status OpenOnlyLog();
  void TakeStreams(DetachedStreams streams);
  void Freeze(const JobRun::Plan& plan, const std::string& directory);
  void GoAway(JobRun::Plan* plan, const std::string& directory, std::unique_ptr<SnapshotClient::Sending> sending);
  // Tells the client of a batch job its number, once its record is on the disk and what it will see survives a crash of
  // home; for the latter it waits at most kDurableMicros. Also on destruction.
  void Answer();
  void AnswerIfKept();
  void RootIsKept();
  void Leave(int exit_status, const std::string& reason);
  void TellFinished(Outcome outcome);
  bool Drained() const;
  void TellWhenDrained();
  ExtraStream* Extra(v1::StreamId stream);
  void End();

  EventLoop* const loop_;
  ControllerClient* const controller_;
  const JobRoots* const roots_;
  Traces* const traces_;
  LogSpool* const spool_;
  const RunFiles* const files_;
  Owner* const owner_;
  std::shared_ptr<ClientConnection> client_;
  std::shared_ptr<ClientConnection> answering_;   // batch job: waits only for Answer
  bool record_kept_ = false, root_kept_ = false;  // what Answer waits for is on the disk, or is not waited for
  const Options options_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  std::unique_ptr<StdioPump> pump_;
  std::optional<BatchOutput> batch_;  // batch job with a number
  std::optional<DetachedFiles> rank_files_;
  std::vector<std::unique_ptr<ExtraStream>> extras_;
  UniqueFd terminal_;  // our own description, to restore the settings
  std::unique_ptr<SavedTerminal> saved_;
  bool raw_ = false;
  bool stopped_ = false;  // the client is stopped or in the background: do not read its terminal

  std::shared_ptr<Launch> launch_;
  uint64_t job_ = 0;
  JobRun* run_ = nullptr;
  bool ended_ = false;
  std::optional<Outcome> waiting_outcome_;  // waits until the output is written

  int cancel_signal_ = 0;
  EventLoop::TimerId hangup_ = 0;
  EventLoop::TimerId answer_ = 0;
  bool spool_full_ = false;
  std::string output_lost_;  // why some output could not be written, or input was read twice
  std::optional<Outcome> outcome_;

  int64_t begun_us_ = 0;  // monotonic
  int64_t accepted_us_ = 0;
  int64_t started_us_ = 0;
  int64_t first_output_us_ = 0;
  uint64_t root_bytes_ = 0;
  uint64_t root_entries_ = 0;
  bool root_is_part_ = false;  // home had not read all of it yet
};

}  // namespace vrun::home
