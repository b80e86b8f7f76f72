// SPDX-License-Identifier: Apache-2.0
// Turns a Run into a job: makes the tree current and asks the controller at the same time, and waits for both.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/io/event_loop.h"
#include "base/result.h"
#include "home/runs/snapshot_client.h"
#include "proto/control.pb.h"
#include "proto/local.pb.h"
#include "tree/tree.h"

namespace vrun::home {

class ControllerClient;
class RootTree;

// Loop thread only. Owned by a shared_ptr. After Abandon no callback runs, and a job that was made is cancelled.
class Launch : public std::enable_shared_from_this<Launch> {
 public:
  struct Events {
    std::function<void(uint64_t job)> on_accepted;  // the job exists durably
    std::function<void(std::string text)> on_progress;
    std::function<void(std::string text)> on_notice;  // before on_accepted
    // The root that the job will see, perhaps before there is a job.
    std::function<void(const tree::TreePtr&)> on_tree;
    // Paths that a live run uses. They are looked at first, if home has not read all of the root yet.
    std::function<std::vector<std::string>()> uses;
    // The files of an away job that are sent first.
    std::function<std::vector<std::string>(const tree::TreePtr&)> goes_first;
    // The root that the job sees: a tree of home, or null for the snapshot. Of an away job both: the snapshot is made
    // of that tree.
    std::function<void(std::optional<v1::Placement>, tree::TreePtr, const v1::SubmitRequest&)> on_ready;
    std::function<void(Error)> on_failed;  // there is no job, or it was cancelled
  };

  // Defaults for what a run does not specify.
  struct Defaults {
    std::string pool;
    bool live = false;  // a live view
  };

  Launch(EventLoop* loop, ControllerClient* controller, RootTree* tree, SnapshotClient* snapshots,
         const Defaults& defaults, const v1::Run& run, Events events);
  ~Launch();
  // Requests the barrier in this call: everything written before is in the tree.
  void Start();
  void Abandon(int signal);
  // No callback runs any more; a job that exists or will exist stays.
  void Forget();
  // The snapshot of an away job, which is being made.
  std::unique_ptr<SnapshotClient::Sending> TakeSending() { return std::move(sending_); }
  bool live() const { return request_.spec().live_view(); }  // its root will be a live view

 private:
  void Submit();
  void OnSubmitted(Result<v1::SubmitReply> reply);
  void OnTree(Result<tree::TreePtr> tree);
  void TellScan();
  void OnSnapshot(Result<v1::SnapshotReference> snapshot);
  void Announce();
  void MaybeReady();
  void Fail(Error error);

  EventLoop* const loop_;
  ControllerClient* const controller_;
  RootTree* const root_;
  SnapshotClient* const snapshots_;
  Events events_;
  v1::SubmitRequest request_;
  std::vector<std::string> exposed_;
  bool submitting_ = false;
  bool abandoned_ = false;
  bool forgotten_ = false;
  int signal_ = 0;
  int64_t first_try_us_ = 0;
  EventLoop::TimerId retry_ = 0;
  EventLoop::TimerId scan_note_ = 0;
  std::optional<v1::SubmitReply> reply_;
  tree::TreePtr tree_;
  std::unique_ptr<SnapshotClient::Sending> sending_;
  const std::string snapshot_;  // name; "": the root as it is
};

}  // namespace vrun::home
