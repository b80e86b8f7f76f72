// SPDX-License-Identifier: Apache-2.0
// Makes again what a tree of home's root had at a path, from the content that home still has of it.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "home/root/content_files.h"
#include "tree/tree.h"

namespace vrun::home {

// `name` must be free in the open `directory`. `made` is told of everything that was made (an O_PATH descriptor) and
// what it is a copy of. Hard links become files of their own; devices are left out. Any thread; reads and writes the
// disk. kNotFound: the tree has no such path. kAborted: some of the content is gone. What was made before an error
// stays.
Status RestoreFromTree(const tree::Snapshot& tree, const ContentFiles& files, const std::string& path, int directory,
                       const std::string& name, const std::function<void(int fd, const tree::Entry& was)>& made);

}  // namespace vrun::home
