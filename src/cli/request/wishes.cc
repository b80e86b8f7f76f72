// SPDX-License-Identifier: Apache-2.0
#include "cli/request/wishes.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "base/escape.h"
#include "cli/base/times.h"
#include "cli/base/values.h"
#include "cli/request/scheduling.h"

namespace vrun::cli {
namespace {

constexpr double kMostSeconds = 30.0 * 24 * 3600;
constexpr uint32_t kMostPods = 1'000'000;

Error Bad(std::string_view text, const std::string& why) { return Error(Code::kInvalid, Escape(text) + ": " + why); }

std::vector<std::string_view> Split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t at = text.find_first_of(separators);
    parts.push_back(text.substr(0, at));
    if (at == text.npos) return parts;
    text.remove_prefix(at + 1);
  }
}

// NAME or NAME=VALUE, of characters that need no quotes anywhere.
bool IsName(std::string_view text) {
  return !text.empty() && text.size() <= 256 && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           (c != 0 && std::string_view("-_./=:+@").find(static_cast<char>(c)) != std::string_view::npos);
  });
}

// "45", "45s", "10m", "1.5h", "2d": seconds.
std::optional<double> Seconds(std::string_view text) {
  double unit = 1;
  if (!text.empty()) {
    constexpr std::string_view kUnits = "smhd";
    constexpr double kSeconds[] = {1, 60, 3600, 86400};
    if (const size_t at = kUnits.find(text.back()); at != kUnits.npos) {
      unit = kSeconds[at];
      text.remove_suffix(1);
    }
  }
  const size_t dot = std::min(text.find('.'), text.size());
  auto whole = ParseNumber(text.substr(0, dot), 1'000'000'000);
  if (!whole) return std::nullopt;
  double value = static_cast<double>(*whole);
  if (dot < text.size()) {
    const std::string_view part = text.substr(dot + 1);
    auto fraction = ParseNumber(part, 999'999'999);
    if (!fraction) return std::nullopt;
    double scale = 1;
    for (size_t i = 0; i < part.size(); ++i) scale *= 10;
    value += static_cast<double>(*fraction) / scale;
  }
  value *= unit;
  return value <= kMostSeconds ? std::optional(value) : std::nullopt;
}

}  // namespace

Result<std::vector<std::string>> ParseLabels(std::string_view text) {
  std::vector<std::string> labels;
  for (const std::string_view part : Split(text, ",&")) {
    if (part.find_first_of("|*[]()!") != part.npos) {
      return Bad(text, "alternatives and counts are not there: write labels that a node must have, as in ssd,ib");
    }
    if (!IsName(part)) return Bad(text, "not a list of labels: write NAME or NAME=VALUE, as in ssd,net=ib");
    labels.emplace_back(part);
  }
  return labels;
}

Result<std::vector<std::string>> ParseTaints(std::string_view text) {
  std::vector<std::string> taints;
  for (const std::string_view part : Split(text, ",")) {
    if (!IsName(part)) return Bad(text, "not a list of taints: write NAME or NAME=VALUE, as in reserved,gpu=test");
    taints.emplace_back(part);
  }
  return taints;
}

Result<v1::TopologyLevel> ParseLevel(std::string_view text) {
  for (int level = v1::LEVEL_NODE; level <= v1::LEVEL_CLUSTER; ++level) {
    if (text == LevelName(static_cast<v1::TopologyLevel>(level))) return static_cast<v1::TopologyLevel>(level);
  }
  return Bad(text, "no such level: write node, island, rack, block, zone or cluster");
}

std::string LevelName(v1::TopologyLevel level) {
  std::string name = v1::TopologyLevel_Name(level);
  name.erase(0, std::min(name.size(), std::string_view("LEVEL_").size()));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

Status ParseTopology(std::string_view text, v1::Scheduling* out) {
  const size_t colon = text.find(':');
  if (colon != text.npos && text.substr(colon) != ":prefer") {
    return Bad(text, "not a wish: write a level, as in rack, or rack:prefer");
  }
  VRUN_ASSIGN(const v1::TopologyLevel level, ParseLevel(text.substr(0, colon)));
  if (colon == text.npos) {
    out->set_required_level(level);
  } else {
    out->set_preferred_level(level);
  }
  return {};
}

Status ParseSegment(std::string_view text, v1::Scheduling* out) {
  const size_t at = text.find('@');
  auto pods = ParseNumber(text.substr(0, at), kMostPods);
  if (!pods || *pods == 0) return Bad(text, "not a segment: write pods and a level, as in 8@island");
  v1::TopologyLevel level = v1::LEVEL_ISLAND;
  if (at != text.npos) {
    VRUN_ASSIGN(level, ParseLevel(text.substr(at + 1)));
  }
  out->set_segment(static_cast<uint32_t>(*pods));
  out->set_segment_level(level);
  return {};
}

Status ParseSpread(std::string_view text, v1::Scheduling* out) {
  v1::TopologyLevel level = v1::LEVEL_NODE;
  if (!text.empty()) {
    VRUN_ASSIGN(level, ParseLevel(text));
  }
  out->set_spread(true);
  out->set_segment_level(level);
  return {};
}

Status ParseSwitches(std::string_view text, v1::Scheduling* out) {
  const size_t at = text.find('@');
  auto count = ParseNumber(text.substr(0, at), kMostPods);
  const bool timed = at == text.npos || ParseTimeLimit(text.substr(at + 1)).has_value();
  if (!count || *count == 0 || !timed) return Bad(text, "not a number of switches: write COUNT[@TIME]");
  // More than one switch cannot be asked for. Fewer are used anyway where that is possible.
  if (*count == 1) out->set_preferred_level(v1::LEVEL_RACK);
  return {};
}

Status ParseCheckpoint(std::string_view text, v1::Scheduling* out) {
  v1::Scheduling parsed = *out;
  for (const std::string_view item : Split(text, ",")) {
    const size_t colon = item.find(':');
    const std::string_view key = item.substr(0, colon);
    const std::string_view value = colon == item.npos ? std::string_view() : item.substr(colon + 1);
    if (key == "signal") {
      const int signal = ParseSignal(value);
      if (signal == 0 || signal == 9 || signal == 19) return Bad(item, "not a signal that a program can handle");
      parsed.set_signal(signal);
      parsed.set_saves(true);
      continue;
    }
    const std::optional<double> seconds = Seconds(value);
    const bool known = key == "grace" || key == "save" || key == "restore" || key == "every" || key == "resize";
    if (!known || !seconds) {
      return Bad(item,
                 "not a part of a checkpoint: write it as in "
                 "signal:USR1,grace:120s,save:45s,restore:60s,every:10m,resize:5s");
    }
    if (key == "grace") {
      if (*seconds < 1 || *seconds > 24 * 3600) return Bad(item, "write 1 second to 24 hours");
      parsed.set_grace_s(static_cast<uint32_t>(*seconds));
    } else if (key == "save") {
      parsed.set_save_seconds(*seconds);
    } else if (key == "restore") {
      parsed.set_restore_seconds(*seconds);
    } else if (key == "resize") {
      parsed.set_resize_seconds(*seconds);
    } else {
      parsed.set_save_period_seconds(*seconds);
    }
  }
  *out = std::move(parsed);
  return {};
}

Result<v1::RetryRule> ParseRetry(std::string_view text) {
  const auto bad = [&] { return Bad(text, "not a rule: write TIMES[@DELAY][:CAUSE,...], as in 3@30s:oom,node,1"); };
  v1::RetryRule rule;
  const size_t colon = text.find(':');
  const std::string_view how = text.substr(0, colon);
  const size_t at = how.find('@');
  const auto times = ParseNumber(how.substr(0, at), 1000);
  if (!times || *times == 0) return bad();
  rule.set_times(static_cast<uint32_t>(*times));
  if (at != how.npos) {
    const auto delay = Seconds(how.substr(at + 1));
    if (!delay || *delay > 24 * 3600) return bad();
    rule.set_delay_s(static_cast<uint32_t>(*delay));
  }
  if (colon == text.npos) {
    rule.add_causes("any");
    return rule;
  }
  for (const std::string_view cause : Split(text.substr(colon + 1), ",")) {
    constexpr std::string_view kCauses[] = {"any", "oom", "node", "timeout", "signal"};
    const auto status = ParseNumber(cause, 255);
    if (std::find(std::begin(kCauses), std::end(kCauses), cause) == std::end(kCauses) && (!status || *status == 0)) {
      return Bad(cause, "not a cause: write any, oom, node, timeout, signal or an exit status");
    }
    rule.add_causes(status ? std::to_string(*status) : std::string(cause));
  }
  return rule;
}

Status ParseDeadlines(std::string_view text, int64_t now, v1::Scheduling* out) {
  if (text.find_first_of(",=") == text.npos) {
    VRUN_ASSIGN(const Deadline deadline, ParseDeadline(text, now));
    out->set_deadline_us(deadline.at);
    out->set_hard_deadline(deadline.hard);
    out->clear_deadline_steps();
    return {};
  }
  v1::Scheduling parsed;
  for (const std::string_view item : Split(text, ",")) {
    const size_t equals = item.find('=');
    if (item.starts_with("hard:")) return Bad(text, "a hard deadline has no steps: name one time");
    VRUN_ASSIGN(const Deadline deadline, ParseDeadline(item.substr(0, equals), now));
    v1::DeadlineStep* step = parsed.add_deadline_steps();
    step->set_at_us(deadline.at);
    step->set_value_milli(1000);
    if (equals == item.npos) continue;
    const std::string_view part = item.substr(equals + 1);
    const size_t dot = part.find('.');
    std::string digits(dot == part.npos ? std::string_view() : part.substr(dot + 1));
    digits.resize(std::max<size_t>(digits.size(), 3), '0');
    const auto whole = ParseNumber(part.substr(0, dot), 1), fraction = ParseNumber(digits, 999);
    if (!whole || !fraction || *whole * 1000 + *fraction > 1000) {
      return Bad(item, "not a part from 0 to 1: write it as in 18:00=1,20:00=0.5");
    }
    step->set_value_milli(static_cast<uint32_t>(*whole * 1000 + *fraction));
  }
  for (int i = 1; i < parsed.deadline_steps_size(); ++i) {
    const v1::DeadlineStep &before = parsed.deadline_steps(i - 1), &step = parsed.deadline_steps(i);
    if (step.at_us() <= before.at_us() || step.value_milli() > before.value_milli()) {
      return Bad(text, "each step must be later than the one before it, and worth no more");
    }
  }
  out->clear_deadline_us();
  out->clear_hard_deadline();
  *out->mutable_deadline_steps() = parsed.deadline_steps();
  return {};
}

}  // namespace vrun::cli
