// SPDX-License-Identifier: Apache-2.0
// What an operator tells the scheduler: teams, what each may have, and the weights. One TOML file:
//
//   [weights]                     # fields of sched::core::Policy, as in `vctl sim --policy FILE`
//   theta = 1000
//
//   [team.lab]
//   guarantee = { "" = 8 }        # GPUs that it gets back from whoever borrowed them; "" is all types together
//   limit = { h100 = 4, "" = 12 } # GPUs that it never exceeds
//
//   [team.vision]
//   parent = "lab"                # what vision uses counts for lab; a parent stands before its children
//   weight = 2.0                  # share of what nobody is guaranteed, beside its siblings (1)
//   users = ["anna", "ben@ws2"]   # who may submit for it: names of certificates, or what stands before their @;
//                                 # without the list everybody
//   max_class = "production"      # the highest class of its jobs (inference)
//
// A job that names no team belongs to the first one whose list has its user, else to a team of its user's own. Teams
// that are not in the file have weight 1 and no bounds; once the file has teams, nobody may name another.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "proto/common.pb.h"
#include "sched/core.h"

namespace vrun::control {

struct TeamConfig {
  sched::core::TeamSpec spec;
  std::vector<std::string> users;
  bool everybody = true;
  v1::JobClass max_class = v1::INFERENCE;
};

struct SchedulerConfig {
  SchedulerConfig() {
    // A batch of requests is decided upon at once, and what comes meanwhile is the next batch: the longer a pass takes,
    // the more is decided by it.
    weights.pass_interval = 0;
    // Who just started can be asked to leave once the prices are as old as price_interval: somebody who waits for that
    // must not wait for the next event.
    weights.urge_interval = weights.price_interval;
  }
  sched::core::Policy weights;
  std::vector<TeamConfig> teams;  // as in the file

  // The team of a job of `user` (a certificate's name) that asks for `asked` ("": nothing). kNotFound, kDenied.
  Result<std::string> TeamFor(const std::string& user, const std::string& asked, v1::JobClass klass) const;
};

// kInvalid: "NAME:LINE: what: what to do".
Result<SchedulerConfig> ParseSchedulerConfig(std::string_view text, const std::string& name);
// A file that is not there says nothing.
Result<SchedulerConfig> ReadSchedulerConfig(const std::string& path);

// "production"; kInvalid lists the names.
Result<v1::JobClass> ParseJobClass(std::string_view name);
std::string_view JobClassName(v1::JobClass klass);

}  // namespace vrun::control
