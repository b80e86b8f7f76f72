// SPDX-License-Identifier: Apache-2.0
#include "control/money/prices.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace vrun::control {
namespace {

// The amount that holds at this time; 0 without a rule.
template <typename Amount, typename Applies>
int64_t At(const std::vector<PriceRule>& rules, int64_t at, Amount amount, Applies applies) {
  const PriceRule* best = nullptr;
  const auto rank = [](const PriceRule& r) { return std::tuple(!r.pool.empty(), !r.gpu_type.empty(), r.from_us); };
  for (const PriceRule& rule : rules) {
    if (!amount(rule) || rule.from_us > at || !applies(rule)) continue;
    if (best == nullptr || rank(rule) >= rank(*best)) best = &rule;
  }
  return best == nullptr ? 0 : *amount(*best);
}

}  // namespace

std::vector<PriceStep> Prices::StepsOf(const std::string& pool, const std::string& gpu_type) const {
  std::set<int64_t> moments{0};
  for (const PriceRule& rule : rules) moments.insert(rule.from_us);
  const auto in_pool = [&](const PriceRule& rule) { return rule.pool.empty() || rule.pool == pool; };
  const auto of_type = [&](const PriceRule& rule) {
    return in_pool(rule) && (rule.gpu_type.empty() || rule.gpu_type == gpu_type);
  };
  std::vector<PriceStep> steps;
  for (const int64_t at : moments) {
    const PriceStep step{at,
                         At(
                             rules, at, [](const PriceRule& r) { return r.gpu_hour_micros; }, of_type),
                         At(
                             rules, at, [](const PriceRule& r) { return r.cpu_hour_micros; }, in_pool)};
    const bool same = !steps.empty() && steps.back().gpu_hour_micros == step.gpu_hour_micros &&
                      steps.back().cpu_hour_micros == step.cpu_hour_micros;
    if (!same) steps.push_back(step);
  }
  return steps;
}

}  // namespace vrun::control
