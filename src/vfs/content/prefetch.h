// SPDX-License-Identifier: Apache-2.0
// Fetches content that will be wanted next. When a job touches a file that is not here, this asks home which content
// its own programs have touched lately (from its page cache, or where that is cold, from what belongs together). It
// asks once per file, and once per kind of files of a directory. The content comes in one burst, after what readers
// wait for.
//
// Demand is never delayed: a bounded number of bytes is under way, and home sends them last. Missing content is no
// error: a reader fetches it. Memory is bounded; nothing is kept for files that are gone.
// error: a reader asks for it itself. Bounded memory; nothing is kept for files that are gone.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash/digest.h"
#include "base/thread/mutex.h"
#include "tree/tree.h"
#include "vfs/content/file_cache.h"
#include "vfs/content/source.h"

namespace vrun::vfs {

class Backend;

// Thread safety: any thread. Owned by the Backend.
class Prefetcher {
 public:
  explicit Prefetcher(Backend& backend) : backend_(backend) {}

  // A reader needs content of this file that must be fetched. Cheap; call without locks, at most once per FileContent.
  void Touched(const FileContent::Place& place, const tree::FileVersion& version);
  // Decides by the name. The loader and the users of a library want parts of it, and home knows which.
  static bool IsLibrary(std::string_view path);
  // The range around [offset, offset + n) to fetch where the reader of a large file has jumped to: bytes, from and to.
  static std::pair<uint64_t, uint64_t> Around(uint64_t offset, uint64_t n, uint64_t size);
  // Fetches [first, end) of the file next.
  void Add(const std::shared_ptr<FileContent>& content, const FileContent::Place& place, uint64_t first, uint64_t end);
  // No job runs any more: drops what was not requested yet, and ignores home's answers to earlier questions.
  void Stop();
  void Close() { gate_->Close(); }

 private:
  struct Item {
    std::shared_ptr<FileContent> content;
    FileContent::Place place;
    uint64_t first = 0;  // bytes, at a unit
    uint64_t end = 0;
  };

  // Kinds of small files of a directory (tree/file_kind.h); few.
  using Kinds = std::vector<std::string>;
  // Whether home was not asked for them yet.
  bool AskForLocked(const FileContent::Place& place) VRUN_REQUIRES(mutex_);
  void Take(const Digest& tree, uint64_t stops, const std::vector<ResidentFile>& files);
  // Puts items at the front of the queue; drops the last ones when there are too many.
  void Push(std::vector<Item> items);
  void Pump();
  void Over(uint64_t bytes, bool fetched, int64_t began);

  Backend& backend_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  Mutex mutex_;
  std::deque<Item> queue_ VRUN_GUARDED_BY(mutex_);  // latest request first: that is what is being read now
  uint64_t queued_bytes_ VRUN_GUARDED_BY(mutex_) = 0;
  uint64_t under_way_bytes_ VRUN_GUARDED_BY(mutex_) = 0;
  uint64_t window_bytes_ VRUN_GUARDED_BY(mutex_) = 256 << 10;
  int64_t best_micros_ VRUN_GUARDED_BY(mutex_) = 0, best_time_ VRUN_GUARDED_BY(mutex_) = 0;  // of a piece
  uint64_t stops_ VRUN_GUARDED_BY(mutex_) = 0;
  bool pumping_ VRUN_GUARDED_BY(mutex_) = false;
  std::unordered_map<std::string, Kinds> directories_
      VRUN_GUARDED_BY(mutex_);  // whose small files were requested, by tree and path
};

}  // namespace vrun::vfs
