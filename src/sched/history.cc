// SPDX-License-Identifier: Apache-2.0
#include "sched/history.h"

#include <algorithm>
#include <bit>

namespace vrun::sched::core {

int Histogram::BinOf(Micros t) {
  auto seconds = static_cast<uint64_t>(std::max<Micros>(t / kSecond, 1));
  return std::min<int>(Log2(seconds * seconds) >> 16, kBins - 1);  // 2 * log2, rounded down
}

int64_t Histogram::LowerSeconds(int bin) { return bin == 0 ? 0 : Exp2Milli(bin * (kLogOne / 2)) / 1000; }

void Histogram::Add(Micros run, int64_t kept) {
  if (total_ >= kept * kOne) {
    total_ = 0;
    for (int32_t& w : weight_) {
      w -= static_cast<int32_t>(w / kept);
      total_ += w;
    }
  }
  weight_[BinOf(run)] += kOne;
  total_ += kOne;
  fresh_ = false;
}

const Histogram::Remaining& Histogram::At(Micros served) const {
  if (!fresh_) Refresh();
  return (*table_)[BinOf(served)];
}

// For an age a at the beginning of each bin. Runs of a bin are taken to end at its middle; those of the bin that the
// age is in, half a bin from now.
void Histogram::Refresh() const {
  fresh_ = true;
  if (table_ == nullptr) table_ = std::make_unique<std::array<Remaining, kBins>>();
  for (int b = 0; b < kBins; ++b) {
    const int64_t age = LowerSeconds(b);
    int64_t alive = 0;
    for (int i = b; i < kBins; ++i) alive += weight_[i];
    Remaining& r = (*table_)[b];
    if (alive == 0) {
      // Older than all that is known: as long again as it ran already.
      r = {std::max<int64_t>(age, 1), std::max<int64_t>(age, 1), std::max<int64_t>(4 * age, 1)};
      continue;
    }
    int64_t ended = 0, spent = 0;
    r = {INT64_MAX, 0, 0};
    for (int i = b; i < kBins; ++i) {
      int64_t middle = (LowerSeconds(i) + LowerSeconds(std::min(i + 1, kBins - 1))) / 2;
      int64_t wait = std::max<int64_t>(middle - age, 1);
      ended += weight_[i];
      spent += weight_[i] * wait;
      if (ended > 0) r.rank = std::min(r.rank, (spent + (alive - ended) * wait) / ended);
      if (r.late == 0 && ended * 10 >= alive * 9) r.late = LowerSeconds(i + 1 < kBins ? i + 1 : i) - age;
    }
    r.rank = std::max<int64_t>(r.rank, 1);
    r.expected = std::max<int64_t>(spent / alive, 1);
    r.late = std::max<int64_t>(r.late, 1);
  }
}

History::Groups History::GroupsOf(const JobSpec& job) {
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
    groups[i++] = it->second;
  }
  return groups;
}

void History::Completed(const Groups& groups, Micros run) {
  for (uint32_t g : groups) histograms_[g].Add(run, policy_.history_samples_kept);
}

History::Estimate History::Remaining(const JobSpec& job, const Groups& groups, int64_t gpu_milli, Micros served) const {
  const auto gpus = static_cast<uint64_t>(std::max<int64_t>(gpu_milli, 1));
  const auto size = static_cast<Log>((Log2(gpus) - Log2(kMilli)) * policy_.beta / 1000);  // log2 of G^beta
  auto seconds = [](Micros t) { return static_cast<uint64_t>(std::max<Micros>(t / kSecond, 1)); };
  for (uint8_t i = 0; i < 3; ++i) {
    const Histogram& h = histograms_[groups[i]];
    if (h.samples() < policy_.history_min_samples) continue;
    const Histogram::Remaining& r = h.At(served);
    return {Log2(static_cast<uint64_t>(r.rank)) + size, r.rank * kSecond, r.expected * kSecond, r.late * kSecond, i};
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
