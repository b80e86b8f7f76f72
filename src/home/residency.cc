// SPDX-License-Identifier: Apache-2.0
#include "home/residency.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace vrun::home {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kWindow = 256u << 20;  // mapped at a time; a multiple of every unit

bool KernelTells(int fd) {
  struct stat st;
  if (::geteuid() == 0) return true;
  return ::fstat(fd, &st) == 0 && st.st_uid == ::geteuid();
}

// A byte for each page of [offset, offset + length); bit 0: it is resident.
std::optional<std::vector<unsigned char>> Pages(int fd, uint64_t offset, uint64_t length) {
  // Mapping reads nothing. Where the file is shorter by now, its pages are simply not there.
  void* map = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (map == MAP_FAILED) return std::nullopt;
  std::vector<unsigned char> pages((length + kPage - 1) / kPage);
  const bool told = ::mincore(map, length, pages.data()) == 0;
  ::munmap(map, length);
  if (!told) return std::nullopt;
  return pages;
}

}  // namespace

std::optional<std::vector<std::pair<uint64_t, uint64_t>>> ResidentRanges(int fd, uint64_t size, uint64_t unit_bytes) {
  if (!KernelTells(fd)) return std::nullopt;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (uint64_t at = 0; at < size; at += kWindow) {
    const uint64_t length = std::min(kWindow, size - at);
    const auto pages = Pages(fd, at, length);
    if (!pages) return std::nullopt;
    for (uint64_t unit = 0; unit < length; unit += unit_bytes) {
      const auto begin = pages->begin() + static_cast<int64_t>(unit / kPage);
      const auto end = pages->begin() + static_cast<int64_t>((std::min(unit + unit_bytes, length) + kPage - 1) / kPage);
      if (std::none_of(begin, end, [](unsigned char page) { return page & 1; })) continue;
      const uint64_t first = at + unit, last = std::min(at + unit + unit_bytes, size);
      if (!ranges.empty() && ranges.back().second == first)
        ranges.back().second = last;
      else
        ranges.emplace_back(first, last);
    }
  }
  return ranges;
}

ResidencyKept::ResidencyKept(int fd, uint64_t offset, uint64_t length) : fd_(fd), offset_(offset) {
  if (KernelTells(fd)) {
    if (auto pages = Pages(fd, offset, length)) pages_ = *std::move(pages);
  }
}

ResidencyKept::~ResidencyKept() {
  for (size_t i = 0; i < pages_.size();) {
    size_t end = i + 1;
    while (end < pages_.size() && (pages_[end] & 1) == (pages_[i] & 1)) ++end;
    if (!(pages_[i] & 1)) {
      ::posix_fadvise(fd_, static_cast<off_t>(offset_ + i * kPage), static_cast<off_t>((end - i) * kPage),
                      POSIX_FADV_DONTNEED);
    }
    i = end;
  }
}

}  // namespace vrun::home
