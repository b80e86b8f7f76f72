// SPDX-License-Identifier: Apache-2.0
#include "tree/diff.h"

#include <sys/stat.h>

#include <unordered_set>

#include "tree/codec_internal.h"
#include "tree/rules.h"
#include "tree/unread.h"

namespace vrun::tree {
namespace {

struct Pair {
  std::string path;
  DirectoryPtr old_directory;  // either may be null
  DirectoryPtr new_directory;
};

class Walker {
 public:
  Walker(const std::function<void(const Difference&)>& visit, const DiffOptions& options)
      : visit_(visit), options_(options) {}

  // Uses an explicit stack: trees may be deeper than the call stack.
  void Run(DirectoryPtr old_directory, DirectoryPtr new_directory) {
    stack_.push_back({"/", std::move(old_directory), std::move(new_directory)});
    while (!stack_.empty()) {
      Pair pair = std::move(stack_.back());
      stack_.pop_back();
      Compare(pair);
    }
  }

 private:
  void Compare(const Pair& pair) {
    const Directory* a = pair.old_directory.get();
    const Directory* b = pair.new_directory.get();
    if (a && b && a->digest() == b->digest()) return;
    if (options_.skip && options_.skip(a, b)) return;
    const size_t an = a ? a->size() : 0, bn = b ? b->size() : 0;
    for (size_t i = 0, j = 0; i < an || j < bn;) {
      const int order = i == an ? 1 : j == bn ? -1 : a->NameAt(i).compare(b->NameAt(j));
      if (order < 0) {
        Report({Change::kRemoved, pair.path, a->NameAt(i), a, i, nullptr, 0});
        if (options_.descend_removed) Push(pair.path, a->NameAt(i), OldChild(*a, i), nullptr);
        ++i;
      } else if (order > 0) {
        Report({Change::kAdded, pair.path, b->NameAt(j), nullptr, 0, b, j});
        if (options_.descend_added) Push(pair.path, b->NameAt(j), nullptr, NewChild(*b, j));
        ++j;
      } else {
        if (a->EncodedAt(i) != b->EncodedAt(j)) Changed(pair.path, *a, i, *b, j);
        ++i;
        ++j;
      }
    }
  }

  void Changed(const std::string& path, const Directory& a, size_t i, const Directory& b, size_t j) {
    std::string_view x = a.EncodedAt(i), y = b.EncodedAt(j);
    const Peek px = PeekEntry(x), py = PeekEntry(y);
    const bool was = S_ISDIR(px.mode), is = S_ISDIR(py.mode);
    bool only_below = false;
    if (was && is && px.digest_at == py.digest_at) {
      only_below = x.substr(0, px.digest_at) == y.substr(0, py.digest_at) &&
                   x.substr(px.digest_at + 32) == y.substr(py.digest_at + 32);
    }
    Report({Change::kChanged, path, b.NameAt(j), &a, i, &b, j, only_below});
    if (was && is) {
      if (x.substr(px.digest_at, 32) == y.substr(py.digest_at, 32)) return;
      DirectoryPtr old_child = OldChild(a, i), new_child = NewChild(b, j);
      const auto was_unread = [&] { return IsUnread(*Digest::FromBytes(x.substr(px.digest_at, 32))); };
      if (new_child && (old_child || (options_.descend_added && was_unread()))) {
        Push(path, b.NameAt(j), std::move(old_child), std::move(new_child));
      }
    } else if (was && options_.descend_removed) {
      Push(path, b.NameAt(j), OldChild(a, i), nullptr);
    } else if (is && options_.descend_added) {
      Push(path, b.NameAt(j), nullptr, NewChild(b, j));
    }
  }

  void Report(const Difference& difference) { visit_(difference); }

  void Push(const std::string& path, std::string_view name, DirectoryPtr old_child, DirectoryPtr new_child) {
    if (old_child || new_child) stack_.push_back({JoinPath(path, name), std::move(old_child), std::move(new_child)});
  }

  DirectoryPtr OldChild(const Directory& d, size_t i) const {
    return options_.old_child ? options_.old_child(d, i) : d.Child(i);
  }
  DirectoryPtr NewChild(const Directory& d, size_t i) const {
    return options_.new_child ? options_.new_child(d, i) : d.Child(i);
  }

  const std::function<void(const Difference&)>& visit_;
  const DiffOptions& options_;
  std::vector<Pair> stack_;
};

}  // namespace

void Diff(const DirectoryPtr& old_directory, const DirectoryPtr& new_directory,
          const std::function<void(const Difference&)>& visit, const DiffOptions& options) {
  Walker(visit, options).Run(old_directory, new_directory);
}

std::vector<NewDirectory> NewDirectories(const DirectoryPtr& old_directory, const DirectoryPtr& new_directory) {
  std::vector<NewDirectory> out;
  if (!new_directory || (old_directory && old_directory->digest() == new_directory->digest())) return out;
  std::unordered_set<Digest, DigestHash> seen{new_directory->digest()};
  out.push_back({"/", new_directory, old_directory});
  DiffOptions options;
  options.descend_added = true;
  Diff(
      old_directory, new_directory,
      [&](const Difference& d) {
        if (d.change == Change::kRemoved) return;
        DirectoryPtr child = d.new_directory->Child(d.new_index);
        if (!child) return;
        DirectoryPtr was = d.old_directory ? d.old_directory->Child(d.old_index) : nullptr;
        if (was && was->digest() == child->digest()) return;
        if (!seen.insert(child->digest()).second) return;
        out.push_back({JoinPath(d.directory, d.name), std::move(child), std::move(was)});
      },
      options);
  return out;
}

void VisitChanged(const Directory& old_directory, const Directory& now,
                  const std::function<void(size_t index, size_t old_index)>& visit) {
  const size_t old_size = old_directory.size();
  for (size_t i = 0, was = 0; i < now.size(); ++i) {
    const std::string_view name = now.NameAt(i);
    while (was < old_size && old_directory.NameAt(was) < name) ++was;
    const bool same_name = was < old_size && old_directory.NameAt(was) == name;
    if (same_name && old_directory.EncodedAt(was) == now.EncodedAt(i)) continue;
    visit(i, same_name ? was : old_size);
  }
}

}  // namespace vrun::tree
