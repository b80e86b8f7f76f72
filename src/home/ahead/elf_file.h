// SPDX-License-Identifier: Apache-2.0
// What of programs and shared libraries will be wanted: their tables and data rather than all of their code, and the
// libraries that they load: their DT_NEEDED entries, and those of these (ELF gABI, "Dynamic Section"; searched as
// ld.so(8) does, without its cache and LD_LIBRARY_PATH).
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
  std::vector<std::string> search_path;  // DT_RUNPATH or DT_RPATH, not yet split from $ORIGIN
  // Where that is told, and where data ends, in no order: what a loader reads or writes of all files before it goes
  // through the tables of any.
  ElfRanges read;
};

// Of an open file; empty when it is no 64-bit dynamic ELF file of this byte order, or damaged. Reads a few pages.
ElfNeeds ReadElfNeeds(int fd);

bool IsElf(int fd);

// Leaves of an ELF file's `ranges` its tables and its writable data (cut at units). The loader goes through these from
// end to end; of code and constants a process uses little, here and there, though read-ahead makes all of it resident
// alike. Of any other file nothing is left.
void KeepTablesAndData(int fd, uint64_t unit_bytes, ElfRanges* ranges);

struct ElfLibrary {
  std::string path;  // absolute, without symbolic links
  ElfRanges read;    // ElfNeeds::read
};

// What the file at `path` loads, nearest first, itself not included; at most `most`. Files that are not to be had are
// left out.
std::vector<ElfLibrary> ElfClosure(const tree::Snapshot& snapshot, const ContentFiles& files, const std::string& path,
                                   size_t most);

// The entry at `path` after all symbolic links, and its path then.
Result<std::pair<std::string, tree::Entry>> ResolvePath(const tree::Snapshot& snapshot, std::string_view path);

}  // namespace vrun::home
