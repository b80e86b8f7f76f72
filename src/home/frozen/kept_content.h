// SPDX-License-Identifier: Apache-2.0
// Old content: copies of files as they were in one version, on home's disk. They survive a restart; a copy that was not
// whole and on the disk when home ended is not there afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/result.h"
#include "base/unique_fd.h"
#include "tree/tree.h"

namespace vrun::home {

// Any thread.
class KeptContent {
 public:
  struct Options {
    std::string directory;                 // made when the first copy is
    uint64_t max_bytes = 32ull << 30;      // of all copies
    uint64_t min_free_bytes = 1ull << 30;  // of the file system, after a copy
  };
  // Takes over what an earlier process has kept.
  explicit KeptContent(Options options);

  // A copy that is whole and readable, but not known by its version yet. Gone with the last of it unless Keep is
  // called.
  class Copy {
   public:
    Copy() = default;
    Copy(Copy&& other) noexcept;
    Copy& operator=(Copy&& other) noexcept;
    ~Copy();
    int fd() const { return fd_.get(); }
    explicit operator bool() const { return static_cast<bool>(fd_); }

   private:
    friend class KeptContent;
    KeptContent* owner_ = nullptr;
    std::string path_;
    uint64_t bytes_ = 0;
    UniqueFd fd_;
  };
  // Clones where the file system can, else copies; the file must not change meanwhile, which the caller makes sure of.
  // kExhausted: beyond the bounds, or the disk is full. kAborted: it is shorter than it should be.
  Result<Copy> Make(int fd, const tree::FileVersion& version);
  // Waits for the disk; then the copy is found by its version.
  Status Keep(Copy copy, const tree::FileVersion& version);

  bool Has(const tree::FileVersion& version) const;
  Result<UniqueFd> Open(const tree::FileVersion& version) const;  // kNotFound
  void Drop(const tree::FileVersion& version);
  // Drops what is not wanted.
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
  mutable std::mutex mutex_;
  std::unordered_map<tree::FileVersion, uint64_t, tree::FileVersionHash> kept_;  // guarded by mutex_, as all below
  uint64_t bytes_ = 0;                                                           // also of copies that are being made
  uint64_t next_ = 0;                                                            // of temporary names
};

}  // namespace vrun::home
