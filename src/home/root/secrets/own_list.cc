// SPDX-License-Identifier: Apache-2.0
#include "home/root/secrets/own_list.h"

#include "base/escape.h"
#include "base/files.h"
#include "base/log.h"
#include "tree/rules.h"

namespace vrun::home {
namespace {

constexpr size_t kMostBytes = 1 << 20;

std::string_view Trimmed(std::string_view line) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t first = line.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return line.substr(first, line.find_last_not_of(kBlank) - first + 1);
}

}  // namespace

OwnList ParseOwnList(std::string_view text, const std::vector<std::string>& homes) {
  OwnList list;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = Trimmed(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.empty() || line.front() == '#') continue;
    const std::string_view whole = line;
    const bool opens = line.front() == '!';
    if (opens) line = Trimmed(line.substr(1));
    std::vector<std::string>* paths = opens ? &list.opened : &list.withheld;
    const bool at_home = line.starts_with("~/");
    const std::string path = tree::CleanPath(at_home ? line.substr(1) : line);
    if (line.find('\0') != std::string_view::npos || (!at_home && !line.starts_with('/')) || path == "/") {
      list.wrong.emplace_back(whole);
    } else if (at_home) {
      for (const std::string& home : homes) paths->push_back(tree::JoinPath(home, path.substr(1)));
    } else {
      paths->push_back(path);
    }
  }
  return list;
}

OwnList ReadOwnList(const std::string& file, const std::vector<std::string>& homes) {
  if (file.empty()) return {};
  const auto text = ReadFile(file, kMostBytes);
  if (!text) {
    if (text.error().code() != Code::kNotFound) LogError("list of private files: {}", text.error().message());
    return {};
  }
  OwnList list = ParseOwnList(*text, homes);
  for (const std::string& line : list.wrong) {
    LogWarning("{}: {}: not a path: write /PATH, ~/PATH or !PATH", Escape(file), Escape(line));
  }
  return list;
}

}  // namespace vrun::home
