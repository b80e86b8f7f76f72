// SPDX-License-Identifier: Apache-2.0
// Reading JSON of others: whatever is missing or of another type is not there.
#pragma once

#define JSON_USE_IMPLICIT_CONVERSIONS 0
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace vrun::oidc {

using Json = nlohmann::json;

// Discarded (is_discarded) unless it is an object.
inline Json ParseObject(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  return json.is_object() ? json : Json(Json::value_t::discarded);
}
inline const Json* Member(const Json& json, const std::string& name) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(name);
  return found == json.end() ? nullptr : &*found;
}
// "" if there is no such text.
inline std::string Text(const Json& json, const std::string& name) {
  const Json* member = Member(json, name);
  return member != nullptr && member->is_string() ? member->get<std::string>() : "";
}
inline std::optional<int64_t> Number(const Json& json, const std::string& name) {
  const Json* member = Member(json, name);
  if (member == nullptr || !member->is_number()) return std::nullopt;
  if (member->is_number_integer()) return member->get<int64_t>();
  // RFC 7519 allows fractions of seconds.
  const double value = member->get<double>();
  if (!(value > -1e15 && value < 1e15)) return std::nullopt;
  return static_cast<int64_t>(value);
}

}  // namespace vrun::oidc
