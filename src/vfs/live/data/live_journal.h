// SPDX-License-Identifier: Apache-2.0
// The journal of a live view: all that its server knows and home does not have yet, on the node's disk.
//
// A file of checksummed frames, written before the kernel is answered (one pwrite, no flush: it survives the death of
// the server, and with Flush that of the machine). A frame holds what one lock of the tree changed, whole or not at
// all:
//   * the state of each node and name that was touched, as it is afterwards. Reading it back is an upsert, no operation
//     is done again; so the tree that comes out is the one that was, node ids included.
//   * the operations that go home (LiveOperation), each with its number. What home has acknowledged is left out of the
//     next checkpoint.
// When the file has grown to a multiple of what it says it is written anew (Checkpoint) and takes the old one's name.
//
// A tail that was torn is cut off. A damaged frame that others follow is kCorrupt: somebody changed the file. So is one
// of another version of this program, and the file stays as it is.
//
// A full disk. Blocks are allocated ahead of the end (`ahead_`), so that a frame needs no room on the disk:
//   * Whoever makes or writes something is refused (Reserve) when half of them are used up and no more are to be had.
//   * The other half is for what reading adds (names that the kernel is told of), for names that are removed, and for
//     what was written before and goes home.
//   * When all but a last part of it is used up, what reading adds is left out, and the journal is behind: it takes no
//     change (TakesChange) until a checkpoint, which has all, is written. That is tried as soon as there is room.
// So what was changed is in the journal before it is answered or sent home, and what is not in it is home's. The kernel
// is told of that only until its next question (RoomForReading); and since the numbers that it was told are not in the
// journal either, the next server begins with others (LiveState::SkipNumbers).
//
// Thread safety: any thread. A mutex is held over the write.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "vfs/byte_ranges.h"
#include "vfs/live/data/live_node.h"

namespace vrun::vfs {

class LiveVersion;

inline constexpr uint64_t kLiveUnit = 64 * 1024;  // of home's content, filled in at a time

// A file's content as of one moment: what of its backing file, over what home has (v1::Over).
struct LiveContent {
  uint64_t file = 0;  // LiveFile::id; 0: empty
  uint64_t generation = 0;
  uint64_t aside = 0;  // what was overwritten since; 0: nothing
  uint64_t size = 0;
  uint32_t over = 0;
  std::vector<ByteRange> ranges;  // sorted, apart; over home's only
};

// One change as home is told of it. Paths are absolute and those of that moment: all before it has been applied.
struct LiveOperation {
  enum class Kind : uint8_t { kPut = 1, kDirectory, kSymlink, kSpecial, kLink, kRemove, kRename, kExchange, kMeta };
  uint64_t number = 0;  // from 1, increasing
  Kind kind = Kind::kMeta;
  uint64_t node = 0;
  bool born = false;   // home has no name of this node before it
  uint64_t other = 0;  // kRename: the node that had the name; kExchange: that it was exchanged with
  std::string path;
  std::string from;           // kLink: another name; kRename, kExchange: the old name
  LiveAttributes attributes;  // owners as home numbers them; kMeta of mode 0: nothing is to be done (a kPut given up)
  std::vector<std::pair<std::string, std::string>> xattrs;
  std::string target;
  tree::FileVersion base;  // of a content over home's own; ino 0: over what this journal put there
  uint64_t linked = 0;     // kPut: v1::PutFile.linked
  LiveContent content;
  std::shared_ptr<LiveVersion> version;  // `content`, to be read; not in the journal
};

// What a backing file is, beyond its bytes.
struct LiveFileState {
  uint64_t id = 0;
  // Generations: content of which something was written, or all was published, at last. The next one begins when one is
  // published; so the file has what was not published if `dirty` is the higher.
  uint64_t dirty = 0;
  uint64_t published = 0;
  // While it still needs home's content.
  bool incomplete = false;
  tree::FileVersion lower;
  Digest lower_tree;
  std::string lower_path;
  uint64_t lower_size = 0;  // as LiveFile::lower_size_
  std::vector<bool> present;
};

struct LiveSavedName {
  uint64_t node = 0;  // 0: removed
  uint64_t cookie = 0;
  uint64_t operation = 0;
};

// What of a merge (live_advance.h) the kernel is to be told.
struct LiveNotices {
  std::vector<std::pair<uint64_t, std::string>> names;  // to be looked up anew: parent, name
  std::vector<uint64_t> listings;                       // directories whose names changed
  std::vector<uint64_t> attributes;                     // nodes that look different
  bool empty() const { return names.empty() && listings.empty() && attributes.empty(); }
};

// LiveDirectory::places of one directory.
struct LiveSavedPlaces {
  Digest digest;  // of home's part
  uint32_t next = 0;
  std::vector<std::pair<uint32_t, uint32_t>> places;
};

// What a journal says.
struct LiveState {
  Digest tree;                                                    // that the view showed last
  std::unordered_map<uint64_t, std::unique_ptr<LiveNode>> nodes;  // without names, entries and files
  std::unordered_map<uint64_t, uint64_t> file_of;                 // node -> backing file
  std::unordered_map<uint64_t, std::map<std::string, LiveSavedName, std::less<>>> names;  // by directory
  std::unordered_map<uint64_t, LiveFileState> files;
  std::map<uint64_t, LiveOperation> operations;          // not acknowledged
  std::deque<std::pair<uint64_t, uint64_t>> done;        // the last requests that changed names: their unique, a node
  LiveNotices untold;                                    // what the kernel has perhaps not been told
  std::set<std::pair<uint64_t, std::string>> absent;     // names that it was told not to be there: LiveDoubt
  std::unordered_map<uint64_t, LiveSavedPlaces> places;  // by directory
  uint64_t acknowledged = 0;
  uint64_t next_operation = 1;
  uint64_t next_node = 1;
  uint64_t next_cookie = 0;
  uint64_t next_file = 1;

  // Past all node ids and cookies that the server of which this is may have given out, in the journal or not.
  void SkipNumbers();
};

// One frame in the making. Not thread safe.
class LiveFrame {
 public:
  void Header(const LiveState& state);  // the tree and the numbers that come next
  void Node(const LiveNode& node, uint64_t file);
  void Gone(uint64_t nodeid);
  void Name(uint64_t directory, std::string_view name, const LiveSavedName* entry);  // null: home's, or none
  void File(const LiveFileState& file);
  void Units(uint64_t file, uint64_t first, uint64_t end, uint64_t lower_size);
  void Dirty(uint64_t file, uint64_t generation);
  void Operation(const LiveOperation& operation);
  void Dropped(uint64_t number);
  void Acknowledged(uint64_t number);
  // A request of the kernel was carried out: not to be done again when it comes again. `node`: what it made.
  void Done(uint64_t unique, uint64_t node);
  // The kernel is going to be told of these; it has been told of all.
  void Untold(const LiveNotices& notices);
  void Told();
  // The kernel is told that there is no such name; of none any more.
  void Absent(uint64_t directory, std::string_view name);
  void NoAbsent();
  void Places(const LiveNode& directory);
  bool empty() const { return body_.empty(); }
  const std::string& body() const { return body_; }
  void clear() { body_.clear(); }

 private:
  std::string body_;
};

class LiveJournal {
 public:
  // A new one; what has that name goes.
  static Result<std::unique_ptr<LiveJournal>> Create(const std::string& path);
  // One that another process left, to be written on; `state` gets what it says.
  static Result<std::unique_ptr<LiveJournal>> Open(const std::string& path, LiveState* state);
  // What `bytes` of a journal say; `good`: how much of them is not a torn tail. kCorrupt: see above.
  static Result<LiveState> Parse(std::string_view bytes, size_t* good);

  // What is appended: a change, for which there is room (TakesChange), or what reading adds.
  enum class Of : uint8_t { kChange, kReading };
  // Before something is made or written: 0, or why it cannot be (ENOSPC and the like). `lacks`: of so many bytes.
  int Reserve(uint64_t* lacks);
  // A change may be made, with a frame of its own of up to `bytes` (0: of the usual size). It has that room until it is
  // appended, if there is one such change at a time.
  bool TakesChange(uint64_t bytes = 0) const;
  // What reading may add. 0: the journal is behind.
  uint64_t RoomForReading() const;
  bool behind() const { return is_behind_.load(); }
  // An error: it is not in the journal, which is behind from now on.
  Status Append(const LiveFrame& frame, Of of);
  Status Flush();

  // Grown to a multiple of what the last checkpoint had; or behind, and there may be room for one.
  bool WantsCheckpoint() const;
  // From here on what is appended also goes after the checkpoint that is being made; then the checkpoint itself, which
  // may be older than what was appended meanwhile: all of it is upserts.
  void BeginCheckpoint();
  Status FinishCheckpoint(const LiveFrame& all);

  uint64_t bytes() const;  // of the file

 private:
  LiveJournal(std::string path, UniqueFd fd, uint64_t end);
  uint64_t LeftLocked() const { return reserved_ - end_; }
  // Blocks for `least` bytes and, as far as there is room, all that are to be ahead. A disk that had none is asked
  // again after a moment, or `now`.
  void AllocateLocked(uint64_t least, bool now);
  void FallBehindLocked(const Error& why);
  void TellRoomLocked();
  int ShortageLocked() const;

  const std::string path_;
  const uint64_t ahead_;
  mutable std::mutex mutex_;
  std::shared_ptr<const UniqueFd> fd_;
  uint64_t end_ = 0;         // of what is written
  uint64_t reserved_ = 0;    // allocated up to here
  int64_t next_try_ = 0;     // monotonic; before it the disk is not asked for more
  int shortage_ = 0;         // what it said when it had none
  uint64_t checkpoint_ = 0;  // bytes of the last one
  bool behind_ = false;
  uint64_t needed_ = 0;  // while it is: free bytes that the last checkpoint did not find
  bool in_checkpoint_ = false;
  std::string after_;
  // LeftLocked(), 0 when it is behind, and whether it is: for whoever only looks.
  std::atomic<uint64_t> room_{0};
  std::atomic<bool> is_behind_{false};
};

}  // namespace vrun::vfs
