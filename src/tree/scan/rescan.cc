// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <vector>

#include "base/escape.h"
#include "tree/codec_internal.h"
#include "tree/diff.h"
#include "tree/scan/first_look.h"
#include "tree/scan/listing.h"
#include "tree/scan/scan.h"
#include "tree/scan/scan_engine.h"
#include "tree/unread.h"

namespace vrun::tree {
namespace {

// Below this depth, directories are scanned instead of walked, because the walk recurses.
constexpr size_t kMaxDepth = 256;

// The dirty paths as a tree. Each node's own attributes are reread.
struct Dirty {
  std::map<std::string, Dirty, std::less<>> children;
  bool list = false;
  bool recursive = false;
  bool wanted = false;  // it, or something below
};

Dirty* Insert(Dirty* root, std::string_view path) {
  Dirty* at = root;
  for (size_t depth = 0; !path.empty(); ++depth) {
    const size_t end = std::min(path.find('/'), path.size());
    std::string_view component = path.substr(0, end);
    path.remove_prefix(std::min(end + 1, path.size()));
    if (component.empty() || component == ".") continue;
    if (depth >= kMaxDepth) {
      at->recursive = true;
      return at;
    }
    auto child = at->children.find(component);
    if (child == at->children.end()) child = at->children.emplace(component, Dirty{}).first;
    at = &child->second;
  }
  return at;
}

Dirty MakeDirty(const DirtySet& set) {
  Dirty root;
  for (const std::string& path : set.directories) Insert(&root, path)->list = true;
  for (const std::string& path : set.recursive) Insert(&root, path)->recursive = true;
  for (const auto& [path, names] : set.names) {
    Dirty* directory = Insert(&root, path);
    for (const std::string& name : names) {
      if (directory->recursive) break;
      if (IsUnderWay(name)) continue;  // a listing omits it too
      directory->children.try_emplace(name);
    }
  }
  for (const std::string& path : set.wanted) {
    Dirty* at = &root;
    for (std::string_view rest = path; !rest.empty();) {
      const size_t end = std::min(rest.find('/'), rest.size());
      const std::string_view component = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (component.empty()) continue;
      at = &at->children.try_emplace(std::string(component)).first->second;
      at->wanted = true;
    }
  }
  return root;
}

bool SameAttributes(const Entry& a, const Entry& b) {
  return a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && a.xattrs == b.xattrs;
}

class Rescanner {
 public:
  explicit Rescanner(const ScanContext& context) : context_(context), engine_(context) {}

  bool names_changed() const { return names_changed_; }

  // `base` may be null: nothing is known. `shallow`: sub-directories that are not in `base` stay unread. Null result:
  // the directory is gone.
  Result<DirectoryPtr> Walk(const Dirty& dirty, const Directory* base, const std::string& path, bool list, size_t depth,
                            bool shallow = false) {
    if (dirty.recursive || base == nullptr || depth > kMaxDepth) return ScanBelow(path);
    const int opened = OpenDirectory(context_.root.get(), path);
    if (opened < 0) return Unreadable(-opened, path);
    const UniqueFd fd(opened);
    Level level{path, base, depth, shallow, {}, {}, true};
    if (dirty.list || list) {
      Names names;
      if (const int error = names.Read(fd.get()); error != 0) return Unreadable(error, path);
      for (size_t i = 0; i < names.size(); ++i) {
        auto child = dirty.children.find(std::string_view(names.at(i)));
        VRUN_TRY(
            Take(level, fd.get(), names.at(i), names.ino(i), child == dirty.children.end() ? nullptr : &child->second));
      }
    } else {
      VRUN_TRY(Patch(level, fd.get(), dirty));
    }
    if (!level.fits)
      return Error(Code::kExhausted, "scan " + Escape(path) + ": the directory has more than 4 GiB of attributes");
    return std::move(level.builder).Finish(std::move(level.children));
  }

 private:
  struct Level {
    const std::string& path;
    const Directory* base;
    size_t depth;
    bool shallow;
    DirectoryBuilder builder;
    std::vector<DirectoryBuilder::NamedDirectory> children;
    bool fits;
  };

  // Takes everything from the base except the dirty names, which are reread.
  Status Patch(Level& level, int fd, const Dirty& dirty) {
    auto next = dirty.children.begin();
    for (size_t i = 0; i < level.base->size(); ++i) {
      std::string_view name = level.base->NameAt(i);
      while (next != dirty.children.end() && next->first < name) ++next;
      if (next != dirty.children.end() && next->first == name) continue;
      level.fits = level.builder.AddEncoded(level.base->EncodedAt(i)) && level.fits;
      if (DirectoryPtr child = level.base->Child(i)) level.children.emplace_back(name, std::move(child));
    }
    for (const auto& [name, child] : dirty.children) VRUN_TRY(Take(level, fd, name.c_str(), 0, &child));
    return {};
  }

  // Rereads one name and decides how much of the base below it is still valid.
  Status Take(Level& level, int fd, const char* name, uint64_t ino, const Dirty* dirty) {
    Entry entry;
    auto kind = context_.ReadName(fd, level.path, name, ino, reader_, &entry);
    NoteName(level, name, kind == ScanContext::Kind::kAbsent ? nullptr : &entry);
    if (kind == ScanContext::Kind::kAbsent) return {};
    if (kind == ScanContext::Kind::kHollow && entry.ino == 0) entry.ino = ListedIno(level, name);
    DirectoryPtr child;
    if (kind == ScanContext::Kind::kHollow) {
      child = DirectoryBuilder().Finish({});
    } else if (kind == ScanContext::Kind::kDirectory && IsUnreadIn(level, name)) {
      if (dirty == nullptr || !dirty->wanted) {
        entry.child = UnreadDigest(entry.dev, entry.ino);
      } else {
        VRUN_ASSIGN(child, Walk(*dirty, nothing_known_.get(), JoinPath(level.path, name), true, level.depth + 1, true));
        if (!child) return {};
      }
    } else if (kind == ScanContext::Kind::kDirectory) {
      VRUN_ASSIGN(child, Below(level, entry, dirty));
      if (!child) return {};
    }
    level.fits = level.builder.Add(entry) && level.fits;
    if (child) level.children.emplace_back(name, std::move(child));
    return {};
  }

  void NoteName(const Level& level, const char* name, const Entry* now) {
    if (names_changed_) return;
    const size_t i = now != nullptr ? level.base->Find(name) : level.base->size();
    if (i == level.base->size()) {
      names_changed_ = true;
      return;
    }
    const Peek before = PeekEntry(level.base->EncodedAt(i));
    // (For directories, Below decides.)
    names_changed_ = (before.mode & S_IFMT) != (now->mode & S_IFMT) || (!now->is_directory() && before.ino != now->ino);
  }

  static bool IsUnreadIn(const Level& level, const char* name) {
    const size_t i = level.base->Find(name);
    if (i == level.base->size()) return level.shallow;
    return !level.base->Child(i) && S_ISDIR(PeekEntry(level.base->EncodedAt(i)).mode);
  }

  // For an excluded mount point, only the listing of its directory gives the inode number.
  static uint64_t ListedIno(const Level& level, const char* name) {
    const size_t i = level.base->Find(name);
    return i < level.base->size() ? level.base->At(i).ino : 0;
  }

  Result<DirectoryPtr> Below(const Level& level, const Entry& entry, const Dirty* dirty) {
    const std::string path = JoinPath(level.path, entry.name);
    if (dirty != nullptr && dirty->recursive) return ScanBelow(path);
    const size_t i = level.base->Find(entry.name);
    DirectoryPtr old_child = i < level.base->size() ? level.base->Child(i) : nullptr;
    if (!old_child) return ScanBelow(path);
    const Entry old = level.base->At(i);
    // A different directory now has this name.
    if (old.dev != entry.dev || old.ino != entry.ino) {
      names_changed_ = true;
      return ScanBelow(path);
    }
    // With other permissions, other content may be readable.
    const bool same = SameAttributes(old, entry);
    if (dirty != nullptr && (dirty->list || !dirty->children.empty())) {
      return Walk(*dirty, old_child.get(), path, !same, level.depth + 1);
    }
    if (same && old.mtime_ns == entry.mtime_ns) return old_child;
    // It changed without being announced: list it again, so that a lost hint has little effect and does not persist.
    return Walk(nothing_, old_child.get(), path, true, level.depth + 1);
  }

  Result<DirectoryPtr> ScanBelow(const std::string& path) {
    auto directory = engine_.Run(path);
    if (!directory && directory.error().code() == Code::kNotFound) return DirectoryPtr();
    return directory;
  }

  Result<DirectoryPtr> Unreadable(int error, const std::string& path) {
    if (OutOfResources(error)) return ErrnoError(error, "scan " + Escape(path));
    if (error == ENOENT || error == ENOTDIR || error == ELOOP) return DirectoryPtr();
    return DirectoryBuilder().Finish({});
  }

  const ScanContext& context_;
  ScanEngine engine_;
  AttributeReader reader_;
  const Dirty nothing_;
  const DirectoryPtr nothing_known_ = DirectoryBuilder().Finish({});
  bool names_changed_ = false;
};

// Inode numbers of files with several names that differ between the two (of any device: extra ones are harmless).
std::vector<uint64_t> ChangedLinks(const DirectoryPtr& old_directory, const DirectoryPtr& new_directory) {
  std::vector<uint64_t> inodes;
  DiffOptions options;
  options.descend_added = options.descend_removed = true;
  options.skip = [](const Directory* a, const Directory* b) {
    return (a == nullptr || a->totals().linked == 0) && (b == nullptr || b->totals().linked == 0);
  };
  auto note = [&inodes](const Directory* directory, size_t i) {
    if (directory == nullptr) return;
    const Peek peek = PeekEntry(directory->EncodedAt(i));
    if (peek.nlink > 1) inodes.push_back(peek.ino);
  };
  Diff(
      old_directory, new_directory,
      [&](const Difference& d) {
        note(d.old_directory, d.old_index);
        note(d.new_directory, d.new_index);
      },
      options);
  std::sort(inodes.begin(), inodes.end());
  inodes.erase(std::unique(inodes.begin(), inodes.end()), inodes.end());
  return inodes;
}

// All names of these inodes.
DirtySet FindInodes(const DirectoryPtr& root, const std::vector<uint64_t>& inodes) {
  DirtySet found;
  std::vector<std::pair<std::string, DirectoryPtr>> stack{{"/", root}};
  while (!stack.empty()) {
    const auto [path, directory] = std::move(stack.back());
    stack.pop_back();
    for (size_t i = 0; i < directory->size(); ++i) {
      if (DirectoryPtr child = directory->Child(i)) {
        const Directory::Totals& below = child->totals();
        auto at = std::lower_bound(inodes.begin(), inodes.end(), below.min_ino);
        if (at != inodes.end() && *at <= below.max_ino)
          stack.emplace_back(JoinPath(path, directory->NameAt(i)), std::move(child));
      } else if (const Peek peek = PeekEntry(directory->EncodedAt(i));
                 !S_ISDIR(peek.mode) && std::binary_search(inodes.begin(), inodes.end(), peek.ino)) {
        found.names[path].emplace(directory->NameAt(i));
      }
    }
  }
  return found;
}

// One walk over the dirty paths. Null: no better than a full scan.
Result<TreePtr> Pass(const Tree& base, const DirtySet& dirty, const ScanContext& context, bool* names_changed) {
  VRUN_ASSIGN(Entry root, ReadEntry(context.root.get(), ""));
  const Dirty paths = MakeDirty(dirty);
  if (paths.recursive || root.dev != base.root.dev || root.ino != base.root.ino) return TreePtr();
  Rescanner rescanner(context);
  VRUN_ASSIGN(DirectoryPtr directory,
              rescanner.Walk(paths, base.directory.get(), "/", !SameAttributes(root, base.root), 0));
  if (!directory) return Error(Code::kNotFound, "rescan: the root is gone");
  *names_changed |= rescanner.names_changed();
  return AssembleTree(std::move(root), std::move(directory));
}

}  // namespace

Result<TreePtr> FirstLook(const ScanOptions& options) {
  VRUN_ASSIGN(const ScanContext context, ScanContext::Open(options));
  VRUN_ASSIGN(Entry root, ReadEntry(context.root.get(), ""));
  const DirectoryPtr nothing = DirectoryBuilder().Finish({});
  VRUN_ASSIGN(DirectoryPtr directory, Rescanner(context).Walk(Dirty(), nothing.get(), "/", true, 0, true));
  if (!directory) return Error(Code::kNotFound, "scan: the root is gone");
  return AssembleTree(std::move(root), std::move(directory));
}

Result<TreePtr> Rescan(const TreePtr& base, const DirtySet& dirty, const ScanOptions& options, bool* names_changed) {
  if (dirty.empty()) return base;
  bool unasked = false;
  if (names_changed == nullptr) names_changed = &unasked;
  *names_changed |= dirty.everything() || !dirty.recursive.empty();
  if (dirty.everything()) return Scan(options);
  VRUN_ASSIGN(const ScanContext context, ScanContext::Open(options));
  VRUN_ASSIGN(TreePtr now, Pass(*base, dirty, context, names_changed));
  if (!now) return Scan(options);
  // A file with several names changes under all of them, but only one was announced, or a name that it no longer has.
  std::vector<uint64_t> inodes = ChangedLinks(base->directory, now->directory);
  inodes.insert(inodes.end(), dirty.inodes.begin(), dirty.inodes.end());
  std::sort(inodes.begin(), inodes.end());
  if (!inodes.empty()) {
    const DirtySet linked = FindInodes(now->directory, inodes);
    if (!linked.empty()) {
      VRUN_ASSIGN(TreePtr again, Pass(*now, linked, context, names_changed));
      if (!again) return Scan(options);
      now = std::move(again);
    }
  }
  return now->id == base->id ? base : now;
}

}  // namespace vrun::tree
