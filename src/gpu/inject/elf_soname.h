// SPDX-License-Identifier: Apache-2.0
// The SONAME of a shared library (ELF gABI, "Dynamic Section"): the name under which programs ask for it.
#pragma once

#include <optional>
#include <string>

namespace vrun::gpu {

// Of an open file. nullopt: no shared library for this machine, or a damaged one. "": a library without the entry.
// Reads a few pages, in a bounded way, and maps nothing: a file may be replaced or cut off meanwhile.
std::optional<std::string> ElfSoname(int fd);

}  // namespace vrun::gpu
