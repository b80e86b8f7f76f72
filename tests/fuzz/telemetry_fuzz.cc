// SPDX-License-Identifier: Apache-2.0
// What callers and environments say about traces: TRACEPARENT of jobs, the lists and addresses of OpenTelemetry's
// variables, a collector's answer.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/config.h"
#include "telemetry/otlp.h"
#include "telemetry/settings.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vrun::telemetry;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto parent = ParseTraceParent(text)) {
    const auto again = ParseTraceParent(FormatTraceParent(*parent));
    if (!again || again->trace != parent->trace || again->span != parent->span || again->sampled != parent->sampled) {
      __builtin_trap();
    }
  }
  if (const auto pairs = ParseList(text)) {
    for (const auto& [name, value] : *pairs) {
      if (name.empty() || name.find(',') != std::string::npos) __builtin_trap();
    }
  }
  if (const auto ratio = vrun::ParseRatio(text); ratio && !(*ratio >= 0 && *ratio <= 1)) __builtin_trap();
  if (vrun::CheckCollector(text) && text.find_first_of(" \n\"\\?#@") != std::string::npos) __builtin_trap();
  for (const char c : RefusalIn(text).why) {
    if (c == '\n' || c == 0) __builtin_trap();
  }
  return 0;
}
