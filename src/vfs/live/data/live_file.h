// SPDX-License-Identifier: Apache-2.0
// The content of one file written on this node: a backing file on the node's disk.
//
// If a file of home is changed in place, unwritten parts are still home's: readers and writers fill the backing file
// unit by unit as they need it (`lower`), so the first byte written to 10 GB costs one unit. Once filled, the file is
// complete, and the kernel may read and write the backing file directly (passthrough).
//
// The backing file holds size, allocated blocks, atime and mtime; everything else belongs to the node (live_tree.h). It
// is deleted with this object. Thread safety: any thread; a mutex of this file is held during disk access.
//
// With a journal the file also tracks what was written since it was last published, and preserves published content: a
// write that would change it first copies the old bytes aside (LiveVersion).
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"
#include "vfs/byte_ranges.h"
#include "vfs/content/file_cache.h"
#include "vfs/gate.h"
#include "vfs/live/data/live_journal.h"

namespace vrun::vfs {

// The errno for a request that failed with this error.
inline int ErrnoOfFile(const Error& error) { return error.error_number() != 0 ? error.error_number() : EIO; }

// The directory of backing files, which are numbered. The files keep it alive. Thread safety: any thread.
class LiveFiles : public std::enable_shared_from_this<LiveFiles> {
 public:
  // `directory` must exist, on a file system that is not stacked (otherwise there is no passthrough), and be used by
  // nobody else.
  static Result<std::shared_ptr<LiveFiles>> Open(const std::string& directory);
  int fd() const { return directory_.get(); }
  uint64_t NextId() { return next_.fetch_add(1); }

  // Files write records to it before the kernel is answered. Call before any file exists.
  void SetJournal(LiveJournal* journal) { journal_ = journal; }
  LiveJournal* journal() const { return journal_; }
  // Discards content that is still arriving, so that the journal may be destroyed. Waits for content that is being
  // stored.
  void Close() { arrivals_.Close(); }
  Gate* arrivals() { return &arrivals_; }
  // Called when the disk is full or there are no descriptors left (store::Store::GiveWay). Set it before any file
  // exists.
  void SetGiveWay(std::function<bool(int error, uint64_t bytes)> give_way) { give_way_ = std::move(give_way); }
  bool GiveWay(int error, uint64_t bytes) const { return give_way_ && give_way_(error, bytes); }
  // Runs `act`, which returns 0 or an errno, and runs it again if the disk was full and there is room now. No lock
  // held.
  template <typename Act>
  int Insist(uint64_t bytes, Act act) const {
    const int error = act();
    return (error == ENOSPC || error == EDQUOT) && GiveWay(error, std::max(bytes, kLeastRoom)) ? act() : error;
  }
  // openat(2) with O_CLOEXEC. If there are no descriptors left, closes pinned ones for it. On failure errno is set.
  UniqueFd OpenAt(const std::string& name, int flags, mode_t mode = 0);
  // Keeps a file open until descriptors run out; null: unpins it.
  void Pin(uint64_t id, std::shared_ptr<UniqueFd> fd);
  // After a take-over: continues with ids from `next`; deletes backing files that are not `wanted`.
  Status Restore(uint64_t next, const std::function<bool(uint64_t id)>& wanted);
  // From now on backing files are not deleted with their objects.
  void Keep() { kept_ = true; }
  void Remove(uint64_t id) const;

 private:
  static constexpr uint64_t kLeastRoom = 4u << 20;  // so that not every write asks for room
  explicit LiveFiles(UniqueFd directory) : directory_(std::move(directory)) {}
  const UniqueFd directory_;
  LiveJournal* journal_ = nullptr;
  std::function<bool(int error, uint64_t bytes)> give_way_;
  Mutex pin_mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<UniqueFd>> pinned_ VRUN_GUARDED_BY(pin_mutex_);
  Gate arrivals_;
  std::atomic<uint64_t> next_{1};
  std::atomic<bool> kept_{false};
};

class LiveFile;

// A file's content as published, kept until home has it. Thread safety: any thread.
class LiveVersion {
 public:
  // For a file that is being published, or was published by another process (`found`: looks for the bytes that it had
  // copied aside).
  LiveVersion(std::shared_ptr<LiveFile> file, LiveFiles& files, LiveContent content, bool found);
  ~LiveVersion();
  LiveVersion(const LiveVersion&) = delete;
  LiveVersion& operator=(const LiveVersion&) = delete;

  const LiveContent& content() const { return content_; }
  // [offset, offset + n) must lie in one of its ranges. 0 or an errno.
  int Read(uint64_t offset, char* buffer, size_t n);
  // Home has lost the content that this version was based on: sends the whole current file instead. False: parts of it
  // were only at home.
  bool BecomeWhole();

 private:
  friend class LiveFile;
  // With the file's mutex: [offset, offset + n) is about to change; copies it aside. 0 or an errno.
  int KeepLocked(int from, uint64_t offset, uint64_t n);
  int OpenAside();

  const std::shared_ptr<LiveFile> file_;
  const std::shared_ptr<LiveFiles> files_;
  LiveContent content_;
  UniqueFd aside_;
  ByteRanges kept_;  // whole blocks
};

class LiveFile : public std::enable_shared_from_this<LiveFile> {
 public:
  // 0, an errno, or kLost.
  using Done = std::function<void(int)>;
  using Units = std::pair<uint64_t, uint64_t>;  // [first, end), of kLiveUnit
  static constexpr int kLost = -1;              // home no longer has the wanted content, or not at this place

  // An empty file.
  static Result<std::shared_ptr<LiveFile>> Create(LiveFiles& files);
  // Over home's content, none of which is fetched yet. `place`: where home has it.
  // Nobody else has the new file yet, so its mutex is not taken.
  static Result<std::shared_ptr<LiveFile>> CreateOver(LiveFiles& files, std::shared_ptr<FileContent> lower,
                                                      FileContent::Place place, timespec atime,
                                                      timespec mtime) VRUN_NO_THREAD_SAFETY_ANALYSIS;
  // Restores a file that another process left.
  static std::shared_ptr<LiveFile> Restore(LiveFiles& files, const LiveFileState& state,
                                           std::shared_ptr<FileContent> lower) VRUN_NO_THREAD_SAFETY_ANALYSIS;
  ~LiveFile();
  LiveFile(const LiveFile&) = delete;
  LiveFile& operator=(const LiveFile&) = delete;

  // Units that a write of [offset, offset + n) overwrites only partly, in a file of `size` bytes.
  static std::vector<Units> UnitsPartlyWritten(uint64_t offset, uint64_t n, uint64_t size);

  // Nothing of home's content is needed any more.
  bool complete() const { return complete_.load(); }
  // Fetches home's content that [offset, offset + n) lacks. `done` runs once, perhaps before this returns. With
  // `overwrite` the caller will write all of the range: only the units at its ends are fetched.
  void Need(uint64_t offset, uint64_t n, bool overwrite, Done done);

  // Home now has the same content as another version, or in another place.
  void SetLower(std::shared_ptr<FileContent> lower, FileContent::Place place);

  // All of these return 0 or an errno. Call Need for the range first.
  int Read(uint64_t offset, char* buffer, size_t n, size_t* got);
  int Write(uint64_t offset, std::string_view data);
  int Truncate(uint64_t size);
  int Allocate(uint64_t offset, uint64_t length, int mode);  // fallocate(2)
  int Seek(uint64_t offset, int whence, uint64_t* result);
  int Sync(bool data_only);
  // copy_file_range(2) from another file's backing file.
  int CopyFrom(int from, uint64_t offset, uint64_t to, uint64_t n, size_t* copied);
  int SetTimes(const timespec* atime, const timespec* mtime);  // null: unchanged
  int Stat(struct stat* out) const;

  uint64_t id() const { return id_; }

  // --- with a journal

  // A version with everything written since the last publish; null: nothing. Its content says what it is based on;
  // `base` is set if that is home's own version. An error: it cannot be determined now, and the content still has to be
  // published.
  Result<std::shared_ptr<LiveVersion>> Publish(tree::FileVersion* base);
  // Restores a version of this file that another process published.
  std::shared_ptr<LiveVersion> RestoreVersion(const LiveContent& content);
  // Home does not have everything that was published.
  bool IsUnderWay() const;
  // Bytes written since the last publish if all were appended, else 0.
  uint64_t Appended() const;
  bool dirty() const { return dirty_.load(); }
  LiveFileState State() const;

  // The backing file, open for reading and writing; shared by all holders.
  Result<std::shared_ptr<UniqueFd>> Descriptor();
  // Keeps it open, as long as there are enough descriptors: many reads and writes are expected. LiveOpens does this
  // while the file is open.
  void Pin(bool on);

  // Set by LiveOpens: the kernel writes the backing file directly, so attributes that it has cached are not valid.
  std::atomic<bool> passed_through{false};

 private:
  friend class LiveVersion;
  LiveFile(LiveFiles& files, uint64_t id) : files_(files.shared_from_this()), id_(id), name_(std::to_string(id)) {}
  Result<std::shared_ptr<UniqueFd>> DescriptorLocked() VRUN_REQUIRES(mutex_);
  bool MissingLocked(uint64_t unit) const VRUN_REQUIRES(mutex_);
  // First missing unit of the range, or `end`.
  uint64_t NextMissingLocked(uint64_t unit, uint64_t end) const VRUN_REQUIRES(mutex_);
  int FillLocked(uint64_t unit) VRUN_REQUIRES(mutex_);
  void MarkLocked(uint64_t unit) VRUN_REQUIRES(mutex_);
  // Units that lie wholly in [offset, offset + n) are ours from now on. 0 or an errno.
  int MarkWrittenLocked(uint64_t offset, uint64_t n) VRUN_REQUIRES(mutex_);
  int NoteUnitsLocked(uint64_t first, uint64_t end, LiveJournal::Of of) VRUN_REQUIRES(mutex_);
  int WriteOnce(uint64_t offset, std::string_view data);
  int CopyOnce(int from, uint64_t offset, uint64_t to, uint64_t n, size_t* copied);
  int TruncateOnce(uint64_t size);
  int AllocateOnce(uint64_t offset, uint64_t length, int mode);
  // Call before and after [offset, offset + n) changes. 0 or an errno.
  int BeforeChangeLocked(int fd, uint64_t offset, uint64_t n) VRUN_REQUIRES(mutex_);
  void ChangedLocked(uint64_t offset, uint64_t n) VRUN_REQUIRES(mutex_);
  LiveFileState StateLocked() const VRUN_REQUIRES(mutex_);
  void NeedUnits(std::vector<Units> ranges, int tries, Done done);

  const std::shared_ptr<LiveFiles> files_;
  const uint64_t id_;
  const std::string name_;
  mutable Mutex mutex_;
  std::weak_ptr<UniqueFd> descriptor_ VRUN_GUARDED_BY(mutex_);

  std::atomic<bool> complete_{true};
  // While incomplete; null afterwards.
  std::shared_ptr<FileContent> lower_ VRUN_GUARDED_BY(mutex_);
  FileContent::Place place_ VRUN_GUARDED_BY(mutex_);
  uint64_t lower_size_ VRUN_GUARDED_BY(mutex_) =
      0;  // this many of its bytes still count: the smallest size that the file has had
  std::vector<bool> present_ VRUN_GUARDED_BY(mutex_);
  uint64_t missing_ VRUN_GUARDED_BY(mutex_) = 0;

  // With a journal. What home has: nothing, its own version, or what we published last.
  enum class Base : uint8_t { kNone, kHome, kPublished };
  Base base_ VRUN_GUARDED_BY(mutex_) = Base::kNone;
  uint64_t base_size_ VRUN_GUARDED_BY(mutex_) = 0;  // of kHome and kPublished
  tree::FileVersion home_version_ VRUN_GUARDED_BY(mutex_);
  std::atomic<bool> dirty_{false};
  uint64_t generation_ VRUN_GUARDED_BY(mutex_) = 1;  // the one being written
  ByteRanges changed_ VRUN_GUARDED_BY(mutex_);       // in that generation; may lie beyond the end
  std::vector<std::weak_ptr<LiveVersion>> versions_ VRUN_GUARDED_BY(mutex_);
};

}  // namespace vrun::vfs
