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
// The owner of a job with a deadline has said something about its length: it is expected to be over by then. What part
// of the time until their deadlines jobs needed is learned like run times, per (team, user) and of all, and is asked of
// a program that was not seen yet, where it says more (has foretold better) than the group does. With none of them the
// job is ranked by what it was served so far, in levels that grow fourfold (multi-level feedback).
//
// Jobs of the narrowest group that were submitted together (a sweep, an array, a script's loop) are siblings: they run
// about equally long, far more so than others of the group. What ended tells of those that still wait; so does what has
// not ended yet: siblings of a job that has run for ten hours are not short. Bayes' rule, with the group as the prior:
// each sibling tells the truth with probability Policy::sibling_trust, else it is like any other of the group.
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
    int64_t late = 0;      // seconds: 90 of 100 such jobs end before
  };
  // What weights mean for one that has been served for a bin's time, found out when asked for.
  class Forecast {
   public:
    void Forget() { known_ = 0; }
    // REQUIRES weights that sum up to less than 2^32, the same ones since Forget.
    const Remaining& At(const Weights& weights, int bin);
    // The rank of one whose end is worth 1, and worth/1000 more within `left` seconds; of that, half if it could also
    // come in time after a pause, so that only `later` seconds are left.
    static int64_t RankWithin(const Weights& weights, int bin, int64_t left, int64_t later, int64_t worth);

   private:
    std::array<Remaining, kBins> rows_;
    uint64_t known_ = 0;  // bit mask of rows_
  };

  // Earlier runs fade so that all of them together weigh `kept` at most.
  void Add(Micros run, int64_t kept);
  int64_t samples() const { return total_ / kOne; }
  // How badly it foretold the last runs: bits for each, in 1/65536. The less, the more it says.
  int64_t surprise() const { return surprise_; }
  const Weights& weights() const { return weight_; }
  // For a job that has been served for a time of that bin; constant between its limits, so ranks do not flicker.
  // REQUIRES samples.
  const Remaining& At(int bin);
  int64_t RankWithin(int bin, int64_t left, int64_t later, int64_t worth) const {
    return Forecast::RankWithin(weight_, bin, left, later, worth);
  }

  static int BinOf(Micros t);
  static int64_t LowerSeconds(int bin);

 private:
  static constexpr int64_t kIgnorance = 6 << 16;  // any bin is as likely

  Weights weight_{};
  int64_t total_ = 0;
  int64_t surprise_ = kIgnorance;
  std::unique_ptr<Forecast> forecast_;  // only for groups that are asked: most have too few runs
};

// Jobs submitted together, and what they tell of each other.
class Siblings {
 public:
  int members() const { return members_; }
  void Join(Micros submitted) { ++members_, last_submission_ = submitted; }
  // Returns whether nobody is left.
  bool Leave() { return --members_ == 0; }
  Micros last_submission() const { return last_submission_; }

  void Ended(Micros run);
  // One of them has been served so long (a bin of Histogram) and has not ended.
  void Alive(int bin);
  // Whether there is anything to tell to one that has been served so long.
  bool Known(int bin) const { return ended_count_ > 0 || oldest_ > bin; }
  // `group` is what was known of such jobs before, `trust` is Policy::sibling_trust.
  const Histogram::Remaining& At(int bin, const Histogram& group, int64_t trust);
  // REQUIRES that At was called since anything changed.
  int64_t RankWithin(int bin, int64_t left, int64_t later, int64_t worth) const {
    return Histogram::Forecast::RankWithin(weights_, bin, left, later, worth);
  }

 private:
  static constexpr int kRemembered = 4;  // the last that ended
  void Weigh(const Histogram& group, int64_t trust);

  int members_ = 0;  // that have not left
  Micros last_submission_ = 0;
  std::array<int8_t, kRemembered> ended_{};  // bins, the latest overwrites the oldest
  int ended_count_ = 0;
  int oldest_ = 0;  // bin of the longest service that did not end
  // As of the last change here: what the group has learned since comes in with the next.
  Histogram::Weights weights_{};
  Histogram::Forecast forecast_;
  bool fresh_ = false;
};

class History {
 public:
  explicit History(const Policy& policy) : policy_(policy) {}

  struct Groups {
    std::array<uint32_t, 3> histograms{};  // from the narrowest to the widest
    std::array<uint32_t, 2> windows{};     // the same of run times in parts of `window`
    Micros window = 0;                     // from the submission to the deadline; 0: it has none
    uint32_t siblings = 0;
  };
  // The job counts as a sibling of those submitted around it, until it leaves.
  Groups Join(const JobSpec& job, Micros submitted);
  void Completed(const Groups& groups, Micros run);
  void Leave(const Groups& groups);

  struct Estimate {
    Log rank = 0;         // log2 of T * G^beta, seconds
    Micros service = 0;   // T: rank without the size
    Micros expected = 0;  // of the remaining run time
    Micros late = 0;      // 90 of 100 end before
    // 0..2: index into Groups::histograms; 3: its owner's estimate; 4: the service attained; 5: its siblings;
    // 6: what others have needed of the time until their deadlines
    uint8_t source = 0;
    uint32_t histogram = 0;  // of sources 0, 1, 2, 5 and 6
    bool seen = false;       // by runs of its own program (team, user, name, size)
  };
  // Also notes the time served, for the job's siblings.
  Estimate Remaining(const JobSpec& job, const Groups& groups, int64_t gpu_milli, Micros served);
  // log2 of how many times more it is worth since it may end within `left`, which is worth/1000 of the worth of its end
  // more; only half of that while it can also wait for as long as it runs. 0 when it has no chance: it is ranked as one
  // without a deadline. `estimate` is of the same job and service.
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
