// SPDX-License-Identifier: Apache-2.0
// Values of the options that say where and when a job may run, how it saves its state, and when it is started again.
// Errors are kInvalid with "why: what to write".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "proto/common.pb.h"

namespace vrun::cli {

// "a,b" and Slurm's "a&b": all of these.
Result<std::vector<std::string>> ParseLabels(std::string_view text);
// "gpu-only,reserved=anna".
Result<std::vector<std::string>> ParseTaints(std::string_view text);

// "node", "island", "rack", "block", "zone", "cluster".
Result<v1::TopologyLevel> ParseLevel(std::string_view text);
std::string LevelName(v1::TopologyLevel level);

// "rack" or "rack:prefer": sets required_level or preferred_level.
Status ParseTopology(std::string_view text, v1::Scheduling* out);
// "8@island" or "8".
Status ParseSegment(std::string_view text, v1::Scheduling* out);
// "" or "rack".
Status ParseSpread(std::string_view text, v1::Scheduling* out);
// Slurm's COUNT[@TIME]. 1: all pods on one switch, if that does not cost too much waiting.
Status ParseSwitches(std::string_view text, v1::Scheduling* out);

// "signal:USR1,grace:120s,save:45s,restore:60s,every:10m,resize:5s".
Status ParseCheckpoint(std::string_view text, v1::Scheduling* out);

// "3@30s:oom,node,1": three times, first after 30 seconds, after an end of these kinds. "3": after any failure.
Result<v1::RetryRule> ParseRetry(std::string_view text);

// "[hard:]TIME", or steps "TIME=PART,TIME=PART": ending by then is worth this part of a deadline.
Status ParseDeadlines(std::string_view text, int64_t now, v1::Scheduling* out);

}  // namespace vrun::cli
