// SPDX-License-Identifier: Apache-2.0
#include "home/ahead/guess.h"

#include <algorithm>
#include <deque>
#include <string_view>

#include "home/ahead/elf_file.h"
#include "home/pack/residency.h"
#include "store/format/object_id.h"
#include "tree/file_kind.h"

namespace vrun::home {
namespace {

constexpr size_t kMaxLibraries = 512;
constexpr size_t kMaxSeen = 32768;
constexpr uint64_t kSmallFile = 128 * 1024;
constexpr uint64_t kMaxSmallBytes = 32u << 20;
constexpr uint64_t kHeadBytes = 64u << 10;  // of an ELF file: has its segment table
constexpr uint64_t kLookBytes = 64u << 20;  // of a file, to see whether any of it is cached

bool IsLibrary(std::string_view path) { return path.find(".so", path.rfind('/') + 1) != std::string_view::npos; }

bool IsModule(std::string_view path) { return path.ends_with(".py") || path.ends_with(".pyc"); }

std::string ParentOf(const std::string& path) { return path.substr(0, std::max<size_t>(path.rfind('/'), 1)); }

uint64_t BytesOf(const ByteRanges& ranges) {
  uint64_t bytes = 0;
  for (const auto& [first, end] : ranges) bytes += end - first;
  return bytes;
}

// The units that contain these bytes.
ByteRanges UnitsOf(ByteRanges bytes, uint64_t size) {
  const uint64_t unit = store::UnitBytes(size);
  std::sort(bytes.begin(), bytes.end());
  ByteRanges units;
  for (auto [first, end] : bytes) {
    first = first / unit * unit;
    end = std::min((std::min(end, size) + unit - 1) / unit * unit, size);
    if (first >= end) continue;
    if (!units.empty() && first <= units.back().second)
      units.back().second = std::max(units.back().second, end);
    else
      units.emplace_back(first, end);
  }
  return units;
}

std::string Join(const std::string& directory, std::string_view name) {
  return (directory == "/" ? "" : directory) + "/" + std::string(name);
}

// Nothing of it is in the page cache, or that is unknown.
bool IsCold(int fd, uint64_t size) {
  const auto resident = ResidentRanges(fd, std::min(size, kLookBytes), kLookBytes);
  return !resident || resident->empty();
}

}  // namespace

void FirstLooks::BeforeServing(int fd, const tree::FileVersion& version) {
  {
    MutexLock lock(mutex_);
    if (served_.contains(version)) return;
  }
  const bool cold = IsCold(fd, version.size);
  MutexLock lock(mutex_);
  if (served_.size() >= kMostServed) served_.clear();
  served_.emplace(version, cold);
}

bool FirstLooks::Cold(int fd, const tree::FileVersion& version) {
  // In this order, since it may be served while we look.
  if (IsCold(fd, version.size)) return true;
  MutexLock lock(mutex_);
  const auto it = served_.find(version);
  return it != served_.end() && it->second;
}

ByteRanges FirstLooks::Of(int fd, const tree::FileVersion& version) {
  {
    MutexLock lock(mutex_);
    if (const auto it = looks_.find(version); it != looks_.end()) return it->second;
  }
  const uint64_t unit = store::UnitBytes(version.size);
  // Reading the head leaves nothing in the page cache that a later look could take for use.
  const auto head = [&] { return ResidencyGuard(fd, 0, std::min(version.size, kHeadBytes)); };
  bool program;  // first: data may be large, and checking all its pages slow
  {
    const ResidencyGuard kept = head();
    program = IsElf(fd);
  }
  ByteRanges ranges;
  if (program) {
    ranges = ResidentRanges(fd, version.size, unit).value_or(ByteRanges());
    const auto used = UsedRanges(fd, version.size, unit);
    // If everything cached looks used, something read the file from end to end (a copy, a backup, a checksum): that
    // says nothing about a program's use.
    if (used && BytesOf(*used) < BytesOf(ranges) / 16 * 15) {
      ranges = *used;
    } else {
      const ResidencyGuard kept = head();
      KeepTablesAndData(fd, unit, &ranges);
    }
    if (ranges.empty()) return ranges;  // it may still be used later
  }
  MutexLock lock(mutex_);
  if (looks_.size() >= kMost) looks_.clear();
  return looks_[version] = std::move(ranges);
}

void Guess::Add(const std::string& path, const tree::FileVersion& version, bool certain, ByteRanges loader) {
  if (version.size == 0 || denied_(path) || !offer_(version)) return;
  ByteRanges ranges;
  const bool small = version.size <= store::kWholeFileLimit,
             in_parts = !small || (certain && version.size > kSmallFile);
  if (in_parts || !certain) {
    auto fd = files_.OpenAtHand(path, version);
    if (!fd) return;
    // A small file is one piece: one cached page stands for all.
    ranges = in_parts ? looks_.Of(fd->get(), version)
                      : ResidentRanges(fd->get(), version.size, version.size).value_or(ByteRanges());
    // For a library without any other hint, at least what every loader reads.
    if (ranges.empty() && loader.empty() && (certain || cold_)) loader = ReadElfNeeds(fd->get()).read;
  }
  if (ranges.empty() && small && (certain || (cold_ && version.size <= kSmallFile))) ranges = {{0, version.size}};
  if (ranges.empty() && loader.empty()) return;
  if (version.size <= kSmallFile) small_bytes_ += version.size;
  files_found_.push_back({path, version, std::move(ranges), UnitsOf(std::move(loader), version.size)});
}

void Guess::AddLibraries(const std::string& path) {
  for (const ElfLibrary& library : ElfClosure(tree_, files_, path, kMaxLibraries)) {
    const auto entry = tree::Lookup(tree_, library.path);
    if (entry) Add(library.path, entry->version(), true, library.read);
  }
}

void Guess::Touched(const std::string& path, const tree::FileVersion& version) {
  const auto fd = version.size > 0 ? files_.OpenAtHand(path, version) : Result<UniqueFd>(UniqueFd());
  cold_ = fd && *fd && looks_.Cold(fd->get(), version);
}

void Guess::AddFile(const std::string& path, const tree::FileVersion& version) {
  if (version.size > store::kWholeFileLimit || IsLibrary(path)) Add(path, version, true);
  AddLibraries(path);
}

void Guess::AddSiblings(const std::string& path) {
  const std::string kind = tree::KindOf(path);
  if (kind.empty() || IsLibrary(path)) return;
  const std::string parent = ParentOf(path);
  if (!IsModule(path)) return AddSmall(parent, kind);
  AddModules(std::string_view(parent).substr(parent.rfind('/') + 1) == "__pycache__" ? ParentOf(parent) : parent);
}

// The modules of a package are read together; the programs of /usr/bin are not.
void Guess::AddSmall(const std::string& directory, const std::string& kind) {
  const auto listed = tree::LookupDirectory(tree_, directory);
  for (size_t i = 0; listed && i < (*listed)->size() && ++seen_ < kMaxSeen && small_bytes_ < kMaxSmallBytes; ++i) {
    const tree::Entry entry = (*listed)->At(i);
    if (!entry.is_regular() || entry.size > kSmallFile || tree::KindOf(entry.name) != kind) continue;
    Add(Join(directory, entry.name), entry.version(), false);
  }
}

void Guess::AddModules(const std::string& top) {
  std::deque<std::string> directories{top};
  std::vector<std::string> extensions;
  while (!directories.empty()) {
    const std::string at = std::move(directories.front());
    directories.pop_front();
    const auto listed = tree::LookupDirectory(tree_, at);
    if (!listed) continue;
    const bool cache = at.ends_with("/__pycache__"), package = (*listed)->Find("__init__.py") < (*listed)->size();
    // A directory that is not a package has data, or packages of its own (site-packages), whose import touches them.
    if (!cache && !package && at != top) continue;
    const auto compiled = cold_ ? CompiledIn(Join(at, "__pycache__")) : std::set<std::string, std::less<>>();
    for (size_t i = 0; i < (*listed)->size(); ++i) {
      if (++seen_ >= kMaxSeen || small_bytes_ >= kMaxSmallBytes) return;
      const tree::Entry entry = (*listed)->At(i);
      const std::string path = Join(at, entry.name);
      if (entry.is_directory()) {
        directories.push_back(path);
        continue;
      }
      if (!entry.is_regular()) continue;
      const bool library = IsLibrary(entry.name);
      if (!library && (entry.size > kSmallFile || !(package || IsModule(entry.name)))) continue;
      // If both exist, the compiled one is read.
      if (entry.name.ends_with(".py") && compiled.contains(entry.name.substr(0, entry.name.size() - 3))) continue;
      const size_t before = files_found_.size();
      Add(path, entry.version(), false);
      if (library && files_found_.size() > before) extensions.push_back(path);
    }
  }
  for (const std::string& path : extensions) AddLibraries(path);
}

std::set<std::string, std::less<>> Guess::CompiledIn(const std::string& directory) const {
  std::set<std::string, std::less<>> names;
  const auto listed = tree::LookupDirectory(tree_, directory);
  for (size_t i = 0; listed && i < (*listed)->size(); ++i) {
    const tree::Entry entry = (*listed)->At(i);
    if (entry.name.ends_with(".pyc")) names.emplace(entry.name.substr(0, entry.name.find('.')));
  }
  return names;
}

}  // namespace vrun::home
