// SPDX-License-Identifier: Apache-2.0
// The content of one file that was written on this node: a backing file on the node's disk.
//
// Of a file of home's that is changed in place, what was not written is still home's: the backing file is filled with
// it unit by unit as readers and writers need it (`lower`), so the first byte written to 10 GB costs one unit. Once
// filled the file is complete, and the kernel may read and write the backing file by itself (passthrough).
//
// The backing file holds size, allocated blocks, atime and mtime; everything else is the node's (live_tree.h). It goes
// with this object. Thread safety: any thread; a mutex is held over the disk, of this file alone.
//
// With a journal the file also knows what was written since it was last published, and keeps what it published: a write
// that would change it copies it aside first (LiveVersion).
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "vfs/byte_ranges.h"
#include "vfs/content/file_cache.h"
#include "vfs/gate.h"
#include "vfs/live/data/live_journal.h"

namespace vrun::vfs {

// The errno that a request about a file fails with.
inline int ErrnoOfFile(const Error& error) { return error.error_number() != 0 ? error.error_number() : EIO; }

// Where backing files lie, by number; they keep it. Thread safety: any thread.
class LiveFiles : public std::enable_shared_from_this<LiveFiles> {
 public:
  // `directory` exists, on a file system that is not a stacked one (else there is no passthrough), and is ours alone.
  static Result<std::shared_ptr<LiveFiles>> Open(const std::string& directory);
  int fd() const { return directory_.get(); }
  uint64_t NextId() { return next_.fetch_add(1); }

  // What the files tell it is in it before the kernel is answered. Before any file.
  void SetJournal(LiveJournal* journal) { journal_ = journal; }
  LiveJournal* journal() const { return journal_; }
  // What is on its way to a file is not wanted any more, and the journal may go. Waits for what is being put there.
  void Close() { arrivals_.Close(); }
  Gate* arrivals() { return &arrivals_; }
  // Who is asked when the disk is full or there are no more descriptors (store::Store::GiveWay). Before any file.
  void SetGiveWay(std::function<bool(int error, uint64_t bytes)> give_way) { give_way_ = std::move(give_way); }
  bool GiveWay(int error, uint64_t bytes) const { return give_way_ && give_way_(error, bytes); }
  // Runs `act`, which returns 0 or an errno, and once more if it has found the disk full and there is room now. No lock
  // held.
  template <typename Act>
  int Insist(uint64_t bytes, Act act) const {
    const int error = act();
    return (error == ENOSPC || error == EDQUOT) && GiveWay(error, std::max(bytes, kLeastRoom)) ? act() : error;
  }
  // openat(2) with O_CLOEXEC; when there are no more descriptors, those that are kept open are given up for it. On
  // failure errno says why.
  UniqueFd OpenAt(const std::string& name, int flags, mode_t mode = 0);
  // Keeps a file open until there are no more descriptors; null: not any more.
  void Pin(uint64_t id, std::shared_ptr<UniqueFd> fd);
  // After another process: ids from here on; what is there and not `wanted` goes.
  Status Restore(uint64_t next, const std::function<bool(uint64_t id)>& wanted);
  // From now on backing files stay when their objects go.
  void Keep() { kept_ = true; }
  void Remove(uint64_t id) const;

 private:
  static constexpr uint64_t kLeastRoom = 4u << 20;  // so that not every write asks for it
  explicit LiveFiles(UniqueFd directory) : directory_(std::move(directory)) {}
  const UniqueFd directory_;
  LiveJournal* journal_ = nullptr;
  std::function<bool(int error, uint64_t bytes)> give_way_;
  std::mutex pin_mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<UniqueFd>> pinned_;
  Gate arrivals_;
  std::atomic<uint64_t> next_{1};
  std::atomic<bool> kept_{false};
};

class LiveFile;

// The content of a file as it was published, until home has it. Thread safety: any thread.
class LiveVersion {
 public:
  // Of a file that is being published, or was by another process (`found`: what that had put aside is looked for).
  LiveVersion(std::shared_ptr<LiveFile> file, LiveFiles& files, LiveContent content, bool found);
  ~LiveVersion();
  LiveVersion(const LiveVersion&) = delete;
  LiveVersion& operator=(const LiveVersion&) = delete;

  const LiveContent& content() const { return content_; }
  // [offset, offset + n) lies in one of its ranges. 0 or an errno.
  int Read(uint64_t offset, char* buffer, size_t n);
  // Home has lost what this was over: all that the file is now, instead. False: some of it only home had.
  bool BecomeWhole();

 private:
  friend class LiveFile;
  // With the file's mutex: [offset, offset + n) is about to change. 0 or an errno.
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
  static constexpr int kLost = -1;              // home has not, or not there, what was wanted of its content

  // An empty file.
  static Result<std::shared_ptr<LiveFile>> Create(LiveFiles& files);
  // With home's content, none of which is fetched yet. `place`: where home has it.
  static Result<std::shared_ptr<LiveFile>> CreateOver(LiveFiles& files, std::shared_ptr<FileContent> lower,
                                                      FileContent::Place place, timespec atime, timespec mtime);
  // What another process left.
  static std::shared_ptr<LiveFile> Restore(LiveFiles& files, const LiveFileState& state,
                                           std::shared_ptr<FileContent> lower);
  ~LiveFile();
  LiveFile(const LiveFile&) = delete;
  LiveFile& operator=(const LiveFile&) = delete;

  // Those of which a write of [offset, offset + n) leaves something, in a file of `size` bytes.
  static std::vector<Units> KeptUnits(uint64_t offset, uint64_t n, uint64_t size);

  // Nothing of home's is needed any more.
  bool complete() const { return complete_.load(); }
  // Has what [offset, offset + n) lacks of home's content brought in. `done` runs once, perhaps at once. With
  // `overwrite` all of the range is about to be written: only the units at its ends are needed.
  void Need(uint64_t offset, uint64_t n, bool overwrite, Done done);

  // Home has the same content as another version, or in another place, by now.
  void SetLower(std::shared_ptr<FileContent> lower, FileContent::Place place);

  // All of these: 0 or an errno; what they touch has been asked for with Need.
  int Read(uint64_t offset, char* buffer, size_t n, size_t* got);
  int Write(uint64_t offset, std::string_view data);
  int Truncate(uint64_t size);
  int Allocate(uint64_t offset, uint64_t length, int mode);  // fallocate(2)
  int Seek(uint64_t offset, int whence, uint64_t* result);
  int Sync(bool data_only);
  // copy_file_range(2) from another file's backing file.
  int CopyFrom(int from, uint64_t offset, uint64_t to, uint64_t n, size_t* copied);
  int SetTimes(const timespec* atime, const timespec* mtime);  // null: stays
  int Stat(struct stat* out) const;

  uint64_t id() const { return id_; }

  // --- with a journal

  // What was written since it was last published; null: nothing. What it is over is in its content, and in `base` if
  // that is home's own. An error: it cannot be told now, and is still to be published.
  Result<std::shared_ptr<LiveVersion>> Publish(tree::FileVersion* base);
  // A version of it that another process published.
  std::shared_ptr<LiveVersion> RestoreVersion(const LiveContent& content);
  // Bytes written since it was last published if all were appended, else 0.
  uint64_t Appended() const;
  bool dirty() const { return dirty_.load(); }
  LiveFileState State() const;

  // The backing file, to be read and written; one for all who hold it.
  Result<std::shared_ptr<UniqueFd>> Descriptor();
  // Keeps it open, as long as there are descriptors: there will be many reads and writes. LiveOpens: while the file is
  // open.
  void Pin(bool on);

  // LiveOpens': the kernel writes the backing file by itself, so what it has cached of attributes is worth nothing.
  std::atomic<bool> passed_through{false};

 private:
  friend class LiveVersion;
  LiveFile(LiveFiles& files, uint64_t id) : files_(files.shared_from_this()), id_(id), name_(std::to_string(id)) {}
  Result<std::shared_ptr<UniqueFd>> DescriptorLocked();
  bool MissingLocked(uint64_t unit) const;
  // First missing unit of the range, or `end`.
  uint64_t NextMissingLocked(uint64_t unit, uint64_t end) const;
  int FillLocked(uint64_t unit);
  void MarkLocked(uint64_t unit);
  // What lies wholly in [offset, offset + n) is ours from now on. 0 or an errno.
  int MarkWrittenLocked(uint64_t offset, uint64_t n);
  int NoteUnitsLocked(uint64_t first, uint64_t end, LiveJournal::Of of);
  int WriteOnce(uint64_t offset, std::string_view data);
  int CopyOnce(int from, uint64_t offset, uint64_t to, uint64_t n, size_t* copied);
  int TruncateOnce(uint64_t size);
  int AllocateOnce(uint64_t offset, uint64_t length, int mode);
  // [offset, offset + n) is about to change, and has changed. 0 or an errno.
  int BeforeChangeLocked(int fd, uint64_t offset, uint64_t n);
  void ChangedLocked(uint64_t offset, uint64_t n);
  LiveFileState StateLocked() const;
  void NeedUnits(std::vector<Units> ranges, int tries, Done done);

  const std::shared_ptr<LiveFiles> files_;
  const uint64_t id_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::weak_ptr<UniqueFd> descriptor_;

  std::atomic<bool> complete_{true};
  // While incomplete; null afterwards.
  std::shared_ptr<FileContent> lower_;
  FileContent::Place place_;
  uint64_t lower_size_ = 0;  // of it this much still counts: the least size that the file has had
  std::vector<bool> present_;
  uint64_t missing_ = 0;

  // With a journal. What home has of the file: nothing, its own version, or what was published last.
  enum class Base : uint8_t { kNone, kHome, kPublished };
  Base base_ = Base::kNone;
  uint64_t base_size_ = 0;  // of kHome and kPublished
  tree::FileVersion home_version_;
  std::atomic<bool> dirty_{false};
  uint64_t generation_ = 1;  // that is being written
  ByteRanges changed_;       // of it; may lie beyond the end
  std::vector<std::weak_ptr<LiveVersion>> versions_;
};

}  // namespace vrun::vfs
