// SPDX-License-Identifier: Apache-2.0
// Learns run times: per group of recurring jobs a histogram of run times in steps of half an octave, in which older
// runs fade. It gives the expected remaining time of a job that has run for a while, without an estimate by its owner.
//
// Two numbers, both per (group, time served):
//  - rank: the inverse Gittins index, min over D of E[min(X - a, D) | X > a] / P(X <= a + D | X > a): seconds of
//    service per completion if it is served for the best span from now on. The order that minimises mean completion
//    time when run times are only known as distributions.
//  - expected: E[X - a | X > a], for prices and forecasts.
// If a group has few runs, the next larger one is used: (team, user, name, size), (team, user, size), (size). A
// deadline also says something about a job's length: the job is expected to be over by then. The share of the time
// until their deadlines that jobs needed is learned like run times, per (team, user) and over all jobs. It is used for
// a program that has not run yet, if it predicts better than the group. Without any of these the job is ranked by its
// service so far, in levels that grow fourfold (multi-level feedback).
//
// Jobs of the narrowest group that were submitted together (a sweep, an array, a script's loop) are siblings: their run
// times are much more alike than those of others in the group. Ended siblings predict the waiting ones, and so do
// running ones: siblings of a job that has run for ten hours are not short. The method is Bayes' rule with the group as
// the prior: each sibling predicts truly with probability Policy::sibling_trust, else it is like any other of the
// group.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "sched/model/fixed.h"
#include "sched/model/policy.h"

namespace vrun::sched::core {

class Histogram {
 public:
  static constexpr int kBins = 48;  // half octaves of seconds: up to half a year
  static constexpr int64_t kOne = 1 << 16;
  using Weights = std::array<int64_t, kBins>;
  struct Remaining {
    int64_t rank = 0;      // seconds, at least 1
    int64_t expected = 0;  // seconds, at least 1
    int64_t late = 0;      // seconds: 90 of 100 such jobs end earlier
  };
  // What the weights predict after a bin's time of service; computed on demand.
  class Forecast {
   public:
    void Forget() { known_ = 0; }
    // REQUIRES weights with a sum below 2^32 that have not changed since Forget.
    const Remaining& At(const Weights& weights, int bin);
    // The rank of a job whose end is worth 1, plus worth/1000 if it ends within `left` seconds. Half of that extra
    // counts if the job could also end in time after a pause, with only `later` seconds left.
    static int64_t RankWithin(const Weights& weights, int bin, int64_t left, int64_t later, int64_t worth);

   private:
    std::array<Remaining, kBins> rows_;
    uint64_t known_ = 0;  // bit mask of rows_
  };

  // Adds a run. Earlier runs fade so that all of them together weigh at most `kept`.
  void Add(Micros run, int64_t kept);
  int64_t samples() const { return total_ / kOne; }
  // How badly the last runs were predicted: bits per run, in 1/65536. Less is better.
  int64_t surprise() const { return surprise_; }
  const Weights& weights() const { return weight_; }
  // For a job whose time served is in that bin. Constant within a bin, so that ranks do not flicker. REQUIRES samples.
  const Remaining& At(int bin);
  int64_t RankWithin(int bin, int64_t left, int64_t later, int64_t worth) const {
    return Forecast::RankWithin(weight_, bin, left, later, worth);
  }

  static int BinOf(Micros t);
  static int64_t LowerSeconds(int bin);

 private:
  static constexpr int64_t kIgnorance = 6 << 16;  // of a prediction in which all bins are equally likely

  Weights weight_{};
  int64_t total_ = 0;
  int64_t surprise_ = kIgnorance;
  std::unique_ptr<Forecast> forecast_;  // only for groups that are used: most have too few runs
};

// Jobs submitted together, and what they predict about each other.
class Siblings {
 public:
  int members() const { return members_; }
  void Join(Micros submitted) { ++members_, last_submission_ = submitted; }
  // Returns whether no member is left.
  bool Leave() { return --members_ == 0; }
  Micros last_submission() const { return last_submission_; }

  void Ended(Micros run);
  // A member has been served this long (a bin of Histogram) and has not ended.
  void Alive(int bin);
  // Whether there is a prediction for a member that has been served this long.
  bool Known(int bin) const { return ended_count_ > 0 || oldest_ > bin; }
  // `group` is the prior for such jobs, `trust` is Policy::sibling_trust.
  const Histogram::Remaining& At(int bin, const Histogram& group, int64_t trust);
  // REQUIRES that At was called since the last change.
  int64_t RankWithin(int bin, int64_t left, int64_t later, int64_t worth) const {
    return Histogram::Forecast::RankWithin(weights_, bin, left, later, worth);
  }

 private:
  static constexpr int kRemembered = 4;  // the last members that ended
  void Weigh(const Histogram& group, int64_t trust);

  int members_ = 0;  // that have not left
  Micros last_submission_ = 0;
  std::array<int8_t, kRemembered> ended_{};  // bins, the latest overwrites the oldest
  int ended_count_ = 0;
  int oldest_ = 0;  // bin of the longest service of a member that has not ended
  // As of the last change here. Later changes of the group are included at the next change.
  Histogram::Weights weights_{};
  Histogram::Forecast forecast_;
  bool fresh_ = false;
};

class History {
 public:
  explicit History(const Policy& policy) : policy_(policy) {}

  struct Groups {
    std::array<uint32_t, 3> histograms{};  // from the narrowest to the widest
    std::array<uint32_t, 2> windows{};     // like histograms, of run times as parts of `window`
    Micros window = 0;                     // from the submission to the deadline; 0: no deadline
    uint32_t siblings = 0;
  };
  // Counts the job as a sibling of those submitted around it, until Leave.
  Groups Join(const JobSpec& job, Micros submitted);
  void Completed(const Groups& groups, Micros run);
  void Leave(const Groups& groups);

  struct Estimate {
    Log rank = 0;         // log2 of T * G^beta, seconds
    Micros service = 0;   // T: rank without the size
    Micros expected = 0;  // remaining run time
    Micros late = 0;      // 90 of 100 such jobs end earlier
    // 0..2: index into Groups::histograms; 3: the owner's estimate; 4: the service attained; 5: its siblings; 6: what
    // others needed of the time until their deadlines
    uint8_t source = 0;
    uint32_t histogram = 0;  // of sources 0, 1, 2, 5 and 6
    bool seen = false;       // its own program (team, user, name, size) has run before
  };
  // Also records the time served, for the job's siblings.
  Estimate Remaining(const JobSpec& job, const Groups& groups, int64_t gpu_milli, Micros served);
  // log2 of the factor by which the job is worth more because it may end within `left`. Ending in time adds worth/1000
  // of the worth of its end, but only half of that while the job can still wait for as long as it runs. 0 when it has
  // no chance: it is ranked as a job without a deadline. `estimate` belongs to the same job and service.
  Log ForDeadline(const Groups& groups, const Estimate& estimate, Micros served, Micros left, int64_t worth) const;

 private:
  uint32_t IndexOf(const std::string& key);

  const Policy& policy_;
  std::unordered_map<std::string, uint32_t> index_;
  std::deque<Histogram> histograms_;
  std::unordered_map<uint32_t, uint32_t> youngest_;  // narrowest group -> its latest siblings
  std::deque<Siblings> siblings_;
  std::vector<uint32_t> free_siblings_;
};

}  // namespace vrun::sched::core
