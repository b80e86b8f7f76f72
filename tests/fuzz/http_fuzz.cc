// SPDX-License-Identifier: Apache-2.0
// Paths and queries of the HTTP API, which strangers write: what is decoded is found again when it is encoded.
#include <cstddef>
#include <cstdint>
#include <string>

#include "http/message.h"
#include "http/query.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vrun::http;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::string path = text.substr(0, text.find('?'));
  const std::string rest = path.size() < text.size() ? text.substr(path.size() + 1) : "";
  static const PathPattern pattern("/api/v1/{kind}/{name}/why");
  if (const auto names = pattern.Match(path)) {
    const std::string again =
        "/api/v1/" + PercentEncode(names->at("kind")) + "/" + PercentEncode(names->at("name")) + "/why";
    if (pattern.Match(again) != names) __builtin_trap();
  }
  if (const auto query = ParseQuery(rest)) {
    std::string again;
    for (const auto& [name, value] : *query) again += PercentEncode(name) + "=" + PercentEncode(value) + "&";
    const auto same = ParseQuery(again);
    if (!same || *same != *query) __builtin_trap();
  }
  if (!IsUtf8(JsonQuote(text))) __builtin_trap();
  return 0;
}
