// SPDX-License-Identifier: Apache-2.0
#include "home/ahead/elf_file.h"

#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <unordered_set>

#include "base/files.h"

namespace vrun::home {
namespace {

constexpr unsigned kMostSegments = 256;
constexpr uint64_t kMostDynamic = 64 * 1024;
constexpr size_t kMostNeeded = 1024;
constexpr int kMostLinks = 40;                      // as in Linux
constexpr uint64_t kMostBytes = uint64_t{1} << 60;  // limit for numbers in a file, so that no sum of two overflows
constexpr uint64_t kVersionBytes = 1024;            // size of most version tables
constexpr const char* kDefaultPath[] = {"/lib/x86_64-linux-gnu",
                                        "/usr/lib/x86_64-linux-gnu",
                                        "/lib/aarch64-linux-gnu",
                                        "/usr/lib/aarch64-linux-gnu",
                                        "/lib64",
                                        "/usr/lib64",
                                        "/usr/local/lib",
                                        "/lib",
                                        "/usr/lib"};

template <typename T>
bool ReadAt(int fd, uint64_t offset, T* items, size_t count) {
  if (offset > uint64_t{1} << 60) return false;
  auto n = PreadUpTo(fd, reinterpret_cast<char*>(items), count * sizeof(T), offset);
  return n && *n == count * sizeof(T);
}

std::string ReadName(int fd, uint64_t offset) {
  char name[256];
  if (offset > uint64_t{1} << 60) return {};
  auto n = PreadUpTo(fd, name, sizeof name, offset);
  if (!n) return {};
  const void* end = std::memchr(name, 0, *n);
  return end == nullptr ? std::string() : std::string(name);
}

std::string DirectoryOf(const std::string& path) { return path.substr(0, std::max<size_t>(path.rfind('/'), 1)); }

// Empty if it is not a 64-bit ELF file of this byte order.
std::vector<Elf64_Phdr> Segments(int fd) {
  Elf64_Ehdr header;
  if (!ReadAt(fd, 0, &header, 1) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
      header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum > kMostSegments) {
    return {};
  }
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  if (!ReadAt(fd, header.e_phoff, segments.data(), segments.size())) return {};
  return segments;
}

}  // namespace

bool IsElf(int fd) { return !Segments(fd).empty(); }

void KeepTablesAndData(int fd, uint64_t unit_bytes, ElfRanges* ranges) {
  const std::vector<Elf64_Phdr> segments = Segments(fd);
  if (segments.empty()) ranges->clear();
  for (const Elf64_Phdr& s : segments) {
    if (s.p_type != PT_LOAD || s.p_filesz > kMostBytes || s.p_offset > kMostBytes) continue;
    // The first segment has the tables of symbols and relocations; the writable one has the relocated data.
    if (s.p_offset == 0 || (s.p_flags & PF_W)) continue;
    // Units that lie completely in this segment.
    const uint64_t segment_first = (s.p_offset + unit_bytes - 1) / unit_bytes * unit_bytes;
    const uint64_t segment_end = (s.p_offset + s.p_filesz) / unit_bytes * unit_bytes;
    if (segment_first >= segment_end) continue;
    ElfRanges left;
    for (const auto& [first, end] : *ranges) {
      if (first < segment_first) left.emplace_back(first, std::min(end, segment_first));
      if (end > segment_end) left.emplace_back(std::max(first, segment_end), end);
    }
    *ranges = std::move(left);
  }
}

ElfNeeds ReadElfNeeds(int fd) {
  ElfNeeds needs;
  const std::vector<Elf64_Phdr> segments = Segments(fd);
  if (segments.empty()) return needs;
  needs.read.emplace_back(0, sizeof(Elf64_Ehdr) + segments.size() * sizeof(Elf64_Phdr));
  std::vector<Elf64_Dyn> dynamic;
  for (const Elf64_Phdr& s : segments) {
    // The page in which the data ends: the loader fills its rest with zeros.
    if (s.p_type == PT_LOAD && s.p_memsz > s.p_filesz && s.p_filesz > 0 && s.p_filesz < kMostBytes &&
        s.p_offset < kMostBytes)
      needs.read.emplace_back(s.p_offset + s.p_filesz - 1, s.p_offset + s.p_filesz);
    if (s.p_type != PT_DYNAMIC) continue;
    dynamic.resize(std::min(s.p_filesz, kMostDynamic) / sizeof(Elf64_Dyn));
    if (!ReadAt(fd, s.p_offset, dynamic.data(), dynamic.size())) return needs;
    needs.read.emplace_back(s.p_offset, s.p_offset + dynamic.size() * sizeof(Elf64_Dyn));
  }
  std::optional<uint64_t> strings;
  uint64_t string_bytes = 0;
  for (const Elf64_Dyn& d : dynamic) {
    if (d.d_tag == DT_NULL) break;
    if (d.d_tag == DT_STRSZ) string_bytes = std::min(d.d_un.d_val, kMostBytes);
    // The versions, which are compared once all files are loaded.
    const bool versions = d.d_tag == DT_VERNEED || d.d_tag == DT_VERDEF;
    if (d.d_tag != DT_STRTAB && !versions) continue;
    for (const Elf64_Phdr& s : segments) {
      if (s.p_type != PT_LOAD || d.d_un.d_ptr < s.p_vaddr || d.d_un.d_ptr - s.p_vaddr >= s.p_filesz) continue;
      const uint64_t at = s.p_offset + (d.d_un.d_ptr - s.p_vaddr);
      if (versions)
        needs.read.emplace_back(at, at + kVersionBytes);
      else
        strings = at;
      break;
    }
  }
  if (!strings) return needs;
  // Linkers put the names of versions behind the names of symbols.
  if (string_bytes > 0)
    needs.read.emplace_back(*strings + string_bytes - std::min(string_bytes, kVersionBytes), *strings + string_bytes);
  const auto name = [&](const Elf64_Dyn& d) {
    const uint64_t at = *strings + d.d_un.d_val;
    std::string text = ReadName(fd, at);
    needs.read.emplace_back(at, at + text.size() + 1);
    return text;
  };
  for (const Elf64_Dyn& d : dynamic) {
    if (d.d_tag == DT_NULL || needs.libraries.size() >= kMostNeeded) break;
    if (d.d_tag == DT_NEEDED) needs.libraries.push_back(name(d));
    if (d.d_tag != DT_RUNPATH && d.d_tag != DT_RPATH) continue;
    std::string all = name(d);
    for (size_t at = 0; at <= all.size();) {
      const size_t end = std::min(all.find(':', at), all.size());
      if (end > at) needs.search_path.push_back(all.substr(at, end - at));
      at = end + 1;
    }
  }
  std::erase(needs.libraries, "");
  return needs;
}

Result<std::pair<std::string, tree::Entry>> ResolvePath(const tree::Tree& snapshot, std::string_view path) {
  std::deque<std::string> todo;
  auto push_front = [&todo](std::string_view text) {
    std::vector<std::string> parts;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('/', at), text.size());
      if (end > at) parts.emplace_back(text.substr(at, end - at));
      at = end + 1;
    }
    todo.insert(todo.begin(), parts.begin(), parts.end());
  };
  push_front(path);
  std::string done;
  VRUN_ASSIGN(tree::Entry entry, tree::Lookup(snapshot, "/"));
  for (int links = 0; !todo.empty();) {
    const std::string part = std::move(todo.front());
    todo.pop_front();
    if (part == ".") continue;
    if (part == "..") {
      done.resize(std::min(done.size(), done.rfind('/') == std::string::npos ? 0 : done.rfind('/')));
      continue;
    }
    VRUN_ASSIGN(entry, tree::Lookup(snapshot, done + "/" + part));
    if (!entry.is_symlink()) {
      done += "/" + part;
      continue;
    }
    if (++links > kMostLinks) return Error(Code::kInvalid, "too many symbolic links");
    if (entry.target.starts_with('/')) done.clear();
    push_front(entry.target);
  }
  return std::pair(done, std::move(entry));
}

std::vector<ElfLibrary> ElfClosure(const tree::Tree& snapshot, const ContentFiles& files, const std::string& path,
                                   size_t most) {
  std::vector<ElfLibrary> found;
  std::unordered_set<std::string> names;  // already searched
  std::unordered_set<std::string> seen{path};
  for (size_t next = 0; next <= found.size(); ++next) {  // first `path` itself, then the libraries found
    const std::string at = next == 0 ? path : found[next - 1].path;
    auto entry = tree::Lookup(snapshot, at);
    if (!entry || !entry->is_regular()) continue;
    auto fd = files.OpenAtHand(at, entry->version());
    if (!fd) continue;
    ElfNeeds needs = ReadElfNeeds(fd->get());
    if (next > 0) found[next - 1].read = std::move(needs.read);
    if (found.size() >= most) continue;
    for (const std::string& name : needs.libraries) {
      if (!names.insert(name).second) continue;
      std::vector<std::string> places;
      for (std::string directory : needs.search_path) {
        for (const char* origin : {"$ORIGIN", "${ORIGIN}"}) {
          if (directory.starts_with(origin)) directory.replace(0, std::strlen(origin), DirectoryOf(at));
        }
        places.push_back(std::move(directory));
      }
      places.insert(places.end(), std::begin(kDefaultPath), std::end(kDefaultPath));
      for (const std::string& place : places) {
        auto library = ResolvePath(snapshot, place + "/" + name);
        if (!library || !library->second.is_regular()) continue;
        if (!seen.insert(library->first).second) break;
        if (found.size() < most) found.push_back({library->first, {}});
        break;
      }
    }
  }
  return found;
}

}  // namespace vrun::home
