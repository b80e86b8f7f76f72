// SPDX-License-Identifier: Apache-2.0
#include "snapshots/difference.h"

#include <sys/stat.h>

#include "tree/diff.h"
#include "tree/rules.h"

namespace vrun::snapshots {
namespace {

bool SameContent(const Collection::Snapshot& from, const tree::Entry& a, const Collection::Snapshot& to,
                 const tree::Entry& b) {
  if (a.size != b.size) return false;
  const auto x = from.realm->manifest().ids().Find(a.version()), y = to.realm->manifest().ids().Find(b.version());
  if (x && y) return *x == *y;
  // Unreadable files count as equal while their version is equal.
  return a.size == 0 || (from.realm == to.realm && a.version() == b.version());
}

std::vector<std::string> Kinds(const Collection::Snapshot& from, const tree::Entry& a, const Collection::Snapshot& to,
                               const tree::Entry& b) {
  std::vector<std::string> kinds;
  if ((a.mode & S_IFMT) != (b.mode & S_IFMT)) return {"type"};
  if (a.is_regular() && !SameContent(from, a, to, b)) kinds.push_back("content");
  if (a.target != b.target || a.rdev != b.rdev) kinds.push_back("target");
  if (a.mode != b.mode) kinds.push_back("mode");
  if (a.uid != b.uid || a.gid != b.gid) kinds.push_back("owner");
  if (a.xattrs != b.xattrs) kinds.push_back("xattr");
  return kinds;
}

}  // namespace

void Compare(const Collection::Snapshot& from, const Collection::Snapshot& to,
             const std::function<void(v1::SnapshotDifference)>& found) {
  const auto report = [&](v1::SnapshotChange change, const std::string& path, const tree::Entry& entry,
                          const std::vector<std::string>& kinds) {
    v1::SnapshotDifference difference;
    difference.set_change(change);
    difference.set_path(path);
    difference.set_mode(entry.mode);
    difference.set_size(entry.is_regular() ? entry.size : 0);
    for (const std::string& kind : kinds) difference.add_kind(kind);
    found(std::move(difference));
  };
  if (const auto kinds = Kinds(from, from.tree->root, to, to.tree->root); !kinds.empty()) {
    report(v1::SNAPSHOT_CHANGED, "/", to.tree->root, kinds);
  }
  tree::DiffOptions options;
  options.descend_added = options.descend_removed = true;
  tree::Diff(
      from.tree->directory, to.tree->directory,
      [&](const tree::Difference& d) {
        if (d.only_below) return;
        const std::string path = tree::JoinPath(d.directory, d.name);
        if (d.change == tree::Change::kAdded) {
          return report(v1::SNAPSHOT_ADDED, path, d.new_directory->At(d.new_index), {});
        }
        const tree::Entry was = d.old_directory->At(d.old_index);
        if (d.change == tree::Change::kRemoved) return report(v1::SNAPSHOT_REMOVED, path, was, {});
        const tree::Entry is = d.new_directory->At(d.new_index);
        if (const auto kinds = Kinds(from, was, to, is); !kinds.empty()) {
          report(v1::SNAPSHOT_CHANGED, path, is, kinds);
        }
      },
      options);
}

}  // namespace vrun::snapshots
