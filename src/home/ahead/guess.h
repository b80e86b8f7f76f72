// SPDX-License-Identifier: Apache-2.0
// What a run that has touched a file will want next, where no trace tells: what this machine's own programs used of the
// file lately, the libraries that it loads, and of the package that it belongs to. The developer has just tried here
// what now runs there. Where the touched file itself was not in the page cache, it says nothing that others are not
// either: then all that belongs to it counts.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "home/root/content_files.h"
#include "tree/tree.h"

namespace vrun::home {

using ByteRanges = std::vector<std::pair<uint64_t, uint64_t>>;

struct GuessedFile {
  std::string path;
  tree::FileVersion version;
  ByteRanges ranges;  // bytes [first, end), whole units, ascending
  ByteRanges loader;  // the same, of what a loader reads to find out what else is needed
};

// What this machine's programs had used of programs and libraries when we first saw them used: serving a file and
// hashing it counts as use afterwards. Any thread. Bounded.
class FirstLooks {
 public:
  // The file is going to be read for a node. Of each file the first time counts.
  void BeforeServing(int fd, const tree::FileVersion& version);
  // Before that it was not in the page cache, or nobody can tell.
  bool Cold(int fd, const tree::FileVersion& version);
  // Whole units; of data nothing, as nobody knows which part of it a job wants, and reading in order is noticed soon
  // enough.
  ByteRanges Of(int fd, const tree::FileVersion& version);

 private:
  static constexpr size_t kMost = 8192, kMostServed = 65536;
  std::mutex mutex_;
  std::unordered_map<tree::FileVersion, ByteRanges, tree::FileVersionHash> looks_;
  std::unordered_map<tree::FileVersion, bool, tree::FileVersionHash> served_;  // whether it was cold
};

// For one question of one node. Not thread-safe; what it refers to must outlive it.
class Guess {
 public:
  // `offer(version)`: whether the file is to be looked at; false when this node was told of it already. `denied(path)`:
  // the file is not served.
  Guess(const tree::Snapshot& tree, const ContentFiles& files, FirstLooks& looks,
        std::function<bool(const tree::FileVersion&)> offer, std::function<bool(const std::string&)> denied)
      : tree_(tree), files_(files), looks_(looks), offer_(std::move(offer)), denied_(std::move(denied)) {}

  // First: the file that was touched.
  void Touched(const std::string& path, const tree::FileVersion& version);
  // The touched file itself, where it is large or a library, and the libraries that it loads, nearest first.
  void AddFile(const std::string& path, const tree::FileVersion& version);
  // What was used lately of the small files beside it of the same kind; of a Python module also of the packages below,
  // with all that is in them, and the libraries of its extension modules after them.
  void AddSiblings(const std::string& path);

  std::vector<GuessedFile> Take() { return std::move(files_found_); }

 private:
  // `certain`: a small file will be read, whether or not it was lately.
  void Add(const std::string& path, const tree::FileVersion& version, bool certain, ByteRanges loader = {});
  void AddLibraries(const std::string& path);
  void AddSmall(const std::string& directory, const std::string& kind);
  void AddModules(const std::string& top);
  // Names without their extensions of the compiled modules of the directory.
  std::set<std::string, std::less<>> CompiledIn(const std::string& directory) const;

  const tree::Snapshot& tree_;
  const ContentFiles& files_;
  FirstLooks& looks_;
  const std::function<bool(const tree::FileVersion&)> offer_;
  const std::function<bool(const std::string&)> denied_;
  bool cold_ = false;  // of the touched file; then structure decides
  std::vector<GuessedFile> files_found_;
  size_t seen_ = 0;           // directory entries
  uint64_t small_bytes_ = 0;  // of small files found
};

}  // namespace vrun::home
