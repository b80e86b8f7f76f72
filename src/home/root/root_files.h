// SPDX-License-Identifier: Apache-2.0
// Reads files of the root by path and version: exactly that version, or an error, never a mixture.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"
#include "home/root/content_files.h"
#include "home/root/shared_mappings.h"
#include "tree/tree.h"

namespace vrun::home {

// Any thread.
class RootFiles final : public ContentFiles {
 public:
  // `root`: directory of this machine that is "/" of the tree. `mappings`: null if shared mappings are not tracked.
  static Result<RootFiles> Open(const std::string& root, std::shared_ptr<const SharedMappings> mappings = nullptr);

  // An open file that it refuses is not served by this path. Call before the first request; used on any thread.
  using Judge = std::function<Status(int fd, const struct stat& st, std::string_view path)>;
  void SetJudge(Judge judge) { judge_ = std::move(judge); }

  // Follows no symlink in any component, opens nothing but regular files, and does not change the atime where the
  // kernel allows that. kDenied: this user may not read the file.
  Result<UniqueFd> OpenPart(std::string_view path, const tree::FileVersion& version, uint64_t offset,
                            uint64_t length) const override;
  Status Check(int fd, std::string_view path, const tree::FileVersion& version) const override;

 private:
  RootFiles(UniqueFd root, std::shared_ptr<const SharedMappings> mappings)
      : root_(std::move(root)), mappings_(std::move(mappings)) {}
  UniqueFd root_;
  std::shared_ptr<const SharedMappings> mappings_;
  Judge judge_;
};

}  // namespace vrun::home
