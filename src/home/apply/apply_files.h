// SPDX-License-Identifier: Apache-2.0
// Work on single names below open directories, as applying a job's writes needs it.
#pragma once

#include <sys/stat.h>

#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"

namespace vrun::home {

// O_PATH descriptor of the name itself.
Result<UniqueFd> OpenName(int directory, const std::string& name);

// Whether both names (same or different directories) are of one type with the same content: bytes of a file, target of
// a link. False when one cannot be read; never true for directories.
bool SameContent(int directory_a, const std::string& a, int directory_b, const std::string& b);

// Runs `call` (0 or -1 with errno, as system calls do) and, where the user took the right to write in the directory
// away from himself, gives it back for the moment: a job may have done the same. The errno of the last try, 0 when it
// succeeded.
int WithWritable(int directory, const std::function<int()>& call);

// Runs `make`, which makes `name`; a name that a process of ours left which died in this very operation goes first.
// `path`: what the error names.
Status MakeTemporaryName(int directory, const std::string& name, const std::string& path,
                         const std::function<int()>& make);

// As rename, but fails with EEXIST when the new name is taken, on file systems that can tell.
int RenameToFreeName(int from_directory, const std::string& from, int to_directory, const std::string& to);

// Writes, leaving whole aligned blocks of zeros out when `sparse`.
Status WriteRange(int fd, std::string_view data, uint64_t offset, bool sparse);

// All that one open file has becomes all that the other has; `st` is that of the first. Holes stay holes where the
// other is empty.
Status CopyData(int from, int to, const struct stat& st);

// Copies a file or a whole directory to a new name, metadata included, across file systems. A failed copy is removed.
Status CopyTree(int from_directory, const std::string& from, int to_directory, const std::string& to);

}  // namespace vrun::home
