// SPDX-License-Identifier: Apache-2.0
// Records a replay over time: a policy that forwards to another and records who holds what. Exact averages over equal
// intervals; the memory does not grow with the replay.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/replay/engine.h"

namespace vrun::sim {

// A step function of time or load, for plots: at most a few hundred points.
struct Series {
  std::vector<double> x;
  std::vector<double> y;
};

// x is in days; y is a part of the capacity, which includes nodes that are down.
struct Curves {
  Series held;        // GPUs that jobs hold
  Series fragmented;  // idle GPUs of partly used nodes, which no gang of whole nodes can use
  std::vector<std::pair<std::string, Series>> teams;  // held by the largest teams and "others"; empty without teams
};

class Recorder : public Policy {
 public:
  // Both must outlive it.
  Recorder(const JobTrace& trace, Policy& inner);
  void Submitted(Engine& engine, JobIndex i) override { inner_.Submitted(engine, i); }
  void Ended(Engine& engine, JobIndex i) override { inner_.Ended(engine, i); }
  void Vacated(Engine& engine, JobIndex i) override { inner_.Vacated(engine, i); }
  void Failed(Engine& engine, JobIndex i) override { inner_.Failed(engine, i); }
  void NodeDown(Engine& engine, int32_t node) override { inner_.NodeDown(engine, node); }
  void NodeUp(Engine& engine, int32_t node) override { inner_.NodeUp(engine, node); }
  void Schedule(Engine& engine) override;

  // REQUIRES that the replay is over.
  Curves Read(const RunResult& result) const;

 private:
  enum Channel { kHeld, kFragmented, kFirstTeam };
  // Adds the present state for the time since the last call.
  void AddUntil(int64_t now);
  void Widen();
  Series SeriesOf(size_t channel, const RunResult& result) const;

  Policy& inner_;
  std::vector<std::string> team_names_;
  std::vector<size_t> team_channel_;  // by team
  std::vector<int64_t> now_;          // GPUs, by channel
  int64_t last_us_ = 0;
  int64_t width_us_ = kMicrosPerSecond;   // of an interval; doubles when the replay is longer than all intervals
  std::vector<std::vector<double>> sum_;  // GPU-microseconds, by channel and interval
};

}  // namespace vrun::sim
