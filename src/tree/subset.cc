// SPDX-License-Identifier: Apache-2.0
#include "tree/subset.h"

#include <map>
#include <memory>

#include "base/escape.h"
#include "tree/directory_builder.h"
#include "tree/rules.h"

namespace vrun::tree {
namespace {

// The wanted names of a directory; those without children are wanted with everything below.
struct Wanted {
  std::map<std::string, std::unique_ptr<Wanted>, std::less<>> names;
  bool whole = false;
};

void Want(std::string_view path, Wanted* at) {
  for (size_t begin = 1; begin <= path.size() && !path.substr(begin).empty();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    auto& next = at->names[std::string(path.substr(begin, end - begin))];
    if (!next) next = std::make_unique<Wanted>();
    at = next.get();
    begin = end + 1;
  }
  at->whole = true;
}

// The recursion is no deeper than the paths.
DirectoryPtr Filter(const DirectoryPtr& directory, const Wanted& wanted) {
  if (wanted.whole) return directory;
  DirectoryBuilder builder;
  std::vector<DirectoryBuilder::NamedDirectory> children;
  for (const auto& [name, below] : wanted.names) {
    const size_t i = directory->Find(name);
    VRUN_CHECK(i < directory->size() && builder.AddEncoded(directory->EncodedAt(i)));
    if (DirectoryPtr child = directory->Child(i)) children.emplace_back(name, Filter(child, *below));
  }
  return std::move(builder).Finish(std::move(children));
}

}  // namespace

Result<TreePtr> Subset(const TreePtr& snapshot, const std::vector<std::string>& paths) {
  if (paths.empty()) return snapshot;
  Wanted wanted;
  for (const std::string& path : paths) {
    const std::string clean = CleanPath(path);
    auto entry = Lookup(*snapshot, clean);
    if (!entry) return Error(Code::kNotFound, Escape(path) + ": not in the root: name a path without symlinks");
    Want(clean, &wanted);
  }
  return AssembleTree(snapshot->root, Filter(snapshot->directory, wanted));
}

}  // namespace vrun::tree
