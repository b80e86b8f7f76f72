// SPDX-License-Identifier: Apache-2.0
// One pod of one attempt of a job on this node, from the controller's order to the final report.
//
//            order                 attach              view open             exit record          release
//   (none) ────────▶ kWaiting ───────────▶ kOpening ────────────▶ kRunning ────────────▶ kExited ────────▶ kOver
//                        └── cancelled, no attach, no view, no supervisor: a START_FAILED or CANCELLED record ──┘
//
// The supervisor owns the command, its streams and its writes. The attempt relays frames between the supervisor and the
// most recently attached home stream, and parses only the few messages that change its state. Home may disconnect and
// reconnect at any time.
//
// The command of a gang waits, in kRunning, until the supervisor has said that all is prepared (the report gets
// `ready`) and the controller has answered with Go. A file named "go" in the task's directory says so to a later agent.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cpu_list.h"
#include "base/io/event_loop.h"
#include "base/result.h"
#include "node/agent/supervisor_link.h"
#include "node/attempt_key.h"
#include "node/fs/fs_client.h"
#include "node/fs/kept_store.h"
#include "node/home_stream.h"
#include "node/tenant.h"
#include "node/traces/attempt_spans.h"
#include "node/uid_ranges.h"
#include "proto/control.pb.h"
#include "proto/supervisor.pb.h"

namespace vrun::node {

// "they are kept on NODE in ...", of writes that a killed supervisor has left in its task's directory, which are not
// home then; "" if there are none.
std::string WritesKeptIn(const std::string& task_directory, const std::string& node);

// The services that an attempt needs from its agent. All calls on the loop.
class AttemptHost {
 public:
  virtual ~AttemptHost() = default;
  virtual EventLoop* loop() = 0;
  // The file system server of a tenant; starts one if there is none. Returns null and sets *error on failure.
  virtual FsClient* FsServer(const Tenant& tenant, Error* error) = 0;
  // The range contains a host id for each of these ids of home.
  virtual Result<UidRanges::Range> Uids(const Tenant& tenant, const std::vector<uint32_t>& ids) = 0;
  virtual Result<std::unique_ptr<SupervisorLink>> TakeSupervisor() = 0;
  virtual uint64_t NextLease() = 0;
  // Assigns processors to the attempt until FreeCpus. Empty: all processors.
  virtual CpuList GiveCpus(const AttemptKey& key, uint32_t milli_cpus) = 0;
  virtual void FreeCpus(const AttemptKey& key) = 0;
  // What a job with these resources may do. `ports`: those of this node where only daemons connect.
  virtual Result<v1::Isolation> Isolate(const v1::Resources& resources, std::vector<uint32_t> ports) = 0;
  // The state changed. The agent repeats the report until the controller acknowledges it. `kept`, of an end: called
  // when the report is on disk, which takes a while.
  virtual void Report(const v1::AttemptReport& report, std::function<void()> kept = nullptr) = 0;
  // The attempt is over: home has everything, or never will. The attempt may be destroyed after the call returns.
  virtual void Over(const AttemptKey& key) = 0;
  // What a program of this attempt said on its job's socket.
  virtual void Pass(const v1::JobWord& word) = 0;
  // A process for another pod of the job, or the answer to that pod.
  virtual void Pass(const v1::ExecInPod& exec) = 0;
  virtual const std::string& node_name() const = 0;
  // Lines for /etc/hosts that let a job resolve its node's own names.
  virtual const std::string& hosts() const = 0;
  virtual const std::string& pool() const = 0;
  virtual const std::string& tasks_directory() const = 0;
  virtual KeptStore* kept() = 0;
  // The kept store has grown.
  virtual void KeptMore() = 0;
  // Makes ready what the order was promised of the node's GPUs, and calls `done` on the loop. False: nothing is to be
  // done.
  virtual bool PrepareGpus(const v1::StartAttempt& order, std::function<void(Result<v1::GpuInjection>)> done) = 0;
  virtual void ReleaseGpus(const AttemptKey& key) = 0;
};

class Attempt {
 public:
  enum class State { kWaiting, kOpening, kRunning, kExited, kOver };

  Attempt(AttemptHost* host, v1::StartAttempt order);
  // Adopts a supervisor of an earlier agent. `lease`: the view that this agent opened for it, 0 if unknown.
  // `live_view`: the id of that view, 0 if it is a frozen one. `paths_lease`: of the view for its live paths; 0: none.
  Attempt(AttemptHost* host, v1::StartAttempt order, std::unique_ptr<SupervisorLink> supervisor,
          std::vector<std::string> content_addresses, uint64_t lease, uint64_t live_view, uint64_t paths_lease);
  ~Attempt();

  uint64_t job() const { return order_.placement().job(); }
  uint32_t attempt() const { return order_.placement().attempt(); }
  AttemptKey key() const { return AttemptKey::Of(order_.placement()); }
  uint64_t epoch() const { return order_.placement().epoch(); }
  State state() const { return state_; }
  const std::string& home_id() const { return order_.home_id(); }
  Tenant tenant() const { return Tenant::Of(order_); }
  const v1::AttemptReport& report() const { return report_; }
  const v1::StartAttempt& order() const { return order_; }
  std::string directory() const;
  // Of the views that are open for it.
  std::vector<uint64_t> Leases() const;
  FsRun fs_run() const { return {tenant().home_id, order_.placement().token(), key()}; }
  bool HoldsLease(uint64_t lease) const { return lease_ == lease || paths_lease_ == lease; }

  // Handles the Attach that was the first message of `stream`. Refuses a wrong token.
  void Attach(const std::shared_ptr<HomeStream>& stream, const v1::Attach& attach);
  // The same from the snapshot store, for an away job: it starts, and the root is served, also without home. What the
  // command writes and how it ends waits for home.
  void AttachStandIn(const std::shared_ptr<HomeStream>& stream, const v1::Attach& attach);
  void Stop(const v1::StopAttempt& stop);
  // All pods of the gang are prepared: the command starts.
  void Go();
  // The pods of the gang have changed.
  void SetMembers(const v1::Members& members);
  // From another pod of the job.
  void Exec(const v1::ExecInPod& exec);
  // The agent stops for good: kills the task. Its record and its writes stay in its directory.
  void Abandon();
  // Sends the user a line of text.
  void Notice(const std::string& text, bool content_lost = false);
  // The file system server of this home is gone for good, so the attempt cannot continue.
  void FsServerDied();

 private:
  bool Proves(const v1::Attach& attach) const;
  void TakeAttach(const v1::Attach& attach);
  void TellContent(HomeStream* stream) const;
  void FirstAttach(const v1::Attach& attach);
  void OpenView(const v1::Attach& attach, FsClient* fs, const UidRanges::Range& uids);
  // Opens the second, live view that RunSpec.live_paths are directories of.
  void OpenLivePaths(const v1::Attach& attach, FsClient* fs, const UidRanges::Range& uids,
                     std::vector<UniqueFd> mounts);
  // For a live view: makes the view publish all writes to home. They do not go through the supervisor. `end`: the
  // supervisor's word on the others.
  void PublishWrites(v1::WriteBackEnd end);
  void ViewOpened(Result<std::vector<UniqueFd>> mounts, const UidRanges::Range& uids);
  // While the view is opened. The supervisor starts when both are there.
  void PrepareGpus();
  void StartIfPrepared();
  // Fails the attempt for a reason local to this machine, which the user may not know.
  void CannotStart(const char* what, const Error& why);
  Status StartSupervisor(std::vector<UniqueFd> mounts, const UidRanges::Range& uids);
  // Fills in where the writes are kept, and which earlier attempt's upper they continue.
  Status KeepWrites(v1::TaskSpec* spec);
  void BindSupervisor();
  void OnHomeFrame(std::string frame);
  void AddToRecord(const vrun::v1::Release& release);
  void OnSupervisorFrame(std::string frame);
  void OnSupervisorClosed();
  // Ends the attempt without a record from a supervisor. `kept`: as in AttemptHost::Report.
  void Fail(v1::ExitRecord::Kind kind, const std::string& reason, int signal = 0, std::function<void()> kept = nullptr);
  void SendRecordHome();
  bool waits_for_go() const { return order_.pods_size() > 0; }
  // Lines for /etc/hosts and the addresses in `spec` that let the pods reach each other by name.
  void NamePods(v1::TaskSpec* spec) const;
  void SendGo();
  void ForgetIfSuperseded();
  void SetState(v1::JobState state);
  // Tells the file system server that the command has ended, so that it can finish the trace.
  void EndRun();
  void Finish();
  v1::JobState EndState() const;

  AttemptHost* host_;
  v1::StartAttempt order_;
  AttemptSpans spans_;
  State state_ = State::kWaiting;
  v1::AttemptReport report_;
  std::shared_ptr<HomeStream> home_;
  std::shared_ptr<HomeStream> stand_in_;
  std::unique_ptr<SupervisorLink> supervisor_;
  std::vector<std::string> content_addresses_;
  std::string attach_frame_;              // the latest Attach, unparsed
  std::optional<v1::GpuInjection> gpus_;  // absent: not ready yet
  // The view that waits for the GPUs.
  struct Opened {
    std::vector<UniqueFd> mounts;
    UidRanges::Range uids;
  };
  std::optional<Opened> opened_;
  std::deque<std::string> before_start_;  // TaskUp frames that arrived before the supervisor had its spec
  uint64_t lease_ = 0;
  uint64_t live_view_ = 0;
  uint64_t paths_lease_ = 0;
  bool run_began_ = false;
  bool released_ = false;
  bool superseded_ = false;  // the job goes on in another attempt
  bool go_ = false;
  EventLoop::TimerId attach_timer_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for callbacks that may outlive the attempt
};

}  // namespace vrun::node
