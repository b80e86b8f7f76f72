// SPDX-License-Identifier: Apache-2.0
// The supervisor of one task, run by vrund-task: owns the command's sandbox, streams, exit record and writes.
//
// It keeps everything that must survive a restart of the agent or a reconnection of home:
//
//   connection        the agent's: first the socket pair from the start, later TASK_DIRECTORY/sock. The newest wins.
//                     Each new connection gets Started and Exited at once, for the agent. Output and WriteBack are sent
//                     only after an Attach. Its answer is Attached, then Started again, the missing output, Exited, the
//                     writes. Exited never overtakes output.
//   no connection     the command continues; its output stops when the windows are full. After `orphan_micros` the
//                     supervisor kills it and exits. The exit record and the upper directory stay on disk for the
//                     agent.
//   the end           the command exits → everything else inside is killed → the record is on disk → it is sent → the
//                     writes go home → Release → the task directory is removed.
//   the gate          (TaskSpec.wait_for_go) the sandbox is complete → Ready, at each connection → TaskUp.go → the
//                     command starts.
//   SIGTERM           (the node stops) kills the task and leaves record and upper on disk, as above.
//
// Loop thread only.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "node/carry/kept_series.h"
#include "node/limits/disk_limit.h"
#include "node/ports/pod_ports.h"
#include "node/task/job_link.h"
#include "node/task/task_connection.h"
#include "node/task/task_ending.h"
#include "node/task/task_ranks.h"
#include "node/task/task_streams.h"
#include "node/task/task_writes.h"
#include "proto/supervisor.pb.h"
#include "proto/task.pb.h"
#include "sandbox/cgroup.h"
#include "sandbox/sandbox.h"

namespace vrun::node {

struct TaskOptions {
  int64_t orphan_micros = 600 * int64_t{1000000};
  int64_t grace_micros = 30 * int64_t{1000000};  // between the signal for a time limit or cancellation and SIGKILL
  std::optional<Error> unusable;                 // set if this host cannot run tasks: the reason why each one fails
};

class TaskSupervisor {
 public:
  // Stops `loop` when it is done.
  TaskSupervisor(EventLoop* loop, TaskOptions options, sandbox::CgroupHost cgroups);
  ~TaskSupervisor();

  // `connection`: to the agent that started us; its first frame is the TaskSpec.
  void Serve(UniqueFd connection);
  // The node stops.
  void Terminate();

 private:
  // connection
  void Use(UniqueFd socket);
  void OnFrame(Frame frame);
  void OnUp(v1::TaskUp up);
  void OnClosed();
  void Attach(const v1::Attach& attach);
  void Fail(const Error& error);  // reports the error to the peer
  void FailWrites(const Error& error);
  void Listen();
  void ArmOrphanTimer();

  // task
  void Begin(Frame frame);
  const v1::RunSpec& Run() const { return spec_->order().spec(); }
  const v1::Placement& Place() const { return spec_->order().placement(); }
  bool HasTerminal() const { return Run().command().terminal() && Place().pod() == 0; }
  // Adds to the injection what the root needs. Blocks on the view, as all that follows does.
  Status AddForGpus(int view);
  Status StartCommand(const v1::TaskSpec& spec, sandbox::RootViews views);
  void LetGo();  // if all is prepared, and the controller has said so
  void OnStart();
  void OnControl();
  void OnRankEnd(const sandbox::ProcessEnd& end);
  void EndRanks();
  void OnSaved();
  void OnCommandStopped(int signal);
  void OnGone();
  EndingFacts Facts(const sandbox::Ending& ending) const;
  void Signal(const v1::SendSignal& request);
  void OnMembers(const std::string& bytes);
  void Stop(Stopped why, int signal);
  void ArmLimit();
  void LimitDisk();
  void SendEndSignal();
  void Settle();
  void Ended();
  void Drain();
  void Record(v1::ExitRecord record);
  void BeginWrites();
  void BeginKeeping(CarryOptions options);
  void GoOnKeeping();
  void Leave(bool remove);

  // streams
  void Pump();
  bool PumpOutput(OutputPump* pump, v1::StreamId id);
  bool PumpMoreOutputs();
  bool PumpWrites();
  void AcknowledgeInput(v1::StreamId id = v1::STDIN);
  InputPump* Input(v1::StreamId id);
  void MakeStreams();
  void SpoolStreams();
  void StartStreams();
  UniqueFd WriterOf(bool error);
  void CloseStreams();
  bool OutputEndSent();
  OutputPump* Output(v1::StreamId id);
  void Send(const v1::TaskDown& down);
  void SendPort(v1::PortFrame frame);
  void Tell();  // sends Started and Exited when due

  EventLoop* loop_;
  TaskOptions options_;
  sandbox::CgroupHost cgroups_;

  std::unique_ptr<TaskConnection> connection_;
  UniqueFd listener_;
  bool attached_ = false, told_started_ = false, told_exited_ = false, told_ready_ = false;
  EventLoop::TimerId orphan_timer_ = 0;

  std::optional<v1::TaskSpec> spec_;
  std::unique_ptr<sandbox::Sandbox> sandbox_;
  std::vector<std::string> injected_;  // paths in the root that the sandbox made: not the command's writes
  bool has_apart_ = false;             // something is mounted at "apart" in the task directory
  std::vector<std::string> notices_;
  size_t told_notices_ = 0;
  bool started_ = false;
  int64_t started_us_ = 0;
  bool prepared_ = false, go_ = false, let_go_ = false;  // the gate
  std::vector<v1::SendSignal> early_signals_;            // received before the command runs
  std::optional<v1::TerminalSize> early_size_;
  Stopped stopped_ = Stopped::kNot;
  int cancel_signal_ = 0;
  std::string why_;                                                      // why it was stopped, as text for people
  EventLoop::TimerId warn_timer_ = 0, limit_timer_ = 0, end_timer_ = 0;  // timers of the time limit
  EventLoop::TimerId term_timer_ = 0, kill_timer_ = 0;                   // timers of a task that was told to exit
  std::optional<TaskRanks> ranks_;                                       // if the command has several processes
  EventLoop::TimerId late_timer_ = 0;
  JobLink job_link_;
  int64_t saved_us_ = 0, told_saved_us_ = 0;  // the program's last SAVED=1, and the one that the agent knows
  EventLoop::TimerId saved_timer_ = 0;
  bool warned_ = false;  // the job's own signal was sent before the time limit
  std::optional<v1::ExitRecord> record_;
  bool leaving_ = false, remove_ = false;

  OutputPump stdout_, stderr_;
  InputPump stdin_;
  // Descriptors of the command above 2.
  // Also the streams of the command's further processes.
  std::map<v1::StreamId, std::unique_ptr<OutputPump>> more_outputs_;
  std::map<v1::StreamId, std::unique_ptr<InputPump>> more_inputs_;
  v1::StreamId last_pumped_ = v1::STDIN;  // of more_outputs_
  int stopped_by_ = 0;                    // the signal that stopped the command; 0: not stopped
  int terminal_ = -1;                     // the master side, owned by stdout_
  TaskWrites writes_;
  PodPorts ports_;
  DiskLimit disk_;
  std::unique_ptr<KeptWriter> keeping_;  // set while the writes are copied to the kept store
};

}  // namespace vrun::node
