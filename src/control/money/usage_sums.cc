// SPDX-License-Identifier: Apache-2.0
#include "control/money/usage_sums.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/escape.h"
#include "base/time/calendar.h"

namespace vrun::control {
namespace {

int64_t Quantile(std::vector<int64_t>* values, size_t percent) {
  if (values->empty()) return 0;
  const size_t at = (values->size() * percent + 99) / 100 - 1;
  std::nth_element(values->begin(), values->begin() + static_cast<ptrdiff_t>(at), values->end());
  return (*values)[at];
}

}  // namespace

Result<UsageBy> ParseUsageBy(std::string_view text) {
  UsageBy by;
  const std::pair<std::string_view, bool UsageBy::*> words[] = {
      {"team", &UsageBy::team}, {"user", &UsageBy::user},         {"project", &UsageBy::project},
      {"pool", &UsageBy::pool}, {"gpu-type", &UsageBy::gpu_type}, {"job", &UsageBy::job},
      {"day", &UsageBy::day}};
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view word = text.substr(0, comma);
    const auto known = std::find_if(std::begin(words), std::end(words), [&](const auto& w) { return w.first == word; });
    if (known == std::end(words)) {
      return Error(Code::kInvalid, "by " + Escape(word.substr(0, 50)) +
                                       ": unknown: write some of team, user, project, pool, gpu-type, job and day, "
                                       "with commas between them");
    }
    by.*known->second = true;
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return by;
}

size_t UsageSums::KeyHash::operator()(const Key& key) const {
  uint64_t hash = key.job * 0x9e3779b97f4a7c15u + key.group;
  hash ^= static_cast<uint64_t>(key.day / kDayMicros) * 0xc2b2ae3d27d4eb4fu;
  return hash ^ (hash >> 29);
}

const UsageSums::HolderView& UsageSums::ViewOf(const Holder& holder, Seen seen) {
  const auto [it, fresh] = views_.try_emplace(&holder);
  if (!fresh) return it->second;
  HolderView& view = it->second;
  view.prices = prices_->StepsOf(holder.pool, holder.gpu_type);
  view.hidden = seen != Seen::kWhole && (by_.user || by_.project || by_.job);
  v1::UsageRow label;
  if (by_.team) label.set_team(holder.team);
  if (by_.user && !view.hidden) label.set_user(holder.user);
  if (by_.project && !view.hidden) label.set_project(holder.project);
  if (by_.pool) label.set_pool(holder.pool);
  if (by_.gpu_type) label.set_gpu_type(holder.gpu_type);
  label.set_others(view.hidden);
  const auto [group, first] = groups_.try_emplace(label.SerializeAsString(), static_cast<uint32_t>(labels_.size()));
  if (first) labels_.push_back(std::move(label));
  view.group = group->second;
  return view;
}

void UsageSums::Add(const Holder& holder, const IntervalRow& interval, Seen seen) {
  const bool before = interval.end_us <= from_ && interval.start_us < from_;
  if (seen == Seen::kNothing || before || interval.start_us >= to_) return;
  const HolderView& view = ViewOf(holder, seen);
  const Key key{view.group, by_.job && !view.hidden ? interval.job : 0, 0};
  if (!by_.day) return AddTo(key, view, interval, from_, to_);
  const int64_t end = std::min(to_, std::max(interval.end_us, interval.start_us + 1));
  for (int64_t day = DayOf(std::max(from_, interval.start_us)); day < end; day += kDayMicros) {
    AddTo({key.group, key.job, day}, view, interval, std::max(from_, day), std::min(to_, day + kDayMicros));
  }
}

void UsageSums::AddDay(const Holder& holder, int64_t day, const DaySums& sums, Seen seen, int64_t now) {
  if (seen == Seen::kNothing || day + kDayMicros <= from_ || day >= to_) return;
  const HolderView& view = ViewOf(holder, seen);
  const uint32_t index = IndexOf({view.group, 0, by_.day ? day : 0});
  sums_[index].second.Add(PartOfDay(sums, day, view.prices, from_, to_ >= now ? INT64_MAX : to_));
  for (const uint64_t job : sums.jobs) jobs_.emplace_back(index, job);
  if (day < from_) return;  // they belong to where the day begins
  for (const int64_t wait : sums.waits) waits_.emplace_back(index, wait);
}

uint32_t UsageSums::IndexOf(const Key& key) {
  const auto [it, fresh] = index_.try_emplace(key, static_cast<uint32_t>(sums_.size()));
  if (fresh) sums_.emplace_back(key, Amounts());
  return it->second;
}

void UsageSums::AddTo(const Key& key, const HolderView& view, const IntervalRow& interval, int64_t from, int64_t to) {
  const uint32_t index = IndexOf(key);
  AddPart(interval, view.prices, from, to, &sums_[index].second);
  jobs_.emplace_back(index, interval.job);
  if (interval.waited_us >= 0 && interval.start_us >= from && interval.start_us < to) {
    waits_.emplace_back(index, interval.waited_us);
  }
}

void UsageSums::Put(const Amounts& amounts, Details* details, v1::UsageRow* row) {
  control::Put(amounts, row);
  std::vector<uint64_t>& jobs = details->jobs;
  std::sort(jobs.begin(), jobs.end());
  row->set_jobs(static_cast<uint64_t>(std::unique(jobs.begin(), jobs.end()) - jobs.begin()));
  int64_t waited = 0;
  for (const int64_t wait : details->waits) waited += wait;
  row->set_attempts(details->waits.size());
  row->set_waited_us(waited);
  row->set_wait_p50_us(Quantile(&details->waits, 50));
  row->set_wait_p95_us(Quantile(&details->waits, 95));
}

void UsageSums::Take(size_t limit, v1::UsageReport* report) {
  std::vector<uint32_t> order(sums_.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto larger = [this](uint32_t a, uint32_t b) {
    const auto& [key, x] = sums_[a];
    const auto& [other, y] = sums_[b];
    if (x.cost != y.cost) return x.cost > y.cost;
    if (x.gpu != y.gpu) return x.gpu > y.gpu;
    if (x.cpu != y.cpu) return x.cpu > y.cpu;
    return std::tuple(key.day, key.group, key.job) < std::tuple(other.day, other.group, other.job);
  };
  const size_t shown = std::min(limit, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(shown), order.end(), larger);
  if (by_.day) {
    std::stable_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(shown),
                     [this](uint32_t a, uint32_t b) { return sums_[a].first.day < sums_[b].first.day; });
  }
  // The row of each sum; all beyond the limit have the last one.
  std::vector<size_t> row_of(sums_.size(), shown);
  for (size_t row = 0; row < shown; ++row) row_of[order[row]] = row;
  std::vector<Details> details(shown + 1);
  Details all;
  for (const auto& [index, job] : jobs_) {
    details[row_of[index]].jobs.push_back(job);
    all.jobs.push_back(job);
  }
  for (const auto& [index, wait] : waits_) {
    details[row_of[index]].waits.push_back(wait);
    all.waits.push_back(wait);
  }
  Amounts total, rest;
  for (size_t i = 0; i < sums_.size(); ++i) {
    total.Add(sums_[i].second);
    if (row_of[i] == shown) rest.Add(sums_[i].second);
  }
  for (size_t i = 0; i < shown; ++i) {
    const auto& [key, amounts] = sums_[order[i]];
    v1::UsageRow* row = report->add_rows();
    *row = labels_[key.group];
    row->set_job(key.job);
    if (by_.day) row->set_day(DayText(key.day));
    Put(amounts, &details[i], row);
  }
  if (sums_.size() > shown) {
    v1::UsageRow* row = report->add_rows();
    row->set_others(true);
    Put(rest, &details[shown], row);
  }
  Put(total, &all, report->mutable_total());
}

}  // namespace vrun::control
