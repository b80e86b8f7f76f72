// SPDX-License-Identifier: Apache-2.0
// The names and attributes of a live root: home's tree below, and the changes of this node's jobs above it.
//
// A node is one inode as the jobs see it. A node of home's tree is created when a name is looked up, and removed when
// the kernel has forgotten it, unless it was changed. Whatever was created, moved or changed here stays. A directory
// has its own entries (LiveEntry) and below them home's Directory object. That object belongs to the node, not to a
// path, so a directory of home is renamed like any other, including names that nobody has looked up.
//
// Invariants
//
// * A name is in exactly one state: home's and never looked up (no entry), home's (entry without a change), ours (entry
//   with a change), or removed (entry without a node). The last two stay until a tree of home contains the change
//   (vfs/live/tree/live_advance.h), so that home's earlier state is not taken for a new change.
// * Changes are numbered; the number of a name or node is that of its last change.
// * A node id is never reused. Hard links of one file of home are one node, whichever name comes first.
// * nlink of a node made here is the number of its names; a node without names lives until the kernel forgets it.
//
// Pure memory: no disk, no network, no kernel. Not thread safe: JournaledTree's lock guards it. Errors are errno
// numbers.
#pragma once

#include <cstdint>
#include <ctime>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/id_map.h"
#include "base/result.h"
#include "tree/tree.h"
#include "vfs/live/data/live_node.h"

namespace vrun::vfs {

struct LiveState;

class LiveTree {
 public:
  static constexpr uint64_t kRootId = 1;
  static constexpr uint64_t kFirstCookie = 1ull << 32;  // first cookie of our names; home's are below

  LiveTree(const tree::Entry& root, IdMap ids);
  LiveTree(const LiveTree&) = delete;
  LiveTree& operator=(const LiveTree&) = delete;

  LiveNode* root() { return root_; }
  const IdMap& ids() const { return ids_; }
  LiveNode* Find(uint64_t nodeid);
  size_t size() const { return nodes_.size(); }

  // The directory's lower part must be loaded (also for all methods below). Null: no such name.
  LiveNode* Child(LiveNode* directory, std::string_view name);
  LiveNode* ChildAt(LiveNode* directory, size_t index);  // of home's part; null: hidden
  static bool NeedsLoading(const LiveNode& directory) {
    return directory.directory->has_lower && !directory.directory->loaded;
  }
  static bool IsEmpty(const LiveNode& directory);
  // True also if `node` is the directory itself.
  static bool IsInside(const LiveNode& node, const LiveNode& directory);
  // Home's part of a directory has arrived.
  static void SetLoaded(LiveNode* directory, LoadedDirectoryPtr loaded);

  // Numbers a change of attributes or content.
  void Changed(LiveNode* node);
  // Further names of home with this inode become another node.
  void ForgetInode(LiveNode* node);
  uint64_t changes() const { return changes_; }
  // Something of home is not shown because the name is in use here.
  bool holds() const { return !held_.empty(); }

  // A new node without names, with the given attributes except ino and nlink. Add gives it a name.
  LiveNode* New(const LiveAttributes& attributes);
  // EEXIST, EMLINK (a directory has one name). Updates the times of `directory`, and nlink and ctime of `node`.
  int Add(LiveNode* directory, std::string_view name, LiveNode* node, timespec now);
  // ENOENT, ENOTDIR, EISDIR, ENOTEMPTY.
  int Remove(LiveNode* directory, std::string_view name, bool want_directory, timespec now);
  // renameat2, without RENAME_WHITEOUT. Also EINVAL: a directory into itself.
  int Rename(LiveNode* from, std::string_view name, LiveNode* to, std::string_view to_name, uint32_t flags,
             timespec now);

  void Forget(LiveNode* node, uint64_t count);
  // The file that home has in place of a replaced one, if it is an unchanged file of home.
  struct Successor {
    tree::Entry entry;
    std::optional<store::ObjectId> known_id;
    std::string path;
  };
  std::optional<Successor> SuccessorOf(const LiveNode& node);
  // Gives a node without a name that content and those attributes. It still has no name.
  void Become(LiveNode* node, const Successor& successor);
  // A directory object, if it is at hand.
  using Objects = std::function<LoadedDirectoryPtr(const Digest&)>;
  // A directory below another one, loaded. Null: it does not exist, or an object is not at hand.
  LiveNode* Reach(LiveNode* directory, const std::vector<std::string>& below, const Objects& objects);
  // Where a recent tree has brought home's inode, provided `is_it` accepts its entry there.
  std::optional<LiveName> PlaceOf(const tree::FileVersion& inode, const Objects& objects,
                                  const std::function<bool(const tree::Entry&)>& is_it);
  // As Become, and gives it the successor's names; the caller must notify the kernel of them. False: another node has
  // these names, and it was changed or is in use.
  bool TakeBack(LiveNode* node, const Successor& successor);
  // Removes the node if nobody holds it and the tree does not need it. `node` may be freed afterwards.
  void Drop(LiveNode* node);

  // Content of nodes removed since the last call. Release it without the lock, because that accesses the disk.
  std::vector<std::shared_ptr<LiveFile>> TakeDropped() { return std::exchange(dropped_, {}); }

  // With a journal: everything changed since the last call, each once. Names are in no particular order.
  struct Touched {
    std::vector<uint64_t> nodes;  // some may be gone by now
    std::vector<std::pair<uint64_t, std::string>> names;
    std::vector<uint64_t> gone;
    std::vector<uint64_t> places;  // directories; some may be gone by now
    bool empty() const { return nodes.empty() && names.empty() && gone.empty() && places.empty(); }
  };
  void Track() { tracking_ = true; }
  // Restores another process's tree. The kernel may know any node, so all stay as long as the tree. `files` has the
  // backing files by number. kCorrupt: the state is inconsistent; discard the tree.
  Status Restore(LiveState* state, const std::unordered_map<uint64_t, std::shared_ptr<LiveFile>>& files);
  uint64_t next_id() const { return next_id_; }
  uint64_t next_cookie() const { return next_cookie_; }
  void ForEach(const std::function<void(const LiveNode&)>& visit) const {
    for (const auto& [nodeid, node] : nodes_) visit(*node);
  }
  Touched TakeTouched();
  // Call after changing a node directly.
  void Touch(LiveNode* node);
  void TouchName(const LiveNode& directory, std::string_view name);
  void TouchPlaces(const LiveNode& directory);
  // Absolute, by its first name; "" if it has none.
  std::string PathOf(const LiveNode& node) const;
  std::string PathOf(const LiveNode& directory, std::string_view name) const;

  // The inode number of home, for a name that nobody has looked up.
  uint64_t InodeNumberOf(const tree::Entry& entry, uint64_t fallback) const;

 private:
  friend class LiveMerge;  // live_advance.h
  // A change to check once home has it: of the name in the directory, or of the node itself ("").
  struct Pending {
    uint64_t change;
    uint64_t nodeid;
    std::string name;
  };
  // A name that a tree of home has brought, with its inode.
  struct Arrival {
    uint64_t dev = 0;
    uint64_t ino = 0;
    uint64_t directory = 0;  // a node
    std::vector<std::string> below;
    std::string name;
  };
  LiveNode* FromEntry(LiveNode* parent, size_t index);
  void SetHome(LiveNode* node, const tree::Entry& entry);
  void SetHomeAttributes(LiveNode* node, const tree::Entry& entry);
  void Attach(LiveNode* directory, std::string_view name, LiveNode* node);
  void Detach(LiveNode* directory, std::string_view name);
  static bool HomeHas(const LiveNode& directory, std::string_view name);
  // Others have changed names of a directory of home that was not seen before, if that was lately.
  void NoteRecent(LiveNode* directory);
  // Removes the entry with its cookie; the caller updates the node's `names`.
  void Erase(LiveNode* directory, std::string_view name);
  // From now on a name of home is listed with this cookie.
  void Keep(LiveNode* directory, const std::string& name, uint64_t cookie);
  bool CanGo(const LiveNode& node) const;

  const IdMap ids_;
  uint64_t root_dev_;
  std::unordered_map<uint64_t, std::unique_ptr<LiveNode>> nodes_;
  std::map<std::pair<uint64_t, uint64_t>, LiveNode*> hard_links_;  // by home's device and inode
  std::vector<std::shared_ptr<LiveFile>> dropped_;
  bool tracking_ = false;
  Touched touched_;
  LiveNode* root_ = nullptr;
  uint64_t next_id_ = kRootId;
  uint64_t next_cookie_ = kFirstCookie;
  uint64_t changes_ = 0;
  std::deque<Pending> pending_;  // ascending by change
  // Names (directory, name) whose change home has, but which cannot be taken over because the node is in use, or its
  // directory is not up to date: checked again with each tree.
  std::set<std::pair<uint64_t, std::string>> held_;
  std::deque<Arrival> arrivals_;  // the most recent ones
};

}  // namespace vrun::vfs
