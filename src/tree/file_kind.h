// SPDX-License-Identifier: Apache-2.0
// Predicts from their names which files of a directory are read together.
#pragma once

#include <string>
#include <string_view>

namespace vrun::tree {

// The extension (".pyc" of "x.cpython-311.pyc"); without one, the whole name with each number replaced by '#' ("f#" of
// "f17") if it has a number. "": unknown, as for programs.
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
