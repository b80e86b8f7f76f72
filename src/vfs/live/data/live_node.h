// SPDX-License-Identifier: Apache-2.0
// One inode of a live root as its jobs see it, and the names of one directory. live_tree.h keeps them consistent; the
// journal (live_journal.h) stores them on disk. Not thread safe: JournaledTree's lock guards them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <set>
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

// As in stat(2); owners as the node has them (mapped into the tenant's range).
struct LiveAttributes {
  uint64_t ino = 0;
  uint32_t mode = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t nlink = 1;
  uint32_t rdev = 0;  // as on the wire
  uint64_t size = 0;  // a file with its own data: see LiveFile
  uint64_t blocks = 0;
  timespec atime{};
  timespec mtime{};
  timespec ctime{};
};

struct LiveEntry {
  LiveNode* node = nullptr;  // null: removed
  uint64_t cookie = 0;       // in listings; 0: listed where home has it
  uint64_t change = 0;       // 0: home's
  // With a journal: the operation of the stream that tells home of it (live_stream.h). 0: not told yet.
  uint64_t operation = 0;
};

// A directory in which others (home's programs, or another view) make and remove names too. decisions/0047. Times are
// monotonic microseconds. Not in the journal.
struct SharedUse {
  static constexpr int64_t kMicros = 60'000'000;  // how long after their last change

  int64_t until = 0;     // home makes names that must be exclusive
  int64_t uncached = 0;  // the kernel caches no name that it is told of until then
  // Names that home may still be asked to make for the first time: a job that unpacks an archive here soon makes its
  // names as anywhere else.
  unsigned fresh = 0;
  std::set<std::string, std::less<>> names;  // that home was asked to make

  // Both keep what is longer.
  void SeenFor(int64_t micros, unsigned names_more, int64_t now) {
    until = std::max(until, now + micros);
    fresh = std::max(fresh, names_more);
  }
};

struct LiveDirectory {
  // Home's part. `digest` is set and `loaded` is null until it is needed; both are empty for a directory made here.
  bool has_lower = false;
  Digest digest;
  LoadedDirectoryPtr loaded;
  // For `loaded`: place in listings -> index, ascending by place. A name keeps its place from one tree to the next; new
  // ones come last. Empty: the place is the index.
  std::vector<std::pair<uint32_t, uint32_t>> places;
  uint32_t next_place = 0;
  // Restored from another process and not compared with home since: entries may be from any of home's trees.
  bool restored = false;
  // Until `loaded` is there: the kernel may have been told by another process that some of its names do not exist.
  bool absences = false;
  std::map<std::string, LiveEntry, std::less<>> entries;
  std::map<uint64_t, std::string_view> ours;  // cookie -> name in `entries`
  size_t hidden = 0;                          // names of home that are removed or have a cookie
  std::unique_ptr<SharedUse> shared;          // null: only this view is known to work here

  SharedUse& Shared() {
    if (!shared) shared = std::make_unique<SharedUse>();
    return *shared;
  }
};

struct LiveName {
  LiveNode* parent = nullptr;
  std::string name;
  // The entry in the parent's directory.
  const LiveEntry& entry() const;
};

struct LiveNode {
  // What home knows of the node; it only increases. Without a journal home is told nothing: kShown or not.
  enum class Home : uint8_t {
    kUnaware,  // home has heard of no name of the node
    kTold,     // an operation of ours gave it a name at home, but no tree of home has shown it yet
    kShown,    // a tree of home has, or had, the node; `version` is its version there
  };
  // What home has done to the node's names and this view has not.
  enum class Displaced : uint8_t {
    kNo,
    // Has names here. Home has something else, or nothing, in place of the version that our changes are based on, and
    // has heard all our operations on it. Content that is not here will not arrive. Only for kShown.
    kOvertaken,
    kGone,  // one of home's trees took its last name; `replaced` names the replacement, if it matters
  };
  // What the kernel may have of home's content. Until kOpened, home's next version may take its place.
  enum class Seen : uint8_t {
    kNothing,
    kRenewed,  // has taken home's next version: the kernel may have the old attributes. Not with no-open
    kOpened,   // opened at any time by anybody; with no-open: from the first read on
  };
  // What was written since the last flush or close.
  enum class Writing : uint8_t {
    kNothing,
    kData,       // for direct writes of the kernel see `written`
    kTruncated,  // to size 0, by path or by an open that follows: with no-open these look the same
  };

  uint64_t nodeid = 0;
  uint64_t lookups = 0;  // held by the kernel
  LiveAttributes attributes;
  Home home = Home::kUnaware;
  Displaced displaced = Displaced::kNo;
  Seen seen = Seen::kNothing;
  Writing writing = Writing::kNothing;
  uint64_t change = 0;     // of attributes, names or content; 0: all are home's
  bool own_times = false;  // atime and ctime are from a job's change; home has the same state since
  // Number of opens for writing; with no-open: 1 from a write to the next close.
  uint32_t writers = 0;
  timespec written{};  // with passthrough: the backing file's mtime at the last flush
  bool lost_reported = false;
  // Created here by open(O_CREAT | O_APPEND), and not told yet. Another node may have created it in the same moment:
  // the content goes behind what is there. Not journaled; another name takes it away.
  bool made_to_append = false;
  uint64_t sought = 0;          // change of its name after which home's tree was searched for it (LiveMerge::Defer)
  std::vector<LiveName> names;  // the known ones; a directory has at most one
  std::unique_ptr<LiveDirectory> directory;
  std::shared_ptr<LiveFile> file;  // content written here; null: home's `version`, or none
  std::string target;              // of a symbolic link
  std::vector<std::pair<std::string, std::string>> xattrs;
  // With a journal. `operation`: with it home has all changes except unpublished content of `file` (0: none yet).
  // `at_home`: home's inode when home acknowledged the last operation that made or changed it (ino 0: unknown).
  uint64_t operation = 0;
  tree::FileVersion at_home;
  bool touched = false;  // used by LiveTree
  // With kShown: where home's tree has it.
  tree::FileVersion version;
  std::optional<store::ObjectId> known_id;
  std::unique_ptr<const std::string> home_path;  // if moved or removed here; null: derived from its names
  // Home has put something else in its place: the directory's node id and the name.
  std::unique_ptr<const std::pair<uint64_t, std::string>> replaced;

  bool is_directory() const { return directory != nullptr; }
  bool in_home_tree() const { return home == Home::kShown; }
  bool named_at_home() const { return home != Home::kUnaware; }
  // An operation gives it a name at home.
  void SetNamedAtHome() { home = named_at_home() ? home : Home::kTold; }
  bool gone_at_home() const { return displaced == Displaced::kGone; }
  bool overtaken() const { return displaced == Displaced::kOvertaken; }
  bool opened() const { return seen == Seen::kOpened; }
  // Removes the name `name` in `directory`.
  void LoseName(const LiveNode* directory, std::string_view name);
  // All of its names are home's (or it has none).
  bool HasOnlyNamesOfHome() const;
  // Path in the newest tree of home that this LiveTree knows.
  std::string HomePath() const;
  // `seen` is an earlier state of this inode than what is known of it. It can be earlier because another directory was
  // scanned before, or before our own change to the file through another name.
  bool IsEarlier(const tree::FileVersion& seen) const;
};

}  // namespace vrun::vfs
