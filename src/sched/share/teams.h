// SPDX-License-Identifier: Apache-2.0
// The tree of teams: what each holds now, what it used lately, its quotas, and its fair share.
//
// Quotas: a limit is never exceeded. A guarantee is what a team can take back from borrowers; work that cannot be
// preempted stays within the guarantee of each team above it that has one. Fair shares: guarantees first, as far as
// there is demand, then the rest by water-filling in proportion to max(0, W + k * (W - U)), with W the share of weight
// and U the share of decayed usage (KAI-Scheduler's form). Children divide their parent's share. Amounts are
// thousandths of GPUs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "sched/model/fixed.h"
#include "sched/model/policy.h"

namespace vrun::sched::core {

using TeamId = uint32_t;
using TypeId = uint32_t;  // GPU type; 0: all types together
constexpr TeamId kRoot = 0;

class Teams {
 public:
  explicit Teams(const Policy& policy);

  void Set(const TeamSpec& spec);
  // Creates an unknown team.
  TeamId Find(const std::string& name);
  // kRoot: there is no such team.
  TeamId Known(const std::string& name) const;
  TypeId Type(const std::string& gpu_type);
  const std::string& TypeName(TypeId type) const;
  // All types but "", sorted.
  std::vector<std::string> TypeNames() const;
  // 0 when unknown.
  TypeId KnownType(const std::string& gpu_type) const;
  const std::string& name(TeamId team) const { return teams_[team].name; }
  size_t size() const { return teams_.size(); }

  // A job's room by GPU type, charged at its price from now on.
  struct Charge {
    TypeId type = 0;
    int64_t milli = 0;
    int64_t price_milli = 1000;
    bool operator==(const Charge&) const = default;
  };
  void Take(TeamId team, const std::vector<Charge>& charges, bool preemptible, Micros now) {
    Change(team, charges, preemptible, now, 1);
  }
  void Release(TeamId team, const std::vector<Charge>& charges, bool preemptible, Micros now) {
    Change(team, charges, preemptible, now, -1);
  }
  // Adds pending work, for fair shares.
  void Demand(TeamId team, int64_t milli);

  struct Verdict {
    bool ok = true;
    TeamId team = 0;  // whose quota blocks
    TypeId type = 0;
    bool guarantee = false;  // true: the guarantee, for a job that cannot be preempted; false: the limit
    int64_t used = 0;
    int64_t bound = 0;
  };
  Verdict Admits(TeamId team, const std::vector<Charge>& charges, bool preemptible) const;

  // Whether the team with these charges added, and all teams above it, stay within the guarantees that they have.
  bool WithinGuarantee(TeamId team, const std::vector<Charge>& charges) const;
  // Whether the team or one above it has less than its guarantee of some type, as of the last Share.
  bool BelowGuarantee(TeamId team) const { return teams_[team].below; }
  // Whether removing these charges for `beneficiary` would take room that a guarantee gives to the team or one above
  // it. Guarantees of teams above both do not count, because the room stays with them.
  bool Protected(TeamId team, const std::vector<Charge>& charges, TeamId beneficiary) const;

  // Whether a guarantee justifies taking room of `victim` for `team`: a guarantee that is not of a team above both.
  // Within one guarantee two teams could take the same room from each other forever.
  bool MayReclaim(TeamId team, TeamId victim) const;

  // Whether its budget, or that of a team above it, is used up, as of the last Share.
  bool OverBudget(TeamId team) const { return teams_[team].over; }
  // What is left of its own budget in thousandths of GPU-seconds; INT64_MAX without a budget.
  int64_t budget(TeamId team) const { return teams_[team].refill > 0 ? teams_[team].tokens : INT64_MAX; }

  // Recomputes fair shares for a cluster of this many GPUs.
  void Share(int64_t capacity_milli, Micros now);
  int64_t used(TeamId team, TypeId type = 0) const;
  int64_t pending(TeamId team) const { return teams_[team].pending; }
  int64_t fair(TeamId team) const { return teams_[team].fair; }
  // log2 of (fair share / allocation)^fairness, as of the last Share.
  Log Fairness(TeamId team) const { return teams_[team].fairness; }
  // Whether no limit is exceeded and parents equal the sum of their children; for tests.
  bool Consistent() const;

 private:
  struct Team {
    std::string name;
    TeamId parent = kRoot;
    std::vector<TeamId> children;
    int64_t weight = 1000;
    std::map<TypeId, Quota> quotas;
    std::vector<int64_t> used;  // by type
    std::vector<int64_t> firm;  // part of `used` by jobs that cannot be preempted
    int64_t pending = 0;
    int64_t rate = 0;    // price * milli, now
    int64_t usage = 0;   // decayed integral of rate: thousandths of GPU-seconds, to `since`
    int64_t recent = 0;  // since the last decay
    Micros since = 0;
    int64_t refill = 0;  // of the budget: thousandths of GPU-seconds per 1000 seconds; 0: no budget
    int64_t burst = 0;   // thousandths of GPU-seconds
    int64_t tokens = 0;
    bool below = false;  // it or a team above it has less than some guarantee
    bool spent = false;  // its own budget is used up
    bool over = false;   // its budget or that of a team above it is used up
    int64_t fair = 0;
    Log fairness = 0;
  };
  void Change(TeamId team, const std::vector<Charge>& charges, bool preemptible, Micros now, int sign);
  void Accrue(Team& team, Micros now);
  void Decay(Micros now);
  void CheckBudgets(Micros now);
  void ShareBelow(TeamId parent, int64_t capacity);
  static int64_t At(const std::vector<int64_t>& v, TypeId t) { return t < v.size() ? v[t] : 0; }

  const Policy& policy_;
  std::vector<Team> teams_;
  std::unordered_map<std::string, TeamId> by_name_;
  std::unordered_map<std::string, TypeId> types_;
  Micros decayed_ = 0;
  bool budgets_ = false;  // some team has a budget
};

}  // namespace vrun::sched::core
