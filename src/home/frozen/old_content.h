// SPDX-License-Identifier: Apache-2.0
// Old content: copies of file versions on home's disk. They survive a restart; a copy that was incomplete or not on
// disk when home ended is discarded.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"
#include "tree/tree.h"

namespace vrun::home {

// Any thread.
class OldContent {
 public:
  struct Options {
    std::string directory;                 // created with the first copy
    uint64_t max_bytes = 32ull << 30;      // of all copies
    uint64_t min_free_bytes = 1ull << 30;  // free space that must remain on the file system after a copy
  };
  // Loads what an earlier process kept.
  explicit OldContent(Options options);

  // A complete, readable copy that cannot be found by its version yet. Deleted on destruction unless Keep is called.
  class Copy {
   public:
    Copy() = default;
    Copy(Copy&& other) noexcept;
    Copy& operator=(Copy&& other) noexcept;
    ~Copy();
    int fd() const { return fd_.get(); }
    explicit operator bool() const { return static_cast<bool>(fd_); }

   private:
    friend class OldContent;
    OldContent* owner_ = nullptr;
    std::string path_;
    uint64_t bytes_ = 0;
    UniqueFd fd_;
  };
  // Clones the file if the file system can, else copies it. The caller ensures that the file does not change meanwhile.
  // kExhausted: over the limits, or the disk is full. kAborted: the file is shorter than expected.
  Result<Copy> Make(int fd, const tree::FileVersion& version);
  // Waits for the disk; afterwards the copy can be found by its version.
  Status Keep(Copy copy, const tree::FileVersion& version);

  bool Has(const tree::FileVersion& version) const;
  Result<UniqueFd> Open(const tree::FileVersion& version) const;  // kNotFound
  void Drop(const tree::FileVersion& version);
  // Drops all copies for which `wanted` is false.
  void Retain(const std::function<bool(const tree::FileVersion&)>& wanted);

  struct Stats {
    size_t files = 0;
    uint64_t bytes = 0;
  };
  Stats stats() const;

 private:
  std::string PathOf(const tree::FileVersion& version) const;
  Result<UniqueFd> MakeTemporary(std::string* path);
  Status Reserve(uint64_t bytes);
  void Unreserve(uint64_t bytes);

  const Options options_;
  mutable Mutex mutex_;
  std::unordered_map<tree::FileVersion, uint64_t, tree::FileVersionHash> kept_ VRUN_GUARDED_BY(mutex_);
  uint64_t bytes_ VRUN_GUARDED_BY(mutex_) = 0;  // also of copies that are being made
  uint64_t next_ VRUN_GUARDED_BY(mutex_) = 0;   // of temporary names
};

}  // namespace vrun::home
