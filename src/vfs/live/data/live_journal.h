// SPDX-License-Identifier: Apache-2.0
// The journal of a live view: everything that its server knows and home does not have yet, on the node's disk.
//
// A file of checksummed frames, written before the kernel is answered (one pwrite, no flush: it survives the death of
// the server, and with Flush that of the machine). A frame holds what one lock of the tree changed, all of it or
// nothing:
//
// * the new state of each touched node and name. Reading it back is an upsert, no operation is done again; so the
//   restored tree equals the old one, node ids included.
// * the operations that go home (LiveOperation), each with its number. The next checkpoint leaves out what home has
//   acknowledged.
//
// When the file has grown to a multiple of its useful content, it is rewritten (Checkpoint) and renamed over the old
// one.
//
// A torn tail is cut off. A damaged frame with others after it is kCorrupt: somebody changed the file. So is a journal
// of another version of this program; the file stays as it is.
//
// Full disk: blocks are allocated ahead of the end (`ahead_`), so that a frame needs no further room on the disk.
//
// * When half of them are used up and no more can be allocated, new files and writes are refused (Reserve).
// * The other half is for records of reads (names that the kernel is told of), for removals, and for content written
//   earlier that goes home.
// * When all but a last part of it is used up, records of reads are left out, and the journal is behind: it takes no
//   change (TakesChange) until a checkpoint, which contains everything, is written. That is retried as soon as there is
//   room.
//
// So every change is in the journal before it is answered or sent home; whatever is missing from it is unchanged home
// state. The kernel may cache such entries only until its next request (RoomForReading). Their numbers are missing from
// the journal too, so the next server starts with other numbers (LiveState::SkipNumbers).
//
// Thread safety: any thread. A mutex is held during the write.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"
#include "vfs/byte_ranges.h"
#include "vfs/live/data/live_node.h"

namespace vrun::vfs {

class LiveVersion;

inline constexpr uint64_t kLiveUnit = 64 * 1024;  // granularity for filling in home's content

// A file's content at one moment: parts of its backing file over what home has (v1::Over).
struct LiveContent {
  uint64_t file = 0;  // LiveFile::id; 0: empty
  uint64_t generation = 0;
  uint64_t aside = 0;  // file with the bytes overwritten since; 0: none
  uint64_t size = 0;
  uint32_t over = 0;
  std::vector<ByteRange> ranges;  // sorted, disjoint; if over home's content, only the changed parts
};

// One change as sent to home. Paths are absolute and valid at that moment: all earlier operations have been applied.
struct LiveOperation {
  enum class Kind : uint8_t { kPut = 1, kDirectory, kSymlink, kSpecial, kLink, kRemove, kRename, kExchange, kMeta };
  uint64_t number = 0;  // from 1, increasing
  Kind kind = Kind::kMeta;
  uint64_t node = 0;
  bool born = false;   // home has no earlier name of this node
  uint64_t other = 0;  // kRename: the node that had the name; kExchange: the other node
  std::string path;
  std::string from;           // kLink: another name; kRename, kExchange: the old name
  LiveAttributes attributes;  // owners as home numbers them; kMeta with mode 0: a no-op (a kPut given up)
  std::vector<std::pair<std::string, std::string>> xattrs;
  std::string target;
  tree::FileVersion base;  // content is over this version of home; ino 0: over what this journal put there
  uint64_t linked = 0;     // kPut: v1::PutFile.linked
  bool exclusive = false;  // v1::WriteBack.exclusive
  LiveContent content;
  std::shared_ptr<LiveVersion> version;  // reads `content`; not in the journal
};

// The state of a backing file, except its bytes.
struct LiveFileState {
  uint64_t id = 0;
  // Generations in which something was last written, and in which all was last published. Publishing begins the next
  // generation, so the file has unpublished content if `dirty` is higher.
  uint64_t dirty = 0;
  uint64_t published = 0;
  // Set while it still needs home's content.
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

// Notifications to the kernel after a merge (live_advance.h).
struct LiveNotices {
  std::vector<std::pair<uint64_t, std::string>> names;  // to be looked up again: parent, name
  std::vector<uint64_t> listings;                       // directories whose names changed
  std::vector<uint64_t> attributes;                     // nodes with changed attributes
  bool empty() const { return names.empty() && listings.empty() && attributes.empty(); }
};

// A request to make a name that waits for home to make it (live_claims.h).
struct LiveSavedClaim {
  enum class State : uint8_t {
    kAsked = 1,  // home has not answered
    kMade,
    kRefused,  // home has such a name
    kOver,     // the request was answered
  };
  uint64_t number = 0;  // of the operation
  uint64_t directory = 0;
  std::string name;
  State state = State::kAsked;
};

// LiveDirectory::places of one directory.
struct LiveSavedPlaces {
  Digest digest;  // of home's part
  uint32_t next = 0;
  std::vector<std::pair<uint32_t, uint32_t>> places;
};

// The contents of a journal.
struct LiveState {
  Digest tree;                                                    // last shown by the view
  std::unordered_map<uint64_t, std::unique_ptr<LiveNode>> nodes;  // without names, entries and files
  std::unordered_map<uint64_t, uint64_t> file_of;                 // node -> backing file
  std::unordered_map<uint64_t, std::map<std::string, LiveSavedName, std::less<>>> names;  // by directory
  std::unordered_map<uint64_t, LiveFileState> files;
  std::map<uint64_t, LiveOperation> operations;          // not acknowledged
  std::deque<std::pair<uint64_t, uint64_t>> done;        // last requests that changed names: unique, node
  LiveNotices untold;                                    // perhaps not yet sent to the kernel
  std::set<std::pair<uint64_t, std::string>> absent;     // names that the kernel was told do not exist: LiveDoubt
  std::unordered_map<uint64_t, LiveSavedPlaces> places;  // by directory
  std::map<uint64_t, LiveSavedClaim> claims;             // by unique
  uint64_t acknowledged = 0;
  uint64_t next_operation = 1;
  uint64_t next_node = 1;
  uint64_t next_cookie = 0;
  uint64_t next_file = 1;

  // Skips all node ids and cookies that the previous server may have given out, recorded in the journal or not.
  void SkipNumbers();
};

// A frame under construction. Not thread safe.
class LiveFrame {
 public:
  void Header(const LiveState& state);  // the tree and the next numbers
  void Node(const LiveNode& node, uint64_t file);
  void Gone(uint64_t nodeid);
  void Name(uint64_t directory, std::string_view name, const LiveSavedName* entry);  // null: home's, or none
  void File(const LiveFileState& file);
  void Units(uint64_t file, uint64_t first, uint64_t end, uint64_t lower_size);
  void Dirty(uint64_t file, uint64_t generation);
  void Operation(const LiveOperation& operation);
  void Dropped(uint64_t number);
  void Acknowledged(uint64_t number);
  // A request of the kernel was carried out: if resent, it must not be repeated. `node`: what it made.
  void Done(uint64_t unique, uint64_t node);
  void Claim(uint64_t unique, const LiveSavedClaim& claim);
  // The kernel is about to be notified of these; it has been notified of all.
  void Untold(const LiveNotices& notices);
  void Told();
  // The kernel is told that there is no such name; all such notes are cleared.
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
  // Creates a new journal; replaces an existing file of that name.
  static Result<std::unique_ptr<LiveJournal>> Create(const std::string& path);
  // Opens a journal that another process left, for appending; fills `state` from it.
  static Result<std::unique_ptr<LiveJournal>> Open(const std::string& path, LiveState* state);
  // Parses the `bytes` of a journal; `good`: length without a torn tail. kCorrupt: see above.
  static Result<LiveState> Parse(std::string_view bytes, size_t* good);

  // What is appended: a change, for which there is room (TakesChange), or a record of reads.
  enum class Of : uint8_t { kChange, kReading };
  // Call before something is made or written: 0, or why it cannot be (ENOSPC and the like). `lacks`: missing bytes.
  int Reserve(uint64_t* lacks);
  // A change may be made with a frame of up to `bytes` (0: of the usual size). The room stays available until the
  // change is appended, provided there is one such change at a time.
  bool TakesChange(uint64_t bytes = 0) const;
  // Bytes that records of reads may use. 0: the journal is behind.
  uint64_t RoomForReading() const;
  bool behind() const { return is_behind_.load(); }
  // On an error the frame is not in the journal, which is behind from now on.
  Status Append(const LiveFrame& frame, Of of);
  Status Flush();

  // The file has grown to a multiple of the last checkpoint; or it is behind, and there may be room for one.
  bool WantsCheckpoint() const;
  // Begins a checkpoint: frames appended from now on also go after it. The checkpoint that is then written may be older
  // than those frames, because all records are upserts.
  void BeginCheckpoint();
  Status FinishCheckpoint(const LiveFrame& all);

  uint64_t bytes() const;  // of the file

 private:
  LiveJournal(std::string path, UniqueFd fd, uint64_t end);
  uint64_t LeftLocked() const VRUN_REQUIRES(mutex_) { return reserved_ - end_; }
  // Allocates blocks for `least` bytes and, as far as there is room, all blocks to be kept ahead. After a failure the
  // disk is asked again after a moment, or `now`.
  void AllocateLocked(uint64_t least, bool now) VRUN_REQUIRES(mutex_);
  void FallBehindLocked(const Error& why) VRUN_REQUIRES(mutex_);
  void TellRoomLocked() VRUN_REQUIRES(mutex_);
  int ShortageLocked() const VRUN_REQUIRES(mutex_);

  const std::string path_;
  const uint64_t ahead_;
  mutable Mutex mutex_;
  std::shared_ptr<const UniqueFd> fd_ VRUN_GUARDED_BY(mutex_);
  uint64_t end_ VRUN_GUARDED_BY(mutex_) = 0;         // end of written data
  uint64_t reserved_ VRUN_GUARDED_BY(mutex_) = 0;    // allocated up to here
  int64_t next_try_ VRUN_GUARDED_BY(mutex_) = 0;     // monotonic; no new attempt to allocate before it
  int shortage_ VRUN_GUARDED_BY(mutex_) = 0;         // errno of the last failed allocation
  uint64_t checkpoint_ VRUN_GUARDED_BY(mutex_) = 0;  // size of the last one in bytes
  bool behind_ VRUN_GUARDED_BY(mutex_) = false;
  uint64_t needed_ VRUN_GUARDED_BY(mutex_) = 0;  // while behind: free bytes that the last checkpoint attempt lacked
  bool in_checkpoint_ VRUN_GUARDED_BY(mutex_) = false;
  std::string after_ VRUN_GUARDED_BY(mutex_);
  // LeftLocked() (0 when behind), and whether it is behind, for readers without the lock.
  std::atomic<uint64_t> room_{0};
  std::atomic<bool> is_behind_{false};
};

}  // namespace vrun::vfs
