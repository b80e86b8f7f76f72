// SPDX-License-Identifier: Apache-2.0
#include "cli/base/json.h"

#include <cmath>
#include <cstdio>

#include "base/clock.h"

namespace vrun::cli {
namespace {

// Length of the well-formed UTF-8 sequence at the front, 0 if there is none.
size_t Utf8Length(std::string_view s) {
  auto b = static_cast<unsigned char>(s[0]);
  if (b < 0x80) return 1;
  size_t n = b >= 0xc2 && b < 0xe0 ? 2 : b >= 0xe0 && b < 0xf0 ? 3 : b >= 0xf0 && b < 0xf5 ? 4 : 0;
  if (n == 0 || s.size() < n) return 0;
  uint32_t code = b & (0xffu >> (n + 1));
  for (size_t i = 1; i < n; ++i) {
    auto c = static_cast<unsigned char>(s[i]);
    if ((c & 0xc0) != 0x80) return 0;
    code = code << 6 | (c & 0x3fu);
  }
  static constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  bool ok = code >= kSmallest[n] && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000);
  return ok ? n : 0;
}

void AppendString(std::string_view bytes, std::string* out) {
  out->push_back('"');
  for (size_t i = 0; i < bytes.size();) {
    size_t n = Utf8Length(bytes.substr(i));
    auto c = static_cast<unsigned char>(bytes[i]);
    if (n == 0) {
      *out += "\xef\xbf\xbd";
      ++i;
      continue;
    }
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c < 0x20 || c == 0x7f) {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\u%04x", c);
      *out += buffer;
    } else {
      out->append(bytes.substr(i, n));
    }
    i += n;
  }
  out->push_back('"');
}

}  // namespace

void JsonWriter::Separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (!first_) out_.push_back(',');
  if (depth_ > 0) {
    out_.push_back('\n');
    out_.append(static_cast<size_t>(depth_) * 2, ' ');
  }
  first_ = false;
}

JsonWriter& JsonWriter::Open(char c) {
  Separate();
  out_.push_back(c);
  ++depth_;
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::Close(char c) {
  --depth_;
  if (!first_) {
    out_.push_back('\n');
    out_.append(static_cast<size_t>(depth_) * 2, ' ');
  }
  out_.push_back(c);
  first_ = false;
  return *this;
}

JsonWriter& JsonWriter::Key(std::string_view name) {
  Separate();
  AppendString(name, &out_);
  out_ += ": ";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::String(std::string_view bytes) {
  Separate();
  AppendString(bytes, &out_);
  return *this;
}

JsonWriter& JsonWriter::Raw(std::string_view text) {
  Separate();
  out_ += text;
  return *this;
}

JsonWriter& JsonWriter::Number(double value, int decimals) {
  if (!std::isfinite(value)) return Null();
  char buffer[400];  // the largest double has 309 digits before the point
  std::snprintf(buffer, sizeof buffer, "%.*f", decimals, value);
  return Raw(buffer);
}

JsonWriter& JsonWriter::Seconds(int64_t micros) {
  char buffer[40];
  int64_t whole = micros < 0 ? 0 : micros;
  std::snprintf(buffer, sizeof buffer, "%lld.%06lld", static_cast<long long>(whole / 1000000),
                static_cast<long long>(whole % 1000000));
  return Raw(buffer);
}

JsonWriter& JsonWriter::Time(int64_t wall_micros) {
  return wall_micros == 0 ? Null() : String(FormatRfc3339(wall_micros));
}

std::string JsonWriter::Take() {
  out_.push_back('\n');
  return std::move(out_);
}

}  // namespace vrun::cli
