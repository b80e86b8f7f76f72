// SPDX-License-Identifier: Apache-2.0
// What the kernel knows of a view: the inodes on which it holds lookups, and their place in the tree.
//
// An inode is created when a name is first looked up (or listed with attributes). It is removed when the kernel has
// forgotten every lookup and no inode below it is left. Names and attributes are not copied: an inode refers to its
// entry in the Directory object of its parent. Hard links of one version of one file are one inode.
//
// Not thread safe: LazyRoot's lock guards it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tree/tree.h"
#include "vfs/content/directory_cache.h"
#include "vfs/frozen/saved_view.h"

namespace vrun::vfs {

struct Inode;

struct Link {
  Inode* parent = nullptr;
  uint32_t index = 0;                              // of the entry in the parent's Directory
  uint32_t saved = SavedTable<SavedInode>::kNone;  // its record
  bool operator==(const Link& other) const { return parent == other.parent && index == other.index; }
};

struct DirectoryState {
  Digest digest;
  LoadedDirectoryPtr loaded;     // null until a lookup needs it
  std::vector<Inode*> children;  // by entry index, null if the kernel does not know the entry; empty until loaded
  uint32_t push_window = 0;      // push_ahead.cc: number of files
};

struct Inode {
  // State of the file's pages in the kernel: unknown; queued to be pushed; sent.
  enum class Pages : uint8_t { kUnknown, kQueued, kSent };

  uint64_t nodeid = 0;
  uint64_t lookups = 0;
  uint32_t mode = 0;
  uint32_t children = 0;  // links whose parent is this inode
  bool lost_reported = false;
  Pages pages = Pages::kUnknown;
  Link link;                                      // parent null: the root, or a name removed from the tree
  std::unique_ptr<std::vector<Link>> more_links;  // further names of a hard link
  std::unique_ptr<DirectoryState> directory;      // directories
  tree::FileVersion version;

  bool is_directory() const { return directory != nullptr; }
};

class InodeTable {
 public:
  static constexpr uint64_t kRootId = 1;

  // `saved` may be null and must outlive the table. If set, every change is recorded there as it happens.
  explicit InodeTable(const Digest& root_digest, SavedView* saved = nullptr);
  ~InodeTable();
  InodeTable(const InodeTable&) = delete;
  InodeTable& operator=(const InodeTable&) = delete;

  Inode* root() { return root_; }
  Inode* Find(uint64_t nodeid);
  // The inode of an entry of a loaded directory; created if there is none. The caller must raise its lookup count.
  Inode* Child(Inode* parent, uint32_t index, const tree::Entry& entry);
  void SetLoaded(Inode* directory, LoadedDirectoryPtr loaded);
  // Call before the kernel is told of the inode.
  void CountLookup(Inode* inode);
  // Restores one link of an inode that another process gave the kernel, from the record in slot `saved`. False: the
  // record is not plausible.
  bool Restore(Inode* parent, const SavedInode& record, uint32_t saved, const tree::Entry& entry);
  void RestoreNextId(uint64_t next) { next_id_ = next; }
  // Takes back lookups. Unknown ids and counts that are too large are the peer's mistake and do no harm.
  void Forget(uint64_t nodeid, uint64_t count);
  void Drop(Inode* inode);  // second half of Forget: removes an unheld inode, then parents that only it held

  // The entry in its parent's Directory; nullopt for the root and for removed names.
  std::optional<tree::Entry> EntryOf(const Inode& inode) const;
  std::optional<store::ObjectId> KnownId(const Inode& inode) const;
  // "/" for the root; nullopt when a name on the way was removed.
  std::optional<std::string> PathOf(const Inode& inode) const;

  // Moves a directory to its next state. `moved[i]` is the new index of old entry i, or kGone: the inode of that name
  // loses the link. A directory that is not loaded has nothing to move.
  static constexpr uint32_t kGone = UINT32_MAX;
  void Replace(Inode* directory, const Digest& digest, LoadedDirectoryPtr loaded, const std::vector<uint32_t>& moved);

  size_t size() const { return inodes_.size(); }

 private:
  Inode* New(uint64_t nodeid, const tree::Entry& entry);
  Inode* NewNode(uint64_t nodeid, uint32_t mode);
  void AddLink(Inode* inode, Inode* parent, uint32_t index);
  void RemoveLink(Inode* inode, const Link& link);
  void Unsave(const Link& link);
  void SaveLookups(const Inode& inode);

  SavedView* const saved_;
  std::unordered_map<uint64_t, std::unique_ptr<Inode>> inodes_;
  std::unordered_map<tree::FileVersion, Inode*, tree::FileVersionHash> hard_links_;
  Inode* root_ = nullptr;
  uint64_t next_id_ = kRootId;  // ids are never reused
};

}  // namespace vrun::vfs
