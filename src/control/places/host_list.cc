// SPDX-License-Identifier: Apache-2.0
#include "control/places/host_list.h"

#include <charconv>
#include <optional>
#include <set>

#include "base/escape.h"

namespace vrun::control {
namespace {

constexpr size_t kMostNames = 100'000;
constexpr size_t kMostNameBytes = 256;

// Splits at the commas outside of brackets. nullopt: a bracket without its partner.
std::optional<std::vector<std::string_view>> Items(std::string_view text) {
  std::vector<std::string_view> items;
  bool inside = false;
  size_t from = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[' || text[i] == ']') {
      if (inside == (text[i] == '[')) return std::nullopt;
      inside = !inside;
    } else if (text[i] == ',' && !inside) {
      items.push_back(text.substr(from, i - from));
      from = i + 1;
    }
  }
  if (inside) return std::nullopt;
  items.push_back(text.substr(from));
  return items;
}

std::optional<uint64_t> Number(std::string_view digits) {
  uint64_t n = 0;
  if (digits.empty() || digits.size() > 9) return std::nullopt;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return n;
}

// "1-4,07": appends the numbers as text. False: wrong, or too many.
bool ExpandNumbers(std::string_view ranges, std::vector<std::string>* out) {
  for (;;) {
    const size_t comma = ranges.find(',');
    const std::string_view range = ranges.substr(0, comma);
    const size_t dash = range.find('-');
    const std::string_view begin = range.substr(0, dash);
    const auto first = Number(begin);
    const auto last = dash == range.npos ? first : Number(range.substr(dash + 1));
    if (!first || !last || *last < *first || *last - *first >= kMostNames) return false;
    for (uint64_t n = *first; n <= *last; ++n) {
      std::string number = std::to_string(n);
      if (number.size() < begin.size()) number.insert(0, begin.size() - number.size(), '0');
      out->push_back(std::move(number));
    }
    if (out->size() > kMostNames) return false;
    if (comma == ranges.npos) return true;
    ranges.remove_prefix(comma + 1);
  }
}

// "rack[1-2]n[1-4]": one after the other.
bool ExpandItem(std::string_view item, std::vector<std::string>* out) {
  std::vector<std::string> names{""};
  while (!item.empty()) {
    const size_t open = std::min(item.find('['), item.size());
    for (std::string& name : names) name += item.substr(0, open);
    item.remove_prefix(open);
    if (item.empty()) break;
    const size_t close = item.find(']');
    std::vector<std::string> numbers;
    if (!ExpandNumbers(item.substr(1, close - 1), &numbers) || names.size() * numbers.size() > kMostNames) return false;
    item.remove_prefix(close + 1);
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& number : numbers) longer.push_back(name + number);
    }
    names = std::move(longer);
  }
  for (std::string& name : names) {
    if (name.empty() || name.size() > kMostNameBytes) return false;
    out->push_back(std::move(name));
  }
  return out->size() <= kMostNames;
}

}  // namespace

Result<std::vector<std::string>> ExpandHosts(std::string_view text) {
  const auto bad = [&] {
    return Error(Code::kInvalid, Escape(text) + ": not a list of nodes: write names as in n1,n2 or n[1-4,7]");
  };
  const auto items = Items(text);
  if (!items) return bad();
  std::vector<std::string> names;
  for (const std::string_view item : *items) {
    if (!ExpandItem(item, &names)) return bad();
  }
  std::set<std::string> seen;
  std::erase_if(names, [&](const std::string& name) { return !seen.insert(name).second; });
  return names;
}

}  // namespace vrun::control
