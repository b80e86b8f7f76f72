// SPDX-License-Identifier: Apache-2.0
#include "control/money/budgets.h"

#include <algorithm>
#include <cstdio>

#include "base/escape.h"
#include "base/time/calendar.h"

namespace vrun::control {
namespace {

std::string Decimal(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

// Rounded down, so that 100 means that all is used.
uint32_t PercentOf(int64_t used, int64_t most) {
  if (most <= 0) return 0;
  return static_cast<uint32_t>(std::min<Wide>(Wide{used} * 100 / most, 1'000'000));
}

}  // namespace

std::string MoneyText(int64_t micros) { return Decimal(static_cast<double>(micros) / 1e6, 2); }
std::string HoursText(int64_t gpu_ms) { return Decimal(static_cast<double>(gpu_ms) / 3.6e6, 1); }

v1::Budget Judge(const std::string& team, const MonthlyBudget& budget, const Amounts& used, const std::string& currency,
                 int64_t now) {
  v1::Budget out;
  out.set_team(team);
  out.set_from_us(MonthOf(now));
  out.set_until_us(NextMonth(now));
  out.set_gpu_ms(budget.gpu_ms);
  out.set_money_micros(budget.money_micros);
  out.set_warn_percent(budget.warn_percent);
  out.set_stop_percent(budget.stop_percent);
  out.set_used_gpu_ms(GpuMillis(used.gpu));
  out.set_used_money_micros(MoneyMicros(used.cost));
  const uint32_t hours = PercentOf(out.used_gpu_ms(), budget.gpu_ms);
  const uint32_t money = PercentOf(out.used_money_micros(), budget.money_micros);
  const uint32_t percent = std::max(hours, money);
  out.set_used_percent(percent);
  const int64_t spent = now - out.from_us();
  const bool by_money = budget.money_micros > 0 && money >= hours;
  const int64_t most = by_money ? budget.money_micros : budget.gpu_ms;
  const int64_t have = by_money ? out.used_money_micros() : out.used_gpu_ms();
  if (have > 0) {
    const Wide at = out.from_us() + Wide{spent} * most / have;
    if (at < out.until_us()) out.set_exhausted_us(static_cast<int64_t>(at));
  }
  const bool stop = budget.stop_percent > 0 && percent >= budget.stop_percent;
  out.set_state(stop ? "stop" : percent >= budget.warn_percent ? "warn" : "ok");
  if (out.state() == "ok") return out;
  const std::string amount = by_money ? MoneyText(have) + " of " + MoneyText(most) + " " + currency
                                      : HoursText(have) + " of " + HoursText(most) + " GPU-hours";
  std::string text =
      "team " + Escape(team) + " has used " + amount + " of " + MonthText(now) + " (" + std::to_string(percent) + " %)";
  if (stop) {
    text += ": nothing of it starts until " + DayText(out.until_us()) +
            ", or until an administrator raises `month` of [team." + Escape(team) + "] in scheduler.toml";
  } else if (budget.stop_percent > 0) {
    text +=
        ": from " + std::to_string(budget.stop_percent) + " % on nothing of it starts until " + DayText(out.until_us());
  }
  out.set_text(text);
  return out;
}

}  // namespace vrun::control
