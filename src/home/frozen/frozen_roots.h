// SPDX-License-Identifier: Apache-2.0
// The roots of jobs that see them as they were at submission (every view that is not live): their trees on home's disk,
// their content held (frozen_files.h), from the submission to the end of the job, over restarts of home.
//
// To freeze costs the submission nothing: the tree is written in the background. A home that dies before that has lost
// it, which Find says; a job that Begin was told of then fails.
//
// On disk, below the directory: jobs/JOB (proto/frozen.proto; empty: begun), jobs/JOB.wrote (paths, each ended by a
// NUL), store/ (the directories of all trees, each once), content/ (kept_content.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/io/event_loop.h"
#include "base/io/work_queue.h"
#include "base/result.h"
#include "home/frozen/frozen_files.h"
#include "home/root/snapshot_table.h"
#include "store/store.h"
#include "tree/tree.h"

namespace vrun::home {

class RootTree;

// The directory around `directory` that belongs together: up to the nearest one with a repository in it, else itself.
std::string ProjectOf(const tree::Snapshot& tree, const std::string& directory);

// Loop thread only, callbacks too; none runs after destruction.
class FrozenRoots {
 public:
  // None is owned; all outlive it. `directory` is made when the first root is frozen.
  FrozenRoots(EventLoop* loop, RootTree* tree, SnapshotTable* table, FrozenFiles* files, std::string directory);
  ~FrozenRoots();

  // After a start: what an earlier home has left. Blocks: 0.3 s for a tree of 300,000 names.
  void Recall();
  // Forgets those of Recall that are not among these (jobs that have not ended).
  void Retain(const std::set<uint64_t>& jobs);

  // False (VRUN_FREEZE=0, to measure what it costs): frozen views show the root as it is when an attempt starts.
  bool enabled() const { return enabled_; }
  // The job will see the tree that Add is going to tell. As durable as the file system makes a name.
  void Begin(uint64_t job);
  // Also of a job whose tree was lost with an earlier home.
  bool Begun(uint64_t job) const;
  // The job sees this tree from now on. `first`: as FrozenFiles::Freeze. `durable`: it will, also if home is killed
  // now, as far as the disk took it.
  void Add(uint64_t job, tree::SnapshotPtr tree, std::vector<std::string> exposed, std::vector<std::string> first,
           std::function<void()> durable = nullptr);
  // The same of a run that may be over in a moment, and then should have cost home nothing: what is first is held at
  // once, the rest after kHeldMicros, and the disk has the tree after kWrittenMicros.
  void AddShort(uint64_t job, tree::SnapshotPtr tree, std::vector<std::string> exposed, std::vector<std::string> first);
  struct Found {
    tree::SnapshotPtr tree;
    std::vector<std::string> exposed;
  };
  // kNotFound: there is none, or it was lost with an earlier home.
  Result<Found> Find(uint64_t job) const;
  bool Has(uint64_t job) const { return jobs_.contains(job); }

  // What an attempt wrote is at this path (in the root) at home now, or gone from it. Any thread.
  std::function<void(const std::string& path)> Recorder(uint64_t job);
  // The tree of the next attempt: the job's, with what its attempts have written as it is at home now. An error: as
  // for Find; the tree then stays as it was.
  void Next(uint64_t job, std::function<void(Result<tree::SnapshotPtr>)> done);

  void Forget(uint64_t job);

  struct Stats {
    size_t jobs = 0;
    FrozenFiles::Stats files;
  };
  Stats stats() const { return {jobs_.size(), files_->stats()}; }
  // Of one job, for people: "12345 files held"; "" when it has none.
  std::string Describe(uint64_t job) const;

 private:
  static constexpr int64_t kHeldMicros = 250'000, kWrittenMicros = 2'000'000;
  struct Job {
    tree::SnapshotPtr tree;
    std::vector<std::string> exposed;
    std::vector<std::string> first;
    SnapshotTable::Pin pin;
    FrozenFiles::HoldPtr hold;
    bool recalled = false;
  };
  std::string PathOf(uint64_t job) const { return directory_ + "/jobs/" + std::to_string(job); }
  void Hold(uint64_t job, tree::SnapshotPtr tree);
  void WriteLater(uint64_t job, std::function<void()> durable);
  // If the job has this tree still.
  void After(int64_t micros, uint64_t job, std::function<void()> done);
  Status RecallOne(uint64_t job);
  Result<tree::DirectoryPtr> LoadDirectory(const Digest& digest, int depth);
  // On the writer.
  Status OpenStore();
  Status Write(uint64_t job, const tree::Snapshot& tree, const std::string& record);
  void Sweep(const std::vector<tree::DirectoryPtr>& needed);

  EventLoop* const loop_;
  RootTree* const tree_;
  SnapshotTable* const table_;
  FrozenFiles* const files_;
  const std::string directory_;
  const bool enabled_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<uint64_t, Job> jobs_;
  std::vector<uint64_t> lost_;  // jobs of Recall whose trees are not there

  // The writer's own.
  std::unique_ptr<store::Store> store_;
  std::set<Digest> stored_;  // directories
  WorkQueue writer_{"frozen"};
};

}  // namespace vrun::home
