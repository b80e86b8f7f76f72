// SPDX-License-Identifier: Apache-2.0
#include "http/query.h"

#include <algorithm>

namespace vrun::http {
namespace {

constexpr size_t kMostParameters = 64;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::vector<std::string_view> Split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

Result<std::string> PercentDecode(std::string_view text, bool plus_is_blank) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '+' && plus_is_blank) {
      c = ' ';
    } else if (c == '%') {
      const int high = i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? HexDigit(text[i + 2]) : -1;
      if (high < 0 || low < 0) return Error(Code::kInvalid, "the URL has a % without two hexadecimal digits");
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (c == '\0') return Error(Code::kInvalid, "the URL has a NUL byte");
    out += c;
  }
  return out;
}

std::string PercentEncode(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~").find(c) != std::string_view::npos;
    if (plain) {
      out += c;
      continue;
    }
    out += '%';
    out += "0123456789ABCDEF"[static_cast<unsigned char>(c) >> 4];
    out += "0123456789ABCDEF"[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

Result<Query> ParseQuery(std::string_view text) {
  Query query;
  if (text.empty()) return query;
  for (const std::string_view part : Split(text, '&')) {
    if (part.empty()) continue;
    const size_t equals = part.find('=');
    VRUN_ASSIGN(std::string name, PercentDecode(part.substr(0, equals), true));
    std::string value;
    if (equals != std::string_view::npos) {
      VRUN_ASSIGN(value, PercentDecode(part.substr(equals + 1), true));
    }
    const bool repeats = std::any_of(query.begin(), query.end(), [&](const auto& q) { return q.first == name; });
    if (repeats) return Error(Code::kInvalid, "the query names a parameter twice");
    query.emplace_back(std::move(name), std::move(value));
    if (query.size() > kMostParameters) return Error(Code::kInvalid, "the query has more than 64 parameters");
  }
  return query;
}

PathPattern::PathPattern(std::string_view pattern) {
  pattern.remove_prefix(1);
  for (const std::string_view part : Split(pattern, '/')) {
    const bool is_name = part.size() > 2 && part.front() == '{' && part.back() == '}';
    segments_.push_back({std::string(is_name ? part.substr(1, part.size() - 2) : part), is_name});
  }
}

size_t PathPattern::names() const {
  return static_cast<size_t>(
      std::count_if(segments_.begin(), segments_.end(), [](const Segment& s) { return s.is_name; }));
}

std::optional<std::map<std::string, std::string>> PathPattern::Match(std::string_view path) const {
  if (path.empty() || path.front() != '/') return std::nullopt;
  path.remove_prefix(1);
  const std::vector<std::string_view> parts = Split(path, '/');
  if (parts.size() != segments_.size()) return std::nullopt;
  std::map<std::string, std::string> names;
  for (size_t i = 0; i < parts.size(); ++i) {
    auto text = PercentDecode(parts[i], false);
    if (!text) return std::nullopt;
    if (!segments_[i].is_name) {
      if (*text != segments_[i].text) return std::nullopt;
      continue;
    }
    if (text->empty()) return std::nullopt;
    names.emplace(segments_[i].text, *std::move(text));
  }
  return names;
}

}  // namespace vrun::http
