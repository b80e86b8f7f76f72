// SPDX-License-Identifier: Apache-2.0
// Runs whose output goes to files (vbatch): the files, and what a later home has to know to go on with them.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/stream_progress.h"
#include "base/unique_fd.h"
#include "home/services.h"

namespace vrun::v1 {
class Run;
}

namespace vrun::home {

struct DetachedFiles {
  std::string stdout_path;  // as in Run: absolute in the root, with patterns; "": vrun-%j.out in `directory`
  std::string stderr_path;  // "": where stdout goes
  std::string directory;
  bool append = false;  // what the files have stays
  std::vector<std::string> exposed;
};

// %j in `pattern` becomes the job, %4j the same with zeros in front, %% a percent sign; %N stays.
std::string ForJob(std::string_view pattern, uint64_t job);
// A path has %N, which nobody knows before the job has a node.
bool NamesNode(const DetachedFiles& files);
void SetNode(std::string_view node, DetachedFiles* files);
// Whether files that name their node could be made, as far as that can be known without it.
Status CheckDetached(const Services& services, const DetachedFiles& files);

// STATE/runs/JOB, durable.
Status RememberDetached(const Services& services, uint64_t job, const DetachedFiles& files);
// kNotFound: that job is no detached run of this home.
Result<DetachedFiles> RecallDetached(const Services& services, uint64_t job);
// All jobs of which that is remembered.
std::vector<uint64_t> RememberedDetached(const Services& services);
// How far the files are written: STATE/runs/JOB.offsets. Best effort: too small an offset repeats bytes.
void RememberOffsets(const Services& services, uint64_t job, uint64_t stdout_offset, uint64_t stderr_offset);
void ForgetDetached(const Services& services, uint64_t job);

// Where the streams of a job's present attempt begin in those of the job. STATE/runs/JOB.attempt, of jobs that were
// started again.
struct StreamBases {
  uint32_t attempt = 0;  // 0: none is known
  uint64_t out[2] = {0, 0};
  uint64_t in = 0;
};
void RememberBases(const Services& services, uint64_t job, const StreamBases& bases);
void ForgetBases(const Services& services, uint64_t job);
StreamBases RecallBases(const Services& services, uint64_t job);

// What a run is traced by, and whether its client wants the node's report: STATE/runs/JOB.traced. Best effort: without
// it a run that a later home takes up is not traced.
void RememberTraced(const Services& services, uint64_t job, const v1::Run& run);
std::optional<v1::Run> RecallTraced(const Services& services, uint64_t job);  // the command as TracedPart, explain_io
void ForgetTraced(const Services& services, uint64_t job);
// Of all jobs that are not among these: they ended while there was no home.
void ForgetTracedBut(const Services& services, const std::set<uint64_t>& jobs);

struct DetachedStreams {
  UniqueFd in;  // /dev/null
  UniqueFd out;
  UniqueFd err;
  StreamProgressMap progress;
};
// New files replace what is there; files of a run that has written already are gone on with.
Result<DetachedStreams> OpenDetached(const Services& services, uint64_t job, const DetachedFiles& files);
// Streams that go nowhere, where there are no files to be had.
Result<DetachedStreams> OpenNowhere();

}  // namespace vrun::home
