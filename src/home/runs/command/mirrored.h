// SPDX-License-Identifier: Apache-2.0
// Whether jobs see a path of the root, and before a job is made: what it names and will not see.
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

// Loop thread only. Touches no file: a file system of the network that does not answer holds up nobody.
class MirroredPlaces {
 public:
  explicit MirroredPlaces(std::string root, std::string mountinfo = "/proc/self/mountinfo");

  struct Absence {
    std::string why;   // "/tmp is not mirrored, the job has its own"
    std::string todo;  // "copy it to ..."
    bool itself;       // the path is such a place itself, which the job has as well, but empty
  };
  // None: jobs see it. `rules` may be null. `exposed`: as of DenyRules.
  std::optional<Absence> WhyNot(const std::string& path, const DenyRules* rules,
                                const std::vector<std::string>& exposed);

 private:
  const tree::MountTable* Mounts();

  const std::string root_, path_;
  UniqueFd mountinfo_;  // tells when the mounts have changed
  std::optional<tree::MountTable> mounts_;
};

// What is said of what a run names, before there is a job.
struct NamedCheck {
  std::optional<Error> refusal;  // the job could not do anything
  bool not_found = false;        // because its command is not there: 127
  std::vector<std::string> notices;
  std::string cache;  // the user's cache directory, where jobs may keep something; "": there is none
};
NamedCheck CheckNamed(const v1::Run& run, MirroredPlaces* places, const DenyRules* rules);

}  // namespace vrun::home
