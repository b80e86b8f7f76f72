// SPDX-License-Identifier: Apache-2.0
#include "base/escape.h"

#include <cstdint>

namespace vrun {
namespace {

// Length of the valid UTF-8 sequence at the front of s, 0 when there is none. Refuses overlong forms, surrogates, C1
// controls and bidirectional overrides, which reorder a terminal line.
size_t PrintableUtf8(std::string_view s) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  uint8_t b = byte(0);
  size_t n = b >= 0xf0 && b <= 0xf4 ? 4 : b >= 0xe0 && b < 0xf0 ? 3 : b >= 0xc2 && b < 0xe0 ? 2 : 0;
  if (n == 0 || s.size() < n) return 0;
  uint32_t code = b & (0xffu >> (n + 1));
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fu);
  }
  static constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 0;
  if (code < 0xa0 || (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069)) return 0;
  return n;
}

}  // namespace

std::string Escape(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    uint8_t c = static_cast<uint8_t>(bytes[i]);
    size_t n = c >= 0x20 && c < 0x7f ? 1 : c >= 0x80 ? PrintableUtf8(bytes.substr(i)) : 0;
    if (n > 0 && c != '\\') {
      out.append(bytes.substr(i, n));
      i += n;
      continue;
    }
    ++i;
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else {
      out += "\\x";
      out.push_back(kDigits[c >> 4]);
      out.push_back(kDigits[c & 15]);
    }
  }
  return out;
}

std::string ShellQuote(std::string_view word) {
  bool plain = !word.empty();
  for (char c : word) {
    bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              std::string_view("_-./=:,+@%^").find(c) != std::string_view::npos;
    plain = plain && ok;
  }
  std::string safe = Escape(word);
  if (plain) return safe;
  bool escaped = safe != word;
  std::string out = escaped ? "$'" : "'";
  for (char c : escaped ? safe : std::string(word)) {
    if (c == '\'') {
      out += escaped ? "\\'" : "'\\''";
    } else {
      out.push_back(c);
    }
  }
  return out + "'";
}

}  // namespace vrun
