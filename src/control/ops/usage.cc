// SPDX-License-Identifier: Apache-2.0
// Usage, prices and budgets. A caller sees each row of people whose jobs he sees by the policy of visibility, and the
// sums of his own teams.
#include <algorithm>

#include "control/ops/ops.h"

namespace vrun::control {

Result<v1::UsageReport> Usage(State& state, const rpc::Peer& peer, const v1::UsageRequest& request) {
  v1::UsageReport report;
  VRUN_TRY(state.SumUsage(peer.name, request, &report));
  return report;
}

Result<v1::PriceList> ListPrices(State& state, const rpc::Peer&, const v1::PricesRequest&) {
  const Prices& prices = state.settings().scheduler.prices;
  v1::PriceList list;
  list.set_currency(prices.currency);
  for (const PriceRule& rule : prices.rules) {
    // The price of processors is told with those of the GPU types of the same date and pool, if there are any.
    const auto same = [&](const PriceRule& other) { return other.from_us == rule.from_us && other.pool == rule.pool; };
    const bool told = !rule.gpu_hour_micros && std::any_of(prices.rules.begin(), prices.rules.end(),
                                                           [&](const auto& r) { return same(r) && r.gpu_hour_micros; });
    if (told) continue;
    v1::Price* price = list.add_prices();
    price->set_from_us(rule.from_us);
    price->set_pool(rule.pool);
    price->set_gpu_type(rule.gpu_type);
    price->set_gpu_hour_micros(rule.gpu_hour_micros.value_or(0));
    for (const PriceRule& other : prices.rules) {
      if (same(other) && other.cpu_hour_micros) price->set_cpu_hour_micros(*other.cpu_hour_micros);
    }
  }
  return list;
}

Result<v1::BudgetList> Budgets(State& state, const rpc::Peer& peer, const v1::BudgetsRequest&) {
  v1::BudgetList list;
  state.AddBudgets(peer.name, list.mutable_budgets());
  return list;
}

}  // namespace vrun::control
