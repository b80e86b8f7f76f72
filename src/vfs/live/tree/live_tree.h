// SPDX-License-Identifier: Apache-2.0
// The names and attributes of a live root: home's tree below, and what the jobs of this node changed above it.
//
// A node is one inode as the jobs see it. Nodes of home's tree are made when a name is looked up and go when the kernel
// has forgotten them, as long as nothing of them was changed; whatever was made, moved or changed here stays. A
// directory knows its own entries (LiveEntry) and, below them, home's Directory object; since that object hangs on the
// node and not on a path, a directory of home's is renamed like any other, with all that was never looked at.
//
// Invariants
//   * A name is in exactly one state: home's and never looked up (no entry), home's (entry without a change), ours
//   (entry
//     with a change), or removed (entry without a node). The last two stay until a tree of home's has the change
//     (vfs/live/tree/live_advance.h), so that what home says of before it is not taken for news.
//   * Changes are numbered; the number of a name or node is that of its last one.
//   * A node id is never used twice. Hard links of one of home's files are one node, whichever name comes first.
//   * nlink of what was made here is the number of its names; a node without names lives until the kernel forgets it.
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
  static constexpr uint64_t kFirstCookie = 1ull << 32;  // of ours; home's are below

  LiveTree(const tree::Entry& root, IdMap ids);
  LiveTree(const LiveTree&) = delete;
  LiveTree& operator=(const LiveTree&) = delete;

  LiveNode* root() { return root_; }
  const IdMap& ids() const { return ids_; }
  LiveNode* Find(uint64_t nodeid);
  size_t size() const { return nodes_.size(); }

  // Of a directory whose lower part is loaded (as in all that follows). Null: no such name.
  LiveNode* Child(LiveNode* directory, std::string_view name);
  LiveNode* ChildAt(LiveNode* directory, size_t index);  // of home's part; null: hidden
  static bool NeedsLoading(const LiveNode& directory) {
    return directory.directory->has_lower && !directory.directory->loaded;
  }
  static bool IsEmpty(const LiveNode& directory);
  // Or it is the directory itself.
  static bool IsInside(const LiveNode& node, const LiveNode& directory);
  // Home's part of a directory has come.
  static void SetLoaded(LiveNode* directory, LoadedDirectoryPtr loaded);

  // A change of attributes or content, which is numbered.
  void Changed(LiveNode* node);
  // Further names of home's with its inode are another node.
  void ForgetInode(LiveNode* node);
  uint64_t changes() const { return changes_; }
  // Something of home's is not shown because it is in use here.
  bool holds() const { return !held_.empty(); }

  // A new node without names, attributes as given but for ino and nlink. Add gives it a name.
  LiveNode* New(const LiveAttributes& attributes);
  // EEXIST, EMLINK (a directory has one name). Touches the times of `directory`; nlink and ctime of `node`.
  int Add(LiveNode* directory, std::string_view name, LiveNode* node, timespec now);
  // ENOENT, ENOTDIR, EISDIR, ENOTEMPTY.
  int Remove(LiveNode* directory, std::string_view name, bool want_directory, timespec now);
  // renameat2, without RENAME_WHITEOUT. Also EINVAL: into itself.
  int Rename(LiveNode* from, std::string_view name, LiveNode* to, std::string_view to_name, uint32_t flags,
             timespec now);

  void Forget(LiveNode* node, uint64_t count);
  // What home has in place of a file that it has replaced, if that is a file of home's.
  struct Successor {
    tree::Entry entry;
    std::optional<store::ObjectId> known_id;
    std::string path;
  };
  std::optional<Successor> SuccessorOf(const LiveNode& node);
  // A node without a name gets that content and attributes, and still no name.
  void Become(LiveNode* node, const Successor& successor);
  // A directory object, if it is at hand.
  using Objects = std::function<LoadedDirectoryPtr(const Digest&)>;
  // A directory below another one, loaded. Null: it is not there, or not at hand.
  LiveNode* Reach(LiveNode* directory, const std::vector<std::string>& below, const Objects& objects);
  // Where home's inode is that one of the last trees has brought, if `is_it` its entry there.
  std::optional<LiveName> PlaceOf(const tree::FileVersion& inode, const Objects& objects,
                                  const std::function<bool(const tree::Entry&)>& is_it);
  // And gets the names that the successor has, of which the kernel is to be told. False: that has another node, which
  // was changed.
  bool TakeBack(LiveNode* node, const Successor& successor);
  // Removes what nobody holds and the tree can do without. `node` may be gone afterwards.
  void Drop(LiveNode* node);

  // Content of nodes that are gone since the last call: to be let go of outside of the lock, for that goes to the disk.
  std::vector<std::shared_ptr<LiveFile>> TakeDropped() { return std::exchange(dropped_, {}); }

  // With a journal: what is not as it was since the last call, each once. Names are in no particular order.
  struct Touched {
    std::vector<uint64_t> nodes;  // some of them gone by now
    std::vector<std::pair<uint64_t, std::string>> names;
    std::vector<uint64_t> gone;
    std::vector<uint64_t> places;  // directories; some of them gone by now
    bool empty() const { return nodes.empty() && names.empty() && gone.empty() && places.empty(); }
  };
  void Track() { tracking_ = true; }
  // Becomes what another process's tree was. The kernel may know any of it, so none of it goes before the tree.
  // `files` has the backing files by number. kCorrupt: it does not hang together; the tree is to be thrown away.
  Status Restore(LiveState* state, const std::unordered_map<uint64_t, std::shared_ptr<LiveFile>>& files);
  uint64_t next_id() const { return next_id_; }
  uint64_t next_cookie() const { return next_cookie_; }
  void ForEach(const std::function<void(const LiveNode&)>& visit) const {
    for (const auto& [nodeid, node] : nodes_) visit(*node);
  }
  Touched TakeTouched();
  // Whoever changes a node by itself says so.
  void Touch(LiveNode* node);
  void TouchName(const LiveNode& directory, std::string_view name);
  void TouchPlaces(const LiveNode& directory);
  // Absolute, by the first of its names; "" for what has none.
  std::string PathOf(const LiveNode& node) const;
  std::string PathOf(const LiveNode& directory, std::string_view name) const;

  // home's number for a name that nobody has looked up.
  uint64_t InodeNumberOf(const tree::Entry& entry, uint64_t fallback) const;

 private:
  friend class LiveMerge;  // live_advance.h
  // A change that is to be looked at once home has it: of the name in the directory, or of the node itself ("").
  struct Pending {
    uint64_t change;
    uint64_t nodeid;
    std::string name;
  };
  // A name that a tree of home's has brought, and its inode.
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
  // Takes the entry out, cookie and all; the node's `names` are the caller's.
  void Erase(LiveNode* directory, std::string_view name);
  // A name of home's is listed by this cookie from now on.
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
  // Names (directory, name) of which home has the change, but what has them is in use, or lies in a directory of which
  // home has not: looked at again with each tree.
  std::set<std::pair<uint64_t, std::string>> held_;
  std::deque<Arrival> arrivals_;  // the last ones
};

}  // namespace vrun::vfs
