// SPDX-License-Identifier: Apache-2.0
// What run times teach: per group of recurring jobs a histogram of run times in steps of half an octave, older runs
// fading. From it the expected remaining time of a job that has run for a while, without any estimate of its owner.
//
// Two numbers, both per (group, time served):
//  - rank: the inverse Gittins index, min over D of E[min(X - a, D) | X > a] / P(X <= a + D | X > a): seconds of
//    service per completion if it is served for the best span from now on. The order that minimises mean completion
//    time when run times are only known as distributions.
//  - expected: E[X - a | X > a], for prices and forecasts.
// A group with few runs is not asked, the next larger is: (team, user, name, size), (team, user, size), (size).
// With none of them the job is ranked by what it was served so far, in levels that grow fourfold (multi-level
// feedback).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "sched/fixed.h"
#include "sched/policy.h"

namespace vrun::sched::core {

class Histogram {
 public:
  static constexpr int kBins = 48;  // half octaves of seconds: up to half a year
  struct Remaining {
    int64_t rank = 0;      // seconds, at least 1
    int64_t expected = 0;  // seconds, at least 1
    int64_t late = 0;      // seconds: 90 of 100 such jobs end before
  };

  // Earlier runs fade so that all of them together weigh `kept` at most.
  void Add(Micros run, int64_t kept);
  int64_t samples() const { return total_ / kOne; }
  // Constant between the limits of a bin, so ranks do not flicker.
  const Remaining& At(Micros served) const;

  static int BinOf(Micros t);
  static int64_t LowerSeconds(int bin);

 private:
  static constexpr int64_t kOne = 1 << 16;
  void Refresh() const;

  std::array<int32_t, kBins> weight_{};
  int64_t total_ = 0;
  // Only for groups that are asked: most have too few runs.
  mutable std::unique_ptr<std::array<Remaining, kBins>> table_;
  mutable bool fresh_ = false;
};

class History {
 public:
  explicit History(const Policy& policy) : policy_(policy) {}

  using Groups = std::array<uint32_t, 3>;  // from the narrowest to the widest
  Groups GroupsOf(const JobSpec& job);
  void Completed(const Groups& groups, Micros run);

  struct Estimate {
    Log rank = 0;         // log2 of T * G^beta, seconds
    Micros service = 0;   // T: rank without the size
    Micros expected = 0;  // of the remaining run time
    Micros late = 0;      // 90 of 100 end before
    uint8_t source = 0;   // 0..2: index into Groups; 3: its owner's estimate; 4: the service attained
  };
  Estimate Remaining(const JobSpec& job, const Groups& groups, int64_t gpu_milli, Micros served) const;

 private:
  const Policy& policy_;
  std::unordered_map<std::string, uint32_t> index_;
  std::deque<Histogram> histograms_;
};

}  // namespace vrun::sched::core
