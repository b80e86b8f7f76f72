// SPDX-License-Identifier: Apache-2.0
// What lies in this machine's page cache of a file: its own programs touched it lately, so a job will.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace vrun::home {

// The units of the open regular file of which at least a page is in the page cache, merged: [first, end) in bytes, cut
// at the size. nullopt when the kernel does not tell: it answers only owners, those who may write, and root
// (mincore(2)). Never reads from the disk.
std::optional<std::vector<std::pair<uint64_t, uint64_t>>> ResidentRanges(int fd, uint64_t size, uint64_t unit_bytes);

// The units of which at least a page was used, not just read ahead; else as above. Only for root, on Linux >= 6.3: the
// kernel marks a page as used when a process that has it mapped ends or reads it, and tells root (proc_kpageflags(5):
// REFERENCED and ACTIVE); a page that others have mapped now counts as used. Of `import torch` it finds 121 MB where
// 101 MB were touched and read-ahead left 468 MB in the page cache. Looking does not count as use, and is safe while
// the file is truncated.
std::optional<std::vector<std::pair<uint64_t, uint64_t>>> UsedRanges(int fd, uint64_t size, uint64_t unit_bytes);

// While it lives, [offset, offset + length) may be read; what was not in the page cache before is not afterwards, so
// that our own reading is not taken for somebody's. Offset and length at a page; the descriptor must outlive it.
class ResidencyKept {
 public:
  ResidencyKept(int fd, uint64_t offset, uint64_t length);
  ~ResidencyKept();
  ResidencyKept(const ResidencyKept&) = delete;
  ResidencyKept& operator=(const ResidencyKept&) = delete;

 private:
  const int fd_;
  const uint64_t offset_;
  std::vector<unsigned char> pages_;
};

}  // namespace vrun::home
