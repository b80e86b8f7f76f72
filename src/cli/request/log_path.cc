// SPDX-License-Identifier: Apache-2.0
#include "cli/request/log_path.h"

#include <algorithm>

#include "base/escape.h"

namespace vrun::cli {
namespace {

// Escapes the text for use in a path that home expands again.
std::string Quoted(const std::string& name) {
  std::string out;
  for (char c : name) out.push_back(c == '/' || c == '%' ? '_' : c);
  return out;
}

}  // namespace

Result<std::string> ExpandLogPath(const std::string& pattern, const LogNames& names) {
  std::string out;
  if (pattern.starts_with('\\')) {
    for (char c : pattern.substr(1)) out += c == '%' ? "%%" : std::string(1, c);
    return out;
  }
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      out.push_back(pattern[i]);
      continue;
    }
    std::string width;
    while (i + 1 < pattern.size() && pattern[i + 1] >= '0' && pattern[i + 1] <= '9') width.push_back(pattern[++i]);
    const char letter = i + 1 < pattern.size() ? pattern[++i] : '\0';
    // Slurm pads to at most ten digits.
    if (width.size() > 2 || (!width.empty() && std::stoi(width) > 10)) width = "10";
    switch (letter) {
      case 'A':
        if (names.array) {
          out += "%" + width + "A";
          break;
        }
        [[fallthrough]];
      case 'j':
      case 'J': out += "%" + width + "j"; break;
      case 'N': out += "%N"; break;
      case 'x': out += Quoted(names.job_name); break;
      case 'u': out += Quoted(names.user); break;
      case 's': out += "batch"; break;
      case 'n':
      case 't':
      case 'a':
        if (letter == 'a' ? names.array : names.several) {
          out += "%" + width + letter;
          break;
        }
        out += std::string(width.empty() ? 1 : std::max(1, std::stoi(width)), '0');
        break;
      case '%': out += "%%"; break;
      case '\0': out += "%%"; break;
      default:
        return Error(Code::kInvalid,
                     Escape(pattern) + ": unknown pattern %" + Escape(std::string(1, letter)) +
                         ": known are %j, %A and %J (id), %x (name), %u (user), %N (node), %a, %n, %t, %s and %%");
    }
  }
  return out;
}

}  // namespace vrun::cli
