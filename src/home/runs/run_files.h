// SPDX-License-Identifier: Apache-2.0
// Runs whose output goes to files (vbatch): the files, and what a later home needs to continue with them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/io/stream_progress.h"
#include "base/result.h"
#include "base/secrets/secret_store.h"
#include "base/unique_fd.h"
#include "home/frozen/records.h"

namespace vrun::v1 {
class ExitRecord;
class Run;
}  // namespace vrun::v1

namespace vrun::home {

struct DetachedFiles {
  std::string stdout_path;  // as in Run: absolute in the root, with patterns; "": vrun-%j.out in `directory`
  std::string stderr_path;  // "": where stdout goes
  std::string directory;
  bool append = false;  // append to existing files
  std::vector<std::string> exposed;
};

// Replaces %j in `pattern` by the job, %4j by the same with leading zeros, %% by a percent sign; %N stays.
std::string ForJob(std::string_view pattern, uint64_t job);
// Where the output of an array's elements goes by default, in their directory.
inline constexpr const char* kElementOutput = "vrun-%A_%a.out";
// The files of an element: replaces %A by the array's id and %a by the index.
DetachedFiles ForElement(const DetachedFiles& files, uint64_t array, uint32_t index);
// A path contains %N, which is unknown until the job has a node.
bool NamesNode(const DetachedFiles& files);
void SetNode(std::string_view node, DetachedFiles* files);
// The files of a gang are one for each rank or node: a path contains %t, %n or %N.
bool NamesRank(const DetachedFiles& files);
struct RankNames {
  uint32_t rank = 0;
  uint32_t pod = 0;
  std::string node;
};
// Replaces %t by the rank, %n by the pod and %N by the node. %j stays.
std::string ForRank(std::string_view pattern, const RankNames& names);
// Where the streams of a job's present attempt begin in those of the job.
struct StreamBases {
  uint32_t attempt = 0;  // 0: unknown
  uint64_t out[2] = {0, 0};
  uint64_t in = 0;
};

struct DetachedStreams {
  UniqueFd in;  // /dev/null
  UniqueFd out;
  UniqueFd err;
  StreamProgressMap progress;
};
// Streams to /dev/null, for when no files can be opened.
Result<DetachedStreams> OpenNowhere();

class RunFiles {
 public:
  // `root`: the directory of this machine that is "/" of the jobs. `state_directory` is home's.
  RunFiles(std::string root, std::string state_directory)
      : root_(std::move(root)),
        state_directory_(std::move(state_directory)),
        records_(std::make_unique<Records>(Directory(), state_directory_ + "/runs.common")),
        traced_(std::make_unique<Records>(Directory(), state_directory_ + "/runs.traced")) {}

  const std::string& root() const { return root_; }
  SecretStore secrets() const { return SecretStore(state_directory_); }

  // Whether files that name their node could be created, as far as that can be known without it.
  Status CheckDetached(const DetachedFiles& files) const;
  // New files replace existing ones; the files of a run that has already written are continued.
  Result<DetachedStreams> OpenDetached(uint64_t job, const DetachedFiles& files) const;

  // The path of a rank's stdout, or of its stderr (`err`).
  std::string RankPath(uint64_t job, const DetachedFiles& files, const RankNames& names, bool err) const;
  // A file in the root, for appending. `fresh`: it is emptied first.
  Result<UniqueFd> OpenOutput(const std::string& path, bool fresh) const;

  // runs/JOB.merge: see gang/merge_journal.h. "" if there is no such directory.
  std::string MergeJournal(uint64_t job) const;
  // runs/JOB.ends: the records of a gang's pods that have ended, with all output and writes home.
  void RememberPodEnd(uint64_t job, const v1::ExitRecord& record) const;
  std::vector<v1::ExitRecord> RecallPodEnds(uint64_t job, uint32_t attempt) const;
  // Both files.
  void ForgetGang(uint64_t job) const;

  // runs/JOB. It survives the end of home, and a crash of the machine when SyncDetached has returned. `loose`: Sync
  // does not wait for it; an element of an array, of which its array tells again.
  Status RememberDetached(uint64_t job, const DetachedFiles& files, bool loose = false) const;
  // Blocks until all of them are on the disk. Any thread, one at a time.
  Status SyncDetached() const { return records_->Sync(); }
  // kNotFound: that job is no detached run of this home.
  Result<DetachedFiles> RecallDetached(uint64_t job) const;
  // All jobs for which RememberDetached was called.
  std::vector<uint64_t> RememberedDetached() const;
  // How far the files are written: runs/JOB.offsets. Best effort: too small an offset repeats bytes.
  void RememberOffsets(uint64_t job, uint64_t stdout_offset, uint64_t stderr_offset) const;
  void ForgetDetached(uint64_t job) const;

  // runs/JOB.attempt, of jobs that were started again.
  void RememberBases(uint64_t job, const StreamBases& bases) const;
  void ForgetBases(uint64_t job) const;
  StreamBases RecallBases(uint64_t job) const;

  // The part of the command that selects a run's trace, and whether its client wants the node's report:
  // runs/JOB.traced. Best effort: without it a run that a later home resumes is not traced.
  void RememberTraced(uint64_t job, const v1::Run& run) const;
  std::optional<v1::Run> RecallTraced(uint64_t job) const;  // the command as TracedPart, explain_io
  void ForgetTraced(uint64_t job) const;
  // Deletes it, and what belongs to gangs, for all jobs not in `jobs`: they ended while there was no home.
  void ForgetTracedBut(const std::set<uint64_t>& jobs) const;

  // runs/ARRAY.begun: the highest number of its elements that were begun. Best effort. 0: unknown.
  void RememberBegun(uint64_t array, uint64_t job) const;
  uint64_t RecallBegun(uint64_t array) const;
  // Everything that is known of the array, but not of its elements.
  void ForgetArray(uint64_t array) const;

  // runs/JOB.withheld: a job's writes are kept on its node because they could not be applied.
  void RememberWithheld(uint64_t job, uint64_t writes) const;
  bool IsWithheld(uint64_t job) const;
  void ForgetWithheld(uint64_t job) const;

  // runs/JOB.away: the snapshot of an away job, durable.
  struct Away {
    std::string snapshot;
    bool complete = false;  // all of it is in the pool's store
  };
  void RememberAway(uint64_t job, const Away& away) const;
  std::optional<Away> RecallAway(uint64_t job) const;
  std::vector<uint64_t> RememberedAway() const;
  void ForgetAway(uint64_t job) const;

  // apply/NAME: the journal of applying a job's writes.
  bool HasApplyJournal(const std::string& name) const;
  // Returns its path. "" if it cannot be created (a read-only or full state directory): then the journal is in memory.
  std::string MakeApplyJournal(const std::string& name) const;
  void ForgetApplyJournal(const std::string& name) const;

 private:
  std::string Directory() const { return state_directory_ + "/runs"; }
  std::string Path(uint64_t job) const { return Directory() + "/" + std::to_string(job); }
  std::string ApplyJournal(const std::string& name) const { return state_directory_ + "/apply/" + name; }
  std::string OnHost(const std::string& path) const { return root_ == "/" ? path : root_ + path; }

  const std::string root_;
  const std::string state_directory_;
  const std::unique_ptr<Records> records_, traced_;
};

}  // namespace vrun::home
