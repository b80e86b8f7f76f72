// SPDX-License-Identifier: Apache-2.0
// Which parts of programs and shared libraries will be read (their tables and data, not all of their code), and which
// libraries they load: their DT_NEEDED entries, recursively (ELF gABI, "Dynamic Section"; searched as ld.so(8) does,
// without its cache and LD_LIBRARY_PATH).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "home/root/content_files.h"
#include "tree/tree.h"

namespace vrun::home {

using ElfRanges = std::vector<std::pair<uint64_t, uint64_t>>;  // [first, end), in bytes of the file

struct ElfNeeds {
  std::vector<std::string> libraries;    // DT_NEEDED
  std::vector<std::string> search_path;  // DT_RUNPATH or DT_RPATH, $ORIGIN not yet replaced
  // The ranges, in no order, that a loader reads or writes in all files before it goes through the tables of any:
  // headers, the dynamic section, its names and version tables, and the end of the data.
  ElfRanges read;
};

// Reads an open file; empty if it is not a 64-bit dynamic ELF file of this byte order, or is damaged. Reads a few
// pages.
ElfNeeds ReadElfNeeds(int fd);

bool IsElf(int fd);

// Reduces `ranges` of an ELF file to its tables and writable data (cut at units). The loader reads these from end to
// end; of code and constants a process uses few places, though read-ahead makes all of it resident. For any other file
// nothing remains.
void KeepTablesAndData(int fd, uint64_t unit_bytes, ElfRanges* ranges);

struct ElfLibrary {
  std::string path;  // absolute, without symbolic links
  ElfRanges read;    // ElfNeeds::read
};

// The libraries that the file at `path` loads, nearest first, without itself; at most `most`. Unavailable files are
// skipped.
std::vector<ElfLibrary> ElfClosure(const tree::Tree& snapshot, const ContentFiles& files, const std::string& path,
                                   size_t most);

// The entry at `path` after all symbolic links, and its resolved path.
Result<std::pair<std::string, tree::Entry>> ResolvePath(const tree::Tree& snapshot, std::string_view path);

}  // namespace vrun::home
