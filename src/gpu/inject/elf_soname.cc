// SPDX-License-Identifier: Apache-2.0
#include "gpu/inject/elf_soname.h"

#include <elf.h>

#include <algorithm>
#include <vector>

#include "base/files.h"

namespace vrun::gpu {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#endif

constexpr uint16_t kMostSegments = 128;
constexpr uint64_t kMostDynamic = 4096;  // entries
constexpr size_t kMostName = 255;

bool ReadExactly(int fd, void* buffer, size_t size, uint64_t offset) {
  // Larger offsets are negative for pread.
  if (offset > INT64_MAX - size) return false;
  const Result<size_t> n = PreadUpTo(fd, buffer, size, offset);
  return n && *n == size;
}

// Where the address lies in the file.
std::optional<uint64_t> FileOffset(const std::vector<Elf64_Phdr>& segments, uint64_t address) {
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_LOAD || address < segment.p_vaddr) continue;
    const uint64_t inside = address - segment.p_vaddr;
    if (inside >= segment.p_filesz || segment.p_offset > UINT64_MAX - inside) continue;
    return segment.p_offset + inside;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> ElfSoname(int fd) {
  Elf64_Ehdr header;
  if (!ReadExactly(fd, &header, sizeof header, 0)) return std::nullopt;
  const bool ours = std::equal(header.e_ident, header.e_ident + SELFMAG, ELFMAG) &&
                    header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_ident[EI_DATA] == ELFDATA2LSB &&
                    header.e_machine == kMachine && header.e_type == ET_DYN;
  if (!ours || header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum > kMostSegments) return std::nullopt;
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  if (!ReadExactly(fd, segments.data(), segments.size() * sizeof(Elf64_Phdr), header.e_phoff)) return std::nullopt;
  const auto dynamic =
      std::find_if(segments.begin(), segments.end(), [](const auto& s) { return s.p_type == PT_DYNAMIC; });
  if (dynamic == segments.end()) return std::nullopt;

  std::vector<Elf64_Dyn> entries(std::min(dynamic->p_filesz / sizeof(Elf64_Dyn), kMostDynamic));
  if (!ReadExactly(fd, entries.data(), entries.size() * sizeof(Elf64_Dyn), dynamic->p_offset)) return std::nullopt;
  std::optional<uint64_t> name, strings;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_NULL) break;
    if (entry.d_tag == DT_SONAME) name = entry.d_un.d_val;
    if (entry.d_tag == DT_STRTAB) strings = entry.d_un.d_ptr;
  }
  if (!name) return "";
  if (!strings || *strings > UINT64_MAX - *name) return std::nullopt;
  const std::optional<uint64_t> offset = FileOffset(segments, *strings + *name);
  if (!offset || *offset > INT64_MAX - kMostName) return std::nullopt;
  char text[kMostName + 1];
  const Result<size_t> n = PreadUpTo(fd, text, sizeof text, *offset);
  const size_t length = n ? std::find(text, text + *n, '\0') - text : 0;
  if (!n || length == *n) return std::nullopt;
  return std::string(text, length);
}

}  // namespace vrun::gpu
