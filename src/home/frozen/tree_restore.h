// SPDX-License-Identifier: Apache-2.0
// Recreates what a tree of home's root had at a path, from content that home still has.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "home/root/content_files.h"
#include "tree/tree.h"

namespace vrun::home {

// `name` must not exist in the open `directory`. `made` is called for everything that was created (an O_PATH
// descriptor), with the entry it copies. Hard links become separate files; devices are skipped. Any thread; reads and
// writes the disk. kNotFound: the tree has no such path. kAborted: some content is gone. What was created before an
// error stays.
Status RestoreFromTree(const tree::Tree& tree, const ContentFiles& files, const std::string& path, int directory,
                       const std::string& name, const std::function<void(int fd, const tree::Entry& was)>& made);

}  // namespace vrun::home
