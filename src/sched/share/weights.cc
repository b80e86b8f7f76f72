// SPDX-License-Identifier: Apache-2.0
#include "sched/share/weights.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <type_traits>

#include "base/escape.h"

namespace vrun::sched::core {
namespace {

using Weights = Policy;

std::string_view Trim(std::string_view text) {
  const size_t from = text.find_first_not_of(" \t\r");
  if (from == text.npos) return {};
  return text.substr(from, text.find_last_not_of(" \t\r") - from + 1);
}

bool ReadNumber(std::string_view text, int64_t most, int64_t* out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc{} && end == text.data() + text.size() && *out >= 0 && *out <= most;
}

// The expected form of a value, and a function that stores it and returns false if the form is wrong.
struct Field {
  const char* name;
  const char* form;
  bool (*set)(Weights*, std::string_view);
};

constexpr int64_t kMostNumber = int64_t{1} << 40;
constexpr double kMostSeconds = 100.0 * 366 * 86400;

template <auto kMember>
bool SetNumber(Weights* weights, std::string_view text) {
  using Type = std::remove_reference_t<decltype(weights->*kMember)>;
  int64_t value = 0;
  if (!ReadNumber(text, std::min<int64_t>(kMostNumber, std::numeric_limits<Type>::max()), &value)) return false;
  weights->*kMember = static_cast<Type>(value);
  return true;
}

template <auto kMember>
bool SetSeconds(Weights* weights, std::string_view text) {
  double seconds = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc{} || end != text.data() + text.size() || !(seconds >= 0 && seconds <= kMostSeconds))
    return false;
  weights->*kMember = static_cast<int64_t>(std::llround(seconds * 1e6));
  return true;
}

template <auto kMember>
bool SetBool(Weights* weights, std::string_view text) {
  if (text != "true" && text != "false") return false;
  weights->*kMember = text == "true";
  return true;
}

template <auto kMember>
bool SetList(Weights* weights, std::string_view text) {
  if (!text.starts_with('[') || !text.ends_with(']') || text.size() < 2) return false;
  text = text.substr(1, text.size() - 2);
  auto values = weights->*kMember;
  for (size_t i = 0; i < values.size(); ++i) {
    const bool last = i + 1 == values.size();
    const size_t comma = text.find(',');
    if ((comma == text.npos) != last || !ReadNumber(Trim(text.substr(0, comma)), kMostNumber, &values[i])) return false;
    if (!last) text.remove_prefix(comma + 1);
  }
  weights->*kMember = values;
  return true;
}

constexpr char kNumber[] = "a whole number", kSeconds[] = "seconds", kBool[] = "true or false", kList[] = "a list";

#define VRUN_NUMBER(name) \
  { #name, kNumber, SetNumber < &Weights::name> }
#define VRUN_SECONDS(name) \
  { #name, kSeconds, SetSeconds < &Weights::name> }
constexpr Field kFields[] = {
    {"class_weight", kList, SetList<&Weights::class_weight>},
    VRUN_NUMBER(beta),
    VRUN_NUMBER(growth),
    VRUN_SECONDS(growth_floor),
    VRUN_SECONDS(level_base),
    VRUN_NUMBER(deadline_weight),
    VRUN_SECONDS(starvation_bound),
    VRUN_NUMBER(starvation_stretch),
    VRUN_SECONDS(starvation_turn),
    VRUN_NUMBER(turn_share),
    VRUN_NUMBER(turn_gang),
    VRUN_NUMBER(history_min_samples),
    VRUN_NUMBER(history_samples_kept),
    VRUN_SECONDS(sibling_gap),
    VRUN_NUMBER(sibling_trust),
    VRUN_SECONDS(default_save),
    VRUN_SECONDS(default_restore),
    {"preemption", kBool, SetBool<&Weights::preemption>},
    VRUN_NUMBER(theta),
    VRUN_NUMBER(quantum_factor),
    VRUN_NUMBER(lost_budget),
    VRUN_SECONDS(lost_burst),
    VRUN_SECONDS(price_interval),
    VRUN_NUMBER(preempt_attempts),
    VRUN_NUMBER(preempt_domains),
    VRUN_NUMBER(repeat_victim),
    VRUN_NUMBER(holds),
    VRUN_NUMBER(backfill_price),
    VRUN_NUMBER(fairness),
    VRUN_NUMBER(fairness_span),
    VRUN_SECONDS(usage_half_life),
    VRUN_NUMBER(usage_weight),
    VRUN_SECONDS(headroom_window),
    VRUN_NUMBER(headroom_quantile),
    VRUN_NUMBER(headroom_most),
    VRUN_SECONDS(maintenance_lead),
    {"throughput", kList, SetList<&Weights::throughput>},
    VRUN_SECONDS(pass_interval),
    VRUN_SECONDS(urge_interval),
};
#undef VRUN_NUMBER
#undef VRUN_SECONDS

}  // namespace

Result<Weights> ParseWeights(std::string_view text, const std::string& name, const Policy& otherwise) {
  Weights weights = otherwise;
  std::set<std::string, std::less<>> seen;
  size_t line_number = 0;
  while (!text.empty()) {
    ++line_number;
    const size_t newline = std::min(text.find('\n'), text.size());
    const std::string_view line = Trim(text.substr(0, std::min(newline, text.find('#'))));
    text.remove_prefix(std::min(newline + 1, text.size()));
    if (line.empty()) continue;
    const auto fail = [&](const std::string& what) {
      return Error(Code::kInvalid, Escape(name) + ":" + std::to_string(line_number) + ": " + what);
    };
    const size_t equals = line.find('=');
    if (equals == line.npos) return fail("expected name = value");
    const std::string_view key = Trim(line.substr(0, equals)), value = Trim(line.substr(equals + 1));
    const Field* field = nullptr;
    for (const Field& f : kFields) {
      if (key == f.name) field = &f;
    }
    if (field == nullptr) return fail("'" + Escape(key.substr(0, 40)) + "': there is no such weight");
    if (!seen.insert(std::string(key)).second) return fail(std::string(field->name) + ": given twice");
    if (!field->set(&weights, value)) return fail(std::string(field->name) + ": expected " + field->form);
  }
  return weights;
}

}  // namespace vrun::sched::core
