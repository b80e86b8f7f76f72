// SPDX-License-Identifier: Apache-2.0
// Gives a file at home the metadata that a job left: owner, extended attributes, mode, times.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "base/result.h"
#include "proto/task.pb.h"

namespace vrun::home {

enum class MetaFor {
  kFinal,
  kOpenDirectory,  // a directory that is still being filled: its owner may write and search it
};

// `fd` may be an O_PATH descriptor of any kind of file, a symbolic link included. What the rights of this process do
// not allow is left out: the owner stays the user's own (and setuid/setgid go then), an attribute that cannot be set is
// added to `left_out` by name. An error: mode or times could not be set.
Status SetFileMeta(int fd, const vrun::v1::Meta& meta, MetaFor use, std::string* left_out);

// Owners above 65535 that are not the user's have no id on a node and come back as nobody (base/id_map.h): then whoever
// owns what is there now, `before`, owns it still.
vrun::v1::Meta KeepOwners(vrun::v1::Meta meta, const std::optional<struct stat>& before);

// The metadata of an open file (O_PATH allowed), as SetFileMeta takes it.
Result<vrun::v1::Meta> GetFileMeta(int fd);

}  // namespace vrun::home
