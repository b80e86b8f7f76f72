// SPDX-License-Identifier: Apache-2.0
// What a URL says: path patterns, percent encoding, query strings. Strangers write these; tests/fuzz/http_fuzz.cc.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace vrun::http {

// kInvalid: a percent sign without two hexadecimal digits, or a NUL byte.
Result<std::string> PercentDecode(std::string_view text, bool plus_is_blank);
std::string PercentEncode(std::string_view text);  // all but letters, digits and "-._~"

using Query = std::vector<std::pair<std::string, std::string>>;
// "a=1&b=x%20y", in order. kInvalid: it does not decode, a name repeats, or there are more than 64.
Result<Query> ParseQuery(std::string_view text);

// A pattern such as "/jobs/{job}/why": literal segments, and names in braces that take one segment each, which is not
// empty.
class PathPattern {
 public:
  // REQUIRES: begins with a slash.
  explicit PathPattern(std::string_view pattern);
  // The decoded segments by name; nullopt: the path is another one, or does not decode.
  std::optional<std::map<std::string, std::string>> Match(std::string_view path) const;
  size_t names() const;  // how many

 private:
  struct Segment {
    std::string text;
    bool is_name = false;
  };
  std::vector<Segment> segments_;
};

}  // namespace vrun::http
