// SPDX-License-Identifier: Apache-2.0
// All runs of this home: with a client, with output files, or with an absent client.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "home/frozen/record_sync.h"
#include "home/runs/array_launch.h"
#include "home/runs/array_run.h"
#include "home/runs/attached_run.h"
#include "home/runs/away_jobs.h"
#include "home/runs/command/mirrored.h"
#include "home/runs/job_run.h"
#include "home/runs/orphan_run.h"
#include "proto/local.pb.h"

namespace vrun::home {

// Loop thread only.
class Runs : public AttachedRun::Owner {
 public:
  // What runs need and this class does not make.
  struct Makers {
    std::function<std::unique_ptr<JobRun>(JobRun::Plan plan, JobRun::Sink* sink)> job_run;
    std::function<std::shared_ptr<Launch>(const v1::Run& run, Launch::Events events)> launch;
  };
  // None is owned; all outlive it.
  Runs(EventLoop* loop, ControllerClient* controller, const JobRoots* roots, Traces* traces, LogSpool* spool,
       const RunFiles* files, AwayJobs* away, Makers makers);
  ~Runs() override;

  // First messages of a conversation; descriptors as in proto/local.proto. Errors are answered here.
  void StartRun(std::shared_ptr<ClientConnection> client, const v1::Run& run, std::vector<UniqueFd> fds);
  void Resume(std::shared_ptr<ClientConnection> client, const v1::Resume& resume, std::vector<UniqueFd> fds);

  // Call after a start: resumes the jobs of an earlier home, as soon as there is a tree and a controller.
  void Recover();

  // Tells all clients that home exits; jobs continue.
  void HomeEnds();
  size_t running() const { return runs_.size(); }
  bool Has(uint64_t job) const { return runs_.contains(job); }
  // JobRun::live_state of a running job; "" for any other.
  std::string LiveState(uint64_t job) const;
  // How a run of this home ended, as its client or its output was told. Null: it has not ended, or too long ago.
  const Outcome* OutcomeOf(uint64_t job) const;

  // --- AttachedRun::Owner ---
  bool OnAccepted(AttachedRun* attached, uint64_t job) override;
  std::shared_ptr<Launch> MakeLaunch(const v1::Run& run, Launch::Events events) override;
  JobRun* MakeRun(AttachedRun* attached, JobRun::Plan plan) override;
  void Orphan(AttachedRun* attached) override;
  void Done(AttachedRun* attached) override;
  PipeTurns* pipe_turns() override { return &pipe_turns_; }
  void WhenRecorded(std::function<void()> done) override { record_sync_.Then(std::move(done)); }
  void SendAway(uint64_t job, std::unique_ptr<SnapshotClient::Sending> sending) override {
    away_->Begin(job, std::move(sending));
  }
  void WatchAway(uint64_t job, const std::shared_ptr<ClientConnection>& client) override { away_->Watch(job, client); }

 private:
  struct Entry {
    std::unique_ptr<JobRun> run;  // its sink is one of the other members
    std::unique_ptr<AttachedRun> attached;
    std::unique_ptr<OrphanRun> orphan;
    bool resuming = false;
  };

  void StartArray(std::shared_ptr<ClientConnection> client, const v1::Run& run);
  void AddArray(uint64_t array, ArrayRun::Elements elements);
  void BeginElement(const ArrayRun& array, uint64_t job, uint32_t index);
  void ArrayEnded(uint64_t array);
  // The element sees the root of its array, if that is frozen.
  void ShareRoot(uint64_t job, uint64_t array) const;
  static void Refuse(ClientConnection* client, const v1::Run& run, const NamedCheck& named);
  std::unique_ptr<AttachedRun> Take(AttachedRun* attached);
  void Later(std::shared_ptr<void> dead);
  void TreeFor(uint64_t job, bool live, std::function<void(Result<tree::TreePtr>)> done);
  // A job of an earlier home that has not ended.
  void TakeUpLater(uint64_t job);
  void TakeUp(uint64_t job, const v1::GetReply& reply, tree::TreePtr tree);
  void TakeUpArray(uint64_t array, const v1::GetReply& reply, JobRun::Plan plan);
  // What is known of a job of an earlier home.
  JobRun::Plan PlanOf(uint64_t job, const v1::GetReply& reply, tree::TreePtr tree) const;
  // Runs the job with these output files. Not OK: they cannot be opened, and nothing has happened.
  Status BeginBatch(JobRun::Plan plan, const DetachedFiles& files, bool must);
  void OrphanEnded(uint64_t job, const Outcome& outcome);
  void TakeUpAway(uint64_t job, const v1::GetReply& reply);
  void RememberOutcome(uint64_t job, const Outcome& outcome);
  // Finishes the output files of batch jobs that ended while there was no home.
  void TellEnds(const std::set<uint64_t>& not_over);
  void Replay(uint64_t job, AttachedRun* attached, uint64_t position, std::function<void()> done);
  void ResumeRunning(uint64_t job, std::unique_ptr<AttachedRun> attached);
  void ResumeFromController(uint64_t job, std::unique_ptr<AttachedRun> attached, int tries);
  std::unique_ptr<AttachedRun> Attach(std::shared_ptr<ClientConnection> client, AttachedRun::Options options);
  Result<std::unique_ptr<AttachedRun>> MakeAttached(std::shared_ptr<ClientConnection> client,
                                                    AttachedRun::Options options,
                                                    const google::protobuf::RepeatedPtrField<v1::Descriptor>& extras,
                                                    std::vector<UniqueFd> fds);

  EventLoop* const loop_;
  ControllerClient* const controller_;
  const JobRoots* const roots_;
  Traces* const traces_;
  LogSpool* const spool_;
  const RunFiles* const files_;
  AwayJobs* const away_;
  const Makers makers_;
  MirroredPlaces places_;
  PipeTurns pipe_turns_;  // outlives the runs
  RecordSync record_sync_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<uint64_t, Entry> runs_;
  std::map<uint64_t, std::unique_ptr<ArrayRun>> arrays_;  // their elements are in runs_
  std::vector<std::unique_ptr<ArrayLaunch>> launching_arrays_;
  std::vector<std::unique_ptr<AttachedRun>> launching_;             // these have no job yet
  std::map<AttachedRun*, std::unique_ptr<AttachedRun>> replaying_;  // runs that ended while the client was away
  std::map<uint64_t, Outcome> outcomes_;                            // the latest few
  EventLoop::TimerId recover_timer_ = 0;
};

}  // namespace vrun::home
