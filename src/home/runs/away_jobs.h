// SPDX-License-Identifier: Apache-2.0
// Away jobs (RunSpec.away): jobs that need nothing of this machine once all of their root is in the pool's store.
//
//   accepted ─▶ sending ──all of it is in the store──▶ safe ──the job is over──▶ its snapshot is deleted ─▶ forgotten
//
// Each runs in an unnamed snapshot of the root. While that is made, the root is frozen (FrozenRoots), so that a later
// home can go on sending. runs/JOB.away says how far it is.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "home/runs/job_roots.h"
#include "home/runs/run_files.h"
#include "home/runs/snapshot_client.h"
#include "home/streams/client_connection.h"
#include "proto/local.pb.h"

namespace vrun::home {

class ControllerClient;

// Loop thread only.
class AwayJobs {
 public:
  // None is owned; all outlive it.
  AwayJobs(EventLoop* loop, ControllerClient* controller, const JobRoots* roots, SnapshotClient* snapshots,
           const RunFiles* files);
  ~AwayJobs();
  // Where lines for the user of a job go.
  void OnNotice(std::function<void(uint64_t job, const std::string& text)> notice) { notice_ = std::move(notice); }

  // A new job, whose root is frozen.
  void Begin(uint64_t job, std::unique_ptr<SnapshotClient::Sending> sending);
  // A job of an earlier home, which runs in this snapshot. `first`: as SnapshotClient::Send.
  void TakeUp(uint64_t job, const std::string& snapshot, const std::vector<std::string>& first);
  // Call when home has all that it will get of a job, and after a start for each job that is over.
  void Ended(uint64_t job);

  // nullopt: not an away job of this home.
  std::optional<v1::AwayState> State(uint64_t job) const;
  // Tells the client the state until nothing more is to be told, then ends the conversation.
  void Watch(uint64_t job, const std::shared_ptr<ClientConnection>& client);

 private:
  struct Job {
    std::string snapshot;
    std::unique_ptr<SnapshotClient::Sending> sending;  // null: complete, or not possible any more
    bool complete = false;
    bool over = false;
    bool told_lost = false;
    std::string problem;  // why it cannot be completed
    std::vector<std::shared_ptr<ClientConnection>> clients;
    int64_t told_us = 0;
  };
  void Listen(uint64_t job);
  void Changed(uint64_t job);
  void Completed(uint64_t job);
  void Tell(uint64_t job, bool always);
  void Remove(uint64_t job);
  void RemoveLater();

  EventLoop* const loop_;
  ControllerClient* const controller_;
  const JobRoots* const roots_;
  SnapshotClient* const snapshots_;
  const RunFiles* const files_;
  std::function<void(uint64_t, const std::string&)> notice_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<uint64_t, Job> jobs_;
  EventLoop::TimerId again_ = 0;
};

}  // namespace vrun::home
