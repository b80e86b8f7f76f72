// SPDX-License-Identifier: Apache-2.0
// Operations on single names in open directories, for applying a job's writes.
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

// Whether both names (same or different directories) have the same type and content: bytes of a file, target of a link.
// False if one cannot be read; always false for directories.
bool SameContent(int directory_a, const std::string& a, int directory_b, const std::string& b);

// Runs `call` (returns 0, or -1 with errno). If the user has no write permission on his own directory, grants it for
// the moment: a job may have done the same. Returns the errno of the last try, or 0.
int WithWritable(int directory, const std::function<int()>& call);

// Removes one name; an empty directory if `is_directory`. Returns the errno, or 0.
int RemoveName(int directory, const std::string& name, bool is_directory = false);

// A path by which this process reaches a name in an open directory.
std::string NamePath(int directory, const std::string& name);

// Runs `make`, which creates `name`; first removes a `name` left by a process of ours that died in this same operation.
// `path`: for error texts.
Status MakeTemporaryName(int directory, const std::string& name, const std::string& path,
                         const std::function<int()>& make);

// Renames, also from and to the user's own directories without write permission. Without `replace` it fails with EEXIST
// if the new name exists, on file systems that support that. Returns the errno, or 0.
int MoveName(int from_directory, const std::string& from, int to_directory, const std::string& to, bool replace);

// Writes; if `sparse`, whole aligned blocks of zeros become holes.
Status WriteRange(int fd, std::string_view data, uint64_t offset, bool sparse);

// Copies a file or a whole directory to a new name, metadata included, across file systems. A failed copy is removed.
Status CopyTree(int from_directory, const std::string& from, int to_directory, const std::string& to);

}  // namespace vrun::home
