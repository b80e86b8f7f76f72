// SPDX-License-Identifier: Apache-2.0
#include "control/state/scheduler_config.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "base/config.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/time/calendar.h"
#include "control/notify/url.h"
#include "sched/share/weights.h"

// toml++ returns parse errors instead of throwing, and without its printing code.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#define TOML_ENABLE_UNRELEASED_FEATURES 0
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#include <toml++/toml.h>
#pragma GCC diagnostic pop

namespace vrun::control {
namespace {

constexpr size_t kMostBytes = 1u << 20;
constexpr size_t kMostTopologyBytes = 64u << 20;
constexpr int64_t kMostGpus = 10'000'000;
constexpr std::string_view kClasses[] = {"scavenger", "experiment", "training", "production", "inference"};

std::optional<double> Number(const toml::node& node) {
  if (auto whole = node.value_exact<int64_t>()) return static_cast<double>(*whole);
  return node.value_exact<double>();
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  Result<SchedulerConfig> Read() {
    if (const size_t line = LineOfBareLetterOutsideAscii(text_)) {
      return Error(Code::kInvalid,
                   Escape(name_) + ":" + std::to_string(line) + ": a letter outside of ASCII: put the text in quotes");
    }
    toml::parse_result parsed = toml::parse(text_);
    if (!parsed) return At(parsed.error().source(), Escape(parsed.error().description()));
    for (auto&& [key, node] : parsed.table()) {
      if (key.str() == "weights" && node.is_table()) {
        VRUN_TRY(ReadWeights());
      } else if (key.str() == "team" && node.is_table()) {
        VRUN_TRY(ReadTeams(*node.as_table()));
      } else if (key.str() == "price" && node.is_table()) {
        VRUN_TRY(ReadPrices(*node.as_table()));
      } else if (key.str() == "gpus" && node.is_table()) {
        VRUN_TRY(ReadGpus(*node.as_table()));
      } else if (key.str() == "money" && node.is_table()) {
        VRUN_TRY(ReadMoney(*node.as_table()));
      } else if (key.str() == "bounds" && node.is_table()) {
        VRUN_TRY(ReadBounds(*node.as_table()));
      } else if (key.str() == "oidc" && node.is_table()) {
        VRUN_TRY(ReadOidc(*node.as_table()));
      } else if (key.str() == "notify" && node.is_table()) {
        VRUN_ASSIGN(config_.notify, notify::ParseNotify(text_, name_));
      } else if (key.str() == "retention" && node.is_table()) {
        VRUN_TRY(ReadRetention(*node.as_table()));
      } else if (key.str() == "admins" || key.str() == "operators") {
        auto& list = key.str() == "admins" ? config_.admins : config_.operators;
        list.emplace();
        if (!ReadNames(node, &*list)) return At(node.source(), std::string(key.str()) + ": expected a list of names");
      } else if (key.str() == "visibility" || key.str() == "commands") {
        const auto what = ParseVisibility(node.value_exact<std::string>().value_or(""));
        if (!what) return At(node.source(), std::string(key.str()) + ": expected \"own\", \"team\" or \"all\"");
        (key.str() == "visibility" ? config_.visibility : config_.commands) = *what;
      } else if (key.str() == "max_class") {
        VRUN_TRY(ReadClass(node, "max_class", &config_.max_class));
      } else if (key.str() == "topology") {
        config_.topology = node.value_exact<std::string>().value_or("");
        if (config_.topology.empty()) return At(node.source(), "topology: expected the name of a file");
      } else {
        return At(key.source(),
                  "unknown section or setting " + Escape(key.str()) +
                      ": known are admins, operators, visibility, commands, max_class, topology, [weights], [price], "
                      "[money], [gpus], [bounds], [oidc], [notify], [retention] and [team.NAME]");
      }
    }
    for (const TeamConfig& team : config_.teams) {
      if (team.month.money_micros == 0 || !config_.prices.rules.empty()) continue;
      return Error(Code::kInvalid,
                   Escape(name_) + ": team " + Escape(team.spec.name) +
                       ": month: money without prices is never used up: write sections [[money.price]]");
    }
    return std::move(config_);
  }

 private:
  Error At(const toml::source_region& where, const std::string& what) const {
    return Error(Code::kInvalid, Escape(name_) + ":" + std::to_string(where.begin.line) + ": " + what);
  }

  // The reader of weights numbers lines, so it gets all lines, with those of other sections empty.
  Status ReadWeights() {
    std::string lines;
    bool inside = false;
    for (std::string_view rest = text_; !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      const size_t first = line.find_first_not_of(" \t");
      if (first != line.npos && line[first] == '[') {
        inside = line.substr(first).starts_with("[weights]");
        line = {};
      }
      if (inside) lines += line;
      lines += '\n';
    }
    VRUN_ASSIGN(config_.weights, sched::core::ParseWeights(lines, name_, config_.weights));
    return {};
  }

  static bool ReadNames(const toml::node& node, std::vector<std::string>* names) {
    if (!node.is_array()) return false;
    for (const toml::node& item : *node.as_array()) {
      auto name = item.value_exact<std::string>();
      if (!name || name->empty()) return false;
      names->push_back(*std::move(name));
    }
    return true;
  }

  Status ReadClass(const toml::node& node, const std::string& what, std::optional<v1::JobClass>* to) {
    auto value = ParseJobClass(node.value_exact<std::string>().value_or(""));
    if (!value) {
      return At(node.source(), what + ": expected scavenger, experiment, training, production or inference");
    }
    *to = *value;
    return {};
  }

  Status ReadBounds(const toml::table& table) {
    Bounds& bounds = config_.bounds;
    for (auto&& [key, node] : table) {
      const auto number = node.value_exact<int64_t>();
      if (!number || *number < 0 || *number > 1'000'000'000) {
        return At(node.source(), "bounds." + Escape(key.str()) + ": expected a number from 0 to 1000000000");
      }
      const auto value = static_cast<uint32_t>(*number);
      if (key.str() == "jobs") {
        bounds.jobs = value;
      } else if (key.str() == "request_mib") {
        bounds.request_bytes = uint64_t{value} << 20;
      } else if (key.str() == "streams") {
        bounds.streams = value;
      } else if (key.str() == "requests_per_second") {
        bounds.requests_per_second = value;
      } else {
        return At(key.source(), "unknown setting bounds." + Escape(key.str()) +
                                    ": known are jobs, request_mib, streams and requests_per_second");
      }
    }
    return {};
  }

  // "90d"
  static std::optional<int64_t> Age(const std::string& text) {
    constexpr std::pair<char, int64_t> kUnits[] = {
        {'m', 60}, {'h', 3600}, {'d', 86400}, {'w', 604800}, {'y', 31536000}};
    const auto unit = std::find_if(std::begin(kUnits), std::end(kUnits),
                                   [&](const auto& u) { return !text.empty() && u.first == text.back(); });
    int64_t number = 0;
    for (const char c : text.substr(0, text.size() - (text.empty() ? 0 : 1))) {
      if (c < '0' || c > '9' || number > 100'000) return std::nullopt;
      number = number * 10 + (c - '0');
    }
    if (unit == std::end(kUnits) || number == 0) return std::nullopt;
    return number * unit->second * 1'000'000;
  }

  Status ReadRetention(const toml::table& table) {
    for (auto&& [key, node] : table) {
      const auto age = Age(node.value_exact<std::string>().value_or(""));
      if (key.str() != "jobs" && key.str() != "audit") {
        return At(key.source(), "unknown setting retention." + Escape(key.str()) + ": known are jobs and audit");
      }
      if (!age) {
        return At(node.source(), "retention." + Escape(key.str()) +
                                     ": expected a time in quotes, a number with m, h, d, w or y, as in \"90d\"");
      }
      (key.str() == "jobs" ? config_.retention.jobs : config_.retention.audit) = *age;
    }
    return {};
  }

  Status ReadOidc(const toml::table& table) {
    oidc::Settings& oidc = config_.oidc;
    const std::pair<std::string_view, std::string*> texts[] = {{"issuer", &oidc.issuer},
                                                               {"client_id", &oidc.client_id},
                                                               {"scopes", &oidc.scopes},
                                                               {"user_claim", &oidc.user_claim},
                                                               {"groups_claim", &oidc.groups_claim},
                                                               {"domain", &oidc.domain},
                                                               {"ca", &oidc.ca},
                                                               {"snapshots", &oidc.snapshots}};
    for (auto&& [key, node] : table) {
      const std::string what = "oidc." + Escape(key.str()) + ": expected ";
      const auto text =
          std::find_if(std::begin(texts), std::end(texts), [&](const auto& t) { return t.first == key.str(); });
      if (text != std::end(texts)) {
        *text->second = node.value_exact<std::string>().value_or("");
        if (text->second->empty()) return At(node.source(), what + "a text");
      } else if (key.str() == "allow_groups") {
        if (!ReadNames(node, &oidc.allow)) return At(node.source(), what + "a list of names");
      } else if (key.str() == "login_days") {
        const auto days = node.value_exact<int64_t>();
        if (!days || *days < 0 || *days > 3660) return At(node.source(), what + "a number from 0 to 3660");
        oidc.login_seconds = *days * 86400;
      } else {
        return At(key.source(), "unknown setting oidc." + Escape(key.str()) +
                                    ": known are issuer, client_id, scopes, user_claim, domain, groups_claim, "
                                    "allow_groups, ca, snapshots and login_days");
      }
    }
    if (oidc.issuer.empty() || oidc.client_id.empty())
      return At(table.source(), "oidc: issuer and client_id are missing");
    if (Status url = oidc::CheckUrl(oidc.issuer); !url)
      return At(table.source(), "oidc.issuer: " + url.error().message());
    return {};
  }

  Status ReadPrices(const toml::table& prices) {
    for (auto&& [type, node] : prices) {
      const auto price = Number(node);
      if (!price || !(*price >= 0.001 && *price <= 1000)) {
        return At(node.source(), "price of " + Escape(type.str()) + ": expected a number from 0.001 to 1000");
      }
      config_.price_milli[std::string(type.str())] = static_cast<uint32_t>(std::lround(*price * 1000));
    }
    return {};
  }

  Status ReadGpus(const toml::table& gpus) {
    for (auto&& [key, node] : gpus) {
      const std::string what = "gpus." + Escape(key.str()) + ": expected ";
      const std::string text = node.value_exact<std::string>().value_or("");
      const auto number = Number(node);
      if (key.str() == "share_with") {
        if (text != "user" && text != "team") return At(node.source(), what + "\"user\" or \"team\"");
        config_.teams_share_gpus = text == "team";
      } else if (key.str() == "drain_percent") {
        if (!number || !(*number >= 0 && *number <= 100)) return At(node.source(), what + "a number from 0 to 100");
        config_.health.percent = static_cast<int32_t>(*number);
      } else if (key.str() == "drain_minutes") {
        if (!number || !(*number >= 1 && *number <= 10'000))
          return At(node.source(), what + "a number from 1 to 10000");
        config_.health.window_micros = static_cast<int64_t>(*number * 60'000'000);
      } else {
        return At(key.source(), "unknown setting gpus." + Escape(key.str()) +
                                    ": known are share_with, drain_percent and drain_minutes");
      }
    }
    return {};
  }

  // { gpu_hours = 500, days = 30, burst = 1000 }
  static bool ReadBudget(const toml::node& node, sched::core::Budget* budget) {
    if (!node.is_table()) return false;
    double hours = 0, days = 0, burst = 0;
    for (auto&& [key, value] : *node.as_table()) {
      const auto number = Number(value);
      double* to = key.str() == "gpu_hours" ? &hours : key.str() == "days" ? &days : nullptr;
      if (key.str() == "burst") to = &burst;
      if (to == nullptr || !number || !(*number > 0 && *number <= 1e9)) return false;
      *to = *number;
    }
    if (hours == 0 || days == 0 || days > 3660) return false;
    budget->gpu_seconds = std::llround(hours * 3600);
    budget->period = static_cast<sched::core::Micros>(days * 24 * static_cast<double>(sched::core::kHour));
    budget->burst = std::llround(burst * 3600);
    return true;
  }

  // { gpu_hours = 500, money = 900, warn_percent = 80, stop_percent = 100 }
  static bool ReadMonth(const toml::node& node, MonthlyBudget* budget) {
    if (!node.is_table()) return false;
    for (auto&& [key, value] : *node.as_table()) {
      const auto number = Number(value);
      const auto percent = value.value_exact<int64_t>();
      if (!number || !(*number > 0 && *number <= 1e9)) return false;
      if (key.str() == "gpu_hours") {
        budget->gpu_ms = std::llround(*number * 3.6e6);
      } else if (key.str() == "money") {
        budget->money_micros = std::llround(*number * 1e6);
      } else if ((key.str() == "warn_percent" || key.str() == "stop_percent") && percent && *percent <= 1000) {
        (key.str() == "warn_percent" ? budget->warn_percent : budget->stop_percent) = static_cast<uint32_t>(*percent);
      } else {
        return false;
      }
    }
    return budget->any();
  }

  Status ReadMoney(const toml::table& money) {
    for (auto&& [key, node] : money) {
      if (key.str() == "currency") {
        config_.prices.currency = node.value_exact<std::string>().value_or("");
        const std::string& word = config_.prices.currency;
        if (word.empty() || word.size() > 8 || word.find_first_of("\"<>&\n") != word.npos) {
          return At(node.source(), "money.currency: expected a short word, as in \"EUR\"");
        }
      } else if (key.str() == "price" && node.is_array()) {
        for (const toml::node& price : *node.as_array()) {
          if (!price.is_table()) return At(price.source(), "money.price: write it as a section [[money.price]]");
          VRUN_TRY(ReadPrice(*price.as_table()));
        }
      } else {
        return At(key.source(),
                  "unknown setting money." + Escape(key.str()) + ": known are currency and sections [[money.price]]");
      }
    }
    if (!config_.prices.rules.empty() && config_.prices.currency.empty()) {
      return At(money.source(), "money: there are prices, but no currency: write currency = \"EUR\"");
    }
    return {};
  }

  static std::optional<int64_t> Amount(const toml::node& node) {
    const auto number = Number(node);
    if (!number || !(*number >= 0 && *number <= 1e6)) return std::nullopt;
    return std::llround(*number * 1e6);
  }

  // One section has a rule for each GPU type, and one for processors.
  Status ReadPrice(const toml::table& table) {
    PriceRule common;
    std::vector<PriceRule> rules;
    for (auto&& [key, node] : table) {
      const auto bad = [&](const char* form) {
        return At(node.source(), "money.price: " + Escape(key.str()) + ": expected " + form);
      };
      if (key.str() == "from") {
        const auto date = node.value_exact<toml::date>();
        char text[32] = "";
        if (date) std::snprintf(text, sizeof text, "%04d-%02d-%02d", int{date->year}, int{date->month}, int{date->day});
        const auto day = ParseDay(date ? text : node.value_exact<std::string>().value_or(""));
        if (!day) return bad("a day, as in 2026-01-31");
        common.from_us = *day;
      } else if (key.str() == "pool") {
        common.pool = node.value_exact<std::string>().value_or("");
        if (common.pool.empty()) return bad("the name of a pool");
      } else if (key.str() == "cpu_hour") {
        const auto amount = Amount(node);
        if (!amount) return bad("an amount from 0 to 1000000");
        rules.emplace_back().cpu_hour_micros = amount;
      } else if (key.str() == "gpu_hour") {
        constexpr const char* kForm = "amounts from 0 to 1000000 by GPU type, as in { h100 = 2.5, \"\" = 1.0 }";
        if (!node.is_table()) return bad(kForm);
        for (auto&& [type, value] : *node.as_table()) {
          const auto amount = Amount(value);
          if (!amount) return bad(kForm);
          PriceRule& rule = rules.emplace_back();
          rule.gpu_type = type.str();
          rule.gpu_hour_micros = amount;
        }
      } else {
        return At(key.source(), "unknown setting of money.price: " + Escape(key.str()) +
                                    ": known are from, pool, gpu_hour and cpu_hour");
      }
    }
    if (rules.empty()) return At(table.source(), "money.price: it needs gpu_hour or cpu_hour");
    for (PriceRule& rule : rules) {
      rule.from_us = common.from_us;
      rule.pool = common.pool;
      config_.prices.rules.push_back(std::move(rule));
    }
    return {};
  }

  Status ReadTeams(const toml::table& teams) {
    // The parsed table has lost the order of the file, which matters because a parent stands before its children.
    std::vector<std::pair<toml::source_position, std::string>> order;
    for (auto&& [key, node] : teams) order.emplace_back(key.source().begin, std::string(key.str()));
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first.line < b.first.line; });
    for (const auto& [where, team] : order) {
      const toml::node& node = *teams.get(team);
      if (!node.is_table()) return At(node.source(), "team." + Escape(team) + ": write it as a section [team.NAME]");
      VRUN_TRY(ReadTeam(team, *node.as_table()));
    }
    return {};
  }

  Status ReadTeam(const std::string& name, const toml::table& table) {
    TeamConfig team;
    team.spec.name = name;
    const std::string what = "team " + Escape(name) + ": ";
    if (name.empty() || name.size() > 256) return At(table.source(), what + "a name has 1 to 256 bytes");
    std::vector<sched::core::Quota>& quotas = team.spec.quotas;
    for (auto&& [key, node] : table) {
      const std::string_view k = key.str();
      auto bad = [&](const char* form) { return At(node.source(), what + Escape(k) + ": expected " + form); };
      if (k == "parent") {
        auto value = node.value_exact<std::string>();
        const bool known = value && std::any_of(config_.teams.begin(), config_.teams.end(),
                                                [&](const TeamConfig& t) { return t.spec.name == *value; });
        if (!known) return bad("the name of a team that stands before it");
        team.spec.parent = *value;
      } else if (k == "weight") {
        auto value = Number(node);
        if (!value || !(*value > 0 && *value <= 1e6)) return bad("a number above 0");
        team.spec.weight = std::max<int64_t>(std::llround(*value * 1000), 1);
      } else if (k == "users" || k == "leads") {
        team.has_users = team.has_users || k == "users";
        if (!ReadNames(node, k == "users" ? &team.users : &team.leads)) return bad("a list of names");
      } else if (k == "max_class") {
        VRUN_TRY(ReadClass(node, what + "max_class", &team.max_class));
      } else if (k == "budget") {
        if (!ReadBudget(node, &team.spec.budget)) {
          return bad("GPU time for a period, as in { gpu_hours = 500, days = 30, burst = 1000 }");
        }
      } else if (k == "month") {
        if (!ReadMonth(node, &team.month)) {
          return bad("as in { gpu_hours = 500, money = 900, warn_percent = 80, stop_percent = 100 }");
        }
      } else if (k == "mail") {
        const bool list = ReadNames(node, &team.mail);
        if (!list || !std::all_of(team.mail.begin(), team.mail.end(), &notify::IsMailAddress)) {
          return bad("a list of mail addresses");
        }
      } else if (k == "guarantee" || k == "limit") {
        if (!node.is_table() || !ReadGpus(*node.as_table(), k == "limit", &quotas)) {
          return bad("GPUs by type, as in { h100 = 8, \"\" = 16 }");
        }
      } else {
        return At(key.source(), what + "unknown setting " + Escape(k) +
                                    ": known are parent, weight, users, leads, max_class, guarantee, limit, budget, "
                                    "month and mail");
      }
    }
    for (const sched::core::Quota& q : quotas) {
      if (q.guarantee > q.limit) return At(table.source(), what + "it is guaranteed more than its limit");
    }
    config_.teams.push_back(std::move(team));
    return {};
  }

  static bool ReadGpus(const toml::table& table, bool limit, std::vector<sched::core::Quota>* quotas) {
    for (auto&& [type, node] : table) {
      const auto gpus = node.template value_exact<int64_t>();
      if (!gpus || *gpus < 0 || *gpus > kMostGpus) return false;
      auto quota = std::find_if(quotas->begin(), quotas->end(),
                                [&, t = type.str()](const sched::core::Quota& q) { return q.gpu_type == t; });
      if (quota == quotas->end()) {
        quotas->push_back({std::string(type.str())});
        quota = std::prev(quotas->end());
      }
      (limit ? quota->limit : quota->guarantee) = *gpus * sched::core::kMilli;
    }
    return true;
  }

  const std::string_view text_;
  const std::string& name_;
  SchedulerConfig config_;
};

}  // namespace

Result<v1::JobClass> ParseJobClass(std::string_view name) {
  const auto found = std::find(std::begin(kClasses), std::end(kClasses), name);
  if (found != std::end(kClasses)) return static_cast<v1::JobClass>(v1::SCAVENGER + (found - std::begin(kClasses)));
  return Error(Code::kInvalid,
               Escape(name) + ": unknown class: write scavenger, experiment, training, production or inference");
}

std::string_view JobClassName(v1::JobClass klass) {
  if (klass < v1::SCAVENGER || klass > v1::INFERENCE) klass = v1::TRAINING;
  return kClasses[klass - v1::SCAVENGER];
}

std::string Person(const std::string& user) { return user.substr(0, user.find('@')); }

bool SchedulerConfig::Lists(const std::vector<std::string>& list, const std::string& user) const {
  const std::string person = Person(user);
  return std::any_of(list.begin(), list.end(), [&](const std::string& one) {
    if (one.size() > 1 && one[0] == '@') return in_group && in_group(user, one.substr(1));
    return one == user || one == person || one == "*";
  });
}

bool SchedulerConfig::ListsPeople() const {
  return std::any_of(teams.begin(), teams.end(), [](const TeamConfig& t) { return t.has_users; });
}

const TeamConfig* SchedulerConfig::FindTeam(const std::string& name) const {
  const auto found = std::find_if(teams.begin(), teams.end(), [&](const auto& t) { return t.spec.name == name; });
  return found == teams.end() ? nullptr : &*found;
}

bool SchedulerConfig::MaySubmit(const std::string& user, const TeamConfig& team) const {
  if (!team.has_users && !ListsPeople()) return true;
  return Lists(team.users, user) || Lists(team.leads, user);
}

bool SchedulerConfig::Leads(const std::string& user, const std::string& team) const {
  // A parent stands before its children, so this ends.
  for (const TeamConfig* t = FindTeam(team); t != nullptr; t = FindTeam(t->spec.parent)) {
    if (Lists(t->leads, user)) return true;
  }
  return false;
}

bool SchedulerConfig::InTeam(const std::string& user, const std::string& team) const {
  const TeamConfig* configured = FindTeam(team);
  if (configured == nullptr) return team == Person(user);
  return Lists(configured->users, user) || Leads(user, team);
}

std::vector<std::string> SchedulerConfig::TeamsOf(const std::string& user) const {
  std::vector<std::string> names;
  for (const TeamConfig& t : teams) {
    if (MaySubmit(user, t)) names.push_back(t.spec.name);
  }
  return names;
}

std::vector<std::string> SchedulerConfig::LedBy(const std::string& user) const {
  std::vector<std::string> names;
  for (const TeamConfig& t : teams) {
    if (Leads(user, t.spec.name)) names.push_back(t.spec.name);
  }
  return names;
}

v1::JobClass SchedulerConfig::MaxClass(const std::string& team) const {
  const TeamConfig* configured = FindTeam(team);
  if (configured != nullptr && configured->max_class) return *configured->max_class;
  return max_class.value_or(ListsPeople() ? v1::TRAINING : v1::INFERENCE);
}

Result<std::string> SchedulerConfig::TeamFor(const std::string& user, const std::string& asked,
                                             v1::JobClass klass) const {
  std::string known, name = asked;
  for (const TeamConfig& t : teams) {
    if (!MaySubmit(user, t)) continue;
    known += (known.empty() ? "" : ", ") + Escape(t.spec.name);
    if (name.empty() && Lists(t.users, user)) name = t.spec.name;
  }
  const std::string yours = known.empty() ? "name none" : "yours are " + known;
  const std::string what = "team " + Escape(asked) + ": ";
  const TeamConfig* team = FindTeam(name);
  if (name.empty()) {
    name = Person(user);
    if (FindTeam(name) != nullptr) name += "@";  // a user who is called like a team is not in it for that
  }
  // Whoever may choose any name that is not configured takes a share that is his alone.
  if (team == nullptr && !asked.empty() && !teams.empty()) {
    return Error(Code::kNotFound, what + "no such team: " + yours);
  }
  if (team != nullptr && !MaySubmit(user, *team)) {
    return Error(Code::kDenied, what + "you are not in its list: " + yours);
  }
  if (const v1::JobClass most = MaxClass(name); klass > most) {
    return Error(Code::kDenied, (team != nullptr ? "team " + Escape(name) + ": its jobs" : "without a team your jobs") +
                                    std::string(" may be of class ") + std::string(JobClassName(most)) +
                                    " at most: choose that with --class");
  }
  return name;
}

Role SchedulerConfig::RoleOf(const std::string& user, bool by_hand) const {
  if (admins && Lists(*admins, user)) return Role::kAdmin;
  if (operators ? Lists(*operators, user) : !admins && by_hand) return Role::kOperator;
  return LedBy(user).empty() ? Role::kUser : Role::kLead;
}

void SchedulerConfig::Complete(const std::string& node, const std::string& gpu_type, v1::NodeFacts* facts) const {
  if (const auto place = places.find(node); place != places.end()) {
    if (facts->island().empty()) facts->set_island(place->second.island);
    if (facts->rack().empty()) facts->set_rack(place->second.rack);
    if (facts->block().empty()) facts->set_block(place->second.block);
    if (facts->zone().empty()) facts->set_zone(place->second.zone);
  }
  const auto price = price_milli.find(gpu_type);
  if (facts->price_milli() == 0 && price != price_milli.end()) facts->set_price_milli(price->second);
}

Result<SchedulerConfig> ParseSchedulerConfig(std::string_view text, const std::string& name) {
  return Reader(text, name).Read();
}

Result<SchedulerConfig> ReadSchedulerConfig(const std::string& path) {
  if (path.empty()) return SchedulerConfig();
  auto text = ReadFile(path, kMostBytes);
  if (!text && text.error().code() == Code::kNotFound) return SchedulerConfig();
  if (!text) return std::move(text).error().With("scheduler's configuration");
  VRUN_ASSIGN(SchedulerConfig config, ParseSchedulerConfig(*text, path));
  const std::string beside = path.substr(0, path.rfind('/') + 1);
  if (!config.oidc.ca.empty()) {
    auto ca = ReadFile(config.oidc.ca[0] == '/' ? config.oidc.ca : beside + config.oidc.ca, kMostBytes);
    if (!ca) return std::move(ca).error().With(Escape(path) + ": oidc.ca");
    config.oidc.ca = *std::move(ca);
  }
  if (Status read = notify::ReadSecrets(beside, &config.notify); !read) return read.error().With(Escape(path));
  if (config.topology.empty()) return config;
  if (config.topology[0] != '/') config.topology.insert(0, beside);
  auto topology = ReadFile(config.topology, kMostTopologyBytes);
  if (!topology) return std::move(topology).error().With(Escape(path) + ": topology");
  VRUN_ASSIGN(config.places, ParseTopology(*topology, config.topology));
  return config;
}

}  // namespace vrun::control
