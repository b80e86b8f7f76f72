// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/tree/live_tree.h"

#include <linux/fs.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "vfs/fuse/attributes.h"
#include "vfs/live/data/live_file.h"
#include "vfs/live/data/live_journal.h"

namespace vrun::vfs {

namespace {

// Whether home has that version under this name, which it must have heard of.
bool HasVersionThere(const LiveName& link, const tree::FileVersion& version) {
  const LoadedDirectoryPtr& loaded = link.parent->directory->loaded;
  const size_t index = loaded ? loaded->directory->Find(link.name) : 0;
  return loaded && index < loaded->directory->size() && loaded->directory->At(index).version() == version;
}

}  // namespace

const LiveEntry& LiveName::entry() const { return parent->directory->entries.find(name)->second; }

void LiveNode::LoseName(const LiveNode* directory, std::string_view name) {
  std::erase_if(names, [&](const LiveName& link) { return link.parent == directory && link.name == name; });
}

bool LiveNode::HasOnlyNamesOfHome() const {
  return std::all_of(names.begin(), names.end(), [](const LiveName& link) { return link.entry().change == 0; });
}

std::string LiveNode::HomePath() const {
  if (home_path) return *home_path;
  const LiveName* at = names.size() == 1 ? &names.front() : nullptr;
  if (names.size() > 1) {
    for (const LiveName& link : names) {
      if (link.entry().change != 0) continue;  // home has not heard of it
      const bool has_it = HasVersionThere(link, version);
      if (at == nullptr || has_it) at = &link;
      if (has_it) break;
    }
  }
  if (at == nullptr) return "/";
  const std::string above = at->parent->HomePath();
  return above == "/" ? above + at->name : above + "/" + at->name;
}

bool LiveNode::IsEarlier(const tree::FileVersion& seen) const {
  const auto after = [&](const tree::FileVersion& known) {
    return known.dev == seen.dev && known.ino == seen.ino && known.ctime_ns > seen.ctime_ns;
  };
  return after(version) || after(at_home);
}

LiveTree::LiveTree(const tree::Entry& root, IdMap ids) : ids_(std::move(ids)), root_dev_(root.dev) {
  root_ = New({});
  SetHome(root_, root);
}

LiveNode* LiveTree::Find(uint64_t nodeid) {
  const auto it = nodes_.find(nodeid);
  return it == nodes_.end() ? nullptr : it->second.get();
}

LiveNode* LiveTree::New(const LiveAttributes& attributes) {
  auto node = std::make_unique<LiveNode>();
  node->nodeid = next_id_++;
  node->attributes = attributes;
  node->attributes.ino = node->nodeid | 1ull << 60;  // as attributes.h marks numbers that are not home's
  node->attributes.nlink = 0;
  if (S_ISDIR(attributes.mode)) node->directory = std::make_unique<LiveDirectory>();
  LiveNode* made = node.get();
  nodes_.emplace(made->nodeid, std::move(node));
  Touch(made);
  return made;
}

LiveTree::Touched LiveTree::TakeTouched() {
  for (const uint64_t nodeid : touched_.nodes) {
    if (LiveNode* node = Find(nodeid)) node->touched = false;
  }
  return std::exchange(touched_, {});
}

void LiveTree::Touch(LiveNode* node) {
  if (!tracking_ || node->touched) return;
  node->touched = true;
  touched_.nodes.push_back(node->nodeid);
}

void LiveTree::TouchName(const LiveNode& directory, std::string_view name) {
  if (tracking_) touched_.names.emplace_back(directory.nodeid, name);
}

void LiveTree::TouchPlaces(const LiveNode& directory) {
  if (tracking_) touched_.places.push_back(directory.nodeid);
}

std::string LiveTree::PathOf(const LiveNode& node) const {
  if (&node == root_) return "/";
  return node.names.empty() ? "" : PathOf(*node.names.front().parent, node.names.front().name);
}

std::string LiveTree::PathOf(const LiveNode& directory, std::string_view name) const {
  std::vector<std::string_view> parts{name};
  const LiveNode* at = &directory;
  for (; !at->names.empty(); at = at->names.front().parent) parts.push_back(at->names.front().name);
  std::string path;
  if (at != root_) return path;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    path += '/';
    path += *part;
  }
  return path;
}

void LiveTree::SetHomeAttributes(LiveNode* node, const tree::Entry& entry) {
  const fuse_attr attr = AttributesOf(entry, ids_, root_dev_, node->nodeid);
  LiveAttributes& a = node->attributes;
  a.ino = attr.ino;
  a.mode = attr.mode;
  a.uid = attr.uid;
  a.gid = attr.gid;
  a.nlink = attr.nlink;
  a.rdev = attr.rdev;
  a.size = attr.size;
  a.blocks = attr.blocks;
  const auto time = [](uint64_t seconds, uint32_t nanoseconds) {
    return timespec{static_cast<time_t>(seconds), static_cast<long>(nanoseconds)};
  };
  a.atime = time(attr.atime, attr.atimensec);
  a.mtime = time(attr.mtime, attr.mtimensec);
  a.ctime = time(attr.ctime, attr.ctimensec);
  node->xattrs.reserve(entry.xattrs.size());
  for (const auto& [name, value] : entry.xattrs) {
    node->xattrs.emplace_back(name, XattrOf(entry, name, ids_).value_or(value));
  }
}

void LiveTree::SetHome(LiveNode* node, const tree::Entry& entry) {
  SetHomeAttributes(node, entry);
  node->home = LiveNode::Home::kShown;
  node->target = entry.target;
  node->version = entry.version();
  if (entry.is_directory()) {
    node->directory = std::make_unique<LiveDirectory>();
    node->directory->has_lower = true;
    node->directory->digest = entry.child;
    NoteRecent(node);
  }
}

void LiveTree::NoteRecent(LiveNode* directory) {
  constexpr unsigned kFresh = 8;  // an archive is unpacked into a new directory more often than a lock is taken there
  if (!tracking_) return;
  const int64_t age = WallMicros() - ToNanos(directory->attributes.mtime) / 1000;
  if (age < -SharedUse::kMicros || age >= SharedUse::kMicros) return;
  directory->directory->Shared().SeenFor(SharedUse::kMicros - std::max<int64_t>(age, 0), kFresh, MonotonicMicros());
}

std::optional<LiveTree::Successor> LiveTree::SuccessorOf(const LiveNode& node) {
  if (!node.replaced) return std::nullopt;
  const auto& [nodeid, name] = *node.replaced;
  const LiveNode* directory = Find(nodeid);
  if (directory == nullptr || !directory->is_directory() || !directory->directory->loaded) return std::nullopt;
  const LiveDirectory& of = *directory->directory;
  const auto entry = of.entries.find(name);
  if (entry != of.entries.end() && (entry->second.node == nullptr || entry->second.node->file)) return std::nullopt;
  const size_t index = of.loaded->directory->Find(name);
  if (index == of.loaded->directory->size()) return std::nullopt;
  const tree::Entry is = of.loaded->directory->At(index);
  if (!is.is_regular()) return std::nullopt;
  return Successor{is, of.loaded->KnownId(index), PathOf(*directory, name)};
}

LiveNode* LiveTree::Reach(LiveNode* directory, const std::vector<std::string>& below, const Objects& objects) {
  for (size_t i = 0;; ++i) {
    if (NeedsLoading(*directory)) {
      LoadedDirectoryPtr loaded = objects(directory->directory->digest);
      if (loaded == nullptr) return nullptr;
      SetLoaded(directory, std::move(loaded));
    }
    if (i == below.size()) return directory;
    directory = Child(directory, below[i]);
    if (directory == nullptr || !directory->is_directory()) return nullptr;
  }
}

std::optional<LiveName> LiveTree::PlaceOf(const tree::FileVersion& inode, const Objects& objects,
                                          const std::function<bool(const tree::Entry&)>& is_it) {
  for (const Arrival& arrival : arrivals_) {
    if (arrival.ino != inode.ino || arrival.dev != inode.dev) continue;
    LiveNode* directory = Find(arrival.directory);
    if (directory == nullptr || !directory->is_directory()) continue;
    directory = Reach(directory, arrival.below, objects);
    if (directory == nullptr || !directory->directory->loaded) continue;
    const tree::Directory& home = *directory->directory->loaded->directory;
    const size_t index = home.Find(arrival.name);
    if (index < home.size() && is_it(home.At(index))) return LiveName{directory, arrival.name};
  }
  return std::nullopt;
}

void LiveTree::Become(LiveNode* node, const Successor& successor) {
  const uint64_t ino = node->attributes.ino;
  node->xattrs.clear();
  SetHomeAttributes(node, successor.entry);
  node->attributes.ino = ino;
  node->attributes.nlink = 0;
  node->version = successor.entry.version();
  node->known_id = successor.known_id;
  node->home_path = std::make_unique<const std::string>(successor.path);
  Touch(node);
}

bool LiveTree::TakeBack(LiveNode* node, const Successor& successor) {
  LiveNode* directory = Find(node->replaced->first);
  const std::string name = node->replaced->second;
  std::vector<LiveName> names{{directory, name}};
  const auto entry = directory->directory->entries.find(name);
  const bool known = entry != directory->directory->entries.end();
  LiveNode* other = known ? entry->second.node : nullptr;
  if (const auto it = hard_links_.find({successor.entry.dev, successor.entry.ino}); !known && it != hard_links_.end()) {
    if (it->second->version == successor.entry.version()) other = it->second;
  }
  if (other != nullptr) {
    if (other->version != successor.entry.version()) return false;
    if (other == node || other->change != 0 || other->writers > 0 || other->file) return false;
    if (!other->HasOnlyNamesOfHome()) return false;
    if (!known) names.insert(names.end(), other->names.begin(), other->names.end());
    if (known) names = other->names;
    if (!other->home_path) other->home_path = std::make_unique<const std::string>(other->HomePath());
    ForgetInode(other);
    other->names.clear();
    other->attributes.nlink = 0;
    other->displaced = LiveNode::Displaced::kGone;
    Touch(other);
  }
  Become(node, successor);
  node->attributes.nlink = successor.entry.nlink;
  node->displaced = LiveNode::Displaced::kNo;
  node->home_path.reset();
  node->replaced.reset();
  for (const LiveName& link : names) {
    link.parent->directory->entries[link.name].node = node;
    TouchName(*link.parent, link.name);
  }
  node->names = std::move(names);
  if (successor.entry.nlink > 1) hard_links_[{successor.entry.dev, successor.entry.ino}] = node;
  if (other != nullptr) Drop(other);
  return true;
}

LiveNode* LiveTree::FromEntry(LiveNode* parent, size_t index) {
  const LoadedDirectory& home = *parent->directory->loaded;
  const tree::Entry entry = home.directory->At(index);
  LiveNode* node = nullptr;
  const bool linked = !entry.is_directory() && entry.nlink > 1;  // also FIFOs, symbolic links
  // Whatever its own nlink: home may have scanned this name before another one existed.
  if (const auto it = hard_links_.find({entry.dev, entry.ino}); it != hard_links_.end() && !entry.is_directory()) {
    LiveNode* known = it->second;
    // A later version that is not known yet is the result of our own change.
    const bool same = known->version == entry.version() || known->change != 0 || known->IsEarlier(entry.version());
    if (!known->names.empty() && same) node = known;
  }
  if (node == nullptr) {
    node = New({});
    SetHome(node, entry);
    node->known_id = home.KnownId(index);
    if (linked) hard_links_[{entry.dev, entry.ino}] = node;
  }
  node->names.push_back({parent, entry.name});
  parent->directory->entries[entry.name] = {node, 0};
  Touch(node);
  TouchName(*parent, entry.name);
  return node;
}

LiveNode* LiveTree::Child(LiveNode* directory, std::string_view name) {
  const LiveDirectory& of = *directory->directory;
  if (const auto it = of.entries.find(name); it != of.entries.end()) return it->second.node;
  if (!of.loaded) return nullptr;
  const size_t index = of.loaded->directory->Find(name);
  return index < of.loaded->directory->size() ? FromEntry(directory, index) : nullptr;
}

LiveNode* LiveTree::ChildAt(LiveNode* directory, size_t index) {
  const LiveDirectory& of = *directory->directory;
  const std::string_view name = of.loaded->directory->NameAt(index);
  if (const auto it = of.entries.find(name); it != of.entries.end()) {
    return it->second.cookie == 0 ? it->second.node : nullptr;
  }
  return FromEntry(directory, index);
}

bool LiveTree::HomeHas(const LiveNode& directory, std::string_view name) {
  const LoadedDirectoryPtr& loaded = directory.directory->loaded;
  return loaded && loaded->directory->Find(name) < loaded->directory->size();
}

bool LiveTree::IsEmpty(const LiveNode& directory) {
  const LiveDirectory& of = *directory.directory;
  return of.ours.empty() && (of.loaded ? of.loaded->directory->size() : 0) == of.hidden;
}

void LiveTree::SetLoaded(LiveNode* directory, LoadedDirectoryPtr loaded) {
  LiveDirectory& of = *directory->directory;
  of.loaded = std::move(loaded);
  of.absences = false;
  const size_t size = of.loaded ? of.loaded->directory->size() : 0;
  const auto beyond = [size](const auto& place) { return place.second >= size; };
  if (of.places.size() != size || std::any_of(of.places.begin(), of.places.end(), beyond)) of.places.clear();
  of.hidden = 0;
  for (const auto& [name, entry] : of.entries) {
    if ((entry.node == nullptr || entry.cookie != 0) && HomeHas(*directory, name)) ++of.hidden;
  }
}

void LiveTree::Changed(LiveNode* node) {
  node->change = ++changes_;
  pending_.push_back({changes_, node->nodeid, {}});
  Touch(node);
}

void LiveTree::ForgetInode(LiveNode* node) {
  const auto it = hard_links_.find({node->version.dev, node->version.ino});
  if (it != hard_links_.end() && it->second == node) hard_links_.erase(it);
}

void LiveTree::Erase(LiveNode* directory, std::string_view name) {
  LiveDirectory& of = *directory->directory;
  const auto it = of.entries.find(name);
  if ((it->second.node == nullptr || it->second.cookie != 0) && HomeHas(*directory, name)) --of.hidden;
  of.ours.erase(it->second.cookie);
  TouchName(*directory, it->first);
  of.entries.erase(it);
}

void LiveTree::Keep(LiveNode* directory, const std::string& name, uint64_t cookie) {
  LiveDirectory& of = *directory->directory;
  const auto it = of.entries.find(name);
  if (it->second.cookie == 0 && HomeHas(*directory, name)) ++of.hidden;
  it->second.cookie = cookie;
  of.ours[cookie] = it->first;
  TouchName(*directory, name);
}

void LiveTree::Attach(LiveNode* directory, std::string_view name, LiveNode* node) {
  LiveDirectory& of = *directory->directory;
  auto it = of.entries.find(name);
  if (it == of.entries.end()) {
    it = of.entries.emplace(std::string(name), LiveEntry{}).first;
    if (HomeHas(*directory, name)) ++of.hidden;
  }
  Changed(node);
  it->second = {node, next_cookie_++, node->change};
  of.ours[it->second.cookie] = it->first;
  pending_.push_back({node->change, directory->nodeid, it->first});
  node->names.push_back({directory, it->first});
  node->made_to_append = false;  // a file that is renamed to this name replaces what is there
  TouchName(*directory, it->first);
}

void LiveTree::Detach(LiveNode* directory, std::string_view name) {
  LiveDirectory& of = *directory->directory;
  const auto it = of.entries.find(name);
  LiveNode* node = it->second.node;
  std::string path = node->HomePath();  // before the name goes
  node->LoseName(directory, name);
  if (node->in_home_tree() && !node->home_path) {
    const bool other = std::any_of(node->names.begin(), node->names.end(),
                                   [](const LiveName& link) { return link.entry().change == 0; });
    if (!other) node->home_path = std::make_unique<const std::string>(std::move(path));
  }
  Changed(node);
  const uint64_t cookie = it->second.cookie;
  of.ours.erase(cookie);
  if (cookie == 0 && HomeHas(*directory, name)) ++of.hidden;
  // Mark it also if home has no such name: home may yet hear of one that existed here for a moment.
  it->second = {nullptr, 0, node->change};
  pending_.push_back({node->change, directory->nodeid, it->first});
  TouchName(*directory, it->first);
}

int LiveTree::Add(LiveNode* directory, std::string_view name, LiveNode* node, timespec now) {
  if (Child(directory, name) != nullptr) return EEXIST;
  if (node->is_directory() && !node->names.empty()) return EMLINK;
  Attach(directory, name, node);
  ++node->attributes.nlink;
  node->attributes.ctime = now;
  directory->attributes.mtime = directory->attributes.ctime = now;
  Changed(directory);
  return 0;
}

int LiveTree::Remove(LiveNode* directory, std::string_view name, bool want_directory, timespec now) {
  LiveNode* node = Child(directory, name);
  if (node == nullptr) return ENOENT;
  if (want_directory && !node->is_directory()) return ENOTDIR;
  if (!want_directory && node->is_directory()) return EISDIR;
  if (want_directory && !IsEmpty(*node)) return ENOTEMPTY;
  Detach(directory, name);
  node->attributes.nlink = node->is_directory() ? 0 : node->attributes.nlink - 1;
  node->attributes.ctime = now;
  directory->attributes.mtime = directory->attributes.ctime = now;
  Changed(directory);
  Drop(node);
  return 0;
}

bool LiveTree::IsInside(const LiveNode& node, const LiveNode& directory) {
  for (const LiveNode* at = &node; at != nullptr; at = at->names.empty() ? nullptr : at->names.front().parent) {
    if (at == &directory) return true;
  }
  return false;
}

int LiveTree::Rename(LiveNode* from, std::string_view name, LiveNode* to, std::string_view to_name, uint32_t flags,
                     timespec now) {
  LiveNode* node = Child(from, name);
  LiveNode* there = Child(to, to_name);
  const bool exchange = (flags & RENAME_EXCHANGE) != 0;
  if (node == nullptr || (exchange && there == nullptr)) return ENOENT;
  if (there != nullptr && (flags & RENAME_NOREPLACE) != 0) return EEXIST;
  if (node->is_directory() && IsInside(*to, *node)) return EINVAL;
  if (exchange && there->is_directory() && IsInside(*from, *there)) return EINVAL;
  if (node == there) return 0;  // two names of one file: nothing happens
  if (there != nullptr && !exchange) {
    if (node->is_directory() && !there->is_directory()) return ENOTDIR;
    if (!node->is_directory() && there->is_directory()) return EISDIR;
    if (there->is_directory() && !IsEmpty(*there)) return ENOTEMPTY;
  }
  Detach(from, name);
  if (there != nullptr) {
    Detach(to, to_name);
    there->attributes.ctime = now;
  }
  Attach(to, to_name, node);
  if (exchange) Attach(from, name, there);
  node->attributes.ctime = now;
  for (LiveNode* directory : {from, to}) {
    directory->attributes.mtime = directory->attributes.ctime = now;
    Changed(directory);
  }
  if (there != nullptr && !exchange) {
    there->attributes.nlink = there->is_directory() ? 0 : there->attributes.nlink - 1;
    Drop(there);
  }
  return 0;
}

void LiveTree::Forget(LiveNode* node, uint64_t count) {
  node->lookups -= std::min(node->lookups, count);
  Drop(node);
}

bool LiveTree::CanGo(const LiveNode& node) const {
  if (node.nodeid == kRootId || node.lookups > 0) return false;
  if (node.attributes.nlink == 0) return true;
  if (!node.in_home_tree() || node.change != 0 || (node.is_directory() && !node.directory->entries.empty()))
    return false;
  if (node.file && node.file->dirty()) return false;  // even if all else is home's: it is told with its content
  return node.HasOnlyNamesOfHome();
}

void LiveTree::Drop(LiveNode* node) {
  while (node != nullptr && CanGo(*node)) {
    ForgetInode(node);
    // An unchanged node has only names of home, which a later lookup finds again.
    LiveNode* parent = nullptr;
    for (const LiveName& link : node->names) {
      Erase(link.parent, link.name);
      if (parent != nullptr && parent != link.parent) Drop(parent);
      parent = link.parent;
    }
    if (node->file) dropped_.push_back(std::move(node->file));
    if (tracking_) touched_.gone.push_back(node->nodeid);
    nodes_.erase(node->nodeid);
    node = parent;
  }
}

Status LiveTree::Restore(LiveState* state, const std::unordered_map<uint64_t, std::shared_ptr<LiveFile>>& files) {
  constexpr uint64_t kKnownForEver = 1ull << 62;  // the real count of lookups is lost
  const auto root = state->nodes.find(kRootId);
  if (root == state->nodes.end() || !root->second->is_directory()) {
    return Error(Code::kCorrupt, "the journal of a live view has no root");
  }
  nodes_ = std::move(state->nodes);
  root_ = nodes_.at(kRootId).get();
  root_dev_ = root_->version.dev;
  hard_links_.clear();
  for (auto& [nodeid, node] : nodes_) {
    node->lookups = kKnownForEver;
    node->seen = LiveNode::Seen::kOpened;  // the kernel may have content
    if (const auto of = state->file_of.find(nodeid); of != state->file_of.end()) {
      const auto file = files.find(of->second);
      if (file != files.end()) node->file = file->second;
    }
    if (node->in_home_tree() && !node->is_directory() && node->attributes.nlink > 1) {
      hard_links_[{node->version.dev, node->version.ino}] = node.get();
    }
  }
  for (const auto& [parent, names] : state->names) {
    LiveNode* directory = Find(parent);
    if (directory == nullptr || !directory->is_directory()) continue;
    LiveDirectory& of = *directory->directory;
    for (const auto& [name, saved] : names) {
      LiveNode* node = Find(saved.node);
      if (saved.node != 0 && node == nullptr) continue;  // home's, and dropped
      if (node != nullptr && (node == root_ || (node->is_directory() && !node->names.empty()))) {
        return Error(Code::kCorrupt, "the journal of a live view is damaged: a directory has two names");
      }
      // The first tree that contains all earlier operations shows which of our names home has.
      const bool ours = node == nullptr || saved.cookie != 0;
      const auto it = of.entries.emplace(name, LiveEntry{node, saved.cookie, ours ? 1u : 0u, saved.operation}).first;
      if (ours) pending_.push_back({1, parent, name});
      if (node != nullptr) node->names.push_back({directory, name});
      if (node != nullptr && saved.cookie != 0) of.ours[saved.cookie] = it->first;
    }
  }
  changes_ = 1;
  for (const auto& [nodeid, node] : nodes_) {
    if (node->change != 0) pending_.push_back({1, nodeid, {}});
    if (node->is_directory()) node->directory->restored = !node->directory->entries.empty();
  }
  for (const auto& [nodeid, name] : state->absent) {
    LiveNode* directory = Find(nodeid);
    if (directory != nullptr && directory->is_directory()) directory->directory->absences = true;
  }
  for (auto& [nodeid, saved] : state->places) {
    LiveNode* directory = Find(nodeid);
    if (directory == nullptr || !directory->is_directory()) continue;
    if (directory->directory->digest != saved.digest) continue;
    directory->directory->places = std::move(saved.places);
    directory->directory->next_place = saved.next;
  }
  next_id_ = std::max(next_id_, state->next_node);
  next_cookie_ = std::max(next_cookie_, state->next_cookie);
  return {};
}

uint64_t LiveTree::InodeNumberOf(const tree::Entry& entry, uint64_t fallback) const {
  return InodeNumber(entry, root_dev_, fallback);
}

}  // namespace vrun::vfs
