// SPDX-License-Identifier: Apache-2.0
// The files that tell dynamic loaders where libraries are: glibc's /etc/ld.so.cache and musl's path file. We write them
// ourselves. A root's own ldconfig is never executed: it is a program of the user, and the driver's directory is not in
// its configuration.
//
// Format: glibc, sysdeps/generic/dl-cache.h. A header ("glibc-ld.so.cache1.1"), entries sorted for the loader's binary
// search, a table of strings, and since glibc 2.33 extensions: the name of the generator and the names of the
// subdirectories of glibc-hwcaps. glibc before 2.32 puts a second table in the format of libc5 in front of it; a cache
// of libc5 alone is read too. What is written is always the new format alone, which each glibc since 2.2 reads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vrun::gpu {

inline constexpr size_t kMostLdCacheBytes = 8u << 20;  // one with 731 libraries has 47 kB

struct LdCacheEntry {
  std::string_view name;  // what a program asks for: "libcuda.so.1"
  std::string_view path;
  int32_t flags = 0;  // kind of library; kLdCacheLibrary of this machine
  uint32_t os_version = 0;
  uint64_t hwcap = 0;             // as in the file, but without the index of `subdirectory`
  std::string_view subdirectory;  // of glibc-hwcaps; "": none
  bool operator==(const LdCacheEntry&) const = default;
};

// The flags of libraries for this machine (FLAG_ELF_LIBC6 and the machine's own).
#if defined(__x86_64__)
inline constexpr int32_t kLdCacheLibrary = 0x0303;
#elif defined(__aarch64__)
inline constexpr int32_t kLdCacheLibrary = 0x0a03;
#else
#error "ld.so.cache: this machine's flags are unknown"
#endif

struct LdCache {
  std::vector<LdCacheEntry> entries;
  std::string_view generator;
};

// The texts of the result point into `bytes`, which must stay. kCorrupt: no cache, of the other byte order, or damaged.
Result<LdCache> ParseLdCache(std::string_view bytes);

// Sorts and serializes. The order of entries that the loader compares as equal is kept.
std::string FormatLdCache(LdCache cache);

// Makes `path` what the loader finds for `name`: every other entry that a program of this machine could get for that
// name is removed, those for special processors (hwcaps) too. The texts must outlive the cache.
void SetLdCacheEntry(LdCache* cache, std::string_view name, std::string_view path);

// The loader's order of names: digits compare as numbers. Negative, 0 or positive.
int CompareLdCacheNames(std::string_view a, std::string_view b);

// musl's list of directories (ldso/dynlink.c), with `directory` as the first. nullopt: the file does not exist, then
// musl's own list.
std::string MuslPathWith(const std::optional<std::string>& file, std::string_view directory);
// The directories of such a file.
std::vector<std::string> MuslDirectories(const std::optional<std::string>& file);

}  // namespace vrun::gpu
