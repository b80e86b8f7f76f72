// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/team_terms.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/escape.h"
#include "sim/replay/csv.h"

namespace vrun::sim {
namespace {

namespace core = sched::core;

constexpr double kMostTeamGpus = 1e8;

// "1.5" in thousandths.
Result<int64_t> MilliOf(const Csv& csv, size_t row, size_t column) {
  const std::string text(csv.Field(row, column));
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || text.find_first_not_of("0123456789.") != text.npos || *end != 0 || value > kMostTeamGpus) {
    return csv.At(row, "'" + Escape(text.substr(0, 40)) + "': not a number of GPUs or a weight");
  }
  return std::llround(value * 1000);
}

}  // namespace

bool IsTermsTable(std::string_view text) {
  const std::string_view header = text.substr(0, text.find('\n'));
  return header.find("guarantee") != header.npos;
}

Result<TeamTerms> ReadTeamTerms(const std::string& text, const std::string& name) {
  TeamTerms terms;
  // A cluster without teams is one, too.
  if (text.find('\n') == text.npos || text.find_first_not_of("\r\n", text.find('\n')) == text.npos) return terms;
  VRUN_ASSIGN(const Csv csv, Csv::Parse(text, name));
  VRUN_ASSIGN(const size_t team, csv.Column("team"));
  VRUN_ASSIGN(const size_t parent, csv.Column("parent"));
  VRUN_ASSIGN(const size_t weight, csv.Column("weight"));
  VRUN_ASSIGN(const size_t type, csv.Column("gpu_type"));
  VRUN_ASSIGN(const size_t guarantee, csv.Column("guarantee"));
  VRUN_ASSIGN(const size_t limit, csv.Column("limit"));
  const auto find = [&](std::string_view wanted) {
    return std::find_if(terms.begin(), terms.end(), [&](const core::TeamSpec& t) { return t.name == wanted; });
  };
  for (size_t row = 0; row < csv.rows(); ++row) {
    auto spec = find(csv.Field(row, team));
    if (spec == terms.end()) {
      core::TeamSpec fresh;
      fresh.name = csv.Field(row, team);
      fresh.parent = csv.Field(row, parent);
      VRUN_ASSIGN(fresh.weight, MilliOf(csv, row, weight));
      fresh.weight = std::max<int64_t>(fresh.weight, 1);
      if (!fresh.parent.empty() && find(fresh.parent) == terms.end()) {
        return csv.At(row, "the parent must be in a line before");
      }
      terms.push_back(std::move(fresh));
      spec = terms.end() - 1;
    }
    core::Quota quota;
    quota.gpu_type = csv.Field(row, type);
    VRUN_ASSIGN(quota.guarantee, MilliOf(csv, row, guarantee));
    if (!csv.Field(row, limit).empty()) {
      VRUN_ASSIGN(quota.limit, MilliOf(csv, row, limit));
    }
    if (quota.guarantee > 0 || quota.limit != INT64_MAX) spec->quotas.push_back(std::move(quota));
  }
  return terms;
}

TeamTerms TermsIn(const TeamTerms& terms, const ClusterPart& part, const ClusterParts& all) {
  const double ratio = static_cast<double>(part.nodes) * part.gpus / static_cast<double>(GpusOf(all));
  const auto scaled = [&](int64_t milli) { return std::llround(static_cast<double>(milli) * ratio); };
  TeamTerms out = terms;
  for (core::TeamSpec& team : out) {
    std::vector<core::Quota> quotas;
    for (core::Quota quota : team.quotas) {
      if (!quota.gpu_type.empty() && quota.gpu_type != part.gpu_type) continue;
      if (quota.gpu_type.empty()) {
        quota.guarantee = scaled(quota.guarantee);
        if (quota.limit != INT64_MAX) quota.limit = scaled(quota.limit);
      }
      quota.gpu_type.clear();
      // One for the type itself says more than one for all of them.
      if (quotas.empty()) {
        quotas.push_back(quota);
      } else {
        quotas[0].guarantee = std::max(quotas[0].guarantee, quota.guarantee);
        quotas[0].limit = std::min(quotas[0].limit, quota.limit);
      }
    }
    team.quotas = std::move(quotas);
  }
  return out;
}

}  // namespace vrun::sim
