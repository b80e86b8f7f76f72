// SPDX-License-Identifier: Apache-2.0
// The Merkle tree of a root file system: one immutable snapshot of all names and attributes, without content.
//
// A Directory is its canonical encoding (codec.h) plus an index into it. Its digest is the SHA-256 of that encoding,
// which contains the digests of its sub-directories. So equal digests mean equal trees, and two snapshots share every
// unchanged directory. Everything is immutable, may be read by any thread, and is held by shared_ptr.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash/digest.h"
#include "base/result.h"

namespace vrun::tree {

// One state of one file's content. Any write, truncation or attribute change gives a new ctime.
struct FileVersion {
  uint64_t dev = 0;
  uint64_t ino = 0;
  int64_t ctime_ns = 0;
  uint64_t size = 0;
  bool operator==(const FileVersion&) const = default;
};

struct FileVersionHash {
  size_t operator()(const FileVersion& v) const {
    uint64_t h =
        v.ino * 0x9e3779b97f4a7c15u ^ static_cast<uint64_t>(v.ctime_ns) * 0xc2b2ae3d27d4eb4fu ^ v.size ^ v.dev << 48;
    return static_cast<size_t>(h ^ h >> 29);
  }
};

// The result of lstat for a name, plus the target of a symlink and the xattrs.
struct Entry {
  std::string name;   // any bytes but '/' and NUL, 1..255; "" only for the root's own entry
  uint32_t mode = 0;  // S_IFMT and permission bits
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint64_t size = 0;    // directories: 0 (stat's value is not a property of the tree)
  uint64_t blocks = 0;  // 512-byte blocks: shows sparse files; 0 for directories
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;  // directories: 0, so that an unrelated change of a child's name moves only mtime
  uint64_t dev = 0;
  uint64_t ino = 0;
  uint32_t nlink = 1;                                       // directories: 0
  uint64_t rdev = 0;                                        // devices
  std::string target;                                       // symlinks
  std::vector<std::pair<std::string, std::string>> xattrs;  // sorted by name; user.*, security.capability, POSIX ACLs
  Digest child;                                             // directories: digest of the Directory

  bool is_directory() const;
  bool is_regular() const;
  bool is_symlink() const;
  FileVersion version() const { return {dev, ino, ctime_ns, size}; }
  bool operator==(const Entry&) const = default;
};

// From this size on, a request per open() is worthwhile, because the kernel then reads the file from the store itself.
inline constexpr uint64_t kApartBytes = 1 << 20;

class Directory;
using DirectoryPtr = std::shared_ptr<const Directory>;

class Directory {
 public:
  // `entries` in any order with unique names. `children` returns the Directory of each sub-directory by name, whose
  // digest is stored in the entry; null if its object is elsewhere (a node that has not fetched it): the entry's
  // `child` then stays as it is.
  static DirectoryPtr Make(std::vector<Entry> entries, const std::function<DirectoryPtr(std::string_view)>& children);
  // Parses bytes from the network and checks every field. kCorrupt. Children are null.
  static Result<DirectoryPtr> Parse(std::string encoded);

  const Digest& digest() const { return digest_; }
  std::string_view encoded() const { return encoded_; }

  size_t size() const { return offsets_.size(); }
  // Decodes the i-th entry in byte order of names.
  Entry At(size_t i) const;
  std::string_view NameAt(size_t i) const;
  // Index of `name`, or size() when it is not there. O(log n).
  size_t Find(std::string_view name) const;
  // Child directory of the i-th entry; null when it is not a directory or not loaded. (Home's trees are always
  // complete.)
  DirectoryPtr Child(size_t i) const;
  // The encoded bytes of the i-th entry: equal bytes mean equal entries, including digests of sub-directories.
  std::string_view EncodedAt(size_t i) const;

  // Sums over this directory and everything loaded below; not part of the encoding.
  struct Totals {
    uint64_t entries = 0;      // names
    uint64_t bytes = 0;        // sizes of regular files, hard links counted once per name
    uint64_t linked = 0;       // names of files with several names
    uint64_t min_ino = ~0ull;  // lowest inode number of a non-directory: prunes the search for a file's other names
    uint64_t max_ino = 0;
  };
  const Totals& totals() const { return totals_; }

  // The part that a node mounts apart, above the whole (vfs/frozen/frozen_view.h): regular files from kApartBytes,
  // everything with extended attributes, and the directories leading there. Null when there is none; unknown for
  // directories made by Parse.
  const DirectoryPtr& apart() const { return apart_; }

  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

 private:
  friend class DirectoryBuilder;
  Directory() = default;
  std::string encoded_;
  std::vector<uint32_t> offsets_;
  std::vector<std::pair<uint32_t, DirectoryPtr>> children_;  // by entry index, ascending
  Digest digest_;
  Totals totals_;
  DirectoryPtr apart_;
};

// A whole root. The tree's id is the SHA-256 of the encoding of its root entry (name "").
struct Tree {
  Entry root;
  DirectoryPtr directory;
  Digest id;
  uint64_t entries = 0;  // all names below the root
  uint64_t bytes = 0;    // sum of sizes of regular files, hard links counted once per name
  // The apart view as a tree: the same root entry over directory->apart(). Null: nothing is apart. Home only.
  std::shared_ptr<const Tree> apart;
};
using TreePtr = std::shared_ptr<const Tree>;

TreePtr AssembleTree(Entry root, DirectoryPtr directory);

// Entry of an absolute path (symlinks are not followed); kNotFound, kInvalid for ".." and relative paths. Home only:
// needs complete trees.
Result<Entry> Lookup(const Tree& snapshot, std::string_view path);
// The Directory object of an absolute path; kNotFound when it is no directory.
Result<DirectoryPtr> LookupDirectory(const Tree& snapshot, std::string_view path);

}  // namespace vrun::tree
