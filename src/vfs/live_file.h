// SPDX-License-Identifier: Apache-2.0
// The content of one file that was written on this node: a backing file on the node's disk.
//
// Of a file of home's that is changed in place, what was not written is still home's: the backing file is filled with
// it unit by unit as readers and writers need it (`lower`), so the first byte written to 10 GB costs one unit. Once
// filled the file is complete, and the kernel may read and write the backing file by itself (passthrough).
//
// The backing file holds size, allocated blocks, atime and mtime; everything else is the node's (live_tree.h). It goes
// with this object. Thread safety: any thread; a mutex is held over the disk, of this file alone.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "vfs/file_cache.h"

namespace vrun::vfs {

// Where backing files lie. Thread safety: any thread.
class LiveFiles {
 public:
  // `directory` exists, on a file system that is not a stacked one (else there is no passthrough), and is ours alone.
  static Result<std::unique_ptr<LiveFiles>> Open(const std::string& directory);
  int fd() const { return directory_.get(); }
  std::string NextName();

 private:
  explicit LiveFiles(UniqueFd directory) : directory_(std::move(directory)) {}
  const UniqueFd directory_;
  std::atomic<uint64_t> next_{1};
};

class LiveFile : public std::enable_shared_from_this<LiveFile> {
 public:
  // 0 or an errno.
  using Done = std::function<void(int)>;

  // An empty file.
  static Result<std::shared_ptr<LiveFile>> Create(LiveFiles& files);
  // With home's content, none of which is fetched yet. `place`: where home has it.
  static Result<std::shared_ptr<LiveFile>> CreateOver(LiveFiles& files, std::shared_ptr<FileContent> lower,
                                                      FileContent::Place place, timespec atime, timespec mtime);
  ~LiveFile();
  LiveFile(const LiveFile&) = delete;
  LiveFile& operator=(const LiveFile&) = delete;

  // Nothing of home's is needed any more.
  bool complete() const { return complete_.load(); }
  // Has what [offset, offset + n) lacks of home's content brought in. `done` runs once, perhaps at once. With
  // `overwrite` all of the range is about to be written: only the units at its ends are needed.
  void Need(uint64_t offset, uint64_t n, bool overwrite, Done done);

  // All of these: 0 or an errno; what they touch has been asked for with Need.
  int Read(uint64_t offset, char* buffer, size_t n, size_t* got);
  int Write(uint64_t offset, std::string_view data);
  int Truncate(uint64_t size);
  int Allocate(uint64_t offset, uint64_t length, int mode);  // fallocate(2)
  int Seek(uint64_t offset, int whence, uint64_t* result);
  int Sync(bool data_only);
  int SetTimes(const timespec* atime, const timespec* mtime);  // null: stays
  int Stat(struct stat* out) const;

  // The backing file, to be read and written; one for all who hold it.
  Result<std::shared_ptr<UniqueFd>> Descriptor();
  // Keeps it open: there will be many reads and writes. LiveRoot: while the file is open.
  void Pin(bool on);

  // LiveRoot's: the kernel writes the backing file by itself, so what it has cached of attributes is worth nothing.
  std::atomic<bool> passed_through{false};

 private:
  LiveFile(LiveFiles& files, std::string name) : files_(files), name_(std::move(name)) {}
  Result<std::shared_ptr<UniqueFd>> DescriptorLocked();
  bool MissingLocked(uint64_t unit) const;
  // First missing unit of the range, or `end`.
  uint64_t NextMissingLocked(uint64_t unit, uint64_t end) const;
  int FillLocked(uint64_t unit);
  void MarkLocked(uint64_t unit);
  // What lies wholly in [offset, offset + n) is ours from now on.
  void MarkWrittenLocked(uint64_t offset, uint64_t n);
  void NeedUnits(std::vector<std::pair<uint64_t, uint64_t>> ranges, int tries, Done done);

  LiveFiles& files_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::weak_ptr<UniqueFd> descriptor_;
  std::shared_ptr<UniqueFd> pinned_;

  std::atomic<bool> complete_{true};
  // While incomplete; null afterwards.
  std::shared_ptr<FileContent> lower_;
  FileContent::Place place_;
  uint64_t lower_size_ = 0;  // of it this much still counts: the least size that the file has had
  std::vector<bool> present_;
  uint64_t missing_ = 0;
};

}  // namespace vrun::vfs
