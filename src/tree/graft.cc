// SPDX-License-Identifier: Apache-2.0
#include "tree/graft.h"

#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/escape.h"
#include "tree/directory_builder.h"

namespace vrun::tree {
namespace {

// The paths, by their components.
struct Wanted {
  bool self = false;
  std::map<std::string, Wanted, std::less<>> below;
};

Wanted Sort(const std::set<std::string>& paths) {
  Wanted root;
  for (const std::string& path : paths) {
    Wanted* at = &root;
    for (size_t from = 1; from < path.size();) {
      const size_t slash = std::min(path.find('/', from), path.size());
      if (slash > from) at = &at->below[path.substr(from, slash - from)];
      from = slash + 1;
    }
    at->self = true;
  }
  return root;
}

// One name in one directory.
struct Named {
  std::optional<Entry> entry;  // none: the name does not exist
  DirectoryPtr directory;      // if it is a directory
};

Named Look(const Directory* directory, std::string_view name) {
  const size_t i = directory != nullptr ? directory->Find(name) : 0;
  if (directory == nullptr || i == directory->size()) return {};
  return {directory->At(i), directory->Child(i)};
}

Result<DirectoryPtr> GraftAt(const Directory& base, const Directory* from, const Wanted& wanted,
                             const std::string& path) {
  DirectoryBuilder builder;
  std::vector<DirectoryBuilder::NamedDirectory> children;
  bool fits = true;
  for (size_t i = 0; i < base.size(); ++i) {
    const std::string_view name = base.NameAt(i);
    if (wanted.below.contains(name)) continue;
    fits = builder.AddEncoded(base.EncodedAt(i)) && fits;
    if (DirectoryPtr child = base.Child(i)) children.emplace_back(name, std::move(child));
  }
  for (const auto& [name, below] : wanted.below) {
    const Named old = Look(&base, name);
    Named now = Look(from, name);
    if (old.directory && (now.directory || !below.self)) {
      VRUN_ASSIGN(DirectoryPtr child, GraftAt(*old.directory, now.directory.get(), below, path + "/" + name));
      if (!below.self) now.entry = old.entry;
      now.directory = std::move(child);
    }
    if (!now.entry) continue;
    fits = builder.Add(*now.entry) && fits;
    if (now.directory) children.emplace_back(name, std::move(now.directory));
  }
  if (!fits) return Error(Code::kExhausted, Escape(path) + ": the directory has more than 4 GiB of attributes");
  return std::move(builder).Finish(std::move(children));
}

}  // namespace

Result<TreePtr> Graft(const TreePtr& base, const Tree& from, const std::set<std::string>& paths) {
  if (paths.empty()) return base;
  VRUN_ASSIGN(DirectoryPtr directory, GraftAt(*base->directory, from.directory.get(), Sort(paths), ""));
  return AssembleTree(base->root, std::move(directory));
}

}  // namespace vrun::tree
