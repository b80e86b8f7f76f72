// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/virtual_clusters.h"

#include <algorithm>
#include <charconv>

#include "base/escape.h"
#include "sim/replay/csv.h"

namespace vrun::sim {
namespace {
constexpr int64_t kWeekUs = 7 * 86400 * kMicrosPerSecond;
double Seconds(int64_t us) { return static_cast<double>(us) / kMicrosPerSecond; }
}  // namespace

Result<TeamShares> ReadTeamShares(const std::string& text, const std::string& name, const JobTrace& trace) {
  TeamShares shares(trace.teams.size(), 0);
  int line = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t newline = std::min(text.find('\n', at), text.size());
    std::string row = text.substr(at, newline - at);
    at = newline + 1;
    if (!row.empty() && row.back() == '\r') row.pop_back();
    if (++line == 1 || row.empty()) continue;
    const size_t comma = std::min(row.find(','), row.size());
    int64_t gpus = 0;
    const char* digits = row.data() + std::min(comma + 1, row.size());
    auto [end, error] = std::from_chars(digits, row.data() + row.size(), gpus);
    if (error != std::errc{} || end != row.data() + row.size() || gpus < 1 || gpus > 100'000'000) {
      return Error(Code::kInvalid,
                   Escape(name) + ":" + std::to_string(line) + ": not a team and its GPUs: write team,gpus");
    }
    auto team = std::find(trace.teams.begin(), trace.teams.end(), row.substr(0, comma));
    if (team != trace.teams.end()) shares[static_cast<size_t>(team - trace.teams.begin())] = gpus;
  }
  for (const TraceJob& job : trace.jobs) {
    if (job.team < 0) return Error(Code::kInvalid, "the trace has jobs without a team: leave --teams out");
    const auto team = static_cast<size_t>(job.team);
    if (shares[team] < job.gpus) {
      return Error(Code::kInvalid, Escape(name) + ": team " + Escape(trace.teams[team]) + " has " +
                                       std::to_string(shares[team]) + " GPUs and a gang of " +
                                       std::to_string(job.gpus) + ": give it more");
    }
  }
  return shares;
}

// --- measuring ---

ShareMeter::ShareMeter(const JobTrace& trace, const TeamShares& shares, Policy& inner)
    : trace_(trace),
      shares_(shares),
      inner_(inner),
      demand_(shares.size()),
      used_(shares.size()),
      weeks_(shares.size()) {}

void ShareMeter::Submitted(Engine& engine, JobIndex i) {
  Measure(engine);
  demand_[static_cast<size_t>(engine.job(i).team)] += engine.job(i).gpus;
  inner_.Submitted(engine, i);
}

void ShareMeter::Ended(Engine& engine, JobIndex i) {
  Measure(engine);
  demand_[static_cast<size_t>(engine.job(i).team)] -= engine.job(i).gpus;
  inner_.Ended(engine, i);
}

// Adds the state until now. An interval counts for the week in which it begins, because intervals are short.
void ShareMeter::Measure(const Engine& engine) {
  const int64_t until = std::min(engine.now(), trace_.jobs.back().submit_us);
  const double seconds = Seconds(until - last_us_);
  const auto week = static_cast<size_t>(last_us_ / kWeekUs);
  for (size_t t = 0; t < shares_.size() && seconds > 0; ++t) {
    if (weeks_[t].size() <= week) weeks_[t].resize(week + 1);
    weeks_[t][week].entitled += static_cast<double>(std::min(demand_[t], shares_[t])) * seconds;
    weeks_[t][week].got += static_cast<double>(std::min({used_[t], demand_[t], shares_[t]})) * seconds;
  }
  last_us_ = std::max(last_us_, until);
}

void ShareMeter::Schedule(Engine& engine) {
  Measure(engine);
  inner_.Schedule(engine);
  std::fill(used_.begin(), used_.end(), 0);
  for (JobIndex i : engine.running()) used_[static_cast<size_t>(engine.job(i).team)] += engine.job(i).gpus;
}

std::vector<TeamOutcome> ShareMeter::Outcomes(const RunResult& result) const {
  std::vector<TeamOutcome> out(shares_.size());
  for (size_t t = 0; t < shares_.size(); ++t) {
    TeamOutcome& o = out[t];
    o.team = trace_.teams[t];
    o.gpus = shares_[t];
    Week all;
    for (const Week& w : weeks_[t]) {
      all.entitled += w.entitled;
      all.got += w.got;
      if (w.entitled * 10 < static_cast<double>(shares_[t]) * Seconds(kWeekUs)) continue;
      o.worst_week_error_percent = std::max(o.worst_week_error_percent, 100 * (1 - w.got / w.entitled));
    }
    if (all.entitled > 0) o.error_percent = 100 * (1 - all.got / all.entitled);
  }
  for (size_t i = 0; i < trace_.jobs.size(); ++i) {
    TeamOutcome& o = out[static_cast<size_t>(trace_.jobs[i].team)];
    ++o.jobs;
    o.avg_wait_s += Seconds(result.jobs[i].end_us - trace_.jobs[i].submit_us - trace_.jobs[i].duration_us);
  }
  for (TeamOutcome& o : out) o.avg_wait_s /= static_cast<double>(std::max<int64_t>(o.jobs, 1));
  return out;
}

}  // namespace vrun::sim
