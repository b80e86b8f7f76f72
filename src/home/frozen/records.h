// SPDX-License-Identifier: Apache-2.0
// Small files of one directory, written for many jobs at a time.
//
// Jobs that are submitted one after the other mostly have the same content here, so that it is one file with many
// names: DIRECTORY.common is the latest one, and a record with that content is another link to it. Sync then costs one
// flush of the directory, however many records are new.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread/mutex.h"
#include "base/unique_fd.h"

namespace vrun::home {

// Any thread, Sync one at a time. A record must not be changed in place: others may have the same file.
class Records {
 public:
  // `directory` is created with the first record. `common`: the path of a file on the same file system.
  Records(std::string directory, std::string common)
      : directory_(std::move(directory)), common_path_(std::move(common)) {}

  // A record with this content will be put soon: Sync has less to do then.
  Status Prepare(std::string_view content);
  // Replaces the record of that name at once; it survives the end of this process. After a crash of the machine it may
  // be the former one, or empty, unless Sync has returned before.
  Status Put(const std::string& name, std::string_view content);
  // The same, but no Sync waits for it. `shared`: others will have the same content.
  Status PutLoose(const std::string& name, std::string_view content, bool shared = false);
  // Everything that was put before is on the disk. Blocks.
  Status Sync();

 private:
  Result<UniqueFd> Write(const std::string& path, std::string_view content) VRUN_REQUIRES(mutex_);
  Status PutCommon(std::string_view content, bool loose) VRUN_REQUIRES(mutex_);
  // A further name of common_path_.
  Status Link(const std::string& path) VRUN_REQUIRES(mutex_);

  const std::string directory_, common_path_;
  Mutex mutex_;
  bool made_ VRUN_GUARDED_BY(mutex_) = false;
  bool has_common_ VRUN_GUARDED_BY(mutex_) = false;
  bool common_loose_ VRUN_GUARDED_BY(mutex_) = false;
  std::string common_ VRUN_GUARDED_BY(mutex_);         // content of common_path_
  std::vector<UniqueFd> new_ VRUN_GUARDED_BY(mutex_);  // not on the disk
  bool names_changed_ VRUN_GUARDED_BY(mutex_) = false;
};

}  // namespace vrun::home
