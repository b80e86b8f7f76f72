// SPDX-License-Identifier: Apache-2.0
// What `vctl sim --from-cluster` replays: asks the cluster for its ended jobs, its queue, its nodes and its teams.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "history/cluster.h"
#include "history/trace.h"

namespace vrun::cli {

struct ClusterHistory {
  history::Counts counts;
  std::string trace;  // a table that vrun-sim reads
  std::vector<history::Part> parts;
  std::vector<history::TeamQuota> teams;
};
// kDenied: the caller sees only some of the jobs. kNotFound: there is nothing to replay.
Result<ClusterHistory> AskClusterHistory(const history::Span& span);

// "14d", "12h", "90m", or what ParseUsageTime (usage_time.h) accepts. `now` and the result: wall clock, microseconds.
Result<int64_t> ParseSince(std::string_view text, int64_t now);

}  // namespace vrun::cli
