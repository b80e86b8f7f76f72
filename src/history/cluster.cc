// SPDX-License-Identifier: Apache-2.0
#include "history/cluster.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <optional>
#include <tuple>

#include "base/escape.h"
#include "history/trace.h"

namespace vrun::history {
namespace {

constexpr int64_t kMostNodes = 100'000;
constexpr int64_t kMostGpusOfNode = 1024;
constexpr double kMostOfTeam = 1e6;

std::string TypeOf(const v1::NodeInfo& node) {
  const bool known = node.facts().gpus_size() > 0 && !node.facts().gpus(0).type().empty();
  return known ? node.facts().gpus(0).type() : node.total().gpu_type();
}

std::optional<int64_t> WholeNumber(std::string_view text, int64_t most) {
  if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != text.npos) return std::nullopt;
  const int64_t value = std::atoll(std::string(text).c_str());
  return value <= most ? std::optional(value) : std::nullopt;
}

// Thousandths of "1.5".
std::optional<int64_t> Milli(std::string_view text) {
  if (text.empty() || text.size() > 12 || text.find_first_not_of("0123456789.") != text.npos ||
      std::count(text.begin(), text.end(), '.') > 1 || text == ".") {
    return std::nullopt;
  }
  const double value = std::strtod(std::string(text).c_str(), nullptr);
  return value <= kMostOfTeam ? std::optional(static_cast<int64_t>(value * 1000 + 0.5)) : std::nullopt;
}

std::string WithDecimals(int64_t milli) {
  std::string text = std::to_string(milli / 1000);
  if (milli % 1000 == 0) return text;
  const std::string rest = std::to_string(1000 + milli % 1000);
  return text + "." + rest.substr(1);
}

// "default/h100=+4": name, type and what is changed. Calls `each` for every one of the text.
struct Wish {
  std::string name, type, value;
};
Result<std::vector<Wish>> WishesOf(std::string_view text, const char* how) {
  std::vector<Wish> wishes;
  for (size_t at = 0; at <= text.size() && !text.empty();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view one = text.substr(at, comma - at);
    at = comma + 1;
    const size_t equals = one.rfind('=');
    if (equals == one.npos) return Error(Code::kInvalid, "'" + Escape(one) + "': write " + how);
    const std::string_view left = one.substr(0, equals);
    const size_t slash = std::min(left.rfind('/'), left.size());
    wishes.push_back({std::string(left.substr(0, slash)), std::string(left.substr(std::min(slash + 1, left.size()))),
                      std::string(one.substr(equals + 1))});
  }
  return wishes;
}

// What may be named: "local/h100, local/a100".
std::string NamesOf(const std::vector<Part>& parts) {
  std::string text;
  for (const Part& part : parts) {
    const std::string name = Escape(part.pool) + (part.gpu_type.empty() ? "" : "/" + Escape(part.gpu_type));
    if (text.find(name) == text.npos) text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

// ": there are lab, vision".
std::string NamesOf(const std::vector<TeamQuota>& quotas) {
  std::string text;
  for (size_t i = 0; i < quotas.size(); ++i) {
    if (i > 0 && quotas[i].team == quotas[i - 1].team) continue;
    text += (text.empty() ? ": there are " : ", ") + Escape(quotas[i].team);
  }
  return text.empty() ? ": the configuration has none" : text;
}

}  // namespace

std::vector<Part> PartsOf(const google::protobuf::RepeatedPtrField<v1::NodeInfo>& nodes) {
  std::map<std::tuple<std::string, std::string, int64_t>, int64_t> counts;
  for (const v1::NodeInfo& node : nodes) {
    const int64_t gpus = int64_t{node.total().gpus()} - std::popcount(node.facts().bad_gpus());
    if (node.state() == "lost" || gpus <= 0) continue;
    ++counts[{node.pool(), TypeOf(node), gpus}];
  }
  std::vector<Part> parts;
  for (const auto& [key, count] : counts)
    parts.push_back({std::get<0>(key), std::get<1>(key), count, std::get<2>(key)});
  return parts;
}

std::string TableOf(const std::vector<Part>& parts) {
  std::string text = "pool,gpu_type,nodes,gpus\n";
  for (const Part& part : parts) {
    text += Cell(part.pool) + "," + Cell(part.gpu_type) + "," + std::to_string(part.nodes) + "," +
            std::to_string(part.gpus) + "\n";
  }
  return text;
}

Status ChangeParts(std::string_view text, std::vector<Part>* parts) {
  constexpr char kHow[] = "POOL=+NODES, POOL/TYPE=-NODES or POOL/TYPE=NODESxGPUS";
  VRUN_ASSIGN(const std::vector<Wish> wishes, WishesOf(text, kHow));
  for (const Wish& wish : wishes) {
    const auto bad = [&](const std::string& why) {
      return Error(Code::kInvalid, "nodes of " + Escape(wish.name) + ": " + why);
    };
    std::string_view value = wish.value;
    const char sign = !value.empty() && (value[0] == '+' || value[0] == '-') ? value[0] : ' ';
    if (sign != ' ') value.remove_prefix(1);
    const size_t x = std::min(value.find('x'), value.size());
    const auto count = WholeNumber(value.substr(0, x), kMostNodes);
    std::optional<int64_t> gpus;
    if (x < value.size()) gpus = WholeNumber(value.substr(x + 1), kMostGpusOfNode);
    if (!count || (x < value.size() && (!gpus || *gpus == 0))) return bad(std::string("write ") + kHow);
    // Of several that are meant the largest one.
    Part* best = nullptr;
    for (Part& part : *parts) {
      const bool meant =
          part.pool == wish.name && (wish.type.empty() || part.gpu_type == wish.type) && (!gpus || part.gpus == *gpus);
      if (meant && (best == nullptr || part.nodes * part.gpus > best->nodes * best->gpus)) best = &part;
    }
    if (best == nullptr) {
      if (!gpus) {
        return bad("there is " + NamesOf(*parts) + "; for new nodes say how many GPUs each has, as in 4x8");
      }
      if (sign == '-') return bad("there is no such part of the cluster to take from");
      if (Cell(wish.name) != wish.name || Cell(wish.type) != wish.type) return bad("this is no name");
      best = &parts->emplace_back(Part{wish.name, wish.type, 0, *gpus});
    }
    if (sign == '-' && *count > best->nodes) return bad("there are only " + std::to_string(best->nodes));
    best->nodes = sign == '+' ? best->nodes + *count : sign == '-' ? best->nodes - *count : *count;
    if (best->nodes > kMostNodes) return bad("these are too many");
  }
  if (std::any_of(parts->begin(), parts->end(), [](const Part& part) { return part.nodes > 0; })) return {};
  return Error(Code::kInvalid, "a cluster without nodes that have GPUs");
}

std::vector<TeamQuota> QuotasOf(const v1::TeamList& teams) {
  std::vector<TeamQuota> quotas;
  // A parent comes before its children; more levels than teams there cannot be.
  std::vector<const v1::TeamInfo*> left;
  for (const v1::TeamInfo& team : teams.teams()) {
    if (team.configured()) left.push_back(&team);
  }
  const auto waits = [&](const v1::TeamInfo& team) {
    return std::any_of(left.begin(), left.end(), [&](const auto* other) { return other->name() == team.parent(); });
  };
  while (!left.empty()) {
    const size_t before = left.size();
    for (size_t i = 0; i < left.size();) {
      const v1::TeamInfo& team = *left[i];
      if (waits(team) && team.parent() != team.name()) {
        ++i;
        continue;
      }
      // One that the caller does not see is none.
      const bool known =
          std::any_of(quotas.begin(), quotas.end(), [&](const TeamQuota& q) { return q.team == team.parent(); });
      const TeamQuota base{team.name(), known ? team.parent() : "", team.weight_milli(), "", 0, -1};
      for (const v1::TeamQuota& quota : team.quotas()) {
        TeamQuota& one = quotas.emplace_back(base);
        one.gpu_type = quota.gpu_type();
        one.guarantee_milli = quota.guarantee_milli();
        one.limit_milli = quota.limit_milli();
      }
      if (team.quotas().empty()) quotas.push_back(base);
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (left.size() == before) break;
  }
  return quotas;
}

std::set<std::string> NamesOfTeams(const std::vector<TeamQuota>& quotas) {
  std::set<std::string> names;
  for (const TeamQuota& quota : quotas) names.insert(quota.team);
  return names;
}

std::string TableOf(const std::vector<TeamQuota>& quotas) {
  std::string text = "team,parent,weight,gpu_type,guarantee,limit\n";
  for (const TeamQuota& q : quotas) {
    text += Cell(q.team) + "," + Cell(q.parent) + "," + WithDecimals(q.weight_milli) + "," + Cell(q.gpu_type) + "," +
            WithDecimals(q.guarantee_milli) + "," + (q.limit_milli < 0 ? "" : WithDecimals(q.limit_milli)) + "\n";
  }
  return text;
}

Status ChangeTeams(std::string_view text, std::vector<TeamQuota>* quotas) {
  constexpr char kHow[] = "TEAM=GPUS, TEAM=GPUS:WEIGHT or TEAM/TYPE=GPUS";
  VRUN_ASSIGN(const std::vector<Wish> wishes, WishesOf(text, kHow));
  for (const Wish& wish : wishes) {
    const std::string_view value = wish.value;
    const size_t colon = std::min(value.find(':'), value.size());
    const auto guarantee = Milli(value.substr(0, colon));
    const auto weight = colon < value.size() ? Milli(value.substr(colon + 1)) : std::optional<int64_t>(1000);
    if (!guarantee || !weight || *weight == 0 || wish.name.empty() || Cell(wish.name) != wish.name ||
        Cell(wish.type) != wish.type) {
      return Error(Code::kInvalid, "team " + Escape(wish.name) + ": write " + kHow);
    }
    if (std::none_of(quotas->begin(), quotas->end(), [&](const TeamQuota& q) { return q.team == wish.name; })) {
      return Error(Code::kInvalid, "team " + Escape(wish.name) + ": there is no such team" + NamesOf(*quotas));
    }
    TeamQuota* quota = nullptr;
    TeamQuota fresh{wish.name, "", 1000, wish.type, 0, -1};
    for (TeamQuota& other : *quotas) {
      if (other.team != wish.name) continue;
      if (colon < value.size()) other.weight_milli = *weight;
      fresh.parent = other.parent;
      fresh.weight_milli = other.weight_milli;
      if (other.gpu_type == wish.type) quota = &other;
    }
    if (colon < value.size()) fresh.weight_milli = *weight;
    if (quota == nullptr) quota = &quotas->emplace_back(std::move(fresh));
    quota->guarantee_milli = *guarantee;
    if (quota->limit_milli >= 0) quota->limit_milli = std::max(quota->limit_milli, *guarantee);
  }
  return {};
}

}  // namespace vrun::history
