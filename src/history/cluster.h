// SPDX-License-Identifier: Apache-2.0
// A cluster and its teams as tables that vrun-sim reads (src/sim/replay/cluster_parts.h,
// src/sim/policies/team_terms.h), and what might be changed of them. Pure.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "proto/local.pb.h"

namespace vrun::history {

// Equal nodes.
struct Part {
  std::string pool;
  std::string gpu_type;
  int64_t nodes = 0;
  int64_t gpus = 0;  // of each node that a job may get
};
// Without nodes that are lost or have no GPUs.
std::vector<Part> PartsOf(const google::protobuf::RepeatedPtrField<v1::NodeInfo>& nodes);
std::string TableOf(const std::vector<Part>& parts);
// "default=+4,default/a100=-2,new/h200=8x8": nodes more or less of a pool, or of one type in it; a number without a
// sign is how many there are; with xG those have G GPUs each. kInvalid: what is wrong.
Status ChangeParts(std::string_view text, std::vector<Part>* parts);

// One quota of a team, or a team without any.
struct TeamQuota {
  std::string team;
  std::string parent;
  int64_t weight_milli = 1000;
  std::string gpu_type;         // "": all types together
  int64_t guarantee_milli = 0;  // GPUs
  int64_t limit_milli = -1;     // -1: none
};
// Of the configured teams.
std::vector<TeamQuota> QuotasOf(const v1::TeamList& teams);
std::set<std::string> NamesOfTeams(const std::vector<TeamQuota>& quotas);
std::string TableOf(const std::vector<TeamQuota>& quotas);
// "vision=16,nlp=8:2,vision/h100=4": guarantee, and after a colon the weight. kInvalid: what is wrong.
Status ChangeTeams(std::string_view text, std::vector<TeamQuota>* quotas);

}  // namespace vrun::history
