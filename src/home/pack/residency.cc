// SPDX-License-Identifier: Apache-2.0
#include "home/pack/residency.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/unique_fd.h"

namespace vrun::home {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kWindow = 256u << 20;  // mapped at a time; a multiple of every unit

bool KernelTells(int fd) {
  struct stat st;
  if (::geteuid() == 0) return true;
  return ::fstat(fd, &st) == 0 && st.st_uid == ::geteuid();
}

// One byte per page of [offset, offset + length); bit 0: it is resident.
std::optional<std::vector<unsigned char>> Pages(int fd, uint64_t offset, uint64_t length) {
  // Mapping reads nothing. If the file is shorter by now, the missing pages are just not resident.
  void* map = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (map == MAP_FAILED) return std::nullopt;
  std::vector<unsigned char> pages((length + kPage - 1) / kPage);
  const bool told = ::mincore(map, length, pages.data()) == 0;
  ::munmap(map, length);
  if (!told) return std::nullopt;
  return pages;
}

using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

// Adds the units of [at, at + length) that have a marked page; `at` is at a unit boundary.
void AddUnits(const std::vector<unsigned char>& pages, uint64_t at, uint64_t length, uint64_t unit_bytes, uint64_t size,
              Ranges* ranges) {
  for (uint64_t unit = 0; unit < length; unit += unit_bytes) {
    const auto begin = pages.begin() + static_cast<int64_t>(unit / kPage);
    const auto end = pages.begin() + static_cast<int64_t>((std::min(unit + unit_bytes, length) + kPage - 1) / kPage);
    if (std::none_of(begin, end, [](unsigned char page) { return page & 1; })) continue;
    const uint64_t first = at + unit, last = std::min(at + unit + unit_bytes, size);
    if (!ranges->empty() && ranges->back().second == first)
      ranges->back().second = last;
    else
      ranges->emplace_back(first, last);
  }
}

// A mapping of a part of a file, used to inspect its resident pages.
class Look {
 public:
  Look(int fd, uint64_t offset, uint64_t length) : length_(length) {
    map_ = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset));
    // Prevents our faults from reading ahead, and our unmapping from counting as use (vma_has_recency, Linux 6.3).
    if (map_ != MAP_FAILED) ::madvise(map_, length, MADV_RANDOM);
  }
  ~Look() {
    if (map_ != MAP_FAILED) ::munmap(map_, length_);
  }
  Look(const Look&) = delete;
  Look& operator=(const Look&) = delete;
  bool ok() const { return map_ != MAP_FAILED; }
  const char* at(uint64_t page) const { return static_cast<const char*>(map_) + page * kPage; }

  // Maps the pages that are resident according to `pages`. The kernel reads a byte of each for us: if the file was
  // truncated, that is an error instead of a signal. False: give up.
  bool Map(const std::vector<unsigned char>& pages) const {
    const UniqueFd sink(::memfd_create("vrun-look", MFD_CLOEXEC));
    std::vector<iovec> bytes;
    for (uint64_t page = 0; page < pages.size(); ++page) {
      if (pages[page] & 1) bytes.push_back({const_cast<char*>(at(page)), 1});
      if (bytes.size() < kBytesACall && page + 1 < pages.size()) continue;
      if (!bytes.empty() && ::pwritev(sink.get(), bytes.data(), static_cast<int>(bytes.size()), 0) !=
                                static_cast<ssize_t>(bytes.size())) {
        return false;
      }
      bytes.clear();
    }
    return true;
  }

 private:
  static constexpr size_t kBytesACall = 1024;  // IOV_MAX
  const uint64_t length_;
  void* map_;
};

// The kernel's page information for root.
struct PageTables {
  UniqueFd map{::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)};
  UniqueFd flags{::open("/proc/kpageflags", O_RDONLY | O_CLOEXEC)};
  UniqueFd counts{::open("/proc/kpagecount", O_RDONLY | O_CLOEXEC)};
  bool ok() const { return map && flags && counts; }

  // Reads one 64-bit word for each of `count` frames from `frame` on.
  static bool Words(const UniqueFd& file, uint64_t frame, size_t count, uint64_t* words) {
    const auto bytes = static_cast<ssize_t>(count * sizeof(uint64_t));
    return ::pread(file.get(), words, static_cast<size_t>(bytes), static_cast<off_t>(frame * sizeof(uint64_t))) ==
           bytes;
  }
};

bool LookingIsNoUse() {
  static const bool yes = [] {
    utsname name{};
    int major = 0, minor = 0;
    if (::uname(&name) != 0 || std::sscanf(name.release, "%d.%d", &major, &minor) != 2) return false;
    return major > 6 || (major == 6 && minor >= 3);
  }();
  return yes;
}

// Reduces `resident` to the pages that were used. False: the kernel does not tell.
bool KeepUsed(const PageTables& tables, int fd, uint64_t offset, uint64_t length,
              std::vector<unsigned char>* resident) {
  constexpr uint64_t kPresent = 1ull << 63, kFrame = (1ull << 55) - 1, kUsed = 1u << 2 | 1u << 6;  // REFERENCED, ACTIVE
  const Look look(fd, offset, length);
  std::vector<uint64_t> entries(resident->size());
  if (!look.ok() || !look.Map(*resident) ||
      !PageTables::Words(tables.map, reinterpret_cast<uintptr_t>(look.at(0)) / kPage, entries.size(), entries.data())) {
    return false;
  }
  std::vector<uint64_t> flags, counts;
  for (size_t first = 0; first < entries.size();) {
    const uint64_t frame = entries[first] & kFrame;
    if (!((*resident)[first] & 1) || !(entries[first] & kPresent)) {
      (*resident)[first++] = 0;
      continue;
    }
    if (frame == 0) return false;  // hidden: we lack CAP_SYS_ADMIN
    size_t end = first + 1;
    while (end < entries.size() && ((*resident)[end] & 1) && (entries[end] & kPresent) &&
           (entries[end] & kFrame) == frame + (end - first)) {
      ++end;
    }
    flags.resize(end - first);
    counts.resize(end - first);
    if (!PageTables::Words(tables.flags, frame, flags.size(), flags.data()) ||
        !PageTables::Words(tables.counts, frame, counts.size(), counts.data())) {
      return false;
    }
    for (size_t i = first; i < end; ++i) (*resident)[i] = (flags[i - first] & kUsed) != 0 || counts[i - first] > 1;
    first = end;
  }
  return true;
}

}  // namespace

std::optional<Ranges> ResidentRanges(int fd, uint64_t size, uint64_t unit_bytes) {
  if (!KernelTells(fd)) return std::nullopt;
  Ranges ranges;
  for (uint64_t at = 0; at < size; at += kWindow) {
    const uint64_t length = std::min(kWindow, size - at);
    const auto pages = Pages(fd, at, length);
    if (!pages) return std::nullopt;
    AddUnits(*pages, at, length, unit_bytes, size, &ranges);
  }
  return ranges;
}

std::optional<Ranges> UsedRanges(int fd, uint64_t size, uint64_t unit_bytes) {
  if (::geteuid() != 0 || !LookingIsNoUse()) return std::nullopt;
  const PageTables tables;
  if (!tables.ok()) return std::nullopt;
  Ranges ranges;
  for (uint64_t at = 0; at < size; at += kWindow) {
    const uint64_t length = std::min(kWindow, size - at);
    auto pages = Pages(fd, at, length);
    if (!pages || !KeepUsed(tables, fd, at, length, &*pages)) return std::nullopt;
    AddUnits(*pages, at, length, unit_bytes, size, &ranges);
  }
  return ranges;
}

ResidencyGuard::ResidencyGuard(int fd, uint64_t offset, uint64_t length) : fd_(fd), offset_(offset) {
  if (KernelTells(fd)) {
    if (auto pages = Pages(fd, offset, length)) pages_ = *std::move(pages);
  }
}

ResidencyGuard::~ResidencyGuard() {
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
