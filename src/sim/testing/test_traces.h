// SPDX-License-Identifier: Apache-2.0
// Traces for tests: written by hand, or random with a seed.
#pragma once

#include <initializer_list>
#include <iterator>
#include <random>

#include "sim/replay/job_trace.h"

namespace vrun::sim {

struct Spec {
  int64_t submit_s;
  int64_t duration_s;
  int32_t gpus;
};

inline JobTrace MakeTrace(std::initializer_list<Spec> specs) {
  JobTrace trace;
  for (const Spec& s : specs) {
    TraceJob job;
    job.submit_us = s.submit_s * kMicrosPerSecond;
    job.duration_us = s.duration_s * kMicrosPerSecond;
    job.gpus = s.gpus;
    trace.jobs.push_back(job);
  }
  return trace;
}

// Like real gang traces: mostly one GPU, some whole nodes, few large gangs.
inline JobTrace RandomTrace(uint32_t seed, size_t jobs) {
  std::mt19937 random(seed);
  constexpr int32_t kSizes[] = {1, 1, 1, 1, 2, 4, 8, 8, 12, 16, 32};
  JobTrace trace;
  int64_t at = 0;
  for (size_t i = 0; i < jobs; ++i) {
    TraceJob job;
    at += random() % 400 * kMicrosPerSecond;
    job.submit_us = at;
    job.duration_us = (1 + random() % (random() % 8 == 0 ? 20000 : 1000)) * kMicrosPerSecond;
    job.gpus = kSizes[random() % std::size(kSizes)];
    trace.jobs.push_back(job);
  }
  return trace;
}

}  // namespace vrun::sim
