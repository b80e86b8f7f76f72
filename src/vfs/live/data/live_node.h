// SPDX-License-Identifier: Apache-2.0
// One inode of a live root as its jobs see it, and one directory's names. live_tree.h keeps them together and in order;
// the journal (live_journal.h) has them on disk. Not thread safe: JournaledTree's lock guards them.
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash/digest.h"
#include "store/format/object_id.h"
#include "tree/tree.h"
#include "vfs/content/directory_cache.h"

namespace vrun::vfs {

class LiveFile;
struct LiveNode;

// As stat(2) has it; owners as the node has them (moved into the tenant's range).
struct LiveAttributes {
  uint64_t ino = 0;
  uint32_t mode = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t nlink = 1;
  uint32_t rdev = 0;  // as on the wire
  uint64_t size = 0;  // of a file with data of its own: LiveFile's
  uint64_t blocks = 0;
  timespec atime{};
  timespec mtime{};
  timespec ctime{};
};

struct LiveEntry {
  LiveNode* node = nullptr;  // null: removed
  uint64_t cookie = 0;       // of a listing; 0: it is listed where home has it
  uint64_t change = 0;       // 0: home's
  // With a journal: home knows of it with this operation of the stream (live_stream.h). 0: not told yet.
  uint64_t operation = 0;
};

struct LiveDirectory {
  // Home's part. `digest` is set and `loaded` null until it is needed; both empty for a directory made here.
  bool has_lower = false;
  Digest digest;
  LoadedDirectoryPtr loaded;
  // Of `loaded`: place in listings -> index, ascending by place. A name keeps its place from one tree of home's to the
  // next; new ones come last. Empty: the place is the index.
  std::vector<std::pair<uint32_t, uint32_t>> places;
  uint32_t next_place = 0;
  // As another process left it, and not compared with home's since: entries may be of any of home's trees.
  bool restored = false;
  std::map<std::string, LiveEntry, std::less<>> entries;
  std::map<uint64_t, std::string_view> ours;  // cookie -> name in `entries`
  size_t hidden = 0;                          // names of home's that are removed or have a cookie
};

struct LiveName {
  LiveNode* parent = nullptr;
  std::string name;
  // In the directory that the parent is.
  const LiveEntry& entry() const;
};

struct LiveNode {
  // What home knows of it. It only ever becomes more. Without a journal nothing is told: kShown or not.
  enum class Home : uint8_t {
    kUnaware,  // home has heard of no name of it
    kTold,     // an operation of ours has given it a name there, which no tree of home's has shown yet
    kShown,    // a tree of home's has, or had, it; `version` is what it was there
  };
  // What home has made of its names that we have not.
  enum class Displaced : uint8_t {
    kNo,
    // Has names here. Home has something else, or nothing, in place of what this is a change of, and all that it was
    // told of it: what of its content is not here will not come. Only of what is kShown.
    kOvertaken,
    kGone,  // it has lost its last name with one of home's trees; `replaced` says what has its place, where it matters
  };
  // What the kernel may have of home's content of it. Until kOpened, home's next version may take its place.
  enum class Seen : uint8_t {
    kNothing,
    kRenewed,  // home's next version took its place: the kernel may have the old attributes. Not with no-open
    kOpened,   // ever, by anybody; with no-open: from the first read on
  };
  // What was written since it was last flushed or closed.
  enum class Writing : uint8_t {
    kNothing,
    kData,       // of what the kernel writes by itself `written` tells
    kTruncated,  // to nothing, by its name or by an open that follows: with no-open nobody knows
  };

  uint64_t nodeid = 0;
  uint64_t lookups = 0;  // the kernel's
  LiveAttributes attributes;
  Home home = Home::kUnaware;
  Displaced displaced = Displaced::kNo;
  Seen seen = Seen::kNothing;
  Writing writing = Writing::kNothing;
  uint64_t change = 0;     // of attributes, names or content; 0: they are home's
  bool own_times = false;  // its atime and ctime are those of what a job did, and home has the same since
  // How often it is open for writing; with no-open: 1 from a write to the next close.
  uint32_t writers = 0;
  timespec written{};  // the backing file's mtime at the last flush, where it is passed through
  bool lost_reported = false;
  uint64_t sought = 0;          // the change of its name after which home's tree was searched for it (LiveMerge::Defer)
  std::vector<LiveName> names;  // known ones; of a directory at most one
  std::unique_ptr<LiveDirectory> directory;
  std::shared_ptr<LiveFile> file;  // content written here; null: home's `version`, or none
  std::string target;              // of a symbolic link
  std::vector<std::pair<std::string, std::string>> xattrs;
  // With a journal: home has all of its changes with this operation (0: none yet), but for what `file` has not
  // published; and what home's inode was when home acknowledged the last one that made or changed it (ino 0: unknown).
  uint64_t operation = 0;
  tree::FileVersion at_home;
  bool touched = false;  // LiveTree's
  // kShown: where home's tree has it.
  tree::FileVersion version;
  std::optional<store::ObjectId> known_id;
  std::unique_ptr<const std::string> home_path;  // of one that was moved or removed; null: what its names say
  // Home has put something else in its place: the directory's node and the name.
  std::unique_ptr<const std::pair<uint64_t, std::string>> replaced;

  bool is_directory() const { return directory != nullptr; }
  bool in_home_tree() const { return home == Home::kShown; }
  bool named_at_home() const { return home != Home::kUnaware; }
  // An operation gives it a name there.
  void SetNamedAtHome() { home = named_at_home() ? home : Home::kTold; }
  bool gone_at_home() const { return displaced == Displaced::kGone; }
  bool overtaken() const { return displaced == Displaced::kOvertaken; }
  bool opened() const { return seen == Seen::kOpened; }
  // It is not `name` in `directory` any more.
  void LoseName(const LiveNode* directory, std::string_view name);
  // Each of its names is home's (or it has none).
  bool HasOnlyNamesOfHome() const;
  // In the newest tree of home's that this LiveTree knows.
  std::string HomePath() const;
  // Home's inode, as it was before what is known of it: one directory was looked at later than another, or before what
  // we have done to the file by another of its names.
  bool IsEarlier(const tree::FileVersion& seen) const;
};

}  // namespace vrun::vfs
