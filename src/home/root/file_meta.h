// SPDX-License-Identifier: Apache-2.0
// Sets on a file at home the metadata that a job left: owner, extended attributes, mode, times.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "base/result.h"
#include "proto/task.pb.h"

namespace vrun::home {

enum class MetaFor {
  kFinal,
  kOpenDirectory,  // a directory that is still being filled: its owner keeps write and search permission
};

// `fd` may be an O_PATH descriptor of any kind of file, including a symbolic link. What this process is not permitted
// to set is skipped: the owner stays the user (setuid/setgid are then cleared), and the name of an attribute that
// cannot be set is added to `left_out`. Error: mode or times could not be set.
Status SetFileMeta(int fd, const vrun::v1::Meta& meta, MetaFor use, std::string* left_out);

// Owners above 65535 other than the user have no id on a node and come back as nobody (base/id_map.h). Replaces such an
// owner by that of `before`, the file that is there now.
vrun::v1::Meta KeepOwners(vrun::v1::Meta meta, const std::optional<struct stat>& before);

// The metadata of an open file (O_PATH allowed), in the form that SetFileMeta takes.
Result<vrun::v1::Meta> GetFileMeta(int fd);

}  // namespace vrun::home
