// SPDX-License-Identifier: Apache-2.0
#include "telemetry/trace_context.h"

namespace vrun::telemetry {
namespace {

// The standard knows lower case only.
int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

template <size_t kBytes>
std::optional<Id<kBytes>> ParseHex(std::string_view text) {
  if (text.size() != 2 * kBytes) return std::nullopt;
  Id<kBytes> id;
  for (size_t i = 0; i < kBytes; ++i) {
    const int high = HexDigit(text[2 * i]), low = HexDigit(text[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    id.bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return id;
}

constexpr size_t kLength = 55;  // 00-TRACE-SPAN-FLAGS

}  // namespace

template <size_t kBytes>
std::string Id<kBytes>::Hex() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t b : bytes) {
    text += kDigits[b >> 4];
    text += kDigits[b & 15];
  }
  return text;
}
template struct Id<16>;
template struct Id<8>;

std::optional<TraceParent> ParseTraceParent(std::string_view text) {
  if (text.size() < kLength || text[2] != '-' || text[35] != '-' || text[52] != '-') return std::nullopt;
  const auto version = ParseHex<1>(text.substr(0, 2));
  if (!version || version->bytes[0] == 0xff) return std::nullopt;
  const bool longer = text.size() > kLength;
  if (longer && (version->bytes[0] == 0 || text[kLength] != '-')) return std::nullopt;
  const auto trace = ParseHex<16>(text.substr(3, 32));
  const auto span = ParseHex<8>(text.substr(36, 16));
  const auto flags = ParseHex<1>(text.substr(53, 2));
  if (!trace || !span || !flags || trace->is_zero() || span->is_zero()) return std::nullopt;
  return TraceParent{*trace, *span, (flags->bytes[0] & 1) != 0};
}

std::string FormatTraceParent(const TraceParent& parent) {
  return "00-" + parent.trace.Hex() + "-" + parent.span.Hex() + (parent.sampled ? "-01" : "-00");
}

}  // namespace vrun::telemetry
