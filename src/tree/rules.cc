// SPDX-License-Identifier: Apache-2.0
#include "tree/rules.h"

namespace vrun::tree {

std::string CleanPath(std::string_view path) {
  std::string out;
  while (!path.empty()) {
    const size_t end = path.find('/');
    std::string_view component = path.substr(0, end);
    path.remove_prefix(end == std::string_view::npos ? path.size() : end + 1);
    if (component.empty() || component == ".") continue;
    out += '/';
    out += component;
  }
  return out.empty() ? "/" : out;
}

std::string JoinPath(std::string_view directory, std::string_view name) {
  std::string out;
  out.reserve(directory.size() + 1 + name.size());
  if (directory != "/") out += directory;
  out += '/';
  out += name;
  return out;
}

bool IsBelow(std::string_view path, std::string_view ancestor) {
  if (ancestor == "/") return true;
  return path.starts_with(ancestor) && (path.size() == ancestor.size() || path[ancestor.size()] == '/');
}

PathRules::PathRules(const std::vector<std::string>& hollow, const std::vector<std::string>& hidden) {
  for (const std::string& path : hollow) {
    if (std::string clean = CleanPath(path); clean != "/" && hollow_.insert(clean).second) excluded_.push_back(clean);
  }
  for (const std::string& path : hidden) {
    std::string clean = CleanPath(path);
    if (clean == "/") continue;
    const size_t slash = clean.rfind('/');
    hidden_[slash == 0 ? "/" : clean.substr(0, slash)].insert(clean.substr(slash + 1));
    excluded_.push_back(std::move(clean));
  }
}

bool PathRules::IsHidden(std::string_view directory, std::string_view name) const {
  if (hidden_.empty()) return false;
  const auto* names = HiddenIn(std::string(directory));
  return names != nullptr && names->contains(std::string(name));
}

const std::unordered_set<std::string>* PathRules::HiddenIn(const std::string& directory) const {
  auto at = hidden_.find(directory);
  return at == hidden_.end() ? nullptr : &at->second;
}

bool PathRules::Excludes(std::string_view directory) const {
  for (const std::string& path : excluded_) {
    if (IsBelow(directory, path)) return true;
  }
  return false;
}

}  // namespace vrun::tree
