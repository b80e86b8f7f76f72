// SPDX-License-Identifier: Apache-2.0
// Fetches what will be wanted next. When a job touches a file that is not here, home is asked, once a file and once for
// each kind of files of a directory, what its own programs have touched of it lately (its page cache tells; where that
// is cold, what belongs together), and that comes in one burst behind what readers wait for.
//
// Demand is never behind: a bounded number of bytes is under way, and home answers them last. What does not come is no
// error: a reader asks for it itself. Bounded memory; nothing is kept for files that are gone.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash/digest.h"
#include "tree/tree.h"
#include "vfs/content/file_cache.h"
#include "vfs/content/source.h"

namespace vrun::vfs {

class Backend;

// Thread safety: any thread. Owned by the Backend.
class Prefetcher {
 public:
  explicit Prefetcher(Backend& backend) : backend_(backend) {}

  // A reader needs something of this file that has to be fetched. Cheap; call without locks, at most once a
  // FileContent.
  void Touched(const FileContent::Place& place, const tree::FileVersion& version);
  // By its name: of a library its loader and its users want parts, and home knows which.
  static bool IsLibrary(std::string_view path);
  // What lies close around [offset, offset + n), where the reader of a large file has jumped to: bytes, from and to.
  static std::pair<uint64_t, uint64_t> Around(uint64_t offset, uint64_t n, uint64_t size);
  // Fetches [first, end) of it next.
  void Add(const std::shared_ptr<FileContent>& content, const FileContent::Place& place, uint64_t first, uint64_t end);
  // Nobody runs any more: what was not asked for yet is not, and what home says to earlier questions is not looked at.
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
  // Whether they were not asked for yet.
  bool AskForLocked(const FileContent::Place& place);
  void Take(const Digest& tree, uint64_t stops, const std::vector<ResidentFile>& files);
  // To the front of the queue; what is last there is dropped when it is too much.
  void Push(std::vector<Item> items);
  void Pump();
  void Over(uint64_t bytes, bool fetched, int64_t began);

  Backend& backend_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::mutex mutex_;
  std::deque<Item> queue_;  // what was asked for last comes first: that is what is being read now
  uint64_t queued_bytes_ = 0;
  uint64_t under_way_bytes_ = 0;
  uint64_t window_bytes_ = 256 << 10;
  int64_t best_micros_ = 0, best_time_ = 0;  // of a piece
  uint64_t stops_ = 0;
  bool pumping_ = false;
  std::unordered_map<std::string, Kinds> directories_;  // whose small files were asked for, by tree and path
};

}  // namespace vrun::vfs
