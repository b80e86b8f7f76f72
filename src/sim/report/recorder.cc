// SPDX-License-Identifier: Apache-2.0
#include "sim/report/recorder.h"

#include <algorithm>

namespace vrun::sim {
namespace {

constexpr size_t kIntervals = 400;
constexpr size_t kTeamsShown = 7;
constexpr double kMicrosPerDay = 86400e6;

}  // namespace

Recorder::Recorder(const JobTrace& trace, Policy& inner) : inner_(inner) {
  if (!trace.teams.empty()) {
    std::vector<double> asked(trace.teams.size(), 0);
    for (const TraceJob& job : trace.jobs) {
      asked[static_cast<size_t>(job.team)] += static_cast<double>(job.duration_us) * job.gpus;
    }
    std::vector<size_t> order(trace.teams.size());
    for (size_t t = 0; t < order.size(); ++t) order[t] = t;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return asked[a] > asked[b]; });
    const size_t shown = order.size() <= kTeamsShown + 1 ? order.size() : kTeamsShown;
    team_channel_.assign(order.size(), kFirstTeam + shown);
    for (size_t k = 0; k < shown; ++k) {
      team_channel_[order[k]] = kFirstTeam + k;
      team_names_.push_back(trace.teams[order[k]]);
    }
    if (shown < order.size()) team_names_.emplace_back("others");
  }
  now_.assign(kFirstTeam + team_names_.size(), 0);
  sum_.assign(now_.size(), std::vector<double>(kIntervals, 0));
}

void Recorder::Schedule(Engine& engine) {
  AddUntil(engine.now());
  inner_.Schedule(engine);
  std::fill(now_.begin(), now_.end(), 0);
  const int64_t down = int64_t{engine.config().nodes - engine.nodes_up()} * engine.config().gpus_per_node;
  now_[kHeld] = engine.nodes().capacity() - down - engine.free_gpus();
  // With free moves, jobs have no nodes.
  if (!engine.config().free_moves) now_[kFragmented] = engine.nodes().fragmented_gpus();
  if (team_names_.empty()) return;
  for (JobIndex i : engine.running()) {
    now_[team_channel_[static_cast<size_t>(engine.job(i).team)]] += engine.job(i).gpus;
  }
}

void Recorder::AddUntil(int64_t now) {
  while (now > width_us_ * static_cast<int64_t>(kIntervals)) Widen();
  while (last_us_ < now) {
    const auto interval = static_cast<size_t>(last_us_ / width_us_);
    const int64_t until = std::min(now, static_cast<int64_t>(interval + 1) * width_us_);
    for (size_t c = 0; c < now_.size(); ++c) {
      sum_[c][interval] += static_cast<double>(now_[c]) * static_cast<double>(until - last_us_);
    }
    last_us_ = until;
  }
}

void Recorder::Widen() {
  for (std::vector<double>& sum : sum_) {
    for (size_t i = 0; i < kIntervals; ++i) {
      sum[i] = 2 * i < kIntervals ? sum[2 * i] + sum[2 * i + 1] : 0;
    }
  }
  width_us_ *= 2;
}

Series Recorder::SeriesOf(size_t channel, const RunResult& result) const {
  Series out;
  for (size_t i = 0; i < kIntervals; ++i) {
    const int64_t begin = static_cast<int64_t>(i) * width_us_;
    if (begin >= result.end_us) break;
    // The last interval counts only until the end of the replay.
    const auto width = static_cast<double>(std::min(width_us_, result.end_us - begin));
    out.x.push_back(static_cast<double>(begin) / kMicrosPerDay);
    out.y.push_back(sum_[channel][i] / width / static_cast<double>(result.capacity));
  }
  return out;
}

Curves Recorder::Read(const RunResult& result) const {
  Curves out;
  out.held = SeriesOf(kHeld, result);
  out.fragmented = SeriesOf(kFragmented, result);
  for (size_t t = 0; t < team_names_.size(); ++t) {
    out.teams.emplace_back(team_names_[t], SeriesOf(kFirstTeam + t, result));
  }
  return out;
}

}  // namespace vrun::sim
