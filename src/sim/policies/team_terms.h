// SPDX-License-Identifier: Apache-2.0
// The teams of a real cluster, as its scheduler knows them. Text to tables, no I/O.
//
// The table has the columns team,parent,weight,gpu_type,guarantee,limit: GPUs, with decimals; an empty gpu_type is all
// types together, an empty limit none. A team with several quotas has several lines; a parent comes before its
// children. Teams that are not in the table have weight 1 and no quota.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sched/model/model.h"
#include "sim/replay/cluster_parts.h"

namespace vrun::sim {

using TeamTerms = std::vector<sched::core::TeamSpec>;

// Whether the text is such a table, and not one of ReadTeamShares.
bool IsTermsTable(std::string_view text);
// kInvalid with file and line.
Result<TeamTerms> ReadTeamTerms(const std::string& text, const std::string& name);
// What the teams have in one part of the cluster, whose nodes do not say their type: of quotas for all types together
// as much as the part has of all GPUs.
TeamTerms TermsIn(const TeamTerms& terms, const ClusterPart& part, const ClusterParts& all);

}  // namespace vrun::sim
