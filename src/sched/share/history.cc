// SPDX-License-Identifier: Apache-2.0
#include "sched/share/history.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <numeric>

namespace vrun::sched::core {

namespace {
constexpr int64_t kJudgedRuns = 32;  // runs over which `surprise_` is averaged
}

int Histogram::BinOf(Micros t) {
  auto seconds = static_cast<uint64_t>(std::max<Micros>(t / kSecond, 1));
  return std::min<int>(Log2(seconds * seconds) >> 16, kBins - 1);  // 2 * log2, rounded down
}

int64_t Histogram::LowerSeconds(int bin) { return bin == 0 ? 0 : Exp2Milli(bin * (kLogOne / 2)) / 1000; }

void Histogram::Add(Micros run, int64_t kept) {
  // Scored by the prediction before this run: a small group of jobs that happen to be alike has predicted nothing yet.
  const int64_t bits = Log2(static_cast<uint64_t>(total_ + kBins * kOne / 4)) -
                       Log2(static_cast<uint64_t>(weight_[BinOf(run)] + kOne / 4));
  surprise_ += (bits - surprise_) / kJudgedRuns;
  if (total_ >= kept * kOne) {
    total_ = 0;
    for (int64_t& w : weight_) {
      w -= w / kept;
      total_ += w;
    }
  }
  weight_[BinOf(run)] += kOne;
  total_ += kOne;
  if (forecast_ != nullptr) forecast_->Forget();
}

const Histogram::Remaining& Histogram::At(int bin) {
  if (forecast_ == nullptr) forecast_ = std::make_unique<Forecast>();
  return forecast_->At(weight_, bin);
}

// For an age at the beginning of the bin. Runs of a bin are assumed to end at its middle; runs of the bin of the age
// itself, half a bin from now.
const Histogram::Remaining& Histogram::Forecast::At(const Weights& weights, int b) {
  static const std::array<int64_t, kBins + 1> kLower = [] {
    std::array<int64_t, kBins + 1> lower;
    for (int i = 0; i <= kBins; ++i) lower[i] = LowerSeconds(std::min(i, kBins - 1));
    return lower;
  }();
  Remaining& r = rows_[b];
  if (known_ >> b & 1) return r;
  known_ |= uint64_t{1} << b;
  const int64_t age = kLower[b];
  const int64_t alive = std::accumulate(weights.begin() + b, weights.end(), int64_t{0});
  if (alive == 0) {
    // Older than all known runs: assume that it takes as long again as it has already run.
    return r = {std::max<int64_t>(age, 1), std::max<int64_t>(age, 1), std::max<int64_t>(4 * age, 1)};
  }
  int64_t ended = 0, spent = 0;
  r = {INT64_MAX, 0, 0};
  for (int i = b; i < kBins; ++i) {
    if (weights[i] == 0) continue;  // no run ends here, so the moment before is as good
    const int64_t wait = std::max<int64_t>((kLower[i] + kLower[i + 1]) / 2 - age, 1);
    ended += weights[i];
    spent += weights[i] * wait;
    r.rank = std::min(r.rank, (spent + (alive - ended) * wait) / ended);
    if (r.late == 0 && ended * 10 >= alive * 9) r.late = kLower[i + 1] - age;
  }
  r.rank = std::max<int64_t>(r.rank, 1);
  r.expected = std::max<int64_t>(spent / alive, 1);
  r.late = std::max<int64_t>(r.late, 1);
  return r;
}

int64_t Histogram::Forecast::RankWithin(const Weights& weights, int b, int64_t left, int64_t later, int64_t worth) {
  const int64_t age = LowerSeconds(b);
  const int64_t alive = std::accumulate(weights.begin() + b, weights.end(), int64_t{0});
  if (alive == 0) return INT64_MAX;
  int64_t ended = 0, in_time = 0, also_later = 0, spent = 0, best = INT64_MAX;
  int64_t lower = age;
  for (int i = b; i < kBins; ++i) {
    const int64_t upper = LowerSeconds(std::min(i + 1, kBins - 1));
    const int64_t wait = std::max<int64_t>((lower + upper) / 2 - age, 1);
    lower = upper;
    if (weights[i] == 0) continue;
    ended += weights[i];
    if (wait <= left) in_time = ended;
    if (wait <= later) also_later = ended;
    spent += weights[i] * wait;
    const __int128 value =
        static_cast<__int128>(ended) * 1000 + static_cast<__int128>(2 * in_time - also_later) * worth / 2;
    best = std::min(
        best, static_cast<int64_t>((static_cast<__int128>(spent) + static_cast<__int128>(alive - ended) * wait) * 1000 /
                                   value));
  }
  return std::max<int64_t>(best, 1);
}

// --- siblings ---

namespace {
// Parts of a window are counted as seconds of a window of this length.
constexpr int64_t kWindowSeconds = 1 << 16;
constexpr int64_t kEveryWindow = kWindowSeconds * kSecond;

Micros InWindow(Micros t, Micros window) {
  return static_cast<Micros>(static_cast<__int128>(t) * kEveryWindow / window);
}
Micros OfWindow(Micros t, Micros window) {
  return static_cast<Micros>(static_cast<__int128>(t) * window / kEveryWindow);
}

constexpr int64_t kSure = 1 << 16;  // probability 1
// Distance in bins between the run times of siblings: about normal, sigma 0.4 of the natural logarithm.
constexpr int64_t kAlike[] = {23593, 13763, 5243, 1311, 393, 131};
constexpr int kAlikeBins = static_cast<int>(std::size(kAlike));

// Scales the sum to 2^30: leaves room for products, with enough digits.
void Normalize(Histogram::Weights* weights) {
  auto sum = static_cast<unsigned __int128>(1);
  for (int64_t w : *weights) sum += static_cast<unsigned __int128>(w);
  for (int64_t& w : *weights) {
    w = static_cast<int64_t>((static_cast<unsigned __int128>(w) << 30) / sum);
  }
}
}  // namespace

void Siblings::Ended(Micros run) {
  const int bin = Histogram::BinOf(run);
  ended_[ended_count_ % kRemembered] = static_cast<int8_t>(bin);
  ++ended_count_;
  // The ended job may have been the oldest. The living ones are reported again soon.
  if (bin >= oldest_) oldest_ = 0;
  fresh_ = false;
}

void Siblings::Alive(int bin) {
  if (bin <= oldest_) return;
  oldest_ = bin;
  fresh_ = false;
}

const Histogram::Remaining& Siblings::At(int bin, const Histogram& group, int64_t trust) {
  if (!fresh_) Weigh(group, trust);
  fresh_ = true;
  return forecast_.At(weights_, bin);
}

void Siblings::Weigh(const Histogram& group, int64_t trust) {
  Histogram::Weights weights = group.weights();
  for (int64_t& w : weights) w += Histogram::kOne / 50;  // nothing is impossible
  Normalize(&weights);
  const Histogram::Weights prior = weights;
  const int64_t truth = trust * kSure / 1000, chance = kSure - truth;
  for (int i = 0; i < std::min(ended_count_, kRemembered); ++i) {
    for (int b = 0; b < Histogram::kBins; ++b) {
      const int apart = std::abs(b - ended_[i]);
      const int64_t alike = apart < kAlikeBins ? kAlike[apart] : 0;
      weights[b] = (weights[b] * ((truth * alike >> 16) + (chance * prior[ended_[i]] >> 30))) >> 16;
    }
    Normalize(&weights);
  }
  if (oldest_ > 0) {
    int64_t survive = 0;  // fraction of the group that runs that long
    for (int b = oldest_; b < Histogram::kBins; ++b) survive += prior[b];
    for (int b = 0; b < Histogram::kBins; ++b) {
      weights[b] = (weights[b] * ((b >= oldest_ ? truth : 0) + (chance * survive >> 30))) >> 16;
    }
    Normalize(&weights);
  }
  weights_ = weights;
  forecast_.Forget();
}

// --- history ---

History::Groups History::Join(const JobSpec& job, Micros submitted) {
  int64_t milli = 0;
  for (const Role& r : job.roles) milli += int64_t{r.pods} * r.request.total_milli();
  std::string size = std::to_string(std::bit_width(static_cast<uint64_t>(milli)));
  const std::string wide = size + '\n';
  const std::string middle = wide + job.team + '\n' + job.user + '\n';
  Groups groups;
  groups.histograms = {IndexOf(middle + job.name), IndexOf(middle), IndexOf(wide)};
  const Micros deadline =
      job.deadline_steps.empty() ? job.deadline : std::max(job.deadline, job.deadline_steps.back().at);
  if (const Micros from = std::max(submitted, job.begin_after); deadline > from) {
    groups.window = deadline - from;
    groups.windows = {IndexOf("deadline\n" + job.team + '\n' + job.user), IndexOf("deadline")};
  }
  auto [it, fresh] = youngest_.try_emplace(groups.histograms[0], 0);
  if (fresh || submitted - siblings_[it->second].last_submission() > policy_.sibling_gap) {
    it->second = static_cast<uint32_t>(siblings_.size());
    if (free_siblings_.empty()) {
      siblings_.emplace_back();
    } else {
      it->second = free_siblings_.back();
      free_siblings_.pop_back();
    }
  }
  groups.siblings = it->second;
  siblings_[groups.siblings].Join(submitted);
  return groups;
}

uint32_t History::IndexOf(const std::string& key) {
  auto [it, fresh] = index_.try_emplace(key, static_cast<uint32_t>(histograms_.size()));
  if (fresh) histograms_.emplace_back();
  return it->second;
}

void History::Completed(const Groups& groups, Micros run) {
  if (groups.window > 0) {
    for (uint32_t g : groups.windows) histograms_[g].Add(InWindow(run, groups.window), policy_.history_samples_kept);
  }
  for (uint32_t g : groups.histograms) histograms_[g].Add(run, policy_.history_samples_kept);
  siblings_[groups.siblings].Ended(run);
}

void History::Leave(const Groups& groups) {
  if (!siblings_[groups.siblings].Leave()) return;
  auto it = youngest_.find(groups.histograms[0]);
  if (it != youngest_.end() && it->second == groups.siblings) youngest_.erase(it);
  siblings_[groups.siblings] = {};
  free_siblings_.push_back(groups.siblings);
}

History::Estimate History::Remaining(const JobSpec& job, const Groups& groups, int64_t gpu_milli, Micros served) {
  const auto gpus = static_cast<uint64_t>(std::max<int64_t>(gpu_milli, 1));
  const auto size = static_cast<Log>((Log2(gpus) - Log2(kMilli)) * policy_.beta / 1000);  // log2 of G^beta
  auto seconds = [](Micros t) { return static_cast<uint64_t>(std::max<Micros>(t / kSecond, 1)); };
  const auto from = [&](const Histogram::Remaining& r, uint8_t source, uint32_t histogram) {
    return Estimate{Log2(static_cast<uint64_t>(r.rank)) + size,
                    r.rank * kSecond,
                    r.expected * kSecond,
                    r.late * kSecond,
                    source,
                    histogram};
  };
  Siblings& siblings = siblings_[groups.siblings];
  const int bin = Histogram::BinOf(served);
  siblings.Alive(bin);
  const auto knows = [&](uint32_t g) { return histograms_[g].samples() >= policy_.history_min_samples; };
  const auto ask = [&](uint8_t i) {
    const uint32_t g = groups.histograms[i];
    Estimate estimate = siblings.Known(bin) ? from(siblings.At(bin, histograms_[g], policy_.sibling_trust), 5, g)
                                            : from(histograms_[g].At(bin), i, g);
    estimate.seen = i == 0 && !job.name.empty();
    return estimate;
  };
  if (!job.name.empty() && knows(groups.histograms[0])) return ask(0);
  const auto plain = std::find_if(groups.histograms.begin(), groups.histograms.end(), knows);
  const auto part = std::find_if(groups.windows.begin(), groups.windows.end(), knows);
  const bool by_part =
      groups.window > 0 && part != groups.windows.end() &&
      (plain == groups.histograms.end() || histograms_[*part].surprise() < histograms_[*plain].surprise());
  if (by_part) {
    Estimate estimate = from(histograms_[*part].At(Histogram::BinOf(InWindow(served, groups.window))), 6, *part);
    for (Micros* t : {&estimate.service, &estimate.expected, &estimate.late}) {
      *t = std::max(OfWindow(*t, groups.window), kSecond);
    }
    estimate.rank = Log2(seconds(estimate.service)) + size;
    return estimate;
  }
  if (plain != groups.histograms.end()) return ask(static_cast<uint8_t>(plain - groups.histograms.begin()));
  if (job.estimate > 0) {
    // A job that outlives its estimate is expected to need as much again as it is late, not nothing.
    Micros left = std::max({job.estimate - served, served - job.estimate, job.estimate / 16});
    return {Log2(seconds(left)) + size, left, left, left * 2, 3};
  }
  // The service attained, in the unit of rank, rounded up to the end of its level.
  Log attained = Log2(seconds(served)) + size;
  Log level = Log2(seconds(policy_.level_base));
  while (level < attained) level += 2 * kLogOne;
  Micros expected = std::max(served, policy_.level_base);
  return {level, Exp2Milli(level - size) * (kSecond / 1000), expected, expected * 4, 4};
}

Log History::ForDeadline(const Groups& groups, const Estimate& estimate, Micros served, Micros left,
                         int64_t worth) const {
  if (left <= 0 || worth <= 0) return 0;
  const Micros later = std::max<Micros>(left - estimate.expected, 0);
  const auto better = [](int64_t rank, int64_t within) {
    return std::max<Log>(Log2(static_cast<uint64_t>(std::max<int64_t>(rank, 1))) - Log2(static_cast<uint64_t>(within)),
                         0);
  };
  const auto likely = [&](int64_t chance) { return Log2(static_cast<uint64_t>(1000 + chance)) - Log2(1000); };
  switch (estimate.source) {
    case 3:  // trusted up to an eighth
      if (left < estimate.expected / 8 * 7) return 0;
      return likely(later < estimate.expected / 8 * 7 ? worth : worth / 2);
    case 4: {
      // A guess that may be wrong by any factor: the job is over within t with probability t / (t + guess).
      const auto within = [&](Micros t) {
        return static_cast<int64_t>(static_cast<__int128>(t) * worth / (t + estimate.expected));
      };
      return likely(within(left) - within(later) / 2);
    }
    case 5:
      return better(estimate.service / kSecond, siblings_[groups.siblings].RankWithin(
                                                    Histogram::BinOf(served), left / kSecond, later / kSecond, worth));
    case 6:
      return better(InWindow(estimate.service, groups.window) / kSecond,
                    histograms_[estimate.histogram].RankWithin(Histogram::BinOf(InWindow(served, groups.window)),
                                                               InWindow(left, groups.window) / kSecond,
                                                               InWindow(later, groups.window) / kSecond, worth));
    default:
      return better(estimate.service / kSecond, histograms_[estimate.histogram].RankWithin(
                                                    Histogram::BinOf(served), left / kSecond, later / kSecond, worth));
  }
}

}  // namespace vrun::sched::core
