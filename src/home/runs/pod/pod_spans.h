// SPDX-License-Identifier: Apache-2.0
// Home's spans of one pod (docs/guide/monitoring.md, Traces): `first output`, from when home took the job up until its
// first byte came, below the job; `send home`, from the end of the command until all output and writes were here, below
// the attempt. Does nothing while no collector is configured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/control.pb.h"
#include "telemetry/telemetry.h"

namespace vrun::home {

// Loop thread only.
class PodSpans {
 public:
  // `trace_parent`: as in JobRun::Plan.
  PodSpans(uint64_t job, const std::optional<std::string>& trace_parent);

  void Output(const v1::Placement& from);
  void Exited();
  // `failed`: how many writes could not be applied.
  void AllHome(const v1::Placement& from, uint64_t failed, uint64_t conflicts);

 private:
  std::optional<telemetry::JobTrace> trace_;  // none: nothing is sent
  int64_t began_us_ = 0;
  int64_t exited_us_ = 0;  // 0: it runs, or that was told
  bool has_output_ = false;
};

}  // namespace vrun::home
