// SPDX-License-Identifier: Apache-2.0
// Writes JSON only: objects and arrays in the order of the calls. The output is valid UTF-8 for any input bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vrun::cli {

// Version of the layout of all `-o json` output; incremented when a field changes its meaning or is removed.
inline constexpr int kJsonSchema = 1;

class JsonWriter {
 public:
  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }
  JsonWriter& Key(std::string_view name);

  JsonWriter& String(std::string_view bytes);  // invalid UTF-8 becomes U+FFFD
  JsonWriter& Int(int64_t n) { return Raw(std::to_string(n)); }
  JsonWriter& Uint(uint64_t n) { return Raw(std::to_string(n)); }
  JsonWriter& Number(double value, int decimals);  // null when not finite
  JsonWriter& Bool(bool b) { return Raw(b ? "true" : "false"); }
  JsonWriter& Null() { return Raw("null"); }
  JsonWriter& Seconds(int64_t micros);    // 1.25
  JsonWriter& Time(int64_t wall_micros);  // RFC 3339; 0: null

  // The text, with a newline.
  std::string Take();

 private:
  JsonWriter& Open(char c);
  JsonWriter& Close(char c);
  JsonWriter& Raw(std::string_view text);
  void Separate();

  std::string out_;
  bool first_ = true;  // the current object or array is empty so far
  bool after_key_ = false;
  int depth_ = 0;
};

}  // namespace vrun::cli
