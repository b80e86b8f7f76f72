// SPDX-License-Identifier: Apache-2.0
#include "cli/base/values.h"

#include <strings.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/escape.h"

namespace vrun::cli {
namespace {

constexpr uint64_t kMaxLimit = uint64_t{1} << 62;
constexpr uint32_t kMaxCpus = 100000;
constexpr uint32_t kMaxGpus = 100000;

Error Bad(std::string_view text, std::string_view why, std::string_view what_to_write) {
  return Error(Code::kInvalid, Escape(text) + ": " + std::string(why) + ": " + std::string(what_to_write));
}

bool SameWord(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

// Parses "12" or "1.5", without sign or exponent, into thousandths. False when it has another form or is too large.
bool Thousandths(std::string_view text, uint64_t max, uint64_t* out) {
  size_t dot = text.find('.');
  std::string_view whole = text.substr(0, dot);
  std::string_view part = dot == std::string_view::npos ? std::string_view() : text.substr(dot + 1);
  if (whole.empty() || part.size() > 3 || (dot != std::string_view::npos && part.empty())) return false;
  auto number = ParseNumber(whole, max / 1000);
  if (!number) return false;
  uint64_t fraction = 0, scale = 100;
  for (char c : part) {
    if (c < '0' || c > '9') return false;
    fraction += static_cast<uint64_t>(c - '0') * scale;
    scale /= 10;
  }
  *out = *number * 1000 + fraction;
  return *out <= max;
}

}  // namespace

Result<uint64_t> ParseNumber(std::string_view text, uint64_t max) {
  uint64_t n = 0;
  if (text.empty()) return Bad(text, "not a number", "write a whole number");
  for (char c : text) {
    if (c < '0' || c > '9') return Bad(text, "not a number", "write a whole number");
    auto digit = static_cast<uint64_t>(c - '0');
    if (n > (max - digit) / 10 || digit > max) return Bad(text, "too large", "at most " + std::to_string(max));
    n = n * 10 + digit;
  }
  return n;
}

Result<uint64_t> ParseMemory(std::string_view text) {
  constexpr std::string_view kForm = "write a number with K, M, G or T, as in 16G";
  std::string_view number = text.substr(0, text.find_first_not_of("0123456789."));
  std::string_view unit = text.substr(number.size());
  uint64_t scale = uint64_t{1} << 20;
  if (!unit.empty()) {
    static constexpr std::string_view kUnits = "KMGTP";
    size_t power = kUnits.find(static_cast<char>(unit[0] & ~0x20));
    std::string_view rest = unit.substr(1);
    if (power == std::string_view::npos || !(rest.empty() || SameWord(rest, "b") || SameWord(rest, "ib"))) {
      return Bad(text, "not a size", kForm);
    }
    scale = uint64_t{1} << (10 * (power + 1));
  }
  uint64_t thousandths;
  if (!Thousandths(number, std::numeric_limits<uint64_t>::max() / 2, &thousandths))
    return Bad(text, "not a size", kForm);
  if (thousandths / 1000 >= kMaxLimit / scale) return Bad(text, "too large", "no machine has that much");
  return thousandths / 1000 * scale + thousandths % 1000 * scale / 1000;
}

Result<uint64_t> ParseTimeLimit(std::string_view text) {
  if (SameWord(text, "unlimited") || SameWord(text, "infinite")) return 0;
  auto bad = [&] {
    return Bad(text, "not a time limit", "write minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS");
  };
  constexpr uint64_t kMax = 1000000000;
  uint64_t days = 0;
  std::string_view rest = text;
  size_t dash = text.find('-');
  if (dash != std::string_view::npos) {
    auto d = ParseNumber(text.substr(0, dash), 100000);
    if (!d) return bad();
    days = *d;
    rest = text.substr(dash + 1);
  }
  std::vector<uint64_t> parts;
  for (;;) {
    size_t colon = rest.find(':');
    auto n = ParseNumber(rest.substr(0, colon), kMax);
    if (!n || parts.size() == 3) return bad();
    parts.push_back(*n);
    if (colon == std::string_view::npos) break;
    rest = rest.substr(colon + 1);
  }
  uint64_t seconds;
  if (dash != std::string_view::npos) {
    parts.resize(3);
    seconds = parts[0] * 3600 + parts[1] * 60 + parts[2];
  } else if (parts.size() == 1) {
    seconds = parts[0] * 60;
  } else if (parts.size() == 2) {
    seconds = parts[0] * 60 + parts[1];
  } else {
    seconds = parts[0] * 3600 + parts[1] * 60 + parts[2];
  }
  return days * 86400 + seconds;
}

Result<uint32_t> ParseCpus(std::string_view text) {
  uint64_t n;
  if (!Thousandths(text, uint64_t{kMaxCpus} * 1000, &n) || n == 0) {
    return Bad(text, "not a number of cores", "write one as in 4 or 0.5");
  }
  return static_cast<uint32_t>(n);
}

Result<Gpus> ParseGpus(std::string_view text) {
  constexpr std::string_view kForm = "write [TYPE:]NUMBER as in 2 or h100:2";
  Gpus out;
  std::string_view number = text;
  size_t colon = text.find(':');
  if (colon != std::string_view::npos) {
    out.type = text.substr(0, colon);
    number = text.substr(colon + 1);
    if (out.type.empty()) return Bad(text, "no GPU type before the colon", kForm);
    for (char c : out.type) {
      bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
                c == '.';
      if (!ok) return Bad(text, "not a GPU type", kForm);
    }
    if (out.type.find_first_of("-_.") == 0) return Bad(text, "not a GPU type", kForm);
  }
  auto n = ParseNumber(number, kMaxGpus);
  if (!n) return Bad(text, "not a number of GPUs", kForm);
  out.count = static_cast<uint32_t>(*n);
  return out;
}

Result<uint64_t> ParseJobId(std::string_view text) {
  auto n = ParseNumber(text, std::numeric_limits<int64_t>::max());
  if (!n || *n == 0) return Bad(text, "not a job id", "job ids are whole numbers, `vctl jobs` lists them");
  return *n;
}

}  // namespace vrun::cli
