// SPDX-License-Identifier: Apache-2.0
#include "sched/history.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <numeric>

namespace vrun::sched::core {

int Histogram::BinOf(Micros t) {
  auto seconds = static_cast<uint64_t>(std::max<Micros>(t / kSecond, 1));
  return std::min<int>(Log2(seconds * seconds) >> 16, kBins - 1);  // 2 * log2, rounded down
}

int64_t Histogram::LowerSeconds(int bin) { return bin == 0 ? 0 : Exp2Milli(bin * (kLogOne / 2)) / 1000; }

void Histogram::Add(Micros run, int64_t kept) {
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

// For an age at the beginning of the bin. Runs of a bin are taken to end at its middle; those of the bin that the age
// is in, half a bin from now.
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
    // Older than all that is known: as long again as it ran already.
    return r = {std::max<int64_t>(age, 1), std::max<int64_t>(age, 1), std::max<int64_t>(4 * age, 1)};
  }
  int64_t ended = 0, spent = 0;
  r = {INT64_MAX, 0, 0};
  for (int i = b; i < kBins; ++i) {
    if (weights[i] == 0) continue;  // nobody ends: no better moment to look again than the one before
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

// --- siblings ---

namespace {
constexpr int64_t kSure = 1 << 16;  // probability 1
// How far apart, in bins, the run times of two that are alike: about normal, sigma 0.4 of the natural logarithm.
constexpr int64_t kAlike[] = {23593, 13763, 5243, 1311, 393, 131};
constexpr int kAlikeBins = static_cast<int>(std::size(kAlike));

// Brings the sum to 2^30: room for products, and enough digits.
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
  // It may have been the oldest; those that live are told again soon.
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
    int64_t survive = 0;  // of the group, that long
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
  int i = 0;
  for (const std::string& key : {middle + job.name, middle, wide}) {
    auto [it, fresh] = index_.try_emplace(key, static_cast<uint32_t>(histograms_.size()));
    if (fresh) histograms_.emplace_back();
    groups.histograms[i++] = it->second;
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

void History::Completed(const Groups& groups, Micros run) {
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
  auto from = [&](const Histogram::Remaining& r, uint8_t source) {
    return Estimate{Log2(static_cast<uint64_t>(r.rank)) + size, r.rank * kSecond, r.expected * kSecond,
                    r.late * kSecond, source};
  };
  Siblings& siblings = siblings_[groups.siblings];
  const int bin = Histogram::BinOf(served);
  siblings.Alive(bin);
  for (uint8_t i = 0; i < groups.histograms.size(); ++i) {
    Histogram& h = histograms_[groups.histograms[i]];
    if (h.samples() < policy_.history_min_samples) continue;
    if (siblings.Known(bin)) return from(siblings.At(bin, h, policy_.sibling_trust), 5);
    return from(h.At(bin), i);
  }
  if (job.estimate > 0) {
    // One that outlives its estimate is taken to need as much again as it is late, not nothing.
    Micros left = std::max({job.estimate - served, served - job.estimate, job.estimate / 16});
    return {Log2(seconds(left)) + size, left, left, left * 2, 3};
  }
  // The service attained, in the unit of rank, up to the end of its level.
  Log attained = Log2(seconds(served)) + size;
  Log level = Log2(seconds(policy_.level_base));
  while (level < attained) level += 2 * kLogOne;
  Micros expected = std::max(served, policy_.level_base);
  return {level, Exp2Milli(level - size) * (kSecond / 1000), expected, expected * 4, 4};
}

}  // namespace vrun::sched::core
