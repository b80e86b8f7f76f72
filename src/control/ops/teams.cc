// SPDX-License-Identifier: Apache-2.0
// Teams: the quota, the usage and the waiting jobs of each team, by the policy of visibility of the caller's own.
#include <algorithm>

#include "control/ops/ops.h"
#include "sched/engine/inspect.h"

namespace vrun::control {
namespace {

int64_t UsedOf(const sched::core::TeamUse& use, const std::string& type) {
  if (type.empty()) return use.used;
  for (const auto& [name, used] : use.by_type) {
    if (name == type) return used;
  }
  return 0;
}

}  // namespace

Result<v1::TeamList> Teams(State& state, const rpc::Peer& peer, const v1::TeamsRequest&) {
  v1::TeamList list;
  const SchedulerConfig& config = state.settings().scheduler;
  const auto shown = [&](const std::string& team) { return state.ShowsTeam(peer.name, team); };
  const std::vector<sched::core::TeamUse> uses = sched::core::TeamsInUse(state.scheduler());
  const std::vector<TeamConfig>& teams = config.teams;
  auto add = [&list](const sched::core::TeamUse& use) {
    v1::TeamInfo* info = list.add_teams();
    info->set_name(use.name);
    info->set_weight_milli(1000);
    info->set_used_milli(use.used);
    info->set_waiting_milli(use.waiting);
    info->set_fair_milli(use.fair);
    return info;
  };
  for (const TeamConfig& team : teams) {
    if (!shown(team.spec.name)) continue;
    const auto it = std::find_if(uses.begin(), uses.end(), [&](const auto& use) { return use.name == team.spec.name; });
    const sched::core::TeamUse use = it != uses.end() ? *it : sched::core::TeamUse{team.spec.name, 0, 0, 0, {}};
    v1::TeamInfo* info = add(use);
    info->set_configured(true);
    info->set_parent(team.spec.parent);
    info->set_weight_milli(team.spec.weight);
    for (const sched::core::Quota& q : team.spec.quotas) {
      v1::TeamQuota* quota = info->add_quotas();
      quota->set_gpu_type(q.gpu_type);
      quota->set_guarantee_milli(q.guarantee);
      quota->set_limit_milli(q.limit == INT64_MAX ? -1 : q.limit);
      quota->set_used_milli(UsedOf(use, q.gpu_type));
    }
  }
  for (const sched::core::TeamUse& use : uses) {
    const bool told = std::any_of(teams.begin(), teams.end(), [&](const auto& t) { return t.spec.name == use.name; });
    if (!told && shown(use.name)) add(use);
  }
  return list;
}

}  // namespace vrun::control
