// SPDX-License-Identifier: Apache-2.0
#include "sched/share/teams.h"

#include <algorithm>

namespace vrun::sched::core {

namespace {
// Decay is applied in steps, because finer ones would be lost in rounding.
constexpr Micros kDecayStep = 600 * kSecond;
}  // namespace

Teams::Teams(const Policy& policy) : policy_(policy) {
  teams_.emplace_back();
  types_[""] = 0;
}

void Teams::Set(const TeamSpec& spec) {
  TeamId id = Find(spec.name);
  TeamId parent = spec.parent.empty() ? kRoot : Find(spec.parent);
  for (TeamId up = parent; up != kRoot; up = teams_[up].parent) {
    if (up == id) return;  // would be a cycle
  }
  Team& t = teams_[id];
  if (parent != t.parent) {
    // Its amounts move to the new parent.
    for (int sign : {-1, 1}) {
      for (TeamId up = t.parent;; up = teams_[up].parent) {
        Team& a = teams_[up];
        a.used.resize(std::max(a.used.size(), t.used.size()));
        a.firm.resize(a.used.size());
        for (size_t i = 0; i < t.used.size(); ++i) a.used[i] += sign * t.used[i];
        for (size_t i = 0; i < t.firm.size(); ++i) a.firm[i] += sign * t.firm[i];
        a.pending += sign * t.pending;
        a.rate += sign * t.rate;
        if (up == kRoot) break;
      }
      if (sign < 0) {
        std::erase(teams_[t.parent].children, id);
        teams_[parent].children.push_back(id);
        t.parent = parent;
      }
    }
  }
  t.weight = spec.weight;
  t.quotas.clear();
  for (const Quota& q : spec.quotas) t.quotas[Type(q.gpu_type)] = q;
  const Budget& b = spec.budget;
  const bool had = t.refill > 0;
  t.refill = b.gpu_seconds > 0 && b.period > 0
                 ? static_cast<int64_t>(static_cast<__int128>(b.gpu_seconds) * kMilli * 1000 * kSecond / b.period)
                 : 0;
  t.burst = (b.burst > 0 ? b.burst : b.gpu_seconds) * kMilli;
  t.tokens = had ? std::min(t.tokens, t.burst) : t.burst;  // a new budget begins full
  if (t.refill == 0) t.spent = false;
  budgets_ = budgets_ || t.refill > 0;
}

TeamId Teams::Find(const std::string& name) {
  auto [it, fresh] = by_name_.try_emplace(name, static_cast<TeamId>(teams_.size()));
  if (fresh) {
    teams_.emplace_back().name = name;
    teams_.back().since = decayed_;
    teams_[kRoot].children.push_back(it->second);
  }
  return it->second;
}

TeamId Teams::Known(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? kRoot : it->second;
}

TypeId Teams::Type(const std::string& gpu_type) {
  return types_.try_emplace(gpu_type, static_cast<TypeId>(types_.size())).first->second;
}

const std::string& Teams::TypeName(TypeId type) const {
  return std::find_if(types_.begin(), types_.end(), [type](const auto& t) { return t.second == type; })->first;
}

std::vector<std::string> Teams::TypeNames() const {
  std::vector<std::string> names;
  for (const auto& [name, type] : types_) {
    if (!name.empty()) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

TypeId Teams::KnownType(const std::string& gpu_type) const {
  auto it = types_.find(gpu_type);
  return it == types_.end() ? 0 : it->second;
}

void Teams::Accrue(Team& t, Micros now) {
  // Counts whole milliseconds and leaves the rest for the next time.
  int64_t ms = (now - t.since) / 1000;
  const auto used = static_cast<int64_t>(static_cast<__int128>(t.rate) * ms / 1'000'000);
  t.recent += used;
  if (t.refill > 0) {
    auto more = static_cast<int64_t>(static_cast<__int128>(t.refill) * ms / 1'000'000);
    t.tokens = std::clamp<int64_t>(t.tokens + more - (t.spent ? 0 : used), 0, t.burst);
  }
  t.since += ms * 1000;
}

void Teams::Decay(Micros now) {
  if (now - decayed_ < kDecayStep || policy_.usage_half_life <= 0) return;
  auto steps = static_cast<Log>(
      std::min<__int128>(static_cast<__int128>(now - decayed_) * kLogOne / policy_.usage_half_life, 60 * kLogOne));
  int64_t whole = steps >> 16;
  int64_t rest = Exp2Milli(kLogOne - (steps & 0xffff));  // 2 * 2^-rest, thousandths
  for (Team& t : teams_) {
    Accrue(t, now);
    t.usage = static_cast<int64_t>(static_cast<__int128>(t.usage >> whole) * rest / 2000) + t.recent;
    t.recent = 0;
  }
  decayed_ = now;
}

// A used-up budget counts as available again at a tenth, so that a team does not switch all the time.
void Teams::CheckBudgets(Micros now) {
  if (!budgets_) return;
  for (Team& t : teams_) {
    if (t.refill == 0) continue;
    if (now - t.since >= kSecond) Accrue(t, now);
    t.spent = t.tokens <= 0 || (t.spent && t.tokens < t.burst / 10);
  }
  for (Team& t : teams_) t.over = t.spent;
  for (Team& t : teams_) {
    for (TeamId up = t.parent; up != kRoot && !t.over; up = teams_[up].parent) t.over = teams_[up].spent;
  }
}

void Teams::Change(TeamId team, const std::vector<Charge>& charges, bool preemptible, Micros now, int sign) {
  for (TeamId id = team;; id = teams_[id].parent) {
    Team& t = teams_[id];
    Accrue(t, now);
    for (const Charge& c : charges) {
      size_t need = std::max<size_t>(c.type + 1, t.used.size());
      t.used.resize(need);
      t.firm.resize(need);
      for (TypeId type : {TypeId{0}, c.type}) {
        t.used[type] += sign * c.milli;
        if (!preemptible) t.firm[type] += sign * c.milli;
        if (c.type == 0) break;
      }
      t.rate += sign * c.milli * c.price_milli;
    }
    if (id == kRoot) break;
  }
}

void Teams::Demand(TeamId team, int64_t milli) {
  for (TeamId id = team;; id = teams_[id].parent) {
    teams_[id].pending += milli;
    if (id == kRoot) break;
  }
}

int64_t Teams::used(TeamId team, TypeId type) const { return At(teams_[team].used, type); }

namespace {
int64_t SumOf(const std::vector<Teams::Charge>& charges, TypeId type) {
  int64_t sum = 0;
  for (const Teams::Charge& c : charges) sum += type == 0 || c.type == type ? c.milli : 0;
  return sum;
}
}  // namespace

Teams::Verdict Teams::Admits(TeamId team, const std::vector<Charge>& charges, bool preemptible) const {
  for (TeamId id = team; id != kRoot; id = teams_[id].parent) {
    const Team& t = teams_[id];
    for (const auto& [type, quota] : t.quotas) {
      int64_t more = SumOf(charges, type);
      if (more == 0) continue;
      if (At(t.used, type) > quota.limit - more) return {false, id, type, false, At(t.used, type), quota.limit};
      if (!preemptible && quota.guarantee > 0 && At(t.firm, type) + more > quota.guarantee) {
        return {false, id, type, true, At(t.firm, type), quota.guarantee};
      }
    }
  }
  return {};
}

bool Teams::WithinGuarantee(TeamId team, const std::vector<Charge>& charges) const {
  bool any = false;
  for (TeamId id = team; id != kRoot; id = teams_[id].parent) {
    const Team& t = teams_[id];
    for (const auto& [type, quota] : t.quotas) {
      int64_t more = SumOf(charges, type);
      if (quota.guarantee == 0 || more == 0) continue;
      if (At(t.used, type) + more > quota.guarantee) return false;
      any = true;
    }
  }
  return any;
}

bool Teams::Protected(TeamId team, const std::vector<Charge>& charges, TeamId beneficiary) const {
  for (TeamId id = team; id != kRoot; id = teams_[id].parent) {
    const Team& t = teams_[id];
    TeamId above = beneficiary;
    while (above != id && above != kRoot) above = teams_[above].parent;
    if (above == id) return false;
    for (const auto& [type, quota] : t.quotas) {
      int64_t less = SumOf(charges, type);
      if (less > 0 && quota.guarantee > 0 && At(t.used, type) - less < quota.guarantee) return true;
    }
  }
  return false;
}

bool Teams::MayReclaim(TeamId team, TeamId victim) const {
  for (TeamId id = team; id != kRoot; id = teams_[id].parent) {
    TeamId above = victim;
    while (above != id && above != kRoot) above = teams_[above].parent;
    if (above == id) return false;
    const auto& quotas = teams_[id].quotas;
    if (std::any_of(quotas.begin(), quotas.end(), [](const auto& q) { return q.second.guarantee > 0; })) return true;
  }
  return false;
}

void Teams::Share(int64_t capacity_milli, Micros now) {
  Decay(now);
  CheckBudgets(now);
  ShareBelow(kRoot, capacity_milli);
  const Log span = Log2(static_cast<uint64_t>(std::max<int64_t>(policy_.fairness_span, 1000))) - Log2(1000);
  for (Team& t : teams_) {
    t.below = std::any_of(t.quotas.begin(), t.quotas.end(),
                          [&](const auto& q) { return At(t.used, q.first) < q.second.guarantee; });
  }
  for (Team& t : teams_) {
    for (TeamId up = t.parent; up != kRoot && !t.below; up = teams_[up].parent) t.below = teams_[up].below;
    // Adds one GPU on both sides, so that a team that holds nothing is not infinitely underserved.
    Log quotient = Log2(static_cast<uint64_t>(t.fair + kMilli)) - Log2(static_cast<uint64_t>(At(t.used, 0) + kMilli));
    t.fairness = static_cast<Log>(int64_t{std::clamp(quotient, -span, span)} * policy_.fairness / 1000);
  }
}

void Teams::ShareBelow(TeamId parent, int64_t capacity) {
  std::vector<TeamId> open;
  int64_t weights = 0, usages = 0;
  for (TeamId id : teams_[parent].children) {
    Team& t = teams_[id];
    int64_t want = At(t.used, 0) + t.pending;
    auto quota = t.quotas.find(0);
    int64_t limit = quota == t.quotas.end() ? INT64_MAX : quota->second.limit;
    int64_t guarantee = quota == t.quotas.end() ? 0 : quota->second.guarantee;
    t.fair = std::min({want, limit, guarantee, capacity});
    capacity -= t.fair;
    weights += t.weight;
    usages += t.usage + t.recent;
    if (std::min(want, limit) > t.fair) open.push_back(id);
  }
  // Rounds of water-filling: each ends with a satisfied team or with nothing left.
  while (!open.empty() && capacity > 0 && weights > 0) {
    int64_t portions = 0;
    std::vector<int64_t> portion;
    for (TeamId id : open) {
      const Team& t = teams_[id];
      int64_t w = t.weight * 1'000'000 / weights;
      auto u = usages == 0 ? w : static_cast<int64_t>(static_cast<__int128>(t.usage + t.recent) * 1'000'000 / usages);
      // A team keeps at least a hundredth of its weight, so that past usage does not starve it.
      portion.push_back(std::max<int64_t>({w / 100, w + policy_.usage_weight * (w - u) / 1000, 1}));
      portions += portion.back();
    }
    int64_t given = 0;
    std::vector<TeamId> still;
    for (size_t i = 0; i < open.size(); ++i) {
      Team& t = teams_[open[i]];
      auto quota = t.quotas.find(0);
      int64_t want = At(t.used, 0) + t.pending;
      if (quota != t.quotas.end()) want = std::min(want, quota->second.limit);
      auto slice = static_cast<int64_t>(static_cast<__int128>(capacity) * portion[i] / portions);
      slice = std::min(slice, want - t.fair);
      t.fair += slice;
      given += slice;
      if (t.fair < want) still.push_back(open[i]);
    }
    bool done = still.size() == open.size();  // every team got its whole portion
    capacity -= given;
    open = std::move(still);
    if (done || given == 0) break;
  }
  for (TeamId id : teams_[parent].children) {
    if (!teams_[id].children.empty()) ShareBelow(id, teams_[id].fair);
  }
}

bool Teams::Consistent() const {
  for (TeamId id = 1; id < teams_.size(); ++id) {
    const Team& t = teams_[id];
    int64_t children = 0;
    for (TeamId c : t.children) children += At(teams_[c].used, 0);
    if (children > At(t.used, 0)) return false;
    for (const auto& [type, quota] : t.quotas) {
      if (At(t.used, type) > quota.limit || At(t.used, type) < 0) return false;
    }
  }
  return true;
}

}  // namespace vrun::sched::core
