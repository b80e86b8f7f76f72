// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/tree/live_advance.h"

#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "vfs/fuse/attributes.h"
#include "vfs/live/data/live_file.h"
#include "vfs/live/tree/directory_walk.h"

namespace vrun::vfs {
namespace {

// Ensures that a listing under way returns each name that stays exactly once.
void KeepPlaces(LiveDirectory* of, const LoadedDirectoryPtr& before, const tree::Directory& after) {
  std::vector<std::pair<uint32_t, uint32_t>> places;
  uint64_t next = 0;
  if (before) {
    const size_t had = before->directory->size();
    std::vector<uint32_t> place_of(had);
    for (uint32_t i = 0; i < had; ++i) place_of[i] = i;
    for (const auto& [place, index] : of->places) place_of[index] = place;
    next = of->places.empty() ? had : of->next_place;
    WalkBoth(before.get(), after, [&](size_t i, size_t j) {
      if (j == kNoEntry) return;
      const uint64_t place = i == kNoEntry ? next++ : place_of[i];
      places.emplace_back(static_cast<uint32_t>(place), static_cast<uint32_t>(j));
    });
    std::sort(places.begin(), places.end());
  }
  // If numbers run out, places start anew: a listing that takes so long may miss a name.
  if (next >= LiveTree::kFirstCookie - 4) places.clear();
  of->next_place = static_cast<uint32_t>(next);
  of->places = std::move(places);
}

bool Later(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

bool IsInodeOf(const LiveNode& node, const tree::Entry& is) {
  return node.version.dev == is.dev && node.version.ino == is.ino;
}

}  // namespace

// --- which objects it takes ------------------------------------------------------------------------------------------

// Whether names in it, or the absence of names, are known to somebody.
bool LiveMerge::Needs(const LiveNode& directory) {
  const LiveDirectory& of = *directory.directory;
  return of.loaded || of.absences || !of.entries.empty() || (!of.has_lower && directory.lookups > 0);
}

bool LiveMerge::IsCurrent(const LiveDirectory& of, const Digest& digest) {
  return of.has_lower && of.digest == digest && !of.restored;
}

LoadedDirectoryPtr LiveMerge::Object(const LiveDirectory& of, const Digest& digest) const {
  if (of.loaded && of.digest == digest) return of.loaded;
  const auto object = have_.find(digest);
  return object != have_.end() ? object->second : nullptr;
}

void LiveMerge::Find(const LiveNode& directory, const Digest& digest, const std::string& path, Missing* missing) const {
  const LiveDirectory& of = *directory.directory;
  if (IsCurrent(of, digest) || !Needs(directory)) return;
  const LoadedDirectoryPtr object = Object(of, digest);
  if (!object) {
    missing->emplace_back(digest, path);
    return;
  }
  const tree::Directory& next = *object->directory;
  for (const auto& [name, entry] : of.entries) {
    if (entry.node == nullptr || !entry.node->is_directory()) continue;
    if (entry.change > included_) continue;
    const size_t index = next.Find(name);
    if (index == next.size()) continue;
    const tree::Entry is = next.At(index);
    if (is.is_directory()) Find(*entry.node, is.child, (path == "/" ? path : path + "/") + name, missing);
  }
}

LiveMerge::Missing LiveMerge::FindMissing(const tree::Entry& root) const {
  Missing missing;
  Find(*tree_.root_, root.child, "/", &missing);
  return missing;
}

// --- the walk --------------------------------------------------------------------------------------------------------

void LiveMerge::Run(const tree::Entry& root) {
  LiveNode* top = tree_.root_;
  if (!IsCurrent(*top->directory, root.child)) {
    if (Needs(*top)) {
      BeginMoves(root);
      Take(top, root.child, Object(*top->directory, root.child));
      FinishMoves();
    } else {
      top->directory->digest = root.child;
      top->directory->restored = false;
    }
    tree_.Touch(top);
  }
  if (top->change <= included_) {
    const bool ours = std::exchange(top->change, 0) != 0;
    SetAttributes(top, root, ours);
  }
  settling_ = true;
  std::deque<LiveTree::Pending>& pending = tree_.pending_;
  while (!pending.empty() && pending.front().change <= included_) {
    const LiveTree::Pending item = std::move(pending.front());
    pending.pop_front();
    Settle(item.nodeid, item.name);
  }
  for (const auto& [nodeid, name] : std::exchange(tree_.held_, {})) Settle(nodeid, name);
  FindDeferred();
  for (size_t i = 0; i < differing_.size(); ++i) {  // it may grow meanwhile
    LiveNode* node = tree_.Find(differing_[i]);
    if (node == nullptr || node->gone_at_home()) continue;
    node->displaced = IsOvertaken(*node) ? LiveNode::Displaced::kOvertaken : LiveNode::Displaced::kNo;
  }
  for (const uint64_t nodeid : emptied_) {
    if (LiveNode* node = tree_.Find(nodeid)) tree_.Drop(node);
  }
}

void LiveMerge::Settle(uint64_t nodeid, const std::string& name) {
  LiveNode* node = tree_.Find(nodeid);
  if (node == nullptr) return;
  if (!name.empty()) {
    SettleName(node, name);
    return;
  }
  const std::vector<LiveName> names = node->names;
  for (const LiveName& link : names) SettleName(link.parent, link.name);
}

void LiveMerge::SettleName(LiveNode* directory, const std::string& name) {
  if (IsTaken(directory)) {
    Reconcile(directory, name);
  } else {
    Hold(directory, name);
  }
}

// Whether the directory's object is the one that home has at its place. It is not if the directory was moved here and
// not yet at home, or if the object is still to be fetched: its names cannot be compared then.
bool LiveMerge::IsTaken(LiveNode* directory) {
  if (LiveTree::NeedsLoading(*directory)) return false;
  if (directory->names.empty()) return true;
  const LiveName link = directory->names.front();
  if (!IsTaken(link.parent)) return false;
  const auto& entries = link.parent->directory->entries;
  const auto it = entries.find(link.name);
  if (it == entries.end()) return true;
  if (it->second.change > included_) return false;
  const auto is_current = [&] {
    const LiveDirectory& of = *directory->directory;
    const LoadedDirectoryPtr& home = link.parent->directory->loaded;
    const size_t index = home ? home->directory->Find(link.name) : 0;
    const bool there = home && index < home->directory->size() && home->directory->At(index).is_directory();
    return there ? of.has_lower && of.digest == home->directory->At(index).child : !of.has_lower;
  };
  if (it->second.change != 0 || !is_current()) Reconcile(link.parent, link.name);  // before its content
  return is_current();
}

void LiveMerge::Take(LiveNode* directory, const Digest& digest, const LoadedDirectoryPtr& next) {
  LiveDirectory& of = *directory->directory;
  const bool same = of.has_lower && of.digest == digest;
  const LoadedDirectoryPtr before = same ? next : of.loaded;
  const tree::Directory& after = *next->directory;
  // After a take-over names of home that are not in `entries` may be old ones.
  bool others = false;
  const bool seeks_others = !of.restored && (before || !of.has_lower);
  const bool all = std::exchange(of.restored, false) || !before;
  if (!same) {
    KeepPlaces(&of, before, after);
    of.has_lower = true;
    of.digest = digest;
    tree_.Touch(directory);
    tree_.TouchPlaces(*directory);
    ForgetListing(*directory);
  }
  LiveTree::SetLoaded(directory, next);
  std::vector<std::string> known;
  WalkBoth(before.get(), after, [&](size_t i, size_t j) {
    if (i != kNoEntry && j != kNoEntry && before->directory->EncodedAt(i) == after.EncodedAt(j)) return;
    const std::string_view name = j != kNoEntry ? after.NameAt(j) : before->directory->NameAt(i);
    const auto entry = of.entries.find(name);
    if (seeks_others && !others && (entry == of.entries.end() || entry->second.change <= included_)) {
      std::optional<tree::Entry> was, is;
      if (i != kNoEntry) was = before->directory->At(i);
      if (j != kNoEntry) is = after.At(j);
      others = IsOthers(*directory, was ? &*was : nullptr, is ? &*is : nullptr);
    }
    if (entry != of.entries.end()) {
      if (!all) known.emplace_back(name);
    } else if (i == kNoEntry) {
      ForgetName(*directory, name);  // its absence may be cached
    }
  });
  if (all) {
    for (const auto& [name, entry] : of.entries) known.push_back(name);
  }
  if (others) others_.push_back(directory->nodeid);
  for (const std::string& name : known) Reconcile(directory, name);
}

bool LiveMerge::IsOthers(const LiveNode& directory, const tree::Entry* before, const tree::Entry* after) const {
  const std::string& name = after != nullptr ? after->name : before->name;
  if (claimed_.contains({directory.nodeid, name})) return false;
  const auto it = directory.directory->entries.find(name);
  if (it == directory.directory->entries.end()) {
    return before == nullptr || after == nullptr || before->ino != after->ino;
  }
  const LiveEntry& entry = it->second;
  if (entry.change > included_) return false;
  if (entry.node == nullptr) return after != nullptr;  // removed here
  const LiveNode& node = *entry.node;
  if (after == nullptr) return node.named_at_home() && !(node.file && node.file->dirty());
  if ((node.is_directory() && after->is_directory()) || IsSame(node, *after)) return false;
  if (!after->is_regular()) return true;
  // Ours, and home has not said which inode it is.
  if (node.at_home.ino == 0 && !node.in_home_tree()) return false;
  return after->ino != node.at_home.ino && after->ino != node.version.ino;
}

// Home no longer has this directory: nothing in it is home's.
void LiveMerge::TakeNothing(LiveNode* directory) {
  LiveDirectory& of = *directory->directory;
  of.has_lower = of.restored = false;
  of.digest = {};
  of.places.clear();
  LiveTree::SetLoaded(directory, nullptr);
  tree_.Touch(directory);
  ForgetListing(*directory);
  std::vector<std::string> known;
  for (const auto& [name, entry] : of.entries) known.push_back(name);
  for (const std::string& name : known) Reconcile(directory, name);
}

void LiveMerge::Below(LiveNode* parent, const std::string& name, LiveNode* directory, const Digest& digest) {
  LiveDirectory& of = *directory->directory;
  if (IsCurrent(of, digest)) return;
  if (!Needs(*directory)) {
    if (of.has_lower) tree_.NoteRecent(directory);  // otherwise it was made here
    of.has_lower = true;
    of.restored = false;
    of.digest = digest;
    tree_.Touch(directory);
    return;
  }
  if (const LoadedDirectoryPtr object = Object(of, digest)) {
    Take(directory, digest, object);
    return;
  }
  wanted_.emplace_back(digest, directory->HomePath());
  Hold(parent, name);
}

// --- one name --------------------------------------------------------------------------------------------------------

void LiveMerge::Reconcile(LiveNode* directory, const std::string& name) {
  if (!directory->is_directory()) return;
  LiveDirectory& of = *directory->directory;
  const auto it = of.entries.find(name);
  if (it == of.entries.end()) return;
  const size_t index = of.loaded ? of.loaded->directory->Find(name) : 0;
  const bool home = of.loaded && index < of.loaded->directory->size();
  if (it->second.node == nullptr) {
    if (it->second.change > included_) return;
    tree_.Erase(directory, name);
    emptied_.push_back(directory->nodeid);
    if (home) ForgetName(*directory, name);
  } else if (home) {
    Meet(directory, name, &it->second, index);
  } else {
    Miss(directory, name, &it->second);
  }
}

// Home has an entry with that name.
void LiveMerge::Meet(LiveNode* directory, const std::string& name, LiveEntry* entry, size_t index) {
  LiveNode* node = entry->node;
  const tree::Entry is = directory->directory->loaded->directory->At(index);
  const bool ours = entry->change > included_;
  if (ours) return;  // also for a directory: home's may be another one, which was moved away here
  if (node->is_directory() && is.is_directory()) {
    const bool named_here = std::exchange(entry->change, 0) != 0;
    if (named_here) tree_.TouchName(*directory, name);
    if (!node->in_home_tree() || node->home_path || node->change != 0) tree_.Touch(node);
    node->home_path.reset();
    node->home = LiveNode::Home::kShown;
    if (node->version != is.version()) {
      node->version = is.version();
      tree_.Touch(node);
    }
    if (node->change <= included_) {
      const bool changed_here = std::exchange(node->change, 0) != 0;
      SetAttributes(node, is, named_here || changed_here);
    }
    Below(directory, name, node, is.child);
    return;
  }
  if (IsSame(*node, is) || BecomesNext(*node, is)) {
    Adopt(directory, entry, is, index);
    return;
  }
  if (Defer(directory, name, entry)) return;
  if (node->is_directory()) TakeNothing(node);
  differing_.push_back(node->nodeid);
  if (node->change > included_) return;
  if (InUse(*node)) {
    Hold(directory, name);
  } else if (CanRenew(*node, is)) {
    Adopt(directory, entry, is, index);
    node->seen = LiveNode::Seen::kRenewed;
  } else {
    if (IsInodeOf(*node, is)) tree_.ForgetInode(node);  // or the new entry would be this node again, by another name
    Replace(directory, name);
  }
}

// Home has no entry with that name.
void LiveMerge::Miss(LiveNode* directory, const std::string& name, LiveEntry* entry) {
  LiveNode* node = entry->node;
  if (entry->change > included_ || Defer(directory, name, entry)) return;
  const bool changed = node->change > included_;
  if (node->is_directory()) TakeNothing(node);
  if (!changed && !InUse(*node)) {
    Replace(directory, name);
    return;
  }
  differing_.push_back(node->nodeid);
  if (entry->cookie == 0) tree_.Keep(directory, name, tree_.next_cookie_++);  // the name stays, and must be listed
  Hold(directory, name);
}

// Home has the node's version under none of its names, and has heard all our operations on it.
bool LiveMerge::IsOvertaken(const LiveNode& node) {
  if (!node.in_home_tree() || node.operation > operation_) return false;
  const std::vector<LiveName> names = node.names;
  return std::all_of(names.begin(), names.end(), [&](const LiveName& link) {
    if (!IsTaken(link.parent)) return false;
    const LiveDirectory& of = *link.parent->directory;
    const auto it = of.entries.find(link.name);
    if (it == of.entries.end() || it->second.node != &node) return true;
    if (it->second.change > included_) return false;
    const size_t index = of.loaded ? of.loaded->directory->Find(link.name) : 0;
    if (!of.loaded || index == of.loaded->directory->size()) return true;
    const tree::Entry is = of.loaded->directory->At(index);
    return !IsSame(node, is) && is.version() != node.version;
  });
}

bool LiveMerge::IsSame(const LiveNode& node, const tree::Entry& is) const {
  if ((node.attributes.mode & S_IFMT) != (is.mode & S_IFMT) || is.is_directory()) return false;
  if (is.is_regular()) {
    const tree::FileVersion version = is.version();
    return version == node.at_home || (!node.file && version == node.version) || node.IsEarlier(version);
  }
  // Anything but a regular file is the same if it looks the same, whoever made it.
  const fuse_attr attr = AttributesOf(is, tree_.ids_, tree_.root_dev_, node.nodeid);
  const LiveAttributes& a = node.attributes;
  return a.mode == attr.mode && a.uid == attr.uid && a.gid == attr.gid && a.rdev == attr.rdev &&
         node.target == is.target;
}

void LiveMerge::Adopt(LiveNode* directory, LiveEntry* entry, const tree::Entry& is, size_t index) {
  LiveNode* node = entry->node;
  const bool ours = std::exchange(entry->change, 0) != 0 || node->change != 0;
  if (ours || !node->in_home_tree() || node->home_path || node->version != is.version()) tree_.Touch(node);
  node->home = LiveNode::Home::kShown;
  node->displaced = LiveNode::Displaced::kNo;
  node->home_path.reset();
  if (is.is_regular() && node->IsEarlier(is.version())) {  // nlink and newer attributes are ours
    if (node->change <= included_) node->change = 0;
    return;
  }
  if (node->version != is.version()) tree_.ForgetInode(node);
  if (node->file) node->at_home = is.version();
  node->version = is.version();
  node->known_id = directory->directory->loaded->KnownId(index);
  if (!is.is_directory() && (is.nlink > 1 || node->names.size() > 1)) tree_.hard_links_[{is.dev, is.ino}] = node;
  if (node->change > included_) return;
  node->change = 0;
  SetAttributes(node, is, ours);
}

// Takes home's attributes for a node that is home's again. Content of ours has its own size and times, and the inode
// number stays. `ours`: home has the state that was made here. Then our times stay too: a job must not see the later
// moment at which home applied the change, and home does not report atime (or a directory's ctime).
void LiveMerge::SetAttributes(LiveNode* node, const tree::Entry& is, bool ours) {
  LiveNode now;
  now.attributes.ino = node->attributes.ino;
  tree_.SetHomeAttributes(&now, is);
  LiveAttributes& a = node->attributes;
  LiveAttributes& b = now.attributes;
  const auto same_time = [](const timespec& x, const timespec& y) {
    return x.tv_sec == y.tv_sec && x.tv_nsec == y.tv_nsec;
  };
  bool different = a.mode != b.mode || a.uid != b.uid || a.gid != b.gid || a.nlink != b.nlink;
  different |= node->xattrs != now.xattrs;  // the kernel caches ACLs
  if (node->file) {
    b.size = a.size;
    b.blocks = a.blocks;
    b.atime = a.atime;
    b.mtime = a.mtime;
    b.ctime = a.ctime;
  }
  different |= a.size != b.size || !same_time(a.mtime, b.mtime);
  node->own_times = (ours || node->own_times) && !different;
  if (node->own_times) {
    b.atime = a.atime;
    b.ctime = a.ctime;
  } else if (node->is_directory() && Later(a.ctime, b.ctime)) {
    b.ctime = a.ctime;
  }
  different |= !same_time(a.ctime, b.ctime);
  b.ino = a.ino;
  a = b;
  node->xattrs = std::move(now.xattrs);
  if (!different) return;
  tree_.Touch(node);
  notices_.attributes.push_back(node->nodeid);
}

bool LiveMerge::InUse(const LiveNode& node) const {
  // With a journal, also while home has not been told of it: such a node has a number, but no operation.
  const bool untold = tree_.tracking_ && (!node.named_at_home() || (node.file && node.file->dirty()));
  if (!node.is_directory()) return node.writers > 0 || untold;
  const auto& entries = node.directory->entries;
  return std::any_of(entries.begin(), entries.end(), [](const auto& item) { return item.second.node != nullptr; });
}

// Nobody has seen a byte of it, so the next open may get the new version, however often home writes it. If the node has
// several names, each may have become a separate file at home.
bool LiveMerge::CanRenew(const LiveNode& node, const tree::Entry& is) const {
  if (!renew_ || !is.is_regular() || !S_ISREG(node.attributes.mode) || node.opened() || node.file) return false;
  return node.names.size() == 1 || IsInodeOf(node, is);
}

void LiveMerge::Hold(LiveNode* directory, const std::string& name) { tree_.held_.emplace(directory->nodeid, name); }

bool LiveMerge::BecomesNext(const LiveNode& node, const tree::Entry& is) const {
  if (!is.is_regular() || !S_ISREG(node.attributes.mode)) return false;
  // If nobody has read it, its content is whatever home has; only its size is known to the kernel.
  if (!node.file && !node.opened()) return IsInodeOf(node, is) && node.version.size == is.size;
  return node.file && LiveMoves::IsUntouched(node, is);
}

void LiveMerge::Replace(LiveNode* directory, const std::string& name) {
  LiveDirectory& of = *directory->directory;
  const uint64_t cookie = LoseName(directory, name);
  // List the successor at the same place: a listing under way may have returned the name already.
  const size_t index = of.loaded && cookie != 0 ? of.loaded->directory->Find(name) : SIZE_MAX;
  if (cookie == 0 || !of.loaded || index == of.loaded->directory->size()) return;
  tree_.FromEntry(directory, index);
  tree_.Keep(directory, name, cookie);
}

uint64_t LiveMerge::LoseName(LiveNode* directory, const std::string& name) {
  const LiveEntry entry = directory->directory->entries.find(name)->second;
  LiveNode* node = entry.node;
  std::string path = node->HomePath();
  tree_.Erase(directory, name);
  node->LoseName(directory, name);
  if (node->names.empty()) {
    LoseLastName(node, std::move(path));
    node->replaced = std::make_unique<const std::pair<uint64_t, std::string>>(directory->nodeid, name);
  }
  tree_.Touch(node);
  ForgetName(*directory, name);
  emptied_.push_back(directory->nodeid);
  emptied_.push_back(node->nodeid);
  const bool used = node->opened() || (!renew_ && node->lookups > 0);
  if (used && S_ISREG(node->attributes.mode) && !node->file) replaced_.push_back(node->nodeid);
  return entry.cookie;
}

void LiveMerge::LoseLastName(LiveNode* node, std::string home_path) {
  node->attributes.nlink = 0;
  node->displaced = LiveNode::Displaced::kGone;
  if (!node->home_path) node->home_path = std::make_unique<const std::string>(std::move(home_path));
  tree_.ForgetInode(node);
  tree_.Touch(node);
}

// If the kernel has no lookup on a directory, it knows nothing below it.
void LiveMerge::ForgetName(const LiveNode& directory, std::string_view name) {
  if (directory.lookups > 0 || directory.nodeid == LiveTree::kRootId) {
    notices_.names.emplace_back(directory.nodeid, name);
  }
}

void LiveMerge::ForgetListing(const LiveNode& directory) {
  if (directory.lookups > 0 || directory.nodeid == LiveTree::kRootId) notices_.listings.push_back(directory.nodeid);
}

}  // namespace vrun::vfs
