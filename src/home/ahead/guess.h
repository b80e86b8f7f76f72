// SPDX-License-Identifier: Apache-2.0
// Guesses what a run that has touched a file will read next, if there is no trace: what local programs used of the file
// lately, the libraries that it loads, and parts of its package. This works because the developer has usually just run
// the same program here. If the touched file itself was not in the page cache, that tells nothing about the others:
// then everything that belongs to it counts.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/thread/mutex.h"
#include "home/root/content_files.h"
#include "tree/tree.h"

namespace vrun::home {

using ByteRanges = std::vector<std::pair<uint64_t, uint64_t>>;

struct GuessedFile {
  std::string path;
  tree::FileVersion version;
  ByteRanges ranges;  // bytes [first, end), whole units, ascending
  ByteRanges loader;  // the same, for what a loader reads to find out what else is needed
};

// What local programs had used of a program or library when we first saw use of it: afterwards our own serving and
// hashing count as use. Any thread. Bounded.
class FirstLooks {
 public:
  // Call before reading the file for a node. Only the first call per file counts.
  void BeforeServing(int fd, const tree::FileVersion& version);
  // True if the file was not in the page cache before that, or if that is unknown.
  bool Cold(int fd, const tree::FileVersion& version);
  // Whole units. Nothing for data files: nobody knows which part a job wants, and sequential reading is detected soon
  // enough.
  ByteRanges Of(int fd, const tree::FileVersion& version);

 private:
  static constexpr size_t kMost = 8192, kMostServed = 65536;
  Mutex mutex_;
  std::unordered_map<tree::FileVersion, ByteRanges, tree::FileVersionHash> looks_ VRUN_GUARDED_BY(mutex_);
  std::unordered_map<tree::FileVersion, bool, tree::FileVersionHash> served_
      VRUN_GUARDED_BY(mutex_);  // true: it was cold
};

// For one request of one node. Not thread-safe; its arguments must outlive it.
class Guess {
 public:
  // `offer(version)`: whether to examine the file; false if this node was already told of it. `denied(path)`: the file
  // is not served.
  Guess(const tree::Tree& tree, const ContentFiles& files, FirstLooks& looks,
        std::function<bool(const tree::FileVersion&)> offer, std::function<bool(const std::string&)> denied)
      : tree_(tree), files_(files), looks_(looks), offer_(std::move(offer)), denied_(std::move(denied)) {}

  // Call first, with the file that was touched.
  void Touched(const std::string& path, const tree::FileVersion& version);
  // Adds the touched file itself, if it is large or a library, and the libraries that it loads, nearest first.
  void AddFile(const std::string& path, const tree::FileVersion& version);
  // Adds what was used lately of the small files of the same kind beside it. For a Python module also all of the
  // packages below, and then the libraries of its extension modules.
  void AddSiblings(const std::string& path);

  std::vector<GuessedFile> Take() { return std::move(files_found_); }

 private:
  // `certain`: a small file will be read, whether or not it was used lately.
  void Add(const std::string& path, const tree::FileVersion& version, bool certain, ByteRanges loader = {});
  void AddLibraries(const std::string& path);
  void AddSmall(const std::string& directory, const std::string& kind);
  void AddModules(const std::string& top);
  // The names, without extensions, of compiled modules in the directory.
  std::set<std::string, std::less<>> CompiledIn(const std::string& directory) const;

  const tree::Tree& tree_;
  const ContentFiles& files_;
  FirstLooks& looks_;
  const std::function<bool(const tree::FileVersion&)> offer_;
  const std::function<bool(const std::string&)> denied_;
  bool cold_ = false;  // the touched file was cold: structure decides
  std::vector<GuessedFile> files_found_;
  size_t seen_ = 0;           // directory entries
  uint64_t small_bytes_ = 0;  // total size of small files found
};

}  // namespace vrun::home
