// SPDX-License-Identifier: Apache-2.0
// The roots of jobs that see home's files as they were at submission (every view that is not live). Stores their trees
// on home's disk and holds their content (frozen_files.h), from submission to the end of the job, across restarts of
// home.
//
// Freezing does not block the loop: the tree is written in the background, for many jobs at a time. If home dies before
// that, the tree is lost and Find reports it; a job for which Begin was called then fails.
//
// On disk, below the directory: jobs/JOB (proto/frozen.proto; empty: begun), common and begun (further names of the
// latest of these), jobs/JOB.wrote
// (NUL-terminated paths), store/ (the directories of all trees, each once), content/ (kept_content.h).
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
#include "base/thread/mutex.h"
#include "home/frozen/frozen_files.h"
#include "home/frozen/records.h"
#include "home/root/tree_table.h"
#include "store/store.h"
#include "tree/tree.h"

namespace vrun::home {

class RootTree;

// The project that contains `directory`: the nearest parent with a repository in it, else `directory` itself.
std::string ProjectOf(const tree::Tree& tree, const std::string& directory);

// Loop thread only, callbacks too; none runs after destruction.
class FrozenRoots {
 public:
  // None is owned; all outlive it. `directory` is created when the first root is frozen.
  FrozenRoots(EventLoop* loop, RootTree* tree, TreeTable* table, FrozenFiles* files, std::string directory);
  ~FrozenRoots();

  // Call after a start: loads what an earlier home left. Blocks: 0.3 s for a tree of 300,000 names.
  void Recall();
  // Forgets recalled jobs that are not in `jobs` (the jobs that have not ended).
  void Retain(const std::set<uint64_t>& jobs);

  // False (VRUN_FREEZE=0, for measurements): frozen views show the root as it is when an attempt starts.
  bool enabled() const { return enabled_; }
  // Announces that Add will give this job a tree. As durable as the file system makes a new name.
  void Begin(uint64_t job);
  // A job will be added with these soon: what it needs on disk is written already, while the controller is asked.
  void Prepare(tree::TreePtr tree, const std::vector<std::string>& exposed, const std::vector<std::string>& first);
  // Also true for a job whose tree was lost with an earlier home.
  bool Begun(uint64_t job) const;
  // Home has appended to a file. Any thread.
  void Grew(const struct stat& before, const struct stat& after) { files_->grown().Grew(before, after); }
  // Gives the job its tree. `first`: see FrozenFiles::Freeze. `durable` is called when the tree is on disk and so
  // survives a kill of home (if the disk accepted it).
  void Add(uint64_t job, tree::TreePtr tree, std::vector<std::string> exposed, std::vector<std::string> first,
           std::function<void()> durable = nullptr);
  // The same for a run that may end at once and then should cost home nothing: `first` is held at once, the rest after
  // kHeldMicros, and the tree is written to disk after kWrittenMicros.
  void AddShort(uint64_t job, tree::TreePtr tree, std::vector<std::string> exposed, std::vector<std::string> first);
  // Gives the job the tree of `from`, which has one: an element of an array. Both share what is held for it.
  void Share(uint64_t job, uint64_t from);
  struct Found {
    tree::TreePtr tree;
    std::vector<std::string> exposed;
  };
  // kNotFound: there is none, or it was lost with an earlier home.
  Result<Found> Find(uint64_t job) const;
  bool Has(uint64_t job) const { return jobs_.contains(job); }

  // Returns a function that records that home now has at `path` (in the root) what an attempt wrote, or that an attempt
  // removed it. Any thread.
  std::function<void(const std::string& path)> Recorder(uint64_t job);
  // Makes the tree of the next attempt: the job's tree plus what its attempts have written, as home has it now. Errors:
  // as Find; the tree then stays unchanged.
  void Next(uint64_t job, std::function<void(Result<tree::TreePtr>)> done);

  void Forget(uint64_t job);

  struct Stats {
    size_t jobs = 0;
    FrozenFiles::Stats files;
  };
  Stats stats() const { return {jobs_.size(), files_->stats()}; }
  // For people: "12345 files held"; "" if the job has none.
  std::string Describe(uint64_t job) const;

 private:
  static constexpr int64_t kHeldMicros = 250'000, kWrittenMicros = 2'000'000, kSweepMicros = 2'000'000;
  struct Job {
    tree::TreePtr tree;
    std::vector<std::string> exposed;
    std::vector<std::string> first;
    TreeTable::Pin pin;
    FrozenFiles::HoldPtr hold;
    bool recalled = false;
  };
  std::string PathOf(uint64_t job) const { return directory_ + "/jobs/" + std::to_string(job); }
  void Hold(uint64_t job, tree::TreePtr tree);
  void SetTree(uint64_t job, tree::TreePtr tree);
  void WriteLater(uint64_t job, std::function<void()> durable);
  // What is to be on disk. Many are written together, since the disk is what costs.
  struct Unwritten {
    uint64_t job = 0;  // 0: there is none yet
    tree::TreePtr tree;
    std::string record;
    std::function<void(const Status& written)> written;  // on the writer; null: a failure is logged
    std::function<void()> done;                          // on the loop; may be null
  };
  void Write(Unwritten unwritten);
  // Runs `done` only if the job still has this tree.
  void After(int64_t micros, uint64_t job, std::function<void()> done);
  void SweepLater();
  Status RecallOne(uint64_t job);
  Result<tree::DirectoryPtr> LoadDirectory(const Digest& digest, int depth);
  // On the writer.
  Status OpenStore();
  Status PutTree(const tree::Tree& tree);
  void WriteAllUnwritten();
  void Sweep();

  EventLoop* const loop_;
  RootTree* const tree_;
  TreeTable* const table_;
  FrozenFiles* const files_;
  const std::string directory_;
  const bool enabled_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<uint64_t, Job> jobs_;
  std::vector<uint64_t> lost_;                   // recalled jobs whose trees are missing
  std::map<Digest, tree::DirectoryPtr> loaded_;  // during Recall: jobs have much in common, elements of an array all

  EventLoop::TimerId sweep_ = 0;
  Mutex mutex_;
  std::map<uint64_t, tree::DirectoryPtr> live_ VRUN_GUARDED_BY(mutex_);  // the trees of jobs_
  std::vector<Unwritten> unwritten_ VRUN_GUARDED_BY(mutex_);
  Records records_;

  // Used by the writer only.
  std::unique_ptr<store::Store> store_;
  std::set<Digest> stored_;  // directories
  bool synced_ = false;      // all of them are on disk
  // The latest tree stays in the store when its jobs are over: the next one has mostly the same directories.
  tree::DirectoryPtr latest_;
  WorkQueue writer_{"frozen"};
};

}  // namespace vrun::home
