// SPDX-License-Identifier: Apache-2.0
// Traces of gang jobs: when each arrived, on how many GPUs, and how long it ran. Converts text to tables, no I/O.
//
// Formats, recognized by their header:
//   ITP      job_id,submission_time,duration,num_gpu[,...,deadline]   seconds; the deadline is absolute
//   Philly   timestamp,duration,num_gpus,...,cluster                  "YYYY-MM-DD hh:mm:ss", seconds; cluster = team;
//            the output of `vctl accounting` has this format, with gpu_type. The history of a cluster
//            (src/history) has more columns: pods, pool, class, kind, deadline_s (after the submission), limit_s,
//            fixed (1: cannot be preempted), and what happened: wait_s, held_s, preemptions
//   Chronus  job_id,user,num_gpu,submit_time,duration,expect_time_list,expect_value_list,best_effort,...
//            minutes; deadlines relative to the submission, '-' between several, with the value of meeting each
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/replay/csv.h"

namespace vrun::sim {

inline constexpr int64_t kMicrosPerSecond = 1'000'000;

// Ending within `after_us` of the submission is worth `value`.
struct Deadline {
  int64_t after_us = 0;
  int64_t value = 1;
};

// What a job went through in reality.
struct Happened {
  int64_t waited_us = -1;  // from submission to end, without its useful run time; -1: not known, or it has not ended
  int64_t held_us = 0;     // time with GPUs
  int32_t preemptions = 0;
};

struct TraceJob {
  int64_t submit_us = 0;            // since the first submission of the trace
  int64_t duration_us = 0;          // run time on `gpus` GPUs, undisturbed; at least 1
  int32_t gpus = 0;                 // at least 1, all or nothing
  int32_t gpu_type = -1;            // index into JobTrace::gpu_types; -1: not said
  int32_t team = -1;                // index into JobTrace::teams; -1: the format has none
  std::vector<Deadline> deadlines;  // earliest first, none: best effort
  // What only a history says; a policy may look at it.
  int32_t pods = 0;      // equal ones, which share `gpus` evenly; 0: not said
  int32_t pool = -1;     // index into JobTrace::pools; -1: not said
  int32_t klass = -1;    // as sched::core::Class; -1: not said
  int32_t kind = -1;     // recurring work of one user has the same; -1: not said
  int64_t limit_us = 0;  // of its run time; 0: none
  bool preemptible = true;
  Happened happened;
};

struct JobTrace {
  std::vector<TraceJob> jobs;  // by submit_us; jobs with equal times in the order of the text
  std::vector<std::string> teams;
  std::vector<std::string> gpu_types;
  std::vector<std::string> pools;
  int64_t without_gpus = 0;  // jobs that ask for no GPU, which are left out
  int64_t origin_us = 0;     // wall time (UTC, since 1970) of the first submission; 0: the format has no dates
};

// kInvalid with file and line. A trace without jobs is an error.
Result<JobTrace> ReadJobTrace(const Csv& csv);

// The jobs submitted in [from, until); `from` becomes time 0. Microseconds on the trace's clock.
JobTrace Window(const JobTrace& trace, int64_t from_us, int64_t until_us);

// The same arrivals with another starting point: those before `offset_us` move behind the last one, as if the trace
// were repeated forever and observed from `offset_us` on. 0 <= offset_us.
JobTrace ShiftArrivals(const JobTrace& trace, int64_t offset_us);

// Microseconds since 1970 of "YYYY-MM-DD[ hh:mm:ss]", UTC.
Result<int64_t> ParseDate(std::string_view text);

}  // namespace vrun::sim
