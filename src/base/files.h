// SPDX-License-Identifier: Apache-2.0
// Whole-file and descriptor helpers. All retry EINTR; paths are bytes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun {

Result<UniqueFd> OpenFile(const std::string& path, int flags, mode_t mode = 0);  // adds O_CLOEXEC
Result<std::string> ReadFile(const std::string& path, size_t max_bytes = 64u << 20);
// Temporary file in the same directory, fsync, rename, fsync of the directory: the file has the old or the new content,
// never a mix.
Status WriteFileAtomic(const std::string& path, std::string_view data, mode_t mode);
// For /proc and cgroup files: one open, one write.
Status WriteKernelFile(const std::string& path, std::string_view data);

Status WriteAll(int fd, std::string_view data);
// Reads up to n bytes; short only at end of file.
Result<size_t> ReadUpTo(int fd, void* buffer, size_t n);
Result<size_t> PreadUpTo(int fd, void* buffer, size_t n, uint64_t offset);
// Whether both open files have at least `n` bytes and the first `n` are equal. False when one cannot be read.
bool SameBeginning(int a, int b, uint64_t n);
Status PwriteAll(int fd, std::string_view data, uint64_t offset);

// mkdir -p; created directories get this mode.
Status MakeDirs(const std::string& path, mode_t mode);
// rm -rf that crosses no mount and follows no symlink. A missing path is not an error.
Status RemoveTree(const std::string& path);
bool PathExists(const std::string& path);  // lstat
Status SetNonBlocking(int fd, bool on);

}  // namespace vrun
