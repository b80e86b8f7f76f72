// SPDX-License-Identifier: Apache-2.0
// Whether jobs see a path of the root, and, before a job is made, which paths that it names it will not see.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "home/root/deny_list.h"
#include "proto/local.pb.h"
#include "tree/scan/mounts.h"

namespace vrun::home {

// Loop thread only. Accesses no file, so a hanging network file system blocks nobody.
class MirroredPlaces {
 public:
  explicit MirroredPlaces(std::string root, std::string mountinfo = "/proc/self/mountinfo");

  struct Absence {
    std::string why;   // "/tmp is not mirrored, the job has its own"
    std::string todo;  // "copy it to ..."
    bool itself;       // the path itself is such a place; the job has it too, but empty
  };
  // None: jobs see the path. `rules` may be null. `exposed`: see DenyRules.
  std::optional<Absence> WhyNot(const std::string& path, const DenyRules* rules,
                                const std::vector<std::string>& exposed);

 private:
  const tree::MountTable* Mounts();

  const std::string root_, path_;
  UniqueFd mountinfo_;  // signals changes of the mount table
  std::optional<tree::MountTable> mounts_;
};

// The result of checking the paths that a run names, before there is a job.
struct NamedCheck {
  std::optional<Error> refusal;  // the job is refused, since it could not do anything
  bool not_found = false;        // its command does not exist: exit status 127
  std::vector<std::string> notices;
  std::vector<std::string> hidden;  // private paths among those of `notices`
  std::string cache;                // the user's cache directory, writable by jobs; "": there is none
};
NamedCheck CheckNamed(const v1::Run& run, MirroredPlaces* places, const DenyRules* rules);

}  // namespace vrun::home
