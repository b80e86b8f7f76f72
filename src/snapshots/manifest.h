// SPDX-License-Identifier: Apache-2.0
// The directories of one home's snapshots, and the content of their files: complete trees in memory, a Merkle tree of
// SnapshotDirectory blobs in the store (proto/snapshots.proto). Snapshots share common parts.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"
#include "base/thread/mutex.h"
#include "home/pack/digest_cache.h"
#include "store/format/object_id.h"
#include "store/store.h"
#include "tree/tree.h"

namespace vrun::snapshots {

class Vault;

// Everything that snapshots need, without duplicates, in the order of their trees, so that neighbours are used
// together.
struct Contents {
  std::vector<Digest> directories;                            // SnapshotDirectory
  std::vector<std::pair<store::ObjectId, uint64_t>> objects;  // with their sizes
  std::unordered_set<Digest, DigestHash> directory_set;
  std::unordered_set<store::ObjectId, store::ObjectIdHash> object_set;
};

// A file in a directory that is new here.
struct NewFile {
  std::string path;
  tree::FileVersion version;
  std::optional<store::ObjectId> id;  // from home, or already known here
};

// A directory object as home sent it.
struct NewDirectory {
  tree::DirectoryPtr directory;  // its children are null
  std::vector<std::pair<uint32_t, store::ObjectId>> known_ids;
};
using NewDirectories = std::unordered_map<Digest, NewDirectory, DigestHash>;

// Any thread.
class Manifest {
 public:
  // `vault`: the source of directories missing in the store; null: none. Owns neither.
  explicit Manifest(store::Store* store, Vault* vault = nullptr) : store_(store), vault_(vault), ids_("", SIZE_MAX) {}

  // Loads a snapshot's tree from its blobs. kCorrupt, kNotFound: the store lost some of it.
  Result<tree::DirectoryPtr> Load(const Digest& blob);

  // The complete tree with root directory `root`. Unknown directories are taken from `fresh`, and their files are added
  // to *files, each version once. kCorrupt: a directory is in neither.
  Result<tree::DirectoryPtr> Complete(const Digest& root, const NewDirectories& fresh, std::vector<NewFile>* files);

  // Sets the content id of a file version. Its content is in the store.
  void Identify(const tree::FileVersion& version, const store::ObjectId& id);
  // Marks a file that the user at home could not read.
  void MarkUnreadable(const NewFile& file);
  // The same for a file that changed at home before it was sent. Lost: such a file, as long as this process knows.
  void MarkLost(const NewFile& file);
  bool Lost(const tree::FileVersion& version) const;
  // Adds at most `most` paths of unreadable files in this tree; returns their total number.
  uint64_t Unreadable(const tree::DirectoryPtr& root, size_t most, std::vector<std::string>* paths) const;

  // Writes the blobs missing in the store. Returns the root's digest.
  Result<Digest> Write(const tree::DirectoryPtr& root);

  // Adds what this loaded or written tree needs and *contents lacks. Skips directories that `base` (null: none) has at
  // the same place, including everything below.
  void Need(const tree::DirectoryPtr& root, const tree::DirectoryPtr& base, Contents* contents) const;
  // Forgets everything that is in none of these trees.
  void Retain(const std::vector<tree::DirectoryPtr>& roots);

  // By version: the id of every file whose content is in the store. Never forgets.
  home::DigestCache& ids() { return ids_; }

 private:
  struct Known {
    tree::DirectoryPtr directory;
    Digest blob;
  };
  void IdentifyLocked(const tree::FileVersion& version, const store::ObjectId& id) VRUN_REQUIRES(mu_);
  Result<tree::DirectoryPtr> LoadAt(const Digest& blob, int depth) VRUN_REQUIRES(mu_);
  struct Completion;
  Result<tree::DirectoryPtr> CompleteAt(const Digest& digest, const std::string& path, int depth, Completion* work)
      VRUN_REQUIRES(mu_);
  Result<Digest> WriteAt(const tree::DirectoryPtr& directory, int depth) VRUN_REQUIRES(mu_);

  Result<std::string> Blob(const Digest& blob) const;

  store::Store* const store_;
  Vault* const vault_;
  home::DigestCache ids_;
  mutable Mutex mu_;
  std::unordered_map<Digest, Known, DigestHash> known_ VRUN_GUARDED_BY(mu_);  // by the directory's digest
  std::unordered_set<tree::FileVersion, tree::FileVersionHash> unreadable_ VRUN_GUARDED_BY(mu_);
  std::unordered_set<tree::FileVersion, tree::FileVersionHash> lost_ VRUN_GUARDED_BY(mu_);  // also in unreadable_
};

// Calls `visit` once for each distinct directory of the tree, with a path.
void VisitDirectories(const tree::DirectoryPtr& root,
                      const std::function<void(const std::string& path, const tree::DirectoryPtr&)>& visit);

}  // namespace vrun::snapshots
