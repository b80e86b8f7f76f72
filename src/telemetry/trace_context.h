// SPDX-License-Identifier: Apache-2.0
// Names of traces and spans, and the W3C header that passes them on (https://www.w3.org/TR/trace-context/).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace vrun::telemetry {

// All zero: none.
template <size_t kBytes>
struct Id {
  std::array<uint8_t, kBytes> bytes{};

  bool operator==(const Id&) const = default;
  bool is_zero() const { return *this == Id{}; }
  std::string_view view() const { return {reinterpret_cast<const char*>(bytes.data()), kBytes}; }
  std::string Hex() const;
};
using TraceId = Id<16>;
using SpanId = Id<8>;

// The value of TRACEPARENT: who called, and whether what follows is recorded.
struct TraceParent {
  TraceId trace;
  SpanId span;
  bool sampled = false;
};
// nullopt for everything that the standard says to ignore. Of a later version, what version 00 knows of it.
std::optional<TraceParent> ParseTraceParent(std::string_view text);
std::string FormatTraceParent(const TraceParent& parent);

inline constexpr std::string_view kTraceParent = "TRACEPARENT";
// The value of the variable in an environment (NAME=value); of several the last. "": it is not set.
template <typename Environment>
std::string TraceParentIn(const Environment& environment) {
  std::string found;
  for (const std::string& entry : environment) {
    if (entry.starts_with(kTraceParent) && entry.size() > kTraceParent.size() && entry[kTraceParent.size()] == '=') {
      found = entry.substr(kTraceParent.size() + 1);
    }
  }
  return found;
}

}  // namespace vrun::telemetry
