// SPDX-License-Identifier: Apache-2.0
// Which files of a directory are likely to be read together, by their names.
#pragma once

#include <string>
#include <string_view>

namespace vrun::tree {

// The extension (".pyc" of "x.cpython-311.pyc"), or the whole name where there is none but a number ("f#" of "f17"),
// each number as '#'. "": nothing tells, as of programs.
inline std::string KindOf(std::string_view path) {
  constexpr std::string_view kDigits = "0123456789";
  std::string_view name = path.substr(path.rfind('/') + 1);
  const size_t dot = name.rfind('.');
  if (dot != std::string_view::npos && dot > 0)
    name.remove_prefix(dot);
  else if (name.find_first_of(kDigits) == std::string_view::npos)
    return "";
  std::string kind;
  for (const char c : name) {
    const bool digit = kDigits.find(c) != std::string_view::npos;
    if (!digit || kind.empty() || kind.back() != '#') kind += digit ? '#' : c;
  }
  return kind;
}

}  // namespace vrun::tree
