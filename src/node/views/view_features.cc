// SPDX-License-Identifier: Apache-2.0
#include "node/views/view_features.h"

#include <algorithm>
#include <utility>

#include "base/escape.h"

namespace vrun::node {

Result<ViewFeatures> ParseViewFeatures(const std::vector<std::string>& settings) {
  ViewFeatures features;
  constexpr std::pair<std::string_view, bool ViewFeatures::*> kNames[] = {{"passthrough", &ViewFeatures::passthrough},
                                                                          {"push", &ViewFeatures::push},
                                                                          {"readdirplus", &ViewFeatures::readdirplus},
                                                                          {"no_open", &ViewFeatures::no_open},
                                                                          {"cpu_latency", &ViewFeatures::cpu_latency}};
  for (const std::string_view setting : settings) {
    const size_t equals = std::min(setting.find('='), setting.size());
    bool ViewFeatures::*member = nullptr;
    std::string names;
    for (const auto& [name, its] : kNames) {
      if (setting.substr(0, equals) == name) member = its;
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
    if (member == nullptr) {
      return Error(Code::kInvalid, "fuse " + Escape(setting) + ": no such feature: known are " + names);
    }
    const std::string_view value = setting.substr(std::min(equals + 1, setting.size()));
    if (value != "auto" && value != "on" && value != "off") {
      return Error(Code::kInvalid, "fuse " + Escape(setting) + ": not a choice: give auto, on or off");
    }
    features.*member = value != "off";
  }
  return features;
}

}  // namespace vrun::node
